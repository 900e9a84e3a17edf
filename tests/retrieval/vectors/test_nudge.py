"""Closed forms of moved document vectors, against constrained maximisation by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from beir_cocodr.arrays import unit_rows
from beir_cocodr.retrieval.vectors.nudge import nudged, pulls_of


def maximised(vector, total, bound, unit):
    """Return the best vector within the bound, as scipy finds it from many starts."""
    constraints = [{"type": "ineq", "fun": lambda v: bound**2 - ((v - vector) ** 2).sum()}]
    if unit:
        constraints.append({"type": "eq", "fun": lambda v: (v**2).sum() - 1})
    best = None
    rng = np.random.default_rng(0)
    for _ in range(6):
        start = vector + bound * rng.normal(size=len(vector)) / 4
        found = minimize(
            lambda v: -float(total @ v), start, constraints=constraints, options={"ftol": 1e-12}
        )
        if found.success and (best is None or found.fun < best.fun):
            best = found
    return best.x


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("bound", [0.05, 0.3, 0.8, 1.9])
def test_the_closed_form_is_the_constrained_maximum(unit, bound):
    rng = np.random.default_rng(7)
    vectors = unit_rows(rng.normal(size=(4, 3)))
    sums = rng.normal(size=(4, 3)).astype(np.float32) * 3
    sums[3] = vectors[3] + 0.02  # within reach of every bound but the smallest
    moved = nudged(vectors, sums, bound, unit=unit)
    for row in range(4):
        expected = maximised(vectors[row].astype(float), sums[row].astype(float), bound, unit)
        assert moved[row] @ sums[row] == pytest.approx(float(expected @ sums[row]), abs=2e-5)
    lengths = np.linalg.norm(moved - vectors, axis=1)
    assert (lengths <= bound + 1e-5).all()
    if unit:
        assert np.linalg.norm(moved, axis=1) == pytest.approx(np.ones(4), abs=1e-5)


def test_what_has_no_direction_stays_as_it_is():
    vectors = unit_rows(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    sums = np.array([[0.0, 0.0], [0.0, -2.0], [3.0, 0.0]], np.float32)
    assert nudged(vectors, sums, 0.5, unit=True).tolist() == vectors.tolist()
    assert nudged(vectors, sums, 0.0, unit=True) == pytest.approx(vectors)


def test_queries_pull_at_the_documents_that_they_call_relevant():
    queries = np.eye(3, dtype=np.float32)
    pulls = pulls_of(queries, [{5: 1, 2: 0}, {5: 2, 9: 1}, {2: -1}])
    assert pulls.rows.tolist() == [5, 9]
    assert pulls.sums.tolist() == [[1, 1, 0], [0, 1, 0]]
    assert pulls_of(queries, [{}, {}, {1: 0}]).sums.shape == (0, 3)
