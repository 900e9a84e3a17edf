"""Prediction-powered inference for a mean difference over queries.

A judge grades all N queries and a person n of them. The judge's mean over all queries is corrected
by the difference between person and judge where both graded. The correction makes the estimate
unbiased, however wrong the judge is; a judge that is often right makes it precise.

Throughout, h is the difference of a query by the person's labels and j the one by the judge's.

References:
    Angelopoulos, Bates, Fannjiang, Jordan and Zrnic, 2023 (prediction-powered inference);
    Angelopoulos, Duchi and Zrnic, 2023 (power tuning); Oosterhuis, Jagerman, Qin, Wang and
    Bendersky, 2024 (ranking measures).
"""

import math
from dataclasses import dataclass

import numpy as np

from beir_cocodr.arrays import Doubles
from beir_cocodr.evaluation.few_labels import FEWEST, LEVEL, half_width

#: Ends of an interval.
Ends = tuple[float, float]

# Queries of the past, all without a correlation, that the tuning of the confidence sequence begins
# with, so that the first labelled queries do not tune it by chance.
_TUNED_FROM = 10

# Queries that the variance by labels alone counts for in the variance of the confidence sequence.
_COUNTS_FOR = 10

# Keeps the first query, which has none before it, from a division by 0.
_TINY = 1e-12


@dataclass(frozen=True)
class PoweredMean:
    """A mean difference by labels and a judge together.

    Attributes:
        difference: The estimate.
        deviation: Its standard error; None with fewer than three labelled queries.
        interval: The 90% interval of a fixed sample; None below ten labelled queries.
        sequence: The interval that holds however often one looks; None below ten labelled queries.
        tuning: The weight λ of the judge; 0 where the judge does not help.
        correlation: Correlation of the judge's and the person's differences over labelled queries.
        labels_alone: The mean difference by the labelled queries alone.
        alone_interval: The 90% interval of that for a fixed sample.
        worth: The number of labelled queries that would give an interval of the same width without
            a judge.
    """

    difference: float
    deviation: float | None
    interval: Ends | None
    sequence: Ends | None
    tuning: float
    correlation: float
    labels_alone: float
    alone_interval: Ends | None
    worth: float


@dataclass(frozen=True)
class Labelled:
    """The labelled queries beside all that a judge graded.

    Args:
        human: (n,) differences h by the person's labels, in the order of labelling.
        judged: (n,) differences j of the same queries by the judge.
        everything: (N,) differences j of all queries, the labelled ones among them.
        weights: (n,) inverse probabilities of the labelled queries, up to a factor; None if all
            queries were equally likely to be labelled.
        usual: The variance that a query's difference usually has. It keeps a few labelled queries
            without any difference from settling that there is none; 0 relies on the labels alone.
    """

    human: Doubles
    judged: Doubles
    everything: Doubles
    weights: Doubles | None = None
    usual: float = 0.0

    def __post_init__(self) -> None:
        """Check that the judge graded every labelled query."""
        if not len(self.human) == len(self.judged) <= len(self.everything):
            raise ValueError(
                f"{len(self.human)} labelled queries, {len(self.judged)} of them judged, of "
                f"{len(self.everything)} judged in all: the judge has to grade every labelled query"
            )

    @property
    def count(self) -> int:
        """Return n, the number of labelled queries."""
        return len(self.human)

    @property
    def shares(self) -> Doubles:
        """Return (n,) Hájek weights, which sum to 1."""
        if self.weights is None:
            return np.full(self.count, 1 / max(self.count, 1))
        shares: Doubles = self.weights / self.weights.sum()
        return shares

    @property
    def unlabelled(self) -> Doubles:
        """Return (n,) probabilities that a query like this one stays without a label.

        They are 1 - n/N for all queries if all are equally likely to be labelled.
        """
        labelled: Doubles = 1 / (len(self.everything) * self.shares)
        return 1 - np.minimum(labelled, 1.0)

    def mean(self, values: Doubles) -> float:
        """Return the Hájek mean of (n,) values."""
        return float(self.shares @ values)

    def variance(self, residuals: Doubles, fitted: int = 1) -> float:
        """Return the variance of the mean of the (n,) residuals h - λ j, plus λ times the mean j.

        For equal weights it is (1/n - 1/N) Var(h - λ j) + Var(h) / N. The first part is the error
        of labelling a sample of the N queries, the second that of the N queries themselves.

        Args:
            residuals: h - λ j of the labelled queries.
            fitted: The numbers that were fitted to the labelled queries: their mean, and λ where it
                was fitted to the same queries.
        """
        n = self.count
        if n <= fitted:
            return math.inf
        centred = residuals - self.mean(residuals)
        influences = n * self.shares * centred
        squares = float(np.square(influences) @ self.unlabelled)
        of_sample = squares / (n - fitted) / n
        of_all = self.spread(self.human) / len(self.everything)
        return of_sample + of_all

    def spread(self, values: Doubles) -> float:
        """Return the variance of a query's value among all queries, from (n,) labelled ones."""
        n = self.count
        squares = np.square(values - self.mean(values))
        return self.mean(squares) * n / (n - 1)

    @property
    def least_spread(self) -> float:
        """Return the variance of a query's difference if the labelled ones do not differ at all.

        They are joined with as many queries of the usual variance as in
        :class:`~beir_cocodr.evaluation.few_labels.JudgedGain`.
        """
        return _COUNTS_FOR * self.usual / (self.count + _COUNTS_FOR)

    def tuning(self) -> float:
        """Return the weight λ of the judge with which the estimate varies least.

        For equal weights it is Cov(h, j) over the labelled queries, by Var(j) over all.
        """
        if self.count < 2:
            return 0.0
        h = self.human - self.mean(self.human)
        j = self.judged - self.mean(self.judged)
        if self.weights is None:
            covariance = float(h @ j) / (self.count - 1)
            variance = float(np.var(self.everything, ddof=1))
        else:
            importance = np.square(self.shares) * self.unlabelled
            covariance = float(importance @ (h * j))
            variance = float(importance @ np.square(j))
        if variance > 0:
            return covariance / variance
        return 0.0


def power_mean(labelled: Labelled) -> PoweredMean:
    """Estimate a mean difference from labels and a judge.

    The estimate is mean(h) + λ (mean of j over all queries - mean of j over the labelled ones). If
    it varies more than the labels alone, as with a judge that knows nothing, λ is 0.

    Args:
        labelled: The labelled queries, at least one, and all that the judge graded.

    References:
        Angelopoulos et al., 2023, and Angelopoulos, Duchi and Zrnic, 2023, in the form for labelled
        queries that are among the judged ones.
    """
    count = labelled.count
    tuning = labelled.tuning()
    residuals = labelled.human - tuning * labelled.judged
    middle = float(labelled.everything.mean())
    difference = labelled.mean(residuals) + tuning * middle
    least = labelled.least_spread / count
    variance = max(labelled.variance(residuals, fitted=2), least)
    alone = labelled.mean(labelled.human)
    variance_alone = max(labelled.variance(labelled.human), least)
    if variance >= variance_alone:
        tuning = 0.0
        difference = alone
        variance = variance_alone
    interval = None
    sequence = None
    alone_interval = None
    if count >= FEWEST:
        interval = student_interval(difference, variance, count)
        sequence = confidence_sequence(labelled)
        alone_interval = student_interval(alone, variance_alone, count)
    worth = float(count)
    if 0 < variance < math.inf:
        worth *= variance_alone / variance
    return PoweredMean(
        difference=difference,
        deviation=math.sqrt(variance) if variance < math.inf else None,
        interval=interval,
        sequence=sequence,
        tuning=tuning,
        correlation=_correlation(labelled),
        labels_alone=alone,
        alone_interval=alone_interval,
        worth=worth,
    )


def student_interval(
    mean: float,
    variance: float,
    count: int,
) -> Ends:
    """Return the 90% interval of a mean by Student's t with count - 1 degrees of freedom."""
    from scipy import stats  # reading a record does not need it

    probability = 0.5 + LEVEL / 2
    quantile = float(stats.t.ppf(probability, count - 1))
    width = quantile * math.sqrt(variance)
    return mean - width, mean + width


def disjoint_mean(
    human: Doubles,
    judged: Doubles,
    others: Doubles,
) -> tuple[float, float, float]:
    """Estimate a mean difference where the judge's further queries exclude the labelled ones.

    λ is Cov(h, j) / ((1 + n/N) Var(j)), and the variance Var(h - λ j) / n + λ² Var(j) / N. Where
    the labelled queries are among the others, this form promises too much, the more so the fewer
    others there are; :func:`power_mean` is right there.

    Args:
        human: (n,) differences by the person's labels, n at least 2.
        judged: (n,) differences of the same queries by the judge.
        others: (N,) differences by the judge of queries without labels.

    Returns:
        The estimate, its variance, and λ.

    References:
        Angelopoulos, Duchi and Zrnic, 2023 (PPI++, example 6.1).
    """
    n = len(human)
    size = len(others)
    joined = np.concatenate([judged, others])
    variance_j = float(np.var(joined, ddof=1))
    covariance = float(np.cov(human, judged)[0, 1])
    tuning = 0.0
    if variance_j > 0:
        tuning = covariance / ((1 + n / size) * variance_j)
    residuals = human - tuning * judged
    estimate = float(residuals.mean()) + tuning * float(others.mean())
    variance_of_residuals = float(np.var(residuals, ddof=1)) / n
    variance = variance_of_residuals + tuning**2 * variance_j / size
    return estimate, variance, tuning


def confidence_sequence(labelled: Labelled) -> Ends:
    """Return the 90% interval for a mean difference that holds however often one looks.

    Query i contributes h - λ_i (j - mean of j over all queries), with λ_i from the queries before
    it, so that labels tune nothing that they are used for. The estimate after n labels has the
    variance v; the information 1/v grows with every label, and along it the estimate is a Gaussian
    random walk in the limit. The interval is the confidence sequence of such a walk, at the number
    of queries whose labels alone would carry this information.

    Args:
        labelled: At least two labelled queries in the order of labelling.

    References:
        Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2024 (Theorem 2.2, asymptotic confidence
        sequences; section 3 for estimates with a predictable adjustment); Zrnic and Candès, 2024
        (predictions adjusted by the past alone); Jennison and Turnbull, 2000 (information time).
    """
    n = labelled.count
    middle = float(labelled.everything.mean())
    adjusted = labelled.human - _past_tunings(labelled) * (labelled.judged - middle)
    estimate = labelled.mean(adjusted)
    least = labelled.least_spread
    alone = max(labelled.variance(labelled.human), least / n)
    measured = max(labelled.variance(adjusted), least / n)
    # Few labels may show too little variance by chance.
    variance = (n * measured + _COUNTS_FOR * alone) / (n + _COUNTS_FOR)
    if variance <= 0:
        return estimate, estimate
    deviation = math.sqrt(max(labelled.spread(labelled.human), least))
    width = half_width(deviation**2 / variance, deviation)
    return estimate - width, estimate + width


def _past_tunings(labelled: Labelled) -> Doubles:
    """Return (n,) weights λ of the judge, each from the labelled queries before its own."""
    h = labelled.human
    j = labelled.judged
    variance = float(np.var(labelled.everything, ddof=1))
    if variance <= 0:
        return np.zeros_like(h)
    weights = labelled.shares * labelled.count
    total = _sums_before(weights)
    total_h = _sums_before(weights * h)
    total_j = _sums_before(weights * j)
    total_hj = _sums_before(weights * h * j)
    product = total_h * total_j / np.maximum(total, _TINY)
    covariance = total_hj - product
    counted = np.arange(labelled.count) + _TUNED_FROM
    tunings: Doubles = covariance / (counted * variance)
    return tunings


def _sums_before(values: Doubles) -> Doubles:
    """Return at each place the sum of the values before it."""
    sums: Doubles = np.concatenate([[0.0], np.cumsum(values)[:-1]])
    return sums


def _correlation(labelled: Labelled) -> float:
    """Return the weighted correlation of h and j; 0 where one of them does not vary."""
    h = labelled.human - labelled.mean(labelled.human)
    j = labelled.judged - labelled.mean(labelled.judged)
    variances = labelled.mean(h * h) * labelled.mean(j * j)
    if variances <= 0:
        return 0.0
    return labelled.mean(h * j) / math.sqrt(variances)
