"""Estimates of several models from a few judged queries.

Estimates are shrunk towards what was expected without labels. Intervals hold however often one
looks, and say how many more judgements would settle a difference. Scores of queries are (n, M), in
the order in which the queries were judged.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Self

import numpy as np

from beir_cocodr.arrays import Doubles
from beir_cocodr.data.judgements import Judgements
from beir_cocodr.retrieval.ranking import Results

#: Level of intervals, and its quantile of the normal distribution.
LEVEL = 0.9
NORMAL = NormalDist().inv_cdf(0.5 + LEVEL / 2)

#: From fewer judged queries nothing is concluded by themselves.
FEWEST = 10

# Judged queries at which the confidence sequence is narrowest.
_NARROWEST_AT = 30

# Deviation of a query's difference between two lists without a common document, as on labelled
# collections, and how many queries it counts for beside those that are judged.
_DEVIATION = 0.25
_COUNTS_FOR = 10

# The most judgements that are planned for, and choices that are repeated for the held-out gain.
_PLANNED = 10_000
_CHOICES = 100

_DEPTH = 10
_DISCOUNTS = 1 / np.log2(2 + np.arange(_DEPTH))
_CUMULATED = np.concatenate([[0.0], np.cumsum(_DISCOUNTS)])


def sampled_ndcg(
    ranking: Sequence[str],
    grades: Mapping[str, int],
    probabilities: Mapping[str, float],
) -> float:
    """Return nDCG@10 of a ranking whose judged documents were drawn with known probabilities.

    DCG is a Horvitz-Thompson sum. The ideal list has as many documents of each grade as are
    estimated to exist. If all documents were judged, this is nDCG@10 with linear gain as in
    trec_eval; otherwise it may be above 1.

    Args:
        ranking: Documents, best first.
        grades: Judged document to grade.
        probabilities: Judged document to the probability that it was drawn.

    References:
        Yilmaz, Kanoulas and Aslam, 2008 (the extended inferred nDCG).
    """
    gain = 0.0
    for document, discount in zip(ranking, _DISCOUNTS.tolist(), strict=False):
        if document in grades:
            grade = max(grades[document], 0)
            gain += discount * grade / probabilities[document]
    ideal = 0.0
    before = 0.0
    positive = {grade for grade in grades.values() if grade > 0}
    for grade in sorted(positive, reverse=True):
        of_grade = [document for document, value in grades.items() if value == grade]
        estimated = sum(1 / probabilities[document] for document in of_grade)
        after = before + estimated
        first, last = np.interp(
            [before, after],
            np.arange(_DEPTH + 1),
            _CUMULATED,
        )
        ideal += grade * float(last - first)
        before = after
    return gain / ideal if ideal else 0.0


def judged_scores(judged: Judgements, results: Sequence[Results]) -> Doubles:
    """Return the (n, M) estimated nDCG@10 of the judged queries."""
    scores = []
    for query_id, query in judged.queries.items():
        of_models = []
        for run in results:
            ranking = [document for document, _ in run.get(query_id, ())]
            score = sampled_ndcg(ranking, query.grades, query.probabilities)
            of_models.append(score)
        scores.append(of_models)
    return np.array(scores)


def query_weights(judged: Judgements) -> Doubles:
    """Return the (n,) inverse probabilities of the judged queries, with mean 1.

    A query that was not drawn gets the mean weight of those that were.
    """
    probabilities = [query.probability for query in judged.queries.values()]
    known = [1 / probability for probability in probabilities if probability]
    usual = 1.0
    if known:
        usual = float(np.mean(known))
    weights = np.full(len(probabilities), usual)
    for row, probability in enumerate(probabilities):
        if probability:
            weights[row] = 1 / probability
    return weights / float(weights.mean())


def count_unjudged(judged: Judgements, results: Results) -> float:
    """Return how many of a query's best ten documents nobody judged, on average.

    They count as not relevant.
    """
    counts = []
    for query_id, query in judged.queries.items():
        best = results.get(query_id, ())[:_DEPTH]
        unjudged = [document for document, _ in best if document not in query.grades]
        counts.append(len(unjudged))
    return float(np.mean(counts))


def usual_variance(distance: float) -> float:
    """Return the variance that a query's difference usually has, by the rank distance of models."""
    return _DEVIATION**2 * distance


def half_width(queries: float, deviation: float) -> float:
    """Return half the width of a confidence sequence for a mean.

    Its intervals hold at all numbers of queries at once. The half-width is
    σ √(2 (tρ² + 1) / (tρ)² · log(√(tρ² + 1) / α)) at t queries, asymptotic in t, with ρ such that
    it is narrowest at 30 queries.

    Args:
        queries: The number of queries, t.
        deviation: Standard deviation of a query, σ.

    References:
        Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2024 (Theorem 2.2; ρ from their appendix).
    """
    from scipy import special  # reading a record does not need it

    alpha = 1 - LEVEL
    argument = -(alpha**2) / math.e
    lambert = float(special.lambertw(argument, -1).real)
    rho2 = (-lambert - 1) / _NARROWEST_AT
    grown = queries * rho2 + 1
    factor = 2 * grown / (queries**2 * rho2)
    squared = factor * math.log(math.sqrt(grown) / alpha)
    return deviation * math.sqrt(squared)


def more_queries(
    difference: float,
    deviation: float,
    queries: int,
    margin: float,
) -> int | None:
    """Return how many more judged queries settle a difference, if it stays as it is.

    The confidence sequence then excludes 0, or lies within the margin.

    Args:
        difference: The mean difference now.
        deviation: Standard deviation of a query.
        queries: Judged queries now.
        margin: Differences within it do not matter.

    Returns:
        The number; None if 10,000 queries do not settle it.
    """

    def is_settled(count: int) -> bool:
        width = half_width(count, deviation)
        return width < abs(difference) or abs(difference) + width <= margin

    if not is_settled(_PLANNED):
        return None
    counts = range(max(queries, FEWEST), _PLANNED)
    first = counts.start + bisect_left(counts, True, key=is_settled)
    return first - queries


def centred(variances: Doubles) -> Doubles:
    """Return the covariance of values around their mean, from variances of their differences.

    Args:
        variances: (M, M) variances of differences.

    Returns:
        (M, M), without its negative part.
    """
    count = len(variances)
    middle = np.eye(count) - 1 / count
    values, axes = np.linalg.eigh(-0.5 * middle @ variances @ middle)
    return (axes * values.clip(min=0)) @ axes.T  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Posterior:
    """Values of M models around their mean, distributed as N(mean, covariance).

    Attributes:
        mean: (M,).
        covariance: (M, M).
    """

    mean: Doubles
    covariance: Doubles

    def difference(self, a: int, b: int) -> tuple[float, float]:
        """Return the mean and the standard deviation of the difference of model b and model a."""
        covariance = self.covariance
        mean = float(self.mean[b] - self.mean[a])
        both = covariance[a, a] + covariance[b, b]
        variance = float(both - 2 * covariance[a, b])
        return mean, math.sqrt(max(variance, 0.0))


@dataclass(frozen=True)
class Expected:
    """The expected values of M models without labels.

    Their values, up to a constant, are N(mean, covariance).

    Attributes:
        mean: (M,).
        variances: (M, M) of the differences.
        distances: (M, M) rank distances, which predict the deviation of single queries.
    """

    mean: Doubles
    variances: Doubles
    distances: Doubles

    @classmethod
    def nothing(cls, models: int) -> Self:
        """Return what is expected of models about which nothing is known."""
        apart = 1 - np.eye(models)
        return cls(np.zeros(models), apart, apart)

    @cached_property
    def prior(self) -> Posterior:
        """Return the models before any query is judged."""
        return Posterior(
            self.mean - self.mean.mean(),
            centred(self.variances),
        )

    @cached_property
    def _spread(self) -> Doubles:
        """Return the (M, M) spread of a single query's scores."""
        return centred(self.distances)

    def posterior(self, scores: Doubles, weights: Doubles) -> Posterior:
        """Return the models after some queries are judged.

        Expectation and scores are weighted by their precision. The covariance of a query's scores
        is that of the judged ones, mixed with one that follows the rank distances and counts for
        ten queries.

        Args:
            scores: (n, M) scores of the judged queries.
            weights: (n,) weights of the queries.
        """
        prior = self.prior
        if not len(scores):
            return prior
        values = scores - scores.mean(axis=1, keepdims=True)
        mean = weights / weights.sum() @ values
        error = self._error(values, mean, weights)
        total = prior.covariance + error
        gain = prior.covariance @ np.linalg.pinv(
            total,
            rcond=1e-10,
            hermitian=True,
        )
        return Posterior(
            mean=prior.mean + gain @ (mean - prior.mean),
            covariance=prior.covariance - gain @ prior.covariance,
        )

    def _error(
        self,
        values: Doubles,
        mean: Doubles,
        weights: Doubles,
    ) -> Doubles:
        """Return the (M, M) covariance of the weighted mean of (n, M) values of queries."""
        n = len(values)
        spread = self._spread
        shares = weights / weights.sum()
        influences = n * shares[:, None] * (values - mean)
        freedom = n - 1 + _COUNTS_FOR
        size = max(float(np.trace(spread)), 1e-12)
        observed = np.square(influences).sum()
        usual = (observed + _COUNTS_FOR * _DEVIATION**2 * size) / freedom
        expected = _COUNTS_FOR * usual / size * spread
        products = influences.T @ influences
        error: Doubles = (products + expected) / freedom / n
        return error


@dataclass(frozen=True)
class JudgedGain:
    """A mean difference in nDCG@10 over judged queries alone.

    Attributes:
        difference: The mean difference.
        interval: Its 90% interval, which holds however often one looks; None below ten queries.
        more: Judged queries that would settle it, see :func:`more_queries`.
    """

    difference: float
    interval: tuple[float, float] | None
    more: int | None

    @classmethod
    def of(
        cls,
        differences: Doubles,
        weights: Doubles,
        distance: float,
        margin: float,
    ) -> Self:
        """Summarise the differences of queries.

        Args:
            differences: (n,) differences.
            weights: (n,) weights of the queries.
            distance: Rank distance of the two models.
            margin: Differences within it do not matter.
        """
        n = len(differences)
        shares = weights / weights.sum()
        mean = float(shares @ differences)
        influences = n * shares * (differences - mean)
        usual = _COUNTS_FOR * usual_variance(distance)
        squares = float(influences @ influences)
        deviation = math.sqrt((squares + usual) / (n + _COUNTS_FOR))
        width = half_width(n, deviation)
        return cls(
            difference=mean,
            interval=(mean - width, mean + width) if n >= FEWEST else None,
            more=more_queries(mean, deviation, n, margin),
        )


@dataclass(frozen=True)
class FewLabels:
    """The evidence of judged queries about several models.

    Attributes:
        file: The file of the judgements.
        queries: How many queries are judged.
        documents: How many documents are judged.
        counts: Judgements that are left out, by reason.
        drawn: True if queries or documents were drawn, and are weighted by their probabilities.
        unjudged: Model to the number of its ten best documents that nobody judged, on average.
        values: Model to its nDCG@10 on the judged queries.
        chosen: The best model after shrinking.
        reference: The model that it is compared with.
        held_out: What choosing gained against the reference on queries that had no part in the
            choice: each judged query is scored by what those judged before it choose (forward
            cross-validation).
        pairs: Model a to model b to the gain of b over a by the judged queries alone.
    """

    file: str
    queries: int
    documents: int
    counts: dict[str, int]
    drawn: bool
    unjudged: dict[str, float]
    values: dict[str, float]
    chosen: str
    reference: str
    held_out: JudgedGain
    pairs: dict[str, dict[str, JudgedGain]] = field(default_factory=dict)

    def describe(self) -> Iterator[str]:
        """Yield sentences: what is judged, what choosing gains, and what may mislead."""
        drawn = ", weighted by how they were drawn" if self.drawn else ""
        yield (
            f"{self.queries} queries and {self.documents:,} documents are judged in "
            f"{self.file}{drawn}."
        )
        if self.chosen != self.reference:
            gain = describe_alone(self.held_out, self.queries)
            yield (
                f"A choice by them, compared with {self.reference} on queries that had no part in "
                f"it: {gain}."
            )
        least = min(self.unjudged.values())
        most = max(self.unjudged.values())
        if most and not self.drawn:
            yield (
                f"Depending on the model, {least:.1f} to {most:.1f} of a query's ten best "
                "documents are not judged and count as not relevant."
            )
        for reason, count in self.counts.items():
            yield f"{count} {reason}."


def judge(
    judged: Judgements,
    results: Mapping[str, Results],
    expected: Expected | None = None,
    reference: str | None = None,
    margin: float = 0.01,
) -> tuple[FewLabels, Posterior]:
    """Choose among models by judged queries and what was expected of them.

    Args:
        judged: Judgements of queries that were searched for.
        results: Model to its results, in the order of ``expected``.
        expected: What is expected of the models, by default nothing.
        reference: The model that a choice is compared with, by default the first.
        margin: Differences within it do not matter.
    """
    models = list(results)
    if expected is None:
        expected = Expected.nothing(len(models))
    reference = reference or models[0]
    weights = query_weights(judged)
    scores = judged_scores(judged, list(results.values()))
    posterior = expected.posterior(scores, weights)
    means = weights @ scores / weights.sum()
    chosen = int(np.argmax(posterior.mean))
    few_labels = FewLabels(
        file=judged.file,
        queries=len(scores),
        documents=sum(len(query.grades) for query in judged.queries.values()),
        counts=judged.counts,
        drawn=judged.drawn,
        unjudged={model: count_unjudged(judged, run) for model, run in results.items()},
        values=dict(zip(models, means.tolist(), strict=True)),
        chosen=models[chosen],
        reference=reference,
        held_out=held_out_gain(
            expected,
            scores,
            weights,
            models.index(reference),
            margin,
        ),
        pairs=_judged_pairs(models, expected, scores, weights, margin),
    )
    return few_labels, posterior


def _judged_pairs(
    models: Sequence[str],
    expected: Expected,
    scores: Doubles,
    weights: Doubles,
    margin: float,
) -> dict[str, dict[str, JudgedGain]]:
    """Return the gain of b over a by judged queries alone, for all pairs."""
    pairs: dict[str, dict[str, JudgedGain]] = {model: {} for model in models[:-1]}
    for (i, a), (j, b) in itertools.combinations(enumerate(models), 2):
        differences = scores[:, j] - scores[:, i]
        distance = float(expected.distances[i, j])
        pairs[a][b] = JudgedGain.of(differences, weights, distance, margin)
    return pairs


def held_out_gain(
    expected: Expected,
    scores: Doubles,
    weights: Doubles,
    reference: int,
    margin: float,
) -> JudgedGain:
    """Return the gain over a reference on each query, by the model that earlier queries choose.

    Args:
        expected: What is expected of the models.
        scores: (n, M) scores of the judged queries.
        weights: (n,) weights of the queries.
        reference: Number of the reference.
        margin: Differences within it do not matter.

    References:
        Dawid, 1984 (prequential analysis); Blum, Kalai and Langford, 1999 (progressive validation).
    """
    count = len(scores)
    step = max(1, count // _CHOICES)
    gains = np.zeros(count)
    chosen = reference
    distance = 0.0
    for t in range(count):
        if t % step == 0:
            posterior = expected.posterior(scores[:t], weights[:t])
            chosen = int(np.argmax(posterior.mean))
        gains[t] = scores[t, chosen] - scores[t, reference]
        distance += float(expected.distances[chosen, reference]) / count
    return JudgedGain.of(gains, weights, distance, margin)


def describe_alone(gain: JudgedGain, queries: int) -> str:
    """Say in words what judged queries alone gain, and how sure that is."""
    alone = f"{gain.difference:+.3f} on {queries} judged queries alone"
    if gain.interval is None:
        return f"{alone}, too few for an interval ({FEWEST} are needed)"
    low, high = gain.interval
    return f"{alone} ({low:+.3f} to {high:+.3f}, however often one looks)"


def describe_gain(gain: JudgedGain, queries: int, *, is_decided: bool) -> str:
    """Say in words what judged queries alone gain, and how many more would settle it.

    This is for a pair of models. The gain of a choice on held-out queries decides no verdict, and
    so nothing is settled by it: see :func:`describe_alone`. The same holds where a verdict, which
    also rests on what was expected, differs from what judged queries alone would decide.

    Args:
        gain: What the judged queries gain.
        queries: How many they are.
        is_decided: True if the verdict on the pair is decided.
    """
    alone = describe_alone(gain, queries)
    is_settled = gain.more == 0
    if gain.interval is None or is_settled != is_decided:
        return alone
    if gain.more is None:
        return f"{alone}; more than {_PLANNED:,} would not settle it"
    if is_settled:
        return f"{alone}, settled"
    return f"{alone}; about {gain.more:,} more would settle it"
