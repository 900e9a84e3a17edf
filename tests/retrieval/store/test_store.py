from __future__ import annotations

import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_beir

from beir_cocodr import COCODR, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.io import sole_writer
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.retrieval.store.encode import (
    ShardJob,
    collection_queries,
    encode,
    encode_documents,
)
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.pool import Workers

DOCUMENTS = 70
SIZE = 16  # five shards, the last of them with 6 documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("store") / "corpus", documents=DOCUMENTS)


@pytest.fixture(scope="module")
def store(tmp_path_factory, folder, tiny_bert) -> Path:
    """A store that no test may change."""
    output = tmp_path_factory.mktemp("stores") / "whole"
    run(folder, tiny_bert, output)
    return output


def run(folder: Path, model: Path, output: Path, **options: Any) -> dict[str, Any]:
    encoder = {
        name: options.pop(name)
        for name in ("document_length", "title_separator")
        if name in options
    }
    options = {"shard_size": SIZE} | options
    return encode(
        str(folder),
        str(model),
        output,
        EncodeOptions(**options),
        workers=Workers(threads=1),
        encoder=EncoderOptions(**encoder),
    )


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
    }


def copied(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "copy"))


def test_vectors_and_ids_are_those_of_the_corpus_in_its_order(folder, store, tiny_bert):
    documents, opened = load_collection(folder).documents, EmbeddingStore.open(store)
    expected = COCODR(tiny_bert).encode_corpus(list(documents.values()))
    chunks = list(opened.chunks())
    assert [len(chunk) for chunk in chunks] == [16, 16, 16, 16, 6]
    np.testing.assert_allclose(torch.cat(chunks), expected, atol=1e-4)
    assert (len(opened), opened.dimensions) == (DOCUMENTS, 32)
    rows = np.random.default_rng(0).integers(0, DOCUMENTS, 200)
    np.testing.assert_allclose(opened.rows(rows), expected[rows], atol=1e-4)
    assert opened.ids(rows) == documents.ids(rows)
    ranks = np.concatenate([ranks for _, ranks in opened.ranked_chunks()])
    np.testing.assert_array_equal(ranks, documents.tie_ranks())


def test_the_record_says_what_the_vectors_depend_on(folder, store, tiny_bert):
    record = json.loads((store / "store.json").read_text())
    documents = load_collection(folder).documents
    assert record["identity"]["corpus"] == documents.content_hash
    assert record["identity"]["document_length"] == 128
    assert record["model"] == {"name": str(tiny_bert), "path": str(tiny_bert.resolve())}
    assert not any(path.name.startswith(".") for path in store.iterdir())
    assert {path.stat().st_mode & 0o777 for path in store.rglob("*") if path.is_file()} == {
        (store / "store.json").stat().st_mode & 0o777
    }


def test_a_complete_store_is_left_as_it_is(folder, store, tiny_bert):
    before = {path: path.stat().st_mtime_ns for path in store.iterdir()}
    report = run(folder, tiny_bert, store, shard_size=None)
    assert report["documents_encoded"] == 0
    assert report["estimate"] is None
    assert {path: path.stat().st_mtime_ns for path in store.iterdir()} == before


def test_an_interrupted_store_is_gone_on_with(folder, store, tiny_bert, tmp_path):
    copy = copied(store, tmp_path)
    for name in ("shard-00001.safetensors", "shard-00004.safetensors", "tie_ranks.npy"):
        (copy / name).unlink()
    with pytest.raises(InputError, match=r"2 of 5 shards .*encode"):
        EmbeddingStore.open(copy)
    before = {path: path.stat().st_mtime_ns for path in copy.glob("shard-*")}
    report = run(folder, tiny_bert, copy, shard_size=None)  # the store's own size
    assert report["documents_encoded"] == 16 + 6
    assert contents(copy) == contents(store)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_broken_and_foreign_shards_are_made_again_and_said(
    folder, store, tiny_bert, tmp_path, caplog
):
    copy = copied(store, tmp_path)
    torn, foreign = copy / "shard-00000.safetensors", copy / "shard-00003.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    shutil.copy(copy / "shard-00001.safetensors", foreign)
    report = run(folder, tiny_bert, copy)
    assert report["documents_encoded"] == 32
    assert f"{torn} was changed" in caplog.text
    assert f"{foreign} was changed" in caplog.text
    assert contents(copy) == contents(store)
    torn.write_bytes(torn.read_bytes()[:-100])
    shutil.copy(copy / "shard-00001.safetensors", foreign)
    run(folder, tiny_bert, copy, verify=False)
    assert f"{torn} is not a shard" in caplog.text
    assert f"{foreign} is a shard of something else" in caplog.text
    assert contents(copy) == contents(store)


def test_what_a_killed_writer_left_is_removed(folder, store, tiny_bert, tmp_path):
    copy = copied(store, tmp_path)
    (copy / "shard-00002.safetensors").rename(copy / ".unfinished-1234-shard-00002.safetensors")
    (copy / "notes.txt").write_text("not ours")
    (copy / ".git").mkdir()
    run(folder, tiny_bert, copy)
    (copy / ".git").rmdir()
    assert contents(copy) == contents(store) | {"notes.txt": b"not ours"}


def test_two_writers_at_once_are_refused(folder, store, tiny_bert, tmp_path):
    copy = copied(store, tmp_path)
    # From another thread: one may take again what it holds.
    with (
        sole_writer(copy),
        ThreadPoolExecutor(1) as other,
        pytest.raises(InputError, match="another process"),
    ):
        other.submit(run, folder, tiny_bert, copy).result()
    run(folder, tiny_bert, copy)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"document_length": 40}, "document_length 128 there, 40 now"),
        ({"title_separator": " - "}, 'title_separator " " there, " - " now'),
        ({"precision": "int8"}, 'precision "fp32" there, "int8" now'),
        ({"backend": "bf16"}, 'backend "fp32" there, "bf16" now'),
        ({"shard_size": 20}, "shard_size 16 there, 20 now"),
        ({"model": "cosine"}, r"architecture \w{16} there"),
        ({"corpus": "other"}, r"corpus \w{16} there, \w{16} now"),
    ],
)
def test_another_key_is_refused_with_both(
    folder, store, tiny_bert, tiny_cosine, tmp_path_factory, tmp_path, change, differs
):
    before = contents(store)
    model = tiny_cosine if change.pop("model", None) else tiny_bert
    corpus = write_beir(tmp_path / "c", DOCUMENTS, seed=1) if change.pop("corpus", None) else folder
    key = json.loads((store / "store.json").read_text())["key"][:16]
    with pytest.raises(InputError, match=rf"{key}.*\w{{16}}.*{differs}") as caught:
        run(corpus, model, store, **change)
    assert "\n" not in str(caught.value)
    assert contents(store) == before


def test_a_record_that_was_changed_or_is_something_else_is_refused(
    folder, store, tiny_bert, tmp_path
):
    copy = copied(store, tmp_path)
    record = json.loads((copy / "store.json").read_text())
    record["identity"]["document_length"] = 64
    (copy / "store.json").write_text(json.dumps(record))
    for verify in (True, False):
        with pytest.raises(InputError, match=r"store\.json .*changed"):
            EmbeddingStore.open(copy, verify)
    (copy / "store.json").write_text("[]")
    for verify in (True, False):
        with pytest.raises(InputError, match="encode"):
            run(folder, tiny_bert, copy, verify=verify)
    with pytest.raises(InputError, match=r"no embeddings.*encode"):
        EmbeddingStore.open(tmp_path / "nowhere")


def test_a_folder_that_contains_something_else_is_refused_and_left_as_it_is(
    folder, tiny_bert, tmp_path
):
    other = shutil.copytree(tiny_bert, tmp_path / "model")
    before = contents(other)
    with pytest.raises(InputError, match=f"{other} contains no embeddings but config.json"):
        run(folder, tiny_bert, other)
    assert contents(other) == before


def test_queries_with_one_id_are_refused_by_their_lines(folder, tmp_path):
    """Queries without labels are read by this function alone, for example by ``fuse``."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    lines = (copy / "queries.jsonl").read_text().splitlines(keepends=True)
    assert len(collection_queries(copy)) == len(lines)
    (copy / "queries.jsonl").write_text("".join([lines[0], *lines]))
    with pytest.raises(InputError, match=r"queries\.jsonl.* on lines 1 and 2"):
        collection_queries(copy)


def test_stores_of_later_versions_are_not_read(store, tmp_path):
    copy = copied(store, tmp_path)
    content = json.loads((copy / "store.json").read_text())
    assert content["schema"] == 1
    (copy / "store.json").write_text(json.dumps(content | {"schema": 2}))
    with pytest.raises(InputError, match=r"schema 2.*encode"):
        EmbeddingStore.open(copy, verify=False)
    del content["documents"]
    (copy / "store.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"store\.json.*documents.*encode"):
        EmbeddingStore.open(copy, verify=False)


def breaking(tiny_bert: Path, value: float, word: str = "treaty") -> COCODR:
    """An encoder that has a broken embedding of one word."""
    model = COCODR(tiny_bert)
    with torch.no_grad():
        row = model.tokenizer.convert_tokens_to_ids(word)
        model.transformers_model.get_input_embeddings().weight[row] = value
    return model


def test_nan_stops_and_names_the_document_and_what_was_written_stays(tiny_bert, tmp_path):
    path = tmp_path / "corpus.jsonl"
    texts = ["wing flow", "library index", "circuit", "shock layer", "the treaty", "diode"]
    path.write_text(
        "".join(json.dumps({"_id": f"x{i}", "text": t}) + "\n" for i, t in enumerate(texts))
    )
    documents = load_collection(path, labels="none").documents
    options = EncodeOptions(shard_size=2)
    with pytest.raises(InputError, match=r"NaN .*document 'x4'"):
        encode_documents(breaking(tiny_bert, float("nan")), documents, tmp_path / "store", options)
    assert not (tmp_path / "store" / "store.json").exists()  # a sample this small has all documents


def test_nan_beyond_the_sample_leaves_the_shards_before_it(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "beir_cocodr.retrieval.store.encoding_cost.SAMPLE", 2
    )  # the first and the last
    path = tmp_path / "corpus.jsonl"
    texts = ["wing flow", "library index", "circuit", "shock layer", "the treaty", "diode"]
    path.write_text(
        "".join(json.dumps({"_id": f"x{i}", "text": t}) + "\n" for i, t in enumerate(texts))
    )
    documents = load_collection(path, labels="none").documents
    with pytest.raises(InputError, match="document 'x4'"):
        encode_documents(
            breaking(tiny_bert, float("nan")),
            documents,
            tmp_path / "s",
            EncodeOptions(shard_size=2),
        )
    assert [path.name for path in sorted((tmp_path / "s").glob("*shard*"))] == [
        "shard-00000.safetensors",
        "shard-00001.safetensors",
    ]


def test_disk_memory_and_time_are_said_before_anything_is_written(
    folder, tiny_bert, tmp_path, caplog
):
    with caplog.at_level(logging.INFO):
        report = run(folder, tiny_bert, tmp_path / "s")
    said = next(record for record in caplog.records if "documents to encode" in record.getMessage())
    assert said.created < (tmp_path / "s" / "store.json").stat().st_mtime + 0.01
    assert "70 documents to encode: about" in said.getMessage()
    shards = sum(path.stat().st_size for path in (tmp_path / "s").glob("shard-*"))
    ids = report["bytes"] - shards
    headers = 300 * 5
    assert abs(report["estimate"]["disk_bytes"] - shards) < headers + ids + 24 * DOCUMENTS
    assert report["estimate"]["memory_bytes"] > 50 << 20
    assert 0 < report["estimate"]["seconds"] < 60


def test_a_disk_that_is_too_full_is_refused_first(folder, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000))
    with pytest.raises(InputError, match=r"0\.0 MiB, but only 0\.0 MiB is free"):
        run(folder, tiny_bert, tmp_path / "s")
    assert list((tmp_path / "s").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_size": 0}, "shard_size .*0"),
        ({"token_budget": 0}, "token_budget .*0"),
        ({"precision": "fp8"}, "'fp8'.*fp32, fp16, bf16, int8"),
        ({"backend": "int4"}, "backend 'int4'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        EncodeOptions(**options)


def test_bad_calls(folder, tiny_bert, tmp_path):
    with pytest.raises(InputError, match="0 processes"):
        encode(str(folder), str(tiny_bert), tmp_path / "s", workers=Workers(processes=0))
    for threads in (0, 10**70):
        with pytest.raises(InputError, match=f"threads .*{threads}"):
            encode(str(folder), str(tiny_bert), tmp_path / "s", workers=Workers(threads=threads))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        encode(str(folder), str(tiny_bert), tmp_path / "file")
    (tmp_path / "c.jsonl").write_text('{"_id": "1", "text": "a"}\n{"_id": "2", "text": \n')
    with pytest.raises(InputError, match=r"c\.jsonl:2"):
        encode(str(tmp_path / "c.jsonl"), str(tiny_bert), tmp_path / "s")
    assert not (tmp_path / "s" / "store.json").exists()


def test_queries_of_another_width_are_refused(store):
    with pytest.raises(InputError, match=r"7 dimensions.*32"):
        EmbeddingStore.open(store).queries(torch.ones(2, 7))


def test_a_store_that_is_gone_before_its_shards_are_written_is_said(folder, tiny_bert, tmp_path):
    documents = load_collection(folder).documents
    job = ShardJob(
        tmp_path / "nowhere", documents, str(tiny_bert), EncoderOptions(), EncodeOptions(), 1
    )
    with pytest.raises(InputError, match=r"nowhere.* no longer exists"):
        job.start("cpu")
    assert list(tmp_path.iterdir()) == []
