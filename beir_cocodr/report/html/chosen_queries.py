"""Which queries a page of bounded size shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def chosen_queries(spread: Mapping[str, float], most: int) -> list[str]:
    """All queries, or ``most`` of them: half those of the largest spread, half evenly spaced among the rest.

    Args:
        spread: query id to by how much models differ on it, in the order of the collection.
        most: how many are shown.

    Returns:
        ids in the order of the collection.
    """
    queries = list(spread)
    if len(queries) <= most:
        return queries
    largest = sorted(queries, key=lambda query: -spread[query])[: (most + 1) // 2]
    rest = [query for query in queries if query not in set(largest)]
    places = np.linspace(0, len(rest) - 1, most - len(largest)).round().astype(int).tolist()
    kept = {*largest, *(rest[place] for place in places)}
    return [query for query in queries if query in kept]


def score_spread(scores: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Query id to the largest absolute difference of any model to the first, in the first measure."""
    first = scores[0]
    return {
        query: max((abs(other[query][0] - values[0]) for other in scores[1:]), default=0.0)
        for query, values in first.items()
    }


def list_spread(tops: Sequence[Mapping[str, Sequence[str]]], depth: int) -> dict[str, float]:
    """Query id to the largest share of the first model's best documents that another model does not have."""
    queries = dict.fromkeys(query for found in tops for query in found)
    spread = {}
    for query in queries:
        lists = [set(found.get(query, ())[:depth]) for found in tops]
        spread[query] = max((1 - len(lists[0] & other) / depth for other in lists[1:]), default=0.0)
    return spread
