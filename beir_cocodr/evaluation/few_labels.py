"""What a few judged queries tell of several models: estimates that are shrunken towards what was
expected without labels, an interval that holds however often one looks, and how many more
judgements would settle it.

Scores of queries are (n, M), in the order in which the queries were judged.
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

#: Of intervals, and its quantile of the normal distribution.
LEVEL = 0.9
NORMAL = NormalDist().inv_cdf(0.5 + LEVEL / 2)

#: From fewer judged queries nothing is concluded by themselves.
FEWEST = 10

#: Judged queries at which the confidence sequence is narrowest for its kind.
_NARROWEST_AT = 30

#: Deviation of a query's difference between two lists without a common document, as on labelled
#: collections, and how many queries it counts for beside those that are judged.
_DEVIATION, _COUNTS_FOR = 0.25, 10

#: The most judgements that are planned for, and choices that are made again for the held-out gain.
_PLANNED, _CHOICES = 10_000, 100

_DEPTH = 10
_DISCOUNTS = 1 / np.log2(2 + np.arange(_DEPTH))
_CUMULATED = np.concatenate([[0.0], np.cumsum(_DISCOUNTS)])


def sampled_ndcg(
    found: Sequence[str], grades: Mapping[str, int], probabilities: Mapping[str, float]
) -> float:
    """nDCG@10 of a list, each judged document weighted by the inverse of its probability to have
    been drawn.

    DCG is a Horvitz-Thompson sum. The ideal list has as many documents of each grade as are
    estimated to exist. Where all documents were judged it is nDCG@10 with linear gain as in
    trec_eval; else it may be above 1.

    Source: Yilmaz, Kanoulas and Aslam, 2008 (the extended inferred nDCG).
    """
    gain = sum(
        discount * max(grades[document], 0) / probabilities[document]
        for document, discount in zip(found, _DISCOUNTS.tolist(), strict=False)
        if document in grades
    )
    ideal = before = 0.0
    for grade in sorted({grade for grade in grades.values() if grade > 0}, reverse=True):
        upto = before + sum(
            1 / probabilities[document] for document, found in grades.items() if found == grade
        )
        places = np.interp([before, upto], np.arange(_DEPTH + 1), _CUMULATED)
        ideal += grade * float(places[1] - places[0])
        before = upto
    return gain / ideal if ideal else 0.0


def judged_scores(judged: Judgements, results: Sequence[Results]) -> Doubles:
    """(n, M) estimated nDCG@10 of the judged queries."""
    rows = (
        [
            sampled_ndcg([d for d, _ in found.get(id, ())], query.grades, query.probabilities)
            for found in results
        ]
        for id, query in judged.queries.items()
    )
    return np.array(list(rows))


def query_weights(judged: Judgements) -> Doubles:
    """(n,) inverse probabilities of the judged queries, with mean 1; queries that were not drawn
    are taken as even.
    """
    known = [1 / query.probability for query in judged.queries.values() if query.probability]
    usual = float(np.mean(known)) if known else 1.0
    weights = np.array(
        [1 / query.probability if query.probability else usual for query in judged.queries.values()]
    )
    return weights / float(weights.mean())


def count_unjudged(judged: Judgements, results: Results) -> float:
    """Documents among a query's best ten that nobody judged, on average; they count as not
    relevant.
    """
    found = [
        sum(d not in q.grades for d, _ in results.get(id, ())[:_DEPTH])
        for id, q in judged.queries.items()
    ]
    return float(np.mean(found))


def half_width(queries: float, deviation: float) -> float:
    """Of the confidence sequence for a mean: intervals that hold at all numbers of queries at once.

    σ √(2 (tρ² + 1) / (tρ)² · log(√(tρ² + 1) / α)) at t queries, asymptotic in t, with ρ so that it
    is narrowest at 30 queries.

    Source: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2024 (Theorem 2.2; ρ from their
    appendix).
    """
    from scipy import special  # not needed to read what was found

    alpha = 1 - LEVEL
    rho2 = (-float(special.lambertw(-(alpha**2) / math.e, -1).real) - 1) / _NARROWEST_AT
    grown = queries * rho2 + 1
    return deviation * math.sqrt(
        2 * grown / (queries**2 * rho2) * math.log(math.sqrt(grown) / alpha)
    )


def more_queries(difference: float, deviation: float, queries: int, margin: float) -> int | None:
    """How many more judged queries settle it, if the difference is what it is now: the sequence
    then excludes 0, or lies within the margin. None where 10,000 do not.
    """

    def settled(n: int) -> bool:
        width = half_width(n, deviation)
        return width < abs(difference) or abs(difference) + width <= margin

    counts = range(max(queries, FEWEST), _PLANNED)
    return (
        counts.start + bisect_left(counts, True, key=settled) - queries
        if settled(_PLANNED)
        else None
    )


def centred(variances: Doubles) -> Doubles:
    """(M, M) variances of differences to the covariance of values around their mean, its negative
    part cut off.
    """
    count = len(variances)
    middle = np.eye(count) - 1 / count
    values, axes = np.linalg.eigh(-0.5 * middle @ variances @ middle)
    return (axes * values.clip(min=0)) @ axes.T  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Posterior:
    """Values of M models, around their mean: N(mean, covariance)."""

    mean: Doubles
    covariance: Doubles

    def difference(self, a: int, b: int) -> tuple[float, float]:
        """Of b − a, the mean and the standard deviation."""
        c = self.covariance
        return float(self.mean[b] - self.mean[a]), math.sqrt(
            max(float(c[a, a] + c[b, b] - 2 * c[a, b]), 0.0)
        )


@dataclass(frozen=True)
class Expected:
    """What is expected of M models without labels: their values, up to a constant, are N(mean,
    covariance).

    Attributes:
        mean: (M,).
        variances: (M, M) of the differences.
        distances: (M, M) rank distances, from which the deviation of single queries is expected.
    """

    mean: Doubles
    variances: Doubles
    distances: Doubles

    @classmethod
    def nothing(cls, models: int) -> "Expected":
        """Of models of which nothing is expected."""
        apart = 1 - np.eye(models)
        return cls(np.zeros(models), apart, apart)

    @cached_property
    def _prior(self) -> tuple[Posterior, Doubles]:
        """Of the models, and the (M, M) spread of a single query's scores."""
        return Posterior(self.mean - self.mean.mean(), centred(self.variances)), centred(
            self.distances
        )

    def posterior(self, scores: Doubles, weights: Doubles) -> Posterior:
        """After (n, M) scores of queries with (n,) weights: both are weighted by their precision.
        The covariance of a query's scores is that of the judged ones, mixed with one that follows
        the rank distances and counts for ten queries.
        """
        n, (prior, spread) = len(scores), self._prior
        if not n:
            return prior
        values, shares = scores - scores.mean(axis=1, keepdims=True), weights / weights.sum()
        mean = shares @ values
        influences = n * shares[:, None] * (values - mean)
        freedom, size = n - 1 + _COUNTS_FOR, max(float(np.trace(spread)), 1e-12)
        usual = (np.square(influences).sum() + _COUNTS_FOR * _DEVIATION**2 * size) / freedom
        error = (influences.T @ influences + _COUNTS_FOR * usual / size * spread) / freedom / n
        gain = prior.covariance @ np.linalg.pinv(
            prior.covariance + error, rcond=1e-10, hermitian=True
        )
        return Posterior(
            prior.mean + gain @ (mean - prior.mean), prior.covariance - gain @ prior.covariance
        )


@dataclass(frozen=True)
class JudgedGain:
    """A mean difference in nDCG@10 over judged queries alone, with a 90% interval that holds
    however often one looks.

    Attributes:
        interval: None below ten queries.
        more: judged queries that would settle it, see :func:`more_queries`.
    """

    difference: float
    interval: tuple[float, float] | None
    more: int | None

    @classmethod
    def of(
        cls, differences: Doubles, weights: Doubles, distance: float, margin: float
    ) -> "JudgedGain":
        """Of (n,) differences of queries with (n,) weights, between two lists that are so
        distant.
        """
        n, shares = len(differences), weights / weights.sum()
        mean = float(shares @ differences)
        influences = n * shares * (differences - mean)
        usual = _COUNTS_FOR * _DEVIATION**2 * distance
        deviation = math.sqrt((float(influences @ influences) + usual) / (n + _COUNTS_FOR))
        width = half_width(n, deviation)
        more = more_queries(mean, deviation, n, margin)
        return cls(mean, (mean - width, mean + width) if n >= FEWEST else None, more)


@dataclass(frozen=True)
class FewLabels:
    """What judged queries tell of several models.

    Attributes:
        file: where the judgements stand.
        queries, documents: how many of them are judged.
        counts: judgements that are left out, and why.
        drawn: whether queries or documents were left to chance, and are weighted by their
            probabilities.
        unjudged: model to the number of its ten best documents that nobody judged, on average.
        values: model to its nDCG@10 on the judged queries.
        chosen, reference: the best model after shrinking, and what it is held against.
        held_out: what choosing gained against the reference on queries that had no part in the
            choice: each judged query is scored by what those judged before it choose (forward
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
        """Sentences: what is judged, what choosing gains, and what may mislead."""
        drawn = ", weighted by how they were drawn" if self.drawn else ""
        yield f"{self.queries} queries and {self.documents:,} documents are judged in {self.file}{drawn}."
        if self.chosen != self.reference:
            gain = describe_gain(self.held_out, self.queries)
            yield f"Choosing by them, against {self.reference}, on queries that had no part in the choice: {gain}."
        least, most = min(self.unjudged.values()), max(self.unjudged.values())
        if most:
            what = "documents among the ten best are not judged and count as not relevant"
            yield f"Of a query {least:.1f} to {most:.1f} {what}, by model."
        for what, count in self.counts.items():
            yield f"{count} {what}."


def judge(
    judged: Judgements,
    results: Mapping[str, Results],
    expected: Expected | None = None,
    reference: str | None = None,
    margin: float = 0.01,
) -> tuple[FewLabels, Posterior]:
    """Choose among models by judged queries and what was expected of them, by default nothing.

    Args:
        judged: of queries that were searched for.
        results: model to what it found, in the order of ``expected``.
        reference: the model that a choice is held against, by default the first.
        margin: differences within it are not worth having.
    """
    models, weights = list(results), query_weights(judged)
    expected, reference = expected or Expected.nothing(len(models)), reference or models[0]
    scores = judged_scores(judged, list(results.values()))
    posterior = expected.posterior(scores, weights)
    pairs: dict[str, dict[str, JudgedGain]] = {a: {} for a in models[:-1]}
    for (i, a), (j, b) in itertools.combinations(enumerate(models), 2):
        pairs[a][b] = JudgedGain.of(
            scores[:, j] - scores[:, i], weights, float(expected.distances[i, j]), margin
        )
    found = FewLabels(
        file=judged.file,
        queries=len(scores),
        documents=sum(len(query.grades) for query in judged.queries.values()),
        counts=judged.counts,
        drawn=judged.drawn,
        unjudged={model: count_unjudged(judged, found) for model, found in results.items()},
        values=dict(zip(models, (weights @ scores / weights.sum()).tolist(), strict=True)),
        chosen=models[int(np.argmax(posterior.mean))],
        reference=reference,
        held_out=held_out_gain(expected, scores, weights, models.index(reference), margin),
        pairs=pairs,
    )
    return found, posterior


def held_out_gain(
    expected: Expected, scores: Doubles, weights: Doubles, reference: int, margin: float
) -> JudgedGain:
    """What is gained over the reference on each query by the model that those before it choose.

    Source: Dawid, 1984 (prequential analysis); Blum, Kalai and Langford, 1999 (progressive
    validation).
    """
    step = max(1, len(scores) // _CHOICES)
    gains, chosen, used = np.zeros(len(scores)), reference, 0.0
    for t in range(len(scores)):
        if t % step == 0:
            chosen = int(np.argmax(expected.posterior(scores[:t], weights[:t]).mean))
        gains[t] = scores[t, chosen] - scores[t, reference]
        used += float(expected.distances[chosen, reference]) / len(scores)
    return JudgedGain.of(gains, weights, used, margin)


def describe_gain(found: JudgedGain, queries: int) -> str:
    """In words: the gain by judged queries alone, and what more would tell."""
    alone = f"{found.difference:+.3f} on {queries} judged queries alone"
    if found.interval is None:
        return f"{alone}, too few for an interval ({FEWEST} are needed)"
    alone += " ({:+.3f} to {:+.3f}, however often one looks)".format(*found.interval)
    if found.more is None:
        return f"{alone}; more than {_PLANNED:,} would not settle it"
    return (
        f"{alone}, settled"
        if not found.more
        else f"{alone}; about {found.more:,} more would settle it"
    )
