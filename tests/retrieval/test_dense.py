"""Embeddings in memory and on disk: the same vectors and rankings, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from beir_cocodr.data.collection import load_collection
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.retrieval import dense as dense_search
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.retrieval.fusion import Feedback, Hybrid
from beir_cocodr.retrieval.store import store as stores
from beir_cocodr.retrieval.store.store import ChangedEmbeddings, Embeddings, EmbeddingStore, MemoryEmbeddings

SHARD = 7


@pytest.fixture
def both(beir_folder, tiny_cosine, tmp_path, monkeypatch):
    """One corpus, in memory and in shards on disk."""
    for module in (dense_search, stores):
        monkeypatch.setattr(module, "SHARD_SIZE", SHARD)
    monkeypatch.setattr("beir_cocodr.retrieval.store.encode.SHARD_SIZE", SHARD)
    documents, model = load_collection(beir_folder).documents, load_encoder(str(tiny_cosine))
    return (
        Dense(model, documents, tmp_path / "unused"),
        Dense(model, documents, tmp_path / "disk", in_memory=4 * 32 * len(documents) - 1),
    )


def test_memory_and_disk_give_the_same_bits(both, beir_folder, tmp_path):
    memory, disk = both
    assert isinstance(memory.embeddings, MemoryEmbeddings)
    assert isinstance(disk.embeddings, EmbeddingStore)
    assert not (tmp_path / "unused").exists()
    assert torch.equal(memory.embeddings.load(), disk.embeddings.load())
    assert len(memory.embeddings) == len(disk.embeddings) == len(memory.documents)
    assert memory.embeddings.dimensions == disk.embeddings.dimensions == 32
    sizes = [[len(chunk) for chunk in one.embeddings.chunks()] for one in both]
    assert sizes[0] == sizes[1]
    assert max(sizes[0]) == SHARD
    queries, bm25 = load_collection(beir_folder).queries, BM25(memory.documents)
    for kind in (lambda dense: dense, lambda d: Hybrid(d, bm25), lambda d: Feedback(d, bm25)):
        found = [kind(dense).search(queries, 11) for dense in both]
        np.testing.assert_array_equal(found[0].rows, found[1].rows)
        np.testing.assert_array_equal(found[0].scores, found[1].scores)
    assert memory.describe() == disk.describe()
    assert "store" not in disk.describe()


def check_reads(embeddings: Embeddings, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(embeddings.load(), expected)
    for rows in (np.array([5, 2, 5]), np.arange(len(expected))[::-1].copy(), np.zeros(0, np.int64)):
        np.testing.assert_array_equal(embeddings.rows(rows), expected[rows])
        if len(rows):
            np.testing.assert_array_equal(embeddings.select(rows).load(), expected[rows])
    selected = embeddings.select(np.array([9, 4, 1]))
    assert (len(selected), selected.dimensions) == (3, expected.shape[1])
    np.testing.assert_array_equal(selected.rows(np.array([2, 0])), expected[[1, 9]])


def test_any_rows_can_be_read(both):
    whole = both[0].embeddings.load().numpy()
    for dense in both:
        check_reads(dense.embeddings, whole)


def test_changed_rows_are_read_in_place_of_the_old(both):
    whole = both[0].embeddings.load().numpy()
    rows = np.array([12, 3, 6, 7])
    new = np.random.default_rng(0).normal(size=(4, whole.shape[1])).astype(np.float32)
    expected = whole.copy()
    expected[rows] = new
    for dense in both:
        check_reads(ChangedEmbeddings(dense.embeddings, rows, new), expected)
        check_reads(dense.embeddings, whole)


def test_a_corpus_is_encoded_once(both, monkeypatch):
    memory, _ = both
    memory.prepare()
    monkeypatch.setattr(type(memory.model), "encode_corpus", lambda *args, **kwargs: pytest.fail("again"))
    memory.prepare()
    assert len(memory.search({"q": "wing"}, 3).rows[0]) == 3
