"""Scores of queries by ir-measures, their intervals, and paired tests between models."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import ir_measures
import numpy as np
from scipy import stats

from beir_cocodr.arrays import Array
from beir_cocodr.errors import InputError, Limits, explained, kind_of
from beir_cocodr.evaluation.results import Interval, PairedTest
from beir_cocodr.retrieval.ranking import Results

DEFAULT_MEASURES = "nDCG@10 R@100"

#: Parsed measures.
Measures = Sequence[ir_measures.Measure]

#: What a user may call measures: one string of names, names, or measures of ir-measures.
MeasureNames: TypeAlias = str | ir_measures.Measure | Iterable[str | ir_measures.Measure]

#: Samples of a bootstrap interval (percentile), and sign flips of a randomisation test.
RESAMPLES = 10_000

_KNOWN = "ir-measures has such as nDCG@10, R@100, AP, RR@10"
_CUTOFFS = Limits(min=1, max=1_000_000)

# Documents of a run for a measure without a cutoff.
_WHOLE_RUN = 1_000

# Numbers that a resampling holds at once.
_BATCH_NUMBERS = 10_000_000


def check_cutoff(name: str, cutoff: object) -> None:
    """Check how deep a measure looks; None is the whole run.

    Raises:
        InputError: If the cutoff is outside 1 to a million documents.
    """
    if cutoff is not None:
        _CUTOFFS.check(f"the cutoff of {name}", cutoff)


def measure_names(measures: MeasureNames, default: str = DEFAULT_MEASURES) -> list[str]:
    """Return the names of measures; those in one string are split at space or comma.

    Raises:
        InputError: If there is none, or one is neither a name nor a measure.
    """
    if isinstance(measures, str):
        names = measures.replace(",", " ").split()
    elif isinstance(measures, ir_measures.Measure):
        names = [str(measures)]
    elif isinstance(measures, Iterable):
        names = [_measure_name(measure) for measure in measures]
    else:
        raise InputError(f"measures is {kind_of(measures)}; give names such as '{default}'")
    if not names:
        raise InputError(f"measures names no measure; the default is '{default}'")
    return names


def _measure_name(measure: object) -> str:
    if isinstance(measure, str | ir_measures.Measure):
        return str(measure)
    raise InputError(
        f"measures holds {kind_of(measure)}; give names such as 'nDCG@10', or ir_measures.nDCG@10"
    )


def parse_measures(measures: MeasureNames) -> list[ir_measures.Measure]:
    """Return measures by their names; measures of ir-measures pass.

    Raises:
        InputError: If ir-measures does not know one or cannot compute it here, or a cutoff is
            below 1.
    """
    parsed = []
    for name in measure_names(measures):
        with explained(
            f"measure {name!r} is unknown or cannot be computed here", _KNOWN, Exception
        ):
            measure = ir_measures.parse_measure(name)
            # A cutoff below 1 makes the host end the whole process.
            check_cutoff(name, measure.params.get("cutoff"))
            # Some measures need programs or data that are not installed, which is better known
            # before hours of encoding.
            list(
                ir_measures.iter_calc(
                    [measure],
                    {"q": {"d": 1}},
                    {"q": {"d": 1.0}},
                )
            )
        parsed.append(measure)
    return parsed


def depth(measures: Measures) -> int:
    """Return how many documents a run needs: 1,000 where a measure has no cutoff."""
    return max(int(measure.params.get("cutoff", _WHOLE_RUN)) for measure in measures)


def score_queries(
    measures: Measures,
    qrels: Mapping[str, Mapping[str, int]],
    results: Results,
) -> dict[str, Array]:
    """Score every judged query in each measure.

    Grades below 0 count as 0: trec_eval calls both not relevant, and its Python binding may hang on
    them.

    Returns:
        Name of a measure to scores, (Q,) in the order of ``qrels``; 0 for a query without results.
    """
    judged = {
        query: {document: max(grade, 0) for document, grade in grades.items()}
        for query, grades in qrels.items()
    }
    run = {query: dict(hits) for query, hits in results.items() if hits}
    position = {query: i for i, query in enumerate(qrels)}
    scores = {str(measure): np.zeros(len(qrels)) for measure in measures}
    if run:
        for metric in ir_measures.iter_calc(list(measures), judged, run):
            if metric.query_id in position:
                scores[str(metric.measure)][position[metric.query_id]] = metric.value
    return scores


#: Model to measure to (Q,) scores of queries, all in one order of queries.
Scores = Mapping[str, Mapping[str, Array]]

#: Question to the pairs (a, b) of models that answer it.
Families = Mapping[str, Sequence[tuple[str, str]]]


def paired_tests(
    scores: Scores,
    families: Families,
    seed: int = 42,
) -> list[PairedTest]:
    """Test every pair (a, b) of every family in every measure.

    Args:
        scores: model to measure to scores of queries.
        families: question to the pairs that answer it; corrections for many tests are made within
            a family and a measure.
        seed: of the bootstrap and the randomisation test.

    Returns:
        The tests: measure by measure, in each the families in their order.
    """
    tests = []
    for measure in next(iter(scores.values()), {}):
        for family, pairs in families.items():
            uncorrected = [
                _test(
                    (family, measure),
                    (a, b),
                    scores[a][measure],
                    scores[b][measure],
                    seed,
                )
                for a, b in pairs
            ]
            tests += _corrected(uncorrected)
    return tests


def _corrected(tests: Sequence[PairedTest]) -> list[PairedTest]:
    """Return the tests of a family with p values corrected for their number."""
    t_p = holm([test.t_p for test in tests])
    randomization_p = holm([test.randomization_p for test in tests])
    number = sum(test.t_p is not None for test in tests)
    corrected = []
    for test, t_p_holm, randomization_p_holm in zip(tests, t_p, randomization_p, strict=True):
        bonferroni = None
        if test.t_p is not None:
            bonferroni = min(1.0, test.t_p * number)
        corrected.append(
            replace(
                test,
                t_p_holm=t_p_holm,
                randomization_p_holm=randomization_p_holm,
                t_p_bonferroni=bonferroni,
            )
        )
    return corrected


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p values by Holm's step-down correction; None stays None.

    The i-th smallest of m is multiplied by (m − i + 1); results are made monotone and at most 1.

    References:
        Holm, 1979: A simple sequentially rejective multiple test procedure.
    """
    ascending = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(ascending):
        multiplied = p * (len(ascending) - rank)
        largest = max(largest, min(1.0, multiplied))
        corrected[i] = largest
    return corrected


def interval(values: Array, seed: int = 42) -> Interval | None:
    """Return the percentile bootstrap 95% interval of the mean of (Q,) values; None for one."""
    if len(values) < 2:
        return None
    bootstrap = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=_batch(values),
        method="percentile",
        rng=seed,
    )
    return float(bootstrap.confidence_interval.low), float(bootstrap.confidence_interval.high)


def correlate(
    x: Array,
    y: Array,
    coefficient: Callable[[Array, Array], Any] = stats.pearsonr,
) -> tuple[float | None, float | None, float | None, float | None]:
    """Correlate (m,) values by a coefficient of scipy's and by Kendall's tau-b.

    Returns:
        The coefficient, its two-sided p, tau and its p; None where one side is constant or there
        are fewer than three points, as two always lie on a line.
    """
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None, None, None, None
    correlation = coefficient(x, y)
    tau = stats.kendalltau(x, y)
    return (
        float(correlation.statistic),
        float(correlation.pvalue),
        float(tau.statistic),
        float(tau.pvalue),
    )


def _test(
    question: tuple[str, str],
    pair: tuple[str, str],
    first: Array,
    second: Array,
    seed: int,
) -> PairedTest:
    """Test (Q,) scores of b against those of a, before any correction."""
    family, measure = question
    a, b = pair
    difference = second - first
    t_p, randomization_p = _p_values(first, second, seed)
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


def _p_values(
    first: Array,
    second: Array,
    seed: int,
) -> tuple[float | None, float | None]:
    """Return p of the t-test and of the randomisation test; None with one query that differs."""
    difference = second - first
    if not difference.any():
        return 1.0, 1.0
    if len(difference) < 2:
        return None, None
    # The same difference for every query has no variance: the t statistic is infinite.
    has_variance = np.ptp(difference) > 0
    t_p = 0.0
    if has_variance:
        t_p = float(stats.ttest_rel(second, first).pvalue)
    randomization = stats.permutation_test(
        (difference,),
        lambda values, axis: values.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=_batch(difference),
        rng=seed,
    )
    return t_p, float(randomization.pvalue)


def _batch(values: Array) -> int:
    return max(1, _BATCH_NUMBERS // len(values))
