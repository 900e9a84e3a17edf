"""The score of a regime from the scores of all models that were judged in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def pooled_score(judged: Iterable[Mapping[str, float]]) -> tuple[float, int]:
    """The mean over queries; a query that several models judged counts once, with its mean over them.

    In ReSTTest's extrapolation every query is judged once, in its interpolation by the models of all other
    buckets. In ReSTrain there is one model a regime.

    Args:
        judged: for each model, query id to score.

    Returns:
        The score and the number of queries.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    scores: dict[str, list[float]] = {}
    for found in judged:
        for query, score in found.items():
            scores.setdefault(query, []).append(score)
    if not scores:
        raise ValueError("no query was judged")
    return sum(sum(found) / len(found) for found in scores.values()) / len(scores), len(scores)
