"""FAISS indexes in folders."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from conftest import limited_files
from mrl_vectors import mrl_like

from beir_cocodr.errors import DiskFull, InputError
from beir_cocodr.retrieval.faiss.index import FaissIndex
from beir_cocodr.retrieval.faiss.transform import FaissOptions

faiss = pytest.importorskip("faiss")
KEY = {"model": "tiny", "corpus": "c0ffee", "lengths": [64, 128]}


def built(
    kind: str = "sq8", transform: str = "folding", documents: int = 600, k: int = 8, **changes
):
    queries, vectors = mrl_like(documents, 20, k=k)
    options = FaissOptions(kind=kind, transform=transform, **changes)
    return queries, vectors, FaissIndex.build(vectors, options, queries, KEY)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivfpq", "sq8"])
@pytest.mark.parametrize("transform", ["none", "centring", "folding"])
def test_what_is_loaded_finds_the_same(kind, transform, tmp_path):
    queries, vectors, index = built(kind, transform, nprobe=2)
    index.save(tmp_path / "new" / "index")
    loaded = FaissIndex.load(tmp_path / "new" / "index", key={"model": "tiny"})
    for one, other in zip(index.search(queries, 15), loaded.search(queries, 15), strict=True):
        np.testing.assert_array_equal(one, other)
    assert loaded.options == index.options
    assert loaded.record == index.record
    assert loaded.record["key"] == KEY
    assert (loaded.count, loaded.width) == (600, 17)
    exact = loaded.search(queries, 15, vectors=vectors), index.search(queries, 15, vectors=vectors)
    np.testing.assert_array_equal(*(rows for _, rows in exact))


def test_settings_say_what_it_is(tmp_path):
    _, _, index = built("ivfpq")
    index.save(tmp_path / "index")
    settings = json.loads((tmp_path / "index" / "settings.json").read_text())
    assert (settings["count"], settings["width"], settings["key"]) == (600, 17, KEY)
    assert settings["recall"] == index.record["recall"]
    assert set(settings["recall"]) == {"recall@10", "recall@100", "queries", "of"}
    assert settings["options"]["nlist"] == index.options.nlist == 15
    assert settings["faiss"] == faiss.__version__
    # FAISS itself reads the index.
    assert faiss.read_index(str(tmp_path / "index" / "index.faiss")).ntotal == 600


def test_a_second_one_takes_the_place_of_the_first(tmp_path):
    _, _, first = built("flat")
    _, _, second = built("sq8", documents=300)
    first.save(tmp_path / "index")
    second.save(tmp_path / "index")
    assert FaissIndex.load(tmp_path / "index").count == 300
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    (tmp_path / "empty").mkdir()
    first.save(tmp_path / "empty")
    assert FaissIndex.load(tmp_path / "empty").count == 600


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    queries, _, first = built("flat")
    first.save(tmp_path / "index")

    def full(index, writer):
        raise RuntimeError("Error in write: disk full")

    monkeypatch.setattr(faiss, "write_index", full)
    with pytest.raises(InputError, match=r"cannot be written.*disk full"):
        first.save(tmp_path / "index")
    with pytest.raises(InputError, match="cannot be written"):
        first.save(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    np.testing.assert_array_equal(
        FaissIndex.load(tmp_path / "index").search(queries, 5)[1], first.search(queries, 5)[1]
    )


def test_a_full_disk_is_known_and_faiss_itself_writes_no_line(tmp_path, capfd):
    for documents, size in (
        (600, 5_000),
        (40, 50),
    ):  # of a small one faiss would report nothing but such a line
        _, _, index = built("flat", documents=documents, k=2)
        with pytest.raises(DiskFull, match=r"File too large|No space"), limited_files(size):
            index.save(tmp_path / "index")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_overwritten(tmp_path):
    _, _, index = built("flat")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "text").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place in ("notes", "file"):
        with pytest.raises(InputError, match="not an index"):
            index.save(tmp_path / place)
    assert (tmp_path / "notes" / "text").read_text() == "mine"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Indexes of two corpora of different sizes and widths."""
    root = tmp_path_factory.mktemp("indexes")
    built()[2].save(root / "one")
    built(documents=500)[2].save(root / "shorter")
    built(k=9)[2].save(root / "wider")
    built("flat")[2].save(root / "flat")
    built(transform="centring")[2].save(root / "centred")
    return root


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("index.faiss", "shorter", "documents.*500 .*600"),
        ("index.faiss", "wider", "dimensions .*index.*19 .*17"),
        ("index.faiss", "flat", "kind.*IndexFlat .*IndexScalarQuantizer"),
        ("transform.safetensors", "wider", "dimensions .*transform.*19 .*17"),
        ("transform.safetensors", "centred", "not a folding"),
        ("prior.npy", "shorter", "priors.*500 .*600"),
    ],
)
def test_files_of_different_indexes_are_refused(folders, tmp_path, file, source, message):
    shutil.copytree(folders / "one", tmp_path / "mixed")
    shutil.copy(folders / source / file, tmp_path / "mixed" / file)
    with pytest.raises(InputError, match=message) as caught:
        FaissIndex.load(tmp_path / "mixed", verify=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "file", ["index.faiss", "transform.safetensors", "prior.npy", "settings.json"]
)
@pytest.mark.parametrize("damage", ["absent", "cut", "other"])
@pytest.mark.parametrize("verified", [True, False])
def test_damaged_files_are_refused(folders, tmp_path, file, damage, verified):
    shutil.copytree(folders / "one", tmp_path / "index")
    path = tmp_path / "index" / file
    if damage == "absent":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100] if damage == "cut" else b"[1, 2]")
    with pytest.raises(InputError, match="index") as caught:
        FaissIndex.load(tmp_path / "index", verify=verified)
    assert "\n" not in str(caught.value)


def test_another_key_or_version_is_refused(folders, tmp_path):
    with pytest.raises(InputError, match='"c0ffee" there, "decaf" now'):
        FaissIndex.load(folders / "one", key={"corpus": "decaf"})
    with pytest.raises(InputError, match='dtype null there, "fp16" now'):
        FaissIndex.load(folders / "one", key={"dtype": "fp16"})
    with pytest.raises(InputError, match="no index"):
        FaissIndex.load(tmp_path / "nowhere")
    shutil.copytree(folders / "one", tmp_path / "index")
    settings = tmp_path / "index" / "settings.json"
    settings.write_text(settings.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(InputError, match="version"):
        FaissIndex.load(tmp_path / "index", verify=False)
