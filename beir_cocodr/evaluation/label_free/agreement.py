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
    is_result_a = a >= 0
    is_result_b = b >= 0
    is_equal = a[:, :, None] == b[:, None, :]  # (Q, k, m)
    is_shared = is_equal & is_result_a[:, :, None]
    shared_discounts = np.minimum(discounts_a[:, None], discounts_b[None, :])
    kept = (is_shared * shared_discounts).sum((1, 2))
    length_a = is_result_a @ discounts_a
    length_b = is_result_b @ discounts_b
    longest = np.maximum(length_a, length_b)
    has_results = longest > 0
    divisors = np.where(has_results, longest, 1)
    return np.where(
        has_results,
        1 - kept / divisors,
        0.0,
    )


def reciprocal_rank_fusion(lists: Sequence[Ints], depth: int = 10) -> Ints:
    """Return the (Q, depth) rows of the reciprocal rank fusion of (Q, k) lists.

    Rows are -1 where a query has fewer results; among equal sums smaller rows come first.
    """
    queries = len(lists[0])
    fused = np.full((queries, depth), -1, np.int64)
    for query in range(queries):
        rankings = [rows[query] for rows in lists]
        without_padding = [ranking[ranking >= 0] for ranking in rankings]
        candidates, scores = reciprocal_ranks(without_padding)
        # Rounded, because sums of the same ranks in another order differ in their last bits.
        rounded = np.round(scores, 12)
        order = np.argsort(-rounded, kind="stable")
        best = order[:depth]
        fused[query, : len(best)] = candidates[best]
    return fused
