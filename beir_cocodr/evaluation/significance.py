"""Paired tests between models over the same queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

RESAMPLES = 10_000

_BATCH_ELEMENTS = 10_000_000


@dataclass(frozen=True)
class Comparison:
    """How model ``b`` differs from model ``a`` in one measure, over the same queries.

    Args:
        family: the question that the comparison belongs to.
        difference: mean of b − a.
        interval: bootstrap 95% interval of the difference (percentile, 10,000 resamples).
        t_p: two-tailed paired t-test.
        randomization_p: two-tailed paired randomisation test of the mean (10,000 sign flips).
        t_p_holm, randomization_p_holm: the same, by Holm's correction over its family, within a measure.
        wins, ties, losses: queries on which b is better, equal, worse.

    With one query there is no variance to test against: p is None.
    """

    family: str
    measure: str
    a: str
    b: str
    difference: float
    interval: tuple[float, float] | None
    t_p: float | None
    randomization_p: float | None
    wins: int
    ties: int
    losses: int
    t_p_holm: float | None = None
    randomization_p_holm: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    scores: dict[str, dict[str, np.ndarray]],
    families: Mapping[str, Sequence[tuple[str, str]]],
    seed: int = 42,
) -> list[Comparison]:
    """Test every pair (a, b) of every family in every measure.

    Args:
        scores: model to measure to (Q,) per-query scores, all in one order of queries.
        families: name of a question to the pairs that answer it; Holm's correction is over these.
        seed: of the resampling.
    """
    compared = []
    for measure in next(iter(scores.values()), {}):
        for family, pairs in families.items():
            tests = [
                _test(family, measure, a, b, scores[a][measure], scores[b][measure], seed) for a, b in pairs
            ]
            t = holm([test.t_p for test in tests])
            randomization = holm([test.randomization_p for test in tests])
            compared += [
                replace(test, t_p_holm=p, randomization_p_holm=q)
                for test, p, q in zip(tests, t, randomization, strict=True)
            ]
    return compared


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: the i-th smallest of m times (m − i + 1), monotone, at most 1."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[i] = largest
    return corrected


def interval(values: np.ndarray, seed: int = 42) -> tuple[float, float] | None:
    """Bootstrap 95% interval of a mean over queries, (Q,); None for a single query."""
    if len(values) < 2:
        return None
    found = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile", batch=_batch(values), rng=seed
    ).confidence_interval
    return float(found.low), float(found.high)


def _test(
    family: str, measure: str, a: str, b: str, first: np.ndarray, second: np.ndarray, seed: int
) -> Comparison:
    difference = second - first
    t_p: float | None = None
    randomization_p: float | None = None
    if not difference.any():
        t_p = randomization_p = 1.0
    elif len(difference) > 1:
        # A difference that is the same for every query has no variance: the t statistic is infinite.
        t_p = 0.0 if np.ptp(difference) == 0 else float(stats.ttest_rel(second, first).pvalue)
        randomization_p = float(
            stats.permutation_test(
                (difference,),
                lambda values, axis: values.mean(axis=axis),
                permutation_type="samples",
                vectorized=True,
                n_resamples=RESAMPLES,
                batch=_batch(difference),
                rng=seed,
            ).pvalue
        )
    return Comparison(
        family=family,
        measure=measure,
        a=a,
        b=b,
        difference=float(difference.mean()),
        interval=interval(difference, seed),
        t_p=t_p,
        randomization_p=randomization_p,
        wins=int((difference > 0).sum()),
        ties=int((difference == 0).sum()),
        losses=int((difference < 0).sum()),
    )


def _batch(values: np.ndarray) -> int:
    return max(1, _BATCH_ELEMENTS // len(values))
