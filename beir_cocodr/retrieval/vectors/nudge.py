"""Document vectors that are moved towards the queries that they answer, in closed form."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from beir_cocodr.arrays import Floats, Ints

# A length below which a vector has no direction, and a sine below which two are parallel.
_NOTHING = 1e-9
_NARROW = 1e-6


class Pulls(NamedTuple):
    """What pulls at documents: the sum of the vectors of the queries that each answers.

    Attributes:
        rows: (M,) rows of the documents, ascending.
        sums: (M, d) float32 sums, G_i = Σ_j q_j over the queries j that document i answers.
    """

    rows: Ints
    sums: Floats


def pulls_of(queries: Floats, grades: Sequence[Mapping[int, int]]) -> Pulls:
    """Return what pulls at the documents that some query judges relevant.

    Documents that were judged as not relevant are not pushed away: their grade says nothing about
    other queries.

    Args:
        queries: (Q, d) vectors of the queries.
        grades: Row of a document to its grade, for each query.
    """
    relevant_rows = {row for of_query in grades for row in _relevant(of_query)}
    rows = np.array(sorted(relevant_rows), np.int64)
    answers = np.zeros((len(rows), len(queries)), np.float32)
    for number, of_query in enumerate(grades):
        answered = np.searchsorted(rows, _relevant(of_query))
        answers[answered, number] = 1
    return Pulls(rows, answers @ queries)


def _relevant(grades: Mapping[int, int]) -> list[int]:
    return [row for row, grade in grades.items() if grade > 0]


def unit_pulls(sums: Floats) -> Floats:
    """Return (M, d) sums at length 1; what has no direction stays zero."""
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    has_direction = lengths > _NOTHING
    directions = sums / np.maximum(lengths, _NOTHING)
    return np.asarray(np.where(has_direction, directions, 0))


def nudge_shares(cosines: Floats, bound: float, *, unit: bool) -> tuple[Floats, Floats]:
    """Return a and b of the moved vectors a v + b Ĝ, where Ĝ = G / ‖G‖ is what pulls at v.

    The moved vectors v + Δ have the largest Σ_i G_i · (v_i + Δ_i) with ‖Δ_i‖ ≤ γ. Without a norm to
    keep (NUDGE-M), Δ_i = γ Ĝ_i. Unit vectors stay unit vectors (NUDGE-N): the one with the cosine
    1 − γ²/2 to v_i in the plane of v_i and G_i, or Ĝ_i where that is closer.

    Args:
        cosines: (M,) products v · Ĝ of unit vectors; read for these alone.
        bound: γ, the longest way that a vector is moved; 0 moves none.
        unit: Move unit vectors on the unit sphere.

    Returns:
        Twice (M,).

    References:
        Zeighami, Sellam and Parameswaran, NUDGE: Lightweight non-parametric fine-tuning of
        embeddings for retrieval, 2024, section 3.
    """
    ones = np.ones(len(cosines), np.float32)
    if not unit:
        return ones, bound * ones
    cosine_of_bound = 1 - bound**2 / 2
    least = max(cosine_of_bound, -1.0)
    squares = cosines.astype(np.float64) ** 2
    sines = np.sqrt(np.maximum(1 - squares, 0.0))
    # Exactly opposite to what pulls, every direction is as good, and none is taken.
    has_way = sines > _NARROW
    divisors = np.where(has_way, sines, 1.0)
    sine_of_least = np.sqrt(1 - least**2)
    across = sine_of_least / divisors
    is_near = cosines >= least
    share_kept = np.where(has_way, least - across * cosines, 1.0)
    share_pulled = np.where(has_way, across, 0.0)
    share_kept[is_near] = 0.0
    share_pulled[is_near] = 1.0
    return share_kept.astype(np.float32), share_pulled.astype(np.float32)


def nudged(vectors: Floats, sums: Floats, bound: float, *, unit: bool) -> Floats:
    """Move document vectors within a bound, so that the scores of their queries gain the most.

    Args:
        vectors: (M, d) vectors of documents.
        sums: (M, d) what pulls at each, G.
        bound: γ, see :func:`nudge_shares`.
        unit: Move unit vectors on the unit sphere.

    Returns:
        (M, d) float32.
    """
    targets = unit_pulls(sums)
    cosines = (vectors * targets).sum(axis=1)
    share_kept, share_pulled = nudge_shares(cosines, bound, unit=unit)
    kept = share_kept[:, None] * vectors
    pulled = share_pulled[:, None] * targets
    moved = kept + pulled
    is_pulled = targets.any(axis=1, keepdims=True)
    return np.asarray(np.where(is_pulled, moved, vectors), np.float32)
