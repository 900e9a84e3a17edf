"""The most similar training queries of every test query, by the cosine of embeddings, streamed."""

import importlib.util
from typing import NamedTuple

import numpy as np
import torch

from beir_cocodr.arrays import Array, Floats, Ints, unit_rows
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.store.store import Embeddings, MemoryEmbeddings
from beir_cocodr.retrieval.topk import search_chunks


class Neighbours(NamedTuple):
    """The k training queries nearest to T test queries, best first: (T, k) float32 similarities and int64 rows."""

    scores: Floats
    rows: Ints


METHODS = ("exact", "faiss")

# Entries of neighbour lists that are held at a time: 64 MiB as the search keeps them.
_ENTRIES = 1 << 23


def nearest(train: Embeddings | Array, test: Array, k: int, method: str = "exact") -> Neighbours:
    """The ``k`` training queries of highest cosine for every test query. An InputError: ``k`` below 1, no queries,
    other dimensions, NaN or infinite embeddings, faiss asked for and absent.

    Training queries are read once in chunks; memory holds a chunk, the test queries, a tile of scores and the lists,
    and does not grow with the number of training queries.

    Args:
        train, test: (N, d) and (T, d) embeddings; those of training queries in an array, or wherever they are kept.
        k: neighbours of each test query, at most N.
        method: "exact", a matrix product in tiles, where among equal cosines the earlier row comes first; or "faiss",
            its brute-force search, where their order is faiss's.

    Source: Zhan et al., 2022, section 4.1.1 (similarity by embeddings rather than by terms).
    """
    check_method(method)
    vectors = MemoryEmbeddings(torch.from_numpy(np.float32(train))) if isinstance(train, np.ndarray) else train
    if k < 1:
        raise InputError(f"k is {k}: ask for at least one neighbour")
    if not len(vectors) or not len(test):
        raise InputError(f"there are {len(vectors)} training and {len(test)} test queries; both are needed")
    if vectors.dimensions != test.shape[1]:
        raise InputError(
            f"embeddings of training queries have {vectors.dimensions} dimensions, those of test queries "
            f"{test.shape[1]}: take both from one encoder"
        )
    k = min(k, len(vectors))
    if method == "faiss":
        return _by_faiss(vectors, test, k)
    scores, rows = search_chunks(np.asarray(test), vectors.chunks(), k, similarity="cosine")
    return Neighbours(scores.numpy(), rows.numpy())


def check_method(method: str) -> None:
    """Check that there is such a search and what it needs is installed; else an InputError."""
    if method not in METHODS:
        raise InputError(f"unknown search {method!r}; there are {' and '.join(METHODS)}")
    if method == "faiss" and importlib.util.find_spec("faiss") is None:
        raise InputError("searching with faiss needs it: pip install 'beir-cocodr[faiss-cpu]'")


def nearest_ranks(train: Embeddings | Array, test: Array, depth: int, method: str = "exact") -> Ints:
    """(N,) int64: each training query's best rank for any test query, from 0; ``depth`` for all ranks from there on.

    Lists of neighbours are made for as many test queries at a time as fit in 64 MiB, so ``depth`` may be large.
    Arguments and errors are those of `nearest`.
    """
    ranks = np.full(len(train), depth, np.int64)
    block = max(1, _ENTRIES // depth)
    for start in range(0, len(test), block):
        lists = nearest(train, test[start : start + block], depth, method).rows
        np.minimum(ranks, best_ranks(lists, len(train)), out=ranks)
    return ranks


def _by_faiss(train: Embeddings, test: Array, k: int) -> Neighbours:
    import faiss

    queries = _unit(test)
    heap, first = faiss.ResultHeap(len(queries), k, keep_max=True), 0
    for chunk in train.chunks():
        points = _unit(chunk.numpy())
        scores, rows = faiss.knn(queries, points, min(k, len(points)), faiss.METRIC_INNER_PRODUCT)
        heap.add_result(scores, rows + first)
        first += len(points)
    heap.finalize()
    return Neighbours(heap.D, heap.I)


def _unit(vectors: Array) -> Floats:
    if not np.isfinite(vectors).all():
        raise InputError("NaN or infinite embeddings of queries: encode in float32")
    return unit_rows(vectors)


def best_ranks(lists: Ints, queries: int) -> Ints:
    """The best rank of each training query in any list, (N,) int64 from 0; k where it is in none.

    Args:
        lists: (T, k) rows of training queries, best first, one list a test query.
        queries: N, how many training queries there are.
    """
    ranks = np.full(queries, lists.shape[1], np.int64)
    # From the last place to the first: what is written last is the best.
    for place in reversed(range(lists.shape[1])):
        ranks[lists[:, place]] = place
    return ranks
