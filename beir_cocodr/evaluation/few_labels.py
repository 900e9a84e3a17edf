"""Estimates from a few judged queries of several models.

They are shrunken towards what was expected without labels. An interval holds however often one
looks, and the number of judgements that would settle a question is estimated. Scores of queries are
(n, M) arrays, in the order in which the queries were judged.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist

import numpy as np

from beir_cocodr.arrays import Doubles
from beir_cocodr.data.judgements import Judgements
from beir_cocodr.retrieval.ranking import Results

#: The level of all intervals, and its quantile of the normal distribution.
LEVEL = 0.9
NORMAL = NormalDist().inv_cdf(0.5 + LEVEL / 2)

#: Fewer judged queries than this decide nothing by themselves.
FEWEST = 10

# The number of judged queries at which the confidence sequence is narrowest for its kind.
_NARROWEST_AT = 30

# The standard deviation, over queries, of the difference between two rankings without a common
# document, as measured on labelled collections, and the number of queries that it counts for.
_DEVIATION = 0.25
_COUNTS_FOR = 10

# The most judged queries that are planned for.
_PLANNED = 10_000

# The most choices that are repeated for the held-out gain.
_CHOICES = 100

# Sizes of rank distances below this count as 0 in a division.
_SMALLEST_SIZE = 1e-12

_DEPTH = 10
_DISCOUNTS = 1 / np.log2(2 + np.arange(_DEPTH))
_CUMULATED = np.concatenate([[0.0], np.cumsum(_DISCOUNTS)])


def sampled_ndcg(
    ranking: Sequence[str], grades: Mapping[str, int], probabilities: Mapping[str, float]
) -> float:
    """Estimate nDCG@10 of a ranking of which only a drawn sample was judged.

    DCG is a Horvitz-Thompson sum: each judged document is weighted by the inverse of its
    probability. The ideal ranking has as many documents of each grade as are estimated to exist. If
    all documents were judged, the result is nDCG@10 with linear gain as in trec_eval; otherwise it
    can be above 1.

    Args:
        ranking: document ids, best first.
        grades: document id to grade.
        probabilities: document id to the probability that it was drawn for judging.

    References:
        Yilmaz, Kanoulas and Aslam, 2008 (extended inferred nDCG).
    """
    gain = 0.0
    for document, discount in zip(ranking, _DISCOUNTS.tolist(), strict=False):
        if document in grades:
            gain += discount * max(grades[document], 0) / probabilities[document]
    ideal = _ideal_gain(grades, probabilities)
    return gain / ideal if ideal else 0.0


def _ideal_gain(grades: Mapping[str, int], probabilities: Mapping[str, float]) -> float:
    """Return the DCG@10 of the ideal ranking of the documents that are estimated to exist."""
    ideal = 0.0
    first_rank = 0.0
    positive_grades = {grade for grade in grades.values() if grade > 0}
    for grade in sorted(positive_grades, reverse=True):
        count = sum(1 / probabilities[id] for id, other in grades.items() if other == grade)
        last_rank = first_rank + count
        bounds = np.interp([first_rank, last_rank], np.arange(_DEPTH + 1), _CUMULATED)
        ideal += grade * float(bounds[1] - bounds[0])
        first_rank = last_rank
    return ideal


def judged_scores(judged: Judgements, results: Sequence[Results]) -> Doubles:
    """Return the (n, M) estimated nDCG@10 of the judged queries."""
    rows = []
    for id, query in judged.queries.items():
        rankings = [[document for document, _ in result.get(id, ())] for result in results]
        scores = [sampled_ndcg(r, query.grades, query.probabilities) for r in rankings]
        rows.append(scores)
    return np.array(rows)


def query_weights(judged: Judgements) -> Doubles:
    """Return the (n,) inverse probabilities of the judged queries, scaled to mean 1.

    A query that was not drawn has the mean weight of the drawn ones.
    """
    probabilities = [query.probability for query in judged.queries.values()]
    inverse = [1 / probability for probability in probabilities if probability]
    usual = float(np.mean(inverse)) if inverse else 1.0
    weights = np.array([1 / p if p else usual for p in probabilities])
    return weights / float(weights.mean())


def count_unjudged(judged: Judgements, results: Results) -> float:
    """Return the mean number of documents among a query's ten best that nobody judged.

    They count as not relevant.
    """
    counts = []
    for id, query in judged.queries.items():
        best = results.get(id, ())[:_DEPTH]
        counts.append(sum(document not in query.grades for document, _ in best))
    return float(np.mean(counts))


def half_width(queries: float, deviation: float) -> float:
    """Return half the width of the confidence sequence for a mean.

    Its intervals hold at all numbers of queries at once. At t queries the half width is
    σ √(2 (tρ² + 1) / (tρ)² · log(√(tρ² + 1) / α)), asymptotic in t, with the ρ that makes it
    narrowest at 30 queries.

    Args:
        queries: t, the number of queries.
        deviation: σ, their standard deviation.

    References:
        Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2024, Theorem 2.2; ρ from their appendix.
    """
    from scipy import special  # slow to import, and not needed to read a record

    alpha = 1 - LEVEL
    branch = float(special.lambertw(-(alpha**2) / math.e, -1).real)
    rho_squared = (-branch - 1) / _NARROWEST_AT
    grown = queries * rho_squared + 1
    factor = 2 * grown / (queries**2 * rho_squared)
    return deviation * math.sqrt(factor * math.log(math.sqrt(grown) / alpha))


def more_queries(difference: float, deviation: float, queries: int, margin: float) -> int | None:
    """Return how many more judged queries would settle a difference.

    It assumes that the difference stays what it is now. The question is settled when the
    confidence sequence excludes 0, or lies within the margin.

    Args:
        difference: the mean difference now.
        deviation: its standard deviation over queries.
        queries: the number of queries judged so far.
        margin: differences within it are not worth having.

    Returns:
        A number of queries, or None if 10,000 would not settle it.
    """

    def is_settled(count: int) -> bool:
        width = half_width(count, deviation)
        return width < abs(difference) or abs(difference) + width <= margin

    if not is_settled(_PLANNED):
        return None
    fewest = max(queries, FEWEST)
    further = bisect_left(range(fewest, _PLANNED), True, key=is_settled)
    return fewest + further - queries


def centred(variances: Doubles) -> Doubles:
    """Return the covariance of values around their mean, from the variances of their differences.

    Args:
        variances: (M, M) variances of the differences.

    Returns:
        (M, M). The negative part, which is no covariance, is cut off.
    """
    count = len(variances)
    middle = np.eye(count) - 1 / count
    values, axes = np.linalg.eigh(-0.5 * middle @ variances @ middle)
    return (axes * values.clip(min=0)) @ axes.T  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Posterior:
    """The values of M models around their mean, distributed as N(mean, covariance)."""

    mean: Doubles
    covariance: Doubles

    def difference(self, a: int, b: int) -> tuple[float, float]:
        """Return the mean and the standard deviation of the difference b − a."""
        c = self.covariance
        variance = float(c[a, a] + c[b, b] - 2 * c[a, b])
        return float(self.mean[b] - self.mean[a]), math.sqrt(max(variance, 0.0))


@dataclass(frozen=True)
class Expected:
    """The expectation of M models without labels: their values, up to a constant, are normal.

    Attributes:
        mean: (M,) expected values.
        variances: (M, M) variances of the differences.
        distances: (M, M) rank distances, which predict the deviation of single queries.
    """

    mean: Doubles
    variances: Doubles
    distances: Doubles

    @classmethod
    def nothing(cls, models: int) -> "Expected":
        """Return the expectation of models of which nothing is known."""
        apart = 1 - np.eye(models)
        return cls(np.zeros(models), apart, apart)

    @cached_property
    def _prior(self) -> Posterior:
        return Posterior(self.mean - self.mean.mean(), centred(self.variances))

    @cached_property
    def _query_spread(self) -> Doubles:
        """Return the (M, M) covariance of a single query's scores, up to a factor."""
        return centred(self.distances)

    def posterior(self, scores: Doubles, weights: Doubles) -> Posterior:
        """Combine the expectation with judged queries, both weighted by their precision.

        The covariance of a query's scores is that of the judged ones, mixed with one that follows
        the rank distances and counts for ten queries.

        Args:
            scores: (n, M) scores of judged queries.
            weights: (n,) weights of the queries.
        """
        n = len(scores)
        prior = self._prior
        if not n:
            return prior
        values = scores - scores.mean(axis=1, keepdims=True)
        shares = weights / weights.sum()
        mean = shares @ values
        error = self._error_covariance(n * shares[:, None] * (values - mean))
        total = np.linalg.pinv(prior.covariance + error, rcond=1e-10, hermitian=True)
        gain = prior.covariance @ total
        return Posterior(
            prior.mean + gain @ (mean - prior.mean), prior.covariance - gain @ prior.covariance
        )

    def _error_covariance(self, influences: Doubles) -> Doubles:
        """Return the (M, M) covariance of mean scores, given the (n, M) influences of queries."""
        n = len(influences)
        spread = self._query_spread
        freedom = n - 1 + _COUNTS_FOR
        size = max(float(np.trace(spread)), _SMALLEST_SIZE)
        usual = (np.square(influences).sum() + _COUNTS_FOR * _DEVIATION**2 * size) / freedom
        error: Doubles = (influences.T @ influences + _COUNTS_FOR * usual / size * spread) / (
            freedom
        )
        return error / n


@dataclass(frozen=True)
class JudgedGain:
    """A mean difference in nDCG@10 over judged queries alone, with a 90% interval.

    The interval holds however often one looks.

    Attributes:
        difference: the weighted mean difference.
        interval: its bounds; None for fewer than ten queries.
        more: the number of further judged queries that would settle it, see :func:`more_queries`.
    """

    difference: float
    interval: tuple[float, float] | None
    more: int | None

    @classmethod
    def of(
        cls, differences: Doubles, weights: Doubles, distance: float, margin: float
    ) -> "JudgedGain":
        """Estimate the gain from the differences of single queries.

        Args:
            differences: (n,) differences of the queries.
            weights: (n,) weights of the queries.
            distance: rank distance of the two models' rankings.
            margin: differences within it are not worth having.
        """
        n = len(differences)
        shares = weights / weights.sum()
        mean = float(shares @ differences)
        influences = n * shares * (differences - mean)
        usual = _COUNTS_FOR * _DEVIATION**2 * distance
        deviation = math.sqrt((float(influences @ influences) + usual) / (n + _COUNTS_FOR))
        width = half_width(n, deviation)
        interval = (mean - width, mean + width) if n >= FEWEST else None
        return cls(mean, interval, more_queries(mean, deviation, n, margin))


@dataclass(frozen=True)
class FewLabels:
    """A choice among several models by a few judged queries.

    Attributes:
        file: the file with the judgements.
        queries: the number of judged queries.
        documents: the number of judged documents.
        counts: reasons for which judgements were left out, each with their number.
        drawn: True if queries or documents were drawn by chance and are weighted accordingly.
        unjudged: model to the mean number of its ten best documents that nobody judged.
        values: model to its nDCG@10 on the judged queries.
        chosen: the best model after shrinking.
        reference: the model that the choice is compared with.
        held_out: the gain of choosing over the reference on queries that had no part in the choice.
            Each judged query is scored by the model that those judged before it choose (forward
            cross-validation).
        pairs: "a" to "b" to the gain of b over a by the judged queries alone.
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
        weighted = ", weighted by how they were drawn" if self.drawn else ""
        yield (
            f"{self.queries} queries and {self.documents:,} documents are judged in "
            f"{self.file}{weighted}."
        )
        if self.chosen != self.reference:
            gain = describe_gain(self.held_out, self.queries)
            yield (
                f"Choosing by them, against {self.reference}, on queries that had no part in the "
                f"choice: {gain}."
            )
        fewest = min(self.unjudged.values())
        most = max(self.unjudged.values())
        if most:
            yield (
                f"For each query, {fewest:.1f} to {most:.1f} of a model's ten best documents are "
                "not judged and count as not relevant."
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
        judged: judgements of queries that were searched for.
        results: model to its results, in the order of ``expected``.
        expected: the expectation without labels. Default: nothing is known.
        reference: the model that a choice is compared with. Default: the first.
        margin: differences within it are not worth having.
    """
    models = list(results)
    weights = query_weights(judged)
    if expected is None:
        expected = Expected.nothing(len(models))
    reference = reference or models[0]
    scores = judged_scores(judged, list(results.values()))
    posterior = expected.posterior(scores, weights)
    values = (weights @ scores / weights.sum()).tolist()
    few_labels = FewLabels(
        file=judged.file,
        queries=len(scores),
        documents=sum(len(query.grades) for query in judged.queries.values()),
        counts=judged.counts,
        drawn=judged.drawn,
        unjudged={model: count_unjudged(judged, result) for model, result in results.items()},
        values=dict(zip(models, values, strict=True)),
        chosen=models[int(np.argmax(posterior.mean))],
        reference=reference,
        held_out=held_out_gain(expected, scores, weights, models.index(reference), margin),
        pairs=_gains_of_pairs(models, scores, weights, expected, margin),
    )
    return few_labels, posterior


def _gains_of_pairs(
    models: Sequence[str], scores: Doubles, weights: Doubles, expected: Expected, margin: float
) -> dict[str, dict[str, JudgedGain]]:
    pairs: dict[str, dict[str, JudgedGain]] = {model: {} for model in models[:-1]}
    for (i, a), (j, b) in itertools.combinations(enumerate(models), 2):
        differences = scores[:, j] - scores[:, i]
        distance = float(expected.distances[i, j])
        pairs[a][b] = JudgedGain.of(differences, weights, distance, margin)
    return pairs


def held_out_gain(
    expected: Expected, scores: Doubles, weights: Doubles, reference: int, margin: float
) -> JudgedGain:
    """Measure on each query the gain of the model that the queries before it choose.

    Args:
        expected: the expectation without labels.
        scores: (n, M) scores of judged queries.
        weights: (n,) weights of the queries.
        reference: the column of the model that the choice is compared with.
        margin: differences within it are not worth having.

    References:
        Dawid, 1984 (prequential analysis); Blum, Kalai and Langford, 1999 (progressive
        validation).
    """
    step = max(1, len(scores) // _CHOICES)
    gains = np.zeros(len(scores))
    chosen = reference
    mean_distance = 0.0
    for t in range(len(scores)):
        if t % step == 0:
            chosen = int(np.argmax(expected.posterior(scores[:t], weights[:t]).mean))
        gains[t] = scores[t, chosen] - scores[t, reference]
        mean_distance += float(expected.distances[chosen, reference]) / len(scores)
    return JudgedGain.of(gains, weights, mean_distance, margin)


def describe_gain(gain: JudgedGain, queries: int) -> str:
    """Describe a gain by judged queries alone, and how many more would settle it."""
    sentence = f"{gain.difference:+.3f} on {queries} judged queries alone"
    if gain.interval is None:
        return f"{sentence}, too few for an interval ({FEWEST} are needed)"
    low, high = gain.interval
    sentence += f" ({low:+.3f} to {high:+.3f}, however often one looks)"
    if gain.more is None:
        return f"{sentence}; more than {_PLANNED:,} would not settle it"
    if gain.more == 0:
        return f"{sentence}, settled"
    return f"{sentence}; about {gain.more:,} more would settle it"
