"""Agreement of the rankings of models."""

from collections.abc import Sequence

import numpy as np

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.retrieval.ranking import reciprocal_ranks


def rank_distance(
    first: Ints,
    second: Ints,
    depth: int = 10,
) -> Doubles:
    """Return the (Q,) shares of DCG's discounts that two lists spend on different documents.

    The distance is 0 for the same ranking, and 1 for lists without a common document. It bounds
    what a single document's judgement can change in nDCG@10.

    Args:
        first: (Q, k) rows, -1 for no result.
        second: (Q, m) rows.
        depth: Documents of a list that count.
    """
    discounts = 1 / np.log2(2 + np.arange(depth))
    a = first[:, :depth]
    b = second[:, :depth]
    discounts_a = discounts[: a.shape[1]]
    discounts_b = discounts[: b.shape[1]]
    alike = (a[:, :, None] == b[:, None, :]) & (a >= 0)[:, :, None]
    shared = np.minimum(discounts_a[:, None], discounts_b[None, :])
    longest = np.maximum((a >= 0) @ discounts_a, (b >= 0) @ discounts_b)
    kept = (alike * shared).sum((1, 2))
    has_results = longest > 0
    return np.where(
        has_results,
        1 - kept / np.where(has_results, longest, 1),
        0.0,
    )


def reciprocal_rank_fusion(lists: Sequence[Ints], depth: int = 10) -> Ints:
    """Return the (Q, depth) rows of the reciprocal rank fusion of (Q, k) lists.

    Rows are -1 where a query has fewer results; among equal sums smaller rows come first.
    """
    fused = np.full((len(lists[0]), depth), -1, np.int64)
    for query in range(len(fused)):
        ranked = [rows[query][rows[query] >= 0] for rows in lists]
        candidates, scores = reciprocal_ranks(ranked)
        # Rounded, because sums of the same ranks in another order differ in their last bits.
        best = np.argsort(-np.round(scores, 12), kind="stable")[:depth]
        fused[query, : len(best)] = candidates[best]
    return fused
