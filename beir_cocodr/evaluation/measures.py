"""What runs are worth: scores of queries by names of measures, through ir-measures, and paired
tests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ir_measures
import numpy as np
from scipy import stats

from beir_cocodr.arrays import Array
from beir_cocodr.errors import InputError, Limits, explained
from beir_cocodr.evaluation.results import Interval, PairedTest
from beir_cocodr.retrieval.ranking import Results

DEFAULT_MEASURES = "nDCG@10 R@100"
Measures = Sequence[ir_measures.Measure]
_KNOWN = "ir-measures has such as nDCG@10, R@100, AP, RR@10"
_CUTOFFS = Limits(min=1, max=1_000_000)


def check_cutoff(name: str, cutoff: object) -> None:
    """Check how deep a measure looks, None for the whole run; an ``InputError`` outside 1 to a
    million documents.
    """
    if cutoff is not None:
        _CUTOFFS.check(f"the cutoff of {name}", cutoff)


def measure_names(text: str, default: str = DEFAULT_MEASURES) -> list[str]:
    """Names split at space or comma; ``InputError`` where there is none."""
    if names := text.replace(",", " ").split():
        return names
    raise InputError(f"no measure named; the default is '{default}'")


def parse_measures(text: str) -> list[ir_measures.Measure]:
    """Measures by name, split at space or comma; InputError: unknown to ir-measures or not here, a
    cutoff below 1.
    """
    measures = []
    for name in measure_names(text):
        with explained(
            f"measure {name!r} is unknown or cannot be computed here", _KNOWN, Exception
        ):
            measure = ir_measures.parse_measure(name)
            check_cutoff(
                name, measure.params.get("cutoff")
            )  # below 1, the host ends the whole process
            # Some measures need programs or data that are not there: better known before hours of
            # encoding.
            list(ir_measures.iter_calc([measure], {"q": {"d": 1}}, {"q": {"d": 1.0}}))
        measures.append(measure)
    return measures


def depth(measures: Measures) -> int:
    """How many documents a run needs for these measures: 1,000 where one has no cutoff."""
    return max(int(measure.params.get("cutoff", 1000)) for measure in measures)


def score_queries(
    measures: Measures, qrels: Mapping[str, Mapping[str, int]], results: Results
) -> dict[str, Array]:
    """Each measure's score of every judged query, (Q,) in the order of ``qrels``; 0 without
    results.

    Grades below 0 count as 0: trec_eval calls both not relevant, and its Python binding may hang on
    them.
    """
    judged = {
        query: {d: max(grade, 0) for d, grade in grades.items()} for query, grades in qrels.items()
    }
    run = {query: dict(found) for query, found in results.items() if found}
    position = {query: i for i, query in enumerate(qrels)}
    scores = {str(measure): np.zeros(len(qrels)) for measure in measures}
    if run:
        for metric in ir_measures.iter_calc(list(measures), judged, run):
            if metric.query_id in position:
                scores[str(metric.measure)][position[metric.query_id]] = metric.value
    return scores


#: Bootstrap samples of an interval (percentile), and sign flips of a randomisation test.
RESAMPLES = 10_000


def compare(
    scores: dict[str, dict[str, Array]],
    families: Mapping[str, Sequence[tuple[str, str]]],
    seed: int = 42,
) -> list[PairedTest]:
    """Test every pair (a, b) of every family in every measure.

    ``scores`` are model to measure to (Q,) per-query scores, all in one order of queries;
    ``families`` name of a question to the pairs that answer it, over which Holm's correction and
    Bonferroni's are.
    """
    compared = []
    for measure in next(iter(scores.values()), {}):
        for family, pairs in families.items():
            tests = [
                _test(family, measure, a, b, scores[a][measure], scores[b][measure], seed)
                for a, b in pairs
            ]
            t = holm([test.t_p for test in tests])
            randomization = holm([test.randomization_p for test in tests])
            tested = sum(test.t_p is not None for test in tests)
            bonferroni = [
                None if test.t_p is None else min(1.0, test.t_p * tested) for test in tests
            ]
            compared += [
                replace(test, t_p_holm=p, randomization_p_holm=q, t_p_bonferroni=b)
                for test, p, q, b in zip(tests, t, randomization, bonferroni, strict=True)
            ]
    return compared


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: the i-th smallest of m times (m − i + 1), monotone, at most
    1.
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[i] = largest
    return corrected


def interval(values: Array, seed: int = 42) -> Interval | None:
    """Bootstrap 95% interval of a mean over queries, (Q,); None for a single query."""
    if len(values) < 2:
        return None
    size = _batch(values)
    found = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, batch=size, method="percentile", rng=seed
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def correlate(
    x: Array, y: Array, coefficient: Callable[[Array, Array], Any] = stats.pearsonr
) -> tuple[float | None, float | None, float | None, float | None]:
    """A coefficient of scipy's and Kendall's tau-b between (m,) values, each with its two-sided p;
    None where one side is constant or there are under three points, as two always lie on a line.
    """
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None, None, None, None
    found, tau = coefficient(x, y), stats.kendalltau(x, y)
    return float(found.statistic), float(found.pvalue), float(tau.statistic), float(tau.pvalue)


def _test(
    family: str, measure: str, a: str, b: str, first: Array, second: Array, seed: int
) -> PairedTest:
    difference = second - first
    t_p = randomization_p = None if difference.any() else 1.0
    if difference.any() and len(difference) > 1:
        # A difference that is the same for every query has no variance: the t statistic is
        # infinite.
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
    return PairedTest(
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


def _batch(values: Array) -> int:
    return max(1, 10_000_000 // len(values))
