"""Document vectors that are moved towards the queries that they answer, in closed form."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from beir_cocodr.arrays import Floats, Ints

# A length below which a vector has no direction.
_NOTHING = 1e-9


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
    answered: dict[int, list[int]] = {}
    for number, of_query in enumerate(grades):
        for row, grade in of_query.items():
            if grade > 0:
                answered.setdefault(row, []).append(number)
    rows = np.array(sorted(answered), np.int64)
    sums = np.zeros((len(rows), queries.shape[1]), np.float32)
    for number, row in enumerate(rows.tolist()):
        sums[number] = queries[answered[row]].sum(axis=0)
    return Pulls(rows, sums)


def nudged(vectors: Floats, sums: Floats, bound: float, *, unit: bool) -> Floats:
    """Move document vectors within a bound, so that the scores of their queries gain the most.

    The moved vectors v + Δ have the largest Σ_i G_i · (v_i + Δ_i) with ‖Δ_i‖ ≤ γ. Without a norm to
    keep (NUDGE-M), Δ_i = γ G_i / ‖G_i‖. Unit vectors stay unit vectors (NUDGE-N): the one with the
    cosine 1 − γ²/2 to v_i in the plane of v_i and G_i, or G_i / ‖G_i‖ where that is closer.

    Args:
        vectors: (M, d) vectors of documents.
        sums: (M, d) what pulls at each, G.
        bound: γ, the longest way that a vector is moved; 0 moves none.
        unit: Move unit vectors on the unit sphere.

    Returns:
        (M, d) float32.

    References:
        Zeighami, Sellam and Parameswaran, NUDGE: Lightweight non-parametric fine-tuning of
        embeddings for retrieval, 2024, section 3.
    """
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    targets = sums / np.maximum(lengths, _NOTHING)
    if not unit:
        return np.asarray(vectors + bound * targets, np.float32)
    cosines = (vectors * targets).sum(axis=1, keepdims=True)
    least = max(1 - bound**2 / 2, -1.0)
    across = targets - cosines * vectors
    widths = np.linalg.norm(across, axis=1, keepdims=True)
    across = across / np.maximum(widths, _NOTHING)
    moved = least * vectors + np.sqrt(1 - least**2) * across
    # A target within reach, or exactly opposite, where every direction is as good.
    moved = np.where(cosines >= least, targets, moved)
    has_way = (lengths > _NOTHING) & ((widths > _NOTHING) | (cosines >= least))
    return np.asarray(np.where(has_way, moved, vectors), np.float32)
