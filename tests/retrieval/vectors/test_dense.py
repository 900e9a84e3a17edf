"""Embeddings in memory and on disk: the same vectors and rankings, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from beir_cocodr.data.collection import load_collection
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import Feedback, Hybrid
from beir_cocodr.retrieval.store import embeddings as stores
from beir_cocodr.retrieval.store.embeddings import ChangedEmbeddings, Embeddings, MemoryEmbeddings
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors import dense as dense_search
from beir_cocodr.retrieval.vectors.dense import Dense, EmbeddingPool

SHARD = 7


def on_disk(dense: Dense) -> Dense:
    """A search whose embeddings are one byte too large for memory."""
    dense.in_memory = 4 * 32 * len(dense.documents) - 1
    return dense


@pytest.fixture
def both(beir_folder, tiny_cosine, tmp_path, monkeypatch):
    """One corpus, in memory and in shards on disk."""
    for module in (dense_search, stores):
        monkeypatch.setattr(module, "SHARD_SIZE", SHARD)
    monkeypatch.setattr("beir_cocodr.retrieval.store.encode.SHARD_SIZE", SHARD)
    documents, model = load_collection(beir_folder).documents, load_encoder(str(tiny_cosine))
    return (
        Dense(model, documents, tmp_path / "unused"),
        on_disk(Dense(model, documents, tmp_path / "disk")),
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


def spied(monkeypatch, name):
    """Texts or documents that a method of encoders is given from now on."""
    seen, method = [], getattr(COCODR, name)
    monkeypatch.setattr(
        COCODR, name, lambda self, given, **rest: seen.extend(given) or method(self, given, **rest)
    )
    return seen


def test_all_who_ask_share_the_vectors_of_one_encoder_and_corpus(
    both, tiny_cosine, tiny_bert, tmp_path, monkeypatch
):
    documents, expected = both[0].documents, both[0].embeddings.load()
    seen = spied(monkeypatch, "encode_corpus")

    def asked(pool, name=tiny_cosine, in_memory=None, **options):
        encoder = load_encoder(str(name), EncoderOptions(**options))
        dense = Dense(encoder, documents, tmp_path / "own")
        dense.pool = pool
        dense.in_memory = dense.in_memory if in_memory is None else in_memory
        return dense.embeddings

    with EmbeddingPool.temporary(tmp_path) as pool:
        assert all(torch.equal(asked(pool).load(), expected) for _ in range(3))
        assert len(seen) == len(documents)
        for other in ({"name": tiny_bert}, {"document_length": 9}, {"document_prompt": "x"}):
            asked(pool, **other)
        assert len(seen) == 4 * len(documents)
    asked(None)
    assert len(seen) == 5 * len(documents)
    with EmbeddingPool.temporary(tmp_path) as pool:  # too large for memory
        stores = [asked(pool, in_memory=1) for _ in range(2)]
        assert stores[0] is stores[1]
        assert torch.equal(stores[0].load(), expected)
        assert not (tmp_path / "own").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_is_shared_is_bounded(both, tiny_bert, tmp_path, monkeypatch):
    first, other = (
        both[0],
        Dense(load_encoder(str(tiny_bert)), both[0].documents, tmp_path / "unused"),
    )
    seen, shared = spied(monkeypatch, "encode_corpus"), EmbeddingPool(tmp_path, in_memory=1)
    for dense in (first, first, other, other, first):
        assert len(shared.get(dense)) == len(first.documents)
    assert len(seen) == 3 * len(first.documents)


def test_queries_are_encoded_once_while_they_are_remembered(both, monkeypatch):
    dense, queries = both[0], ["wing", "flow of heat", "wing", "shock"]
    expected = dense.encode_queries(queries)
    seen = spied(monkeypatch, "encode_queries")
    torch.testing.assert_close(dense.encode_queries(["drag", *queries[::-1]])[1:], expected.flip(0))
    assert seen == ["drag"]
    monkeypatch.setattr(dense_search, "_KEPT_QUERIES", 3 * 4 * 32)
    torch.testing.assert_close(dense.encode_queries([*queries, "a", "b", "c"])[:4], expected)
    assert len(dense.known_queries) <= 3
    torch.testing.assert_close(dense.encode_queries(queries), expected)


def test_a_corpus_is_encoded_once(both, monkeypatch):
    memory, _ = both
    memory.prepare()
    monkeypatch.setattr(
        type(memory.model), "encode_corpus", lambda *args, **kwargs: pytest.fail("again")
    )
    memory.prepare()
    assert len(memory.search({"q": "wing"}, 3).rows[0]) == 3


def test_queries_are_searched_on_the_device_of_the_model(both, beir_folder, monkeypatch):
    """The device without values takes the place of a GPU."""
    memory, _ = both
    queries = load_collection(beir_folder).queries
    memory.search(queries, 3)  # the queries are encoded
    devices: list[str] = []
    monkeypatch.setattr(
        memory, "search_embeddings", lambda ids, vectors, k: devices.append(vectors.device.type)
    )
    for device in ("cpu", "meta", "mps"):
        monkeypatch.setattr(type(memory.model), "device", torch.device(device))
        memory.search(queries, 3)
    assert devices == ["cpu", "meta", "cpu"]  # Metal has no 64-bit keys of scores and ranks
