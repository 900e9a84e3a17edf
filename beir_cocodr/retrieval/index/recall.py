"""How much of exact search an approximate index finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.index.vectors import Vectors, blocks, sample_rows
from beir_cocodr.retrieval.topk import search_chunks

Array = npt.NDArray[Any]


class Searcher(Protocol):
    """Anything that finds (Q, top_k) scores and rows for (Q, w) queries."""

    def search(self, queries: Array, top_k: int) -> tuple[Array, Array]: ...


def recall_against_exact(
    index: Searcher,
    queries: Array,
    vectors: Vectors,
    depths: Sequence[int] = (10, 100),
    sample: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """The share of the exact top k that the index has in its own top k, over a sample of queries.

    Args:
        index: what is judged.
        queries: (Q, w) as the index takes them.
        vectors: what it was built from, read once.
        depths: k; where there are fewer documents than k, all of them.
        sample: queries drawn, without replacement.
        seed: of the draw.

    Returns:
        ``recall@k`` for every depth, means over queries, and ``queries``, how many those were.

    Raises:
        InputError: no queries, or no depths.
    """
    if not len(queries) or not sample or not depths:
        raise InputError("recall needs at least one query and one depth")
    drawn = np.asarray(queries)[sample_rows(len(queries), sample, seed)]
    exact = search_chunks(drawn, blocks(vectors), max(depths))[1].numpy()
    found = index.search(drawn, exact.shape[1])[1]
    recall: dict[str, float] = {}
    for depth in depths:
        both = (
            len(np.intersect1d(a[:depth], b[:depth])) / min(depth, len(b))
            for a, b in zip(found, exact, strict=True)
        )
        recall[f"recall@{depth}"] = float(np.mean(list(both)))
    return recall | {"queries": len(drawn)}
