"""BM25's negatives against all scores; their cache, and how processes share the work."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import numpy as np
import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.retrieval import bm25
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.postings import Postings
from beir_cocodr.retrieval.vectors import pool
from beir_cocodr.training.hard_negatives import bm25_negatives as negatives


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder, "train")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty one; and files of three queries."""
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path))
    monkeypatch.setattr(negatives, "_QUERIES", 3)
    return tmp_path / "bm25"


def found(collection, depth=5):
    return {
        q: rows.tolist()
        for q, rows in negatives.bm25_negatives(collection, TextFormat(), depth).items()
    }


def expected(collection, depth):
    index, ids = BM25(collection.documents), collection.documents.ids()
    ties = collection.documents.tie_ranks()
    wanted = {}
    for query, text in collection.queries.items():
        scores = index.scores(text)
        order = [row for row in np.lexsort((ties, -scores)).tolist() if scores[row] > 0]
        relevant = {
            document for document, grade in collection.qrels.get(query, {}).items() if grade > 0
        }
        wanted[query] = [row for row in order if ids[row] not in relevant][:depth]
    return wanted


def test_they_are_the_best_of_all_scores_without_the_relevant(collection, cache):
    assert found(collection) == expected(collection, 5)
    assert found(collection, 1000) == expected(collection, 1000)
    assert found(collection, 10**9) == expected(collection, 1000)


def test_nothing_is_searched_twice(collection, cache, monkeypatch, caplog):
    first = found(collection)
    monkeypatch.setattr(Postings, "search", lambda *_: pytest.fail("searched again"))
    monkeypatch.setattr(Postings, "build", lambda *_: pytest.fail("indexed again"))
    with caplog.at_level(logging.INFO):
        assert found(collection) == first
    assert "read from" in caplog.text


@pytest.mark.parametrize("change", ["depth", "text", "positive"])
def test_what_they_depend_on_makes_others(collection, cache, change):
    found(collection)
    queries, qrels = (
        dict(collection.queries),
        {q: dict(grades) for q, grades in collection.qrels.items()},
    )
    id = next(iter(queries))
    if change == "text":
        queries[id] += " wing"
    if change == "positive":
        qrels[id][collection.documents.ids()[0]] = 1
    changed = replace(collection, queries=queries, qrels=qrels)
    depth = 6 if change == "depth" else 5
    assert found(changed, depth) == expected(changed, depth)
    assert len(list(cache.glob("negatives-*"))) == 2


def test_a_killed_run_leaves_whole_files_and_goes_on_from_them(collection, cache, monkeypatch):
    search, searched = Postings.search, []

    def dying(self, queries, *given):
        searched.append(len(queries))
        if len(searched) == 3:
            raise KeyboardInterrupt
        return search(self, queries, *given)

    monkeypatch.setattr(Postings, "search", dying)
    with pytest.raises(KeyboardInterrupt):
        found(collection)
    [folder] = cache.glob("negatives-*")
    assert [file.name for file in sorted(folder.glob("*.npy"))] == [
        "block-00000.npy",
        "block-00001.npy",
    ]
    assert found(collection) == expected(collection, 5)
    assert len(searched) == 1 + -(-len(collection.queries) // 3)


def test_each_process_begins_with_its_own_part(collection, cache, monkeypatch):
    """The second of three; what the others leave undone, having disks of their own, it does in the
    end.
    """
    order, save = [], bm25.save_array
    monkeypatch.setattr(
        bm25, "save_array", lambda file, rows: order.append(int(file.stem[-5:])) or save(file, rows)
    )
    monkeypatch.setattr(pool, "rank", lambda: 1)
    monkeypatch.setattr(pool, "world_size", lambda: 3)
    assert found(collection) == expected(collection, 5)
    blocks = range(-(-len(collection.queries) // 3))
    assert order == [*blocks[1::3], *(n for n in blocks if n % 3 != 1)]


def test_long_work_goes_to_all_cores(collection, cache, monkeypatch):
    """Stands for new processes: what is sent there, and comes out of it."""

    def share_out(tasks, start, devices):
        assert len(devices) == min(3, len(tasks))
        work = pickle.loads(pickle.dumps(start))("cpu")
        return (work(pickle.loads(pickle.dumps(task))) for task in tasks)

    monkeypatch.setattr(pool, "share_out", share_out)
    monkeypatch.setattr(pool, "available_cores", lambda: 3)
    monkeypatch.setattr(pool, "_WORTH", 0)
    assert found(collection) == expected(collection, 5)


def test_a_corpus_without_a_hash_gets_one(collection, cache):
    documents = type(collection.documents)(collection.documents.table, "")
    assert found(replace(collection, documents=documents)) == expected(collection, 5)
    assert found(collection) == expected(collection, 5)
    assert len(list(cache.glob("negatives-*"))) == 1
