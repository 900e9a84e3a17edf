"""Nearest training queries against a plain double loop, from memory and from disk."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.errors import InputError
from beir_cocodr.resampling import similarity
from beir_cocodr.resampling.similarity import best_ranks, check_method, nearest, nearest_ranks
from beir_cocodr.retrieval.store.record import EncodedBy, StoreRecord
from beir_cocodr.retrieval.store.shard import pack
from beir_cocodr.retrieval.store.store import EmbeddingStore

METHODS = ["exact", "faiss"]


@pytest.fixture(autouse=True)
def needs_faiss(request):
    if "faiss" in request.node.name:
        pytest.importorskip("faiss")


def vectors(count: int, seed: int, dimensions: int = 12) -> np.ndarray:
    rng = np.random.default_rng(seed)
    # Lengths from 0.01 to 100: a dot product would find others than a cosine.
    lengths = 10.0 ** rng.uniform(-2, 2, size=(count, 1))
    return (rng.normal(size=(count, dimensions)) * lengths).astype(np.float32)


def double_loop(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Compute (T, N) cosines, one pair at a time in double precision."""
    result = np.empty((len(test), len(train)))
    for i, query in enumerate(test.astype(np.float64)):
        for j, other in enumerate(train.astype(np.float64)):
            result[i, j] = query @ other / np.sqrt((query @ query) * (other @ other))
    return result


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 7, 83])
def test_neighbours_are_the_largest_cosines_in_order(method, k):
    train, test = vectors(83, 0), vectors(9, 1)
    expected = double_loop(train, test)
    result = nearest(train, test, k, method)
    np.testing.assert_array_equal(result.rows, np.argsort(-expected, axis=1)[:, :k])
    np.testing.assert_allclose(result.scores, -np.sort(-expected, axis=1)[:, :k], atol=1e-6)
    assert result.rows.dtype == np.int64
    assert result.scores.dtype == np.float32


@pytest.fixture
def stored(tmp_path):
    def store(array: np.ndarray, shard_size: int = 16_384) -> EmbeddingStore:
        folder = tmp_path / f"store-{shard_size}"
        identity = {"precision": "fp32", "shard_size": shard_size}
        record = StoreRecord(identity, EncodedBy(None), *array.shape)
        folder.mkdir()
        made = EmbeddingStore(folder, record)
        for shard in made.shards:
            shard.write(pack(array[shard.start : shard.stop], "fp32"))
        return made

    return store


def test_chunks_from_disk_give_the_same_as_memory(stored):
    train, test = vectors(83, 2), vectors(9, 3)
    for size in (10, 83, 100):
        on_disk = stored(train, size)
        assert (len(on_disk), on_disk.dimensions) == (83, 12)
        assert max(map(len, on_disk.chunks())) <= size
        np.testing.assert_array_equal(on_disk.load(), train)
        np.testing.assert_array_equal(on_disk.rows(np.array([5, 2, 5])), train[[5, 2, 5]])
        for method in METHODS if importlib.util.find_spec("faiss") else METHODS[:1]:
            result, expected = nearest(on_disk, test, 6, method), nearest(train, test, 6, method)
            np.testing.assert_array_equal(result.rows, expected.rows)


def test_a_selection_is_searched_like_a_whole_set(stored):
    train, test = vectors(40, 4), vectors(5, 5)
    rows = np.array([3, 8, 9, 30, 31])
    result = nearest(stored(train).select(rows), test, 2)
    expected = np.argsort(-double_loop(train[rows], test), axis=1)[:, :2]
    np.testing.assert_array_equal(result.rows, expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 60), st.integers(0, 99))
def test_ranks_do_not_depend_on_how_many_lists_fit(tests, depth, seed):
    train, test = vectors(30, seed), vectors(tests, seed + 1)
    depth = min(depth, 30)
    expected = best_ranks(nearest(train, test, depth).rows, 30)
    whole = similarity._ENTRIES
    try:
        similarity._ENTRIES = 2 * depth  # two lists at a time
        np.testing.assert_array_equal(nearest_ranks(train, test, depth), expected)
    finally:
        similarity._ENTRIES = whole


def test_a_zero_vector_has_cosine_zero():
    train, test = vectors(4, 6), vectors(2, 7)
    train[2] = 0
    for method in METHODS if importlib.util.find_spec("faiss") else METHODS[:1]:
        result = nearest(train, test, 4, method)
        assert (result.scores[result.rows == 2] == 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_non_finite_embeddings_are_refused_in_one_line(method):
    train, test = vectors(4, 0), vectors(2, 1)
    train[1, 1] = np.nan
    with pytest.raises(InputError, match="NaN or infinite"):
        nearest(train, test, 1, method)


def test_unknown_and_uninstalled_searches_are_refused(monkeypatch):
    with pytest.raises(InputError, match=r"'bm25'.*exact or faiss"):
        check_method("bm25")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    with pytest.raises(InputError, match=r"beir-cocodr\[faiss-cpu\]"):
        check_method("faiss")
