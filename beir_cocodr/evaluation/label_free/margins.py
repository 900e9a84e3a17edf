"""Margins of rankings: how sure a model is of its best document, and what that says of a lead.

A ranking that is sure of its first document leaves the others far behind: the margin between its
first and its tenth score is large. How a lead depends on margins is learnt on queries whose
document is known, and then read off at the margins of other queries.
"""

import numpy as np

from beir_cocodr.arrays import Doubles, Ints

# Ridge of the regression on margins, as a share of the number of queries.
_RIDGE = 0.05

# Margins count up to so many standard deviations from those of the queries that were learnt on.
_FARTHEST = 3.0


def lead_at(
    leads: Doubles,
    known: Doubles,
    wanted: Doubles,
) -> float:
    """Predict the mean lead at other margins, by ridge regression.

    Args:
        leads: (S,) leads on made queries.
        known: (S, m) margins of the models on these.
        wanted: (Q, m) margins of the models on real queries.
    """
    center = known.mean(axis=0)
    spread = known.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    inputs = (known - center) / spread
    mean = leads.mean()
    squares = inputs.T @ inputs
    penalty = _RIDGE * len(leads) * np.eye(len(squares))
    slopes = np.linalg.solve(
        squares + penalty,
        inputs.T @ (leads - mean),
    )
    positions = np.clip(
        (wanted - center) / spread,
        -_FARTHEST,
        _FARTHEST,
    )
    change = positions.mean(axis=0) @ slopes
    return float(mean + change)


def margins(
    scores: np.ndarray,
    rows: Ints,
    depth: int = 10,
) -> Doubles:
    """Return the (Q,) differences between the best score and the last of the ten best.

    Args:
        scores: (Q, k) scores, best first.
        rows: (Q, k) rows, -1 for a result that does not count.
        depth: Results that count.
    """
    is_result = rows >= 0
    ranks = np.cumsum(is_result, axis=1)
    is_best = is_result & (ranks <= depth)
    values = scores.astype(np.float64)
    highest = np.where(is_best, values, -np.inf).max(axis=1)
    lowest = np.where(is_best, values, np.inf).min(axis=1)
    has_results = is_result.any(axis=1)
    return np.where(has_results, highest - lowest, 0.0)
