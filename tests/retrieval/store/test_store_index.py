from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import write_beir

from beir_cocodr import MRL
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.store_run import StoreSearchOptions, search
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.pool import Workers

pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("index") / "corpus", documents=300)


@pytest.fixture(scope="module")
def store(tmp_path_factory, folder, tiny_bert) -> Path:
    output = tmp_path_factory.mktemp("stores") / "dot"
    encode(
        str(folder),
        str(tiny_bert),
        output,
        EncodeOptions(shard_size=64),
        workers=Workers(threads=1),
    )
    return output


def read(run: Path) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    for line in run.read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        results.setdefault(query, {})[document] = float(score)
    return results


def overlap(one: Path, other: Path) -> float:
    left, right = read(one), read(other)
    return float(
        np.mean(
            [len(left[query].keys() & right[query].keys()) / len(right[query]) for query in right]
        )
    )


@pytest.mark.parametrize(
    ("kind", "least"), [("flat", 1.0), ("hnsw", 0.95), ("sq8", 0.99), ("ivfpq", 0.4)]
)
def test_an_index_is_built_once_and_its_hits_have_exact_scores(
    folder, store, tmp_path, caplog, kind, least
):
    search(store, str(folder), tmp_path / "exact.run", StoreSearchOptions(top_k=10, threads=1))
    with caplog.at_level(logging.INFO):
        search(
            store,
            str(folder),
            tmp_path / "built.run",
            StoreSearchOptions(top_k=10, threads=1, index=kind),
        )
        assert "compared with exact search: recall@10" in caplog.text
        built = {path: path.stat().st_mtime_ns for path in (store / f"index-{kind}").iterdir()}
        caplog.clear()
        search(
            store,
            str(folder),
            tmp_path / "loaded.run",
            StoreSearchOptions(top_k=10, threads=1, index=kind),
        )
        assert (
            "is loaded; its recall against exact search, when it was built: {'recall@10'"
            in caplog.text
        )
    assert {path: path.stat().st_mtime_ns for path in (store / f"index-{kind}").iterdir()} == built
    assert (tmp_path / "loaded.run").read_bytes() == (tmp_path / "built.run").read_bytes()
    assert overlap(tmp_path / "built.run", tmp_path / "exact.run") >= least
    exact, found = read(tmp_path / "exact.run"), read(tmp_path / "built.run")
    for query, documents in exact.items():
        for document in documents.keys() & found[query].keys():
            assert found[query][document] == pytest.approx(documents[document], rel=1e-5)
    # An index does not make the store another one.
    assert EmbeddingStore.open(store).missing() == []


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_mrl_by_an_index_has_the_scores_of_exact_search(folder, tiny_bert, tmp_path, precision):
    MRL(str(tiny_bert)).save_pretrained(str(tmp_path / "mrl"))
    options = EncodeOptions(shard_size=64, precision=precision)
    encode(
        str(folder), str(tmp_path / "mrl"), tmp_path / "store", options, workers=Workers(threads=1)
    )
    search(
        tmp_path / "store",
        str(folder),
        tmp_path / "exact.run",
        StoreSearchOptions(top_k=10, threads=1),
    )
    search(
        tmp_path / "store",
        str(folder),
        tmp_path / "index.run",
        StoreSearchOptions(top_k=10, threads=1, index="sq8"),
    )
    assert overlap(tmp_path / "index.run", tmp_path / "exact.run") >= 0.95
    exact, found = read(tmp_path / "exact.run"), read(tmp_path / "index.run")
    for query, documents in exact.items():
        for document in documents.keys() & found[query].keys():
            assert found[query][document] == pytest.approx(documents[document], rel=1e-4)


def test_an_index_of_another_store_and_an_unknown_kind_are_refused(
    folder, store, tiny_bert, tmp_path
):
    with pytest.raises(InputError, match=r"'annoy'.*flat, hnsw, ivfpq, sq8"):
        search(store, str(folder), tmp_path / "run", StoreSearchOptions(index="annoy"))
    search(store, str(folder), tmp_path / "run", StoreSearchOptions(index="flat", threads=1))
    encode(
        str(folder),
        str(tiny_bert),
        tmp_path / "other",
        EncodeOptions(shard_size=50),
        workers=Workers(threads=1),
    )
    shutil.copytree(store / "index-flat", tmp_path / "other" / "index-flat")
    with pytest.raises(InputError, match="index-flat"):
        search(
            tmp_path / "other",
            str(folder),
            tmp_path / "other.run",
            StoreSearchOptions(index="flat"),
        )
