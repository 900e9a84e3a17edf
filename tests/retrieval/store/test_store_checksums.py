"""Stores, and the indexes in them, whose files are not what was written."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_beir

from beir_cocodr import MRL, checksums
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.store_run import StoreSearchOptions, search
from beir_cocodr.retrieval.faiss.index import FaissIndex
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.store.store_search import search_index, search_store
from beir_cocodr.retrieval.vectors.pool import Workers

#: Of each file: the first and last bytes, and places drawn with a seed.
FLIPS = 4

DERIVED = ["ids.parquet", "tie_order.npy", "tie_ranks.npy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("checksums") / "corpus", documents=70)


def run(folder: Path, model: Path, output: Path, **options) -> dict[str, object]:
    return encode(
        str(folder),
        str(model),
        output,
        EncodeOptions(shard_size=32, **options),
        workers=Workers(threads=1),
    )


@pytest.fixture(scope="module")
def stores(tmp_path_factory, folder, tiny_bert) -> dict[str, Path]:
    """Stores that no test may change, by their models."""
    root = tmp_path_factory.mktemp("stores")
    MRL(str(tiny_bert)).save_pretrained(str(root / "model"))
    run(folder, tiny_bert, root / "dot")
    run(folder, root / "model", root / "mrl", precision="int8")
    return {
        "dot": root / "dot",
        "mrl": root / "mrl",
        "mrl model": root / "model",
        "dot model": tiny_bert,
    }


@pytest.fixture
def copied(stores, tmp_path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(stores[name], tmp_path / name))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def flip(path: Path, place: int = -1, bits: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= bits
    path.write_bytes(content)


def searched(store: Path, index: str | None = None) -> list[str]:
    opened = EmbeddingStore.open(store)
    queries, ids = torch.linspace(-1, 1, 4 * opened.dimensions).reshape(4, -1), list("abcd")
    queries[:, 0] = 1  # as MRL's
    if index is None:
        ranking = search_store(opened, ids, queries, 10, workers=Workers(threads=1))
    else:
        ranking = search_index(opened, index, ids, queries, 10)  # type: ignore[arg-type]
    return opened.ids(ranking.rows[ranking.rows >= 0])


def refusal(store: Path, index: str | None) -> str | None:
    try:
        searched(store, index)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("name", "index"), [("dot", None), ("mrl", None), ("dot", "flat"), ("mrl", "sq8")]
)
def test_every_flipped_byte_is_refused_in_one_line(copied, name, index):
    if index:
        pytest.importorskip("faiss")
    store, random = copied(name), np.random.default_rng(0)
    expected = searched(store, index)
    unread = (
        []
        if name == "mrl" or index is None
        else [f"shard-0000{number}.safetensors" for number in range(3)]
    )
    unread += ["tie_order.npy"] if index else []
    unread += ["texts.npy"]  # read by an update alone
    silent = []
    for path in sorted(
        path for path in store.rglob("*") if path.is_file() and path.name not in unread
    ):
        content = path.read_bytes()
        places = {0, 7, 8, len(content) - 1, *random.integers(0, len(content), FLIPS).tolist()}
        for place in sorted(place for place in places if place < len(content)):
            flip(path, place, int(random.integers(1, 256)))
            message = refusal(store, index)
            if message is None or "\n" in message or str(store) not in message:
                silent.append((path.name, place, message))
            path.write_bytes(content)
    assert silent == []
    assert searched(store, index) == expected


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("file", ["shard-00001.safetensors", *DERIVED])
def test_encode_makes_what_is_broken_anew(folder, stores, copied, caplog, file, checksum):
    store = copied("dot")
    flip(store / "checksums" / file if checksum else store / file, -3)
    with pytest.raises(InputError, match=rf"{file} was changed.*encode"):
        searched(store)
    report = run(folder, stores["dot model"], store)
    assert report["documents_encoded"] == (32 if "shard" in file else 0)
    assert f"{file} was changed" in caplog.text
    assert "is complete" not in caplog.text
    assert contents(store) == contents(stores["dot"])
    (store / "checksums" / file).unlink()
    run(folder, stores["dot model"], store)
    assert contents(store) == contents(stores["dot"])


def test_what_encode_cannot_make_anew_is_refused_in_one_line(
    folder, stores, copied, capsys, tmp_path
):
    for name, file in (("mrl", "folding.safetensors"), ("mrl", "store.json")):
        store = copied(name)
        flip(store / file, -2)
        before = contents(store)
        arguments = [
            "--dataset",
            str(folder),
            "--model",
            str(stores["mrl model"]),
            "--output",
            str(store),
        ]
        with pytest.raises(SystemExit) as status:
            main(
                [
                    "encode",
                    *arguments,
                    "--precision",
                    "int8",
                    "--shard-size",
                    "32",
                    "--device",
                    "cpu",
                ]
            )
        [line] = [
            line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")
        ]
        assert status.value.code == 2
        assert str(store) in line
        assert file in line
        assert "delete the folder and encode again" in line
        assert contents(store) == before
        shutil.rmtree(store)


def test_no_verify_reads_what_is_there(folder, stores, copied, tmp_path):
    store = copied("dot")
    flip(store / "shard-00001.safetensors", -3)
    arguments = ["--dataset", str(folder), "--store", str(store), "--output", str(tmp_path / "run")]
    for more, expected in (([], 2), (["--no-verify"], 0)):
        with pytest.raises(SystemExit) as status:
            main(["search", *arguments, "--device", "cpu", *more])
        assert status.value.code == expected
    assert run(folder, stores["dot model"], store, verify=False)["documents_encoded"] == 0
    with pytest.raises(InputError, match="shard-00001"):
        search(store, str(folder), tmp_path / "run", StoreSearchOptions(threads=1))


def test_a_store_or_an_index_that_lost_its_checksums_is_refused_in_one_line(folder, stores, copied):
    pytest.importorskip("faiss")
    store = copied("dot")
    searched(store, "flat")
    shutil.rmtree(store / "index-flat" / "checksums")
    message = str(refusal(store, "flat"))
    assert str(store / "index-flat" / "checksums" / "settings.json") in message
    assert message.endswith("delete the folder of this index, and the next search builds it again")
    FaissIndex.load(store / "index-flat", verify=False)
    shutil.rmtree(store / "checksums")
    message = str(refusal(store, None))
    assert str(store / "checksums" / "store.json") in message
    assert message.endswith("delete the folder and encode again")
    with pytest.raises(InputError, match="delete the folder and encode again"):
        run(folder, stores["dot model"], store)
    assert not any("\n" in str(refusal(store, index)) for index in (None, "flat"))
    EmbeddingStore.open(store, verify=False).ids([0])


def test_a_file_is_hashed_once_in_a_process(copied, monkeypatch):
    store, hashed = copied("dot"), []
    time.sleep(0.05)  # files as young as this might change unnoticed
    original = checksums._checksum
    monkeypatch.setattr(
        checksums,
        "_checksum",
        lambda path, *content: hashed.append(path.name) or original(path, *content),
    )
    for _ in range(2):
        searched(store)
    EmbeddingStore.open(store).rows(np.arange(70))
    read = {path.name for path in store.iterdir() if path.is_file()} - {"texts.npy"}
    assert sorted(hashed) == sorted(read)
