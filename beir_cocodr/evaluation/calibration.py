"""The calibration of verdicts without labels: what usually wins, and what evidence adds to that.

The difference in nDCG@10 of a pair of models has a prior by their kinds, from labelled collections.
The features of the pair, which need no labels, are evidence that depends linearly on the
difference. The posterior joins both in closed form, and without evidence it is the prior.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Self

import numpy as np

from beir_cocodr.arrays import Doubles
from beir_cocodr.evaluation.few_labels import NORMAL
from beir_cocodr.records import Record


def kind_pair(a: str | None, b: str | None) -> str:
    """Return the name of a pair of kinds in the calibration, such as "bm25, dense"."""
    return f"{a}, {b}"


@dataclass(frozen=True)
class Precedent:
    """How often models of one kind beat those of another on labelled collections.

    Attributes:
        collections: Labelled collections with such pairs.
        better: Collections in which the models b were better on average.
        average: Mean over the collections of the difference in nDCG@10, b − a.
    """

    collections: int
    better: int
    average: float

    def turned(self) -> Self:
        """Return the same precedent of a against b."""
        return type(self)(
            self.collections,
            self.collections - self.better,
            -self.average,
        )


@dataclass(frozen=True)
class KindPrior:
    """What is expected of a pair of kinds before anything is seen of the corpus.

    All figures are in units of the pair's scale, see :meth:`DifferenceModel.scale`.

    Attributes:
        mean: Expected difference, b − a.
        deviation: Its standard deviation over collections.
        features: Feature to its expected value.
        deviations: Feature to the deviation of that expectation, for kinds about which little is
            known; a feature that is missing has none.
        precedent: How often b was better on labelled collections.
    """

    mean: float
    deviation: float
    features: dict[str, float] = field(default_factory=dict)
    deviations: dict[str, float] = field(default_factory=dict)
    precedent: Precedent | None = None

    def turned(self) -> Self:
        """Return the same prior of a against b."""
        return type(self)(
            mean=-self.mean,
            deviation=self.deviation,
            features={name: -value for name, value in self.features.items()},
            deviations=self.deviations,
            precedent=None if self.precedent is None else self.precedent.turned(),
        )


@dataclass(frozen=True)
class PairFeatures:
    """What was seen of a pair of models without labels.

    Attributes:
        kinds: Kinds of a and b; None for a model without one.
        features: Feature to its value; exchanging a and b negates all. Absent evidence is missing.
        distance: Mean rank distance of the two models.
        unlikeness: Distance of the collection from those of the calibration.
        lost_words: How many fewer words of real queries than of crops the documents hold, see
            :attr:`~beir_cocodr.evaluation.label_free.evidence.Evidence.lost_words`.
        nonletter_excess: By how much the share of characters that are no letters is larger in
            documents than in real queries.
        queries: The number of queries on which rankings are compared.
    """

    kinds: tuple[str | None, str | None]
    features: Mapping[str, float]
    distance: float
    unlikeness: float = 0.0
    lost_words: float = 0.0
    nonletter_excess: float = 0.0
    queries: int = 0


@dataclass(frozen=True)
class ExpectedDifference:
    """An estimate of a difference in nDCG@10, b − a, and how far it may be wrong on either side.

    The two deviations are calibrated on collections that were left out. They differ where
    estimates tend to be too close to 0 or too far from it.

    Attributes:
        mean: The estimate.
        below: Its distance from the lower end of the 90% interval, divided by 1.645: the standard
            deviation, if errors are normal.
        above: The same for the upper end.
        prior_share: The share of the prior in the precision, 1 without evidence.
    """

    mean: float
    below: float
    above: float
    prior_share: float

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 90% interval."""
        return self.mean - NORMAL * self.below, self.mean + NORMAL * self.above

    @property
    def deviation(self) -> float:
        """Return the mean of both deviations."""
        return (self.below + self.above) / 2

    def moved(self, mean: float) -> ExpectedDifference:
        """Return the same with another mean; the side of 0 keeps its deviation."""
        if (mean > 0) == (self.mean > 0):
            return replace(self, mean=mean)
        return replace(self, mean=mean, below=self.above, above=self.below)

    def widened(self, factor: float) -> ExpectedDifference:
        """Return the same with both deviations multiplied."""
        return replace(self, below=factor * self.below, above=factor * self.above)

    def holding_zero(self) -> ExpectedDifference:
        """Return the same with deviations so large that the interval holds 0.

        How far evidence misleads is unknown where nothing may be decided.
        """
        # Rounded up, so that the interval does not end just beside 0.
        least = math.nextafter(abs(self.mean) / NORMAL, math.inf)
        return replace(self, below=max(self.below, least), above=max(self.above, least))

    @property
    def chance(self) -> float:
        """Return the probability that b is better; 0.5 without a deviation.

        It is that of a normal distribution with the deviation on the side of 0, so it is 95% if
        the 90% interval ends at 0.
        """
        towards_zero = self.below if self.mean > 0 else self.above
        if not towards_zero:
            return 0.5
        return NormalDist().cdf(self.mean / towards_zero)


@dataclass(frozen=True)
class Reach:
    """How far a 90% interval reaches on either side of an estimate.

    Attributes:
        clearness: The size of the estimate, divided by its standard deviation.
        towards_zero: By how many standard deviations the interval reaches towards 0.
        away: By how many it reaches away from 0.
    """

    clearness: float
    towards_zero: float
    away: float


#: The reach of a normal distribution's interval.
NORMAL_REACH = (Reach(0.0, NORMAL, NORMAL),)


def scarcity_factor(needed: float, queries: int) -> float:
    """Return by what the variance of a feature is multiplied because there are few real queries.

    Args:
        needed: The number of queries with which it is twice as large as with very many; 0 for a
            feature that does not depend on their number.
        queries: The number of queries.
    """
    return 1 + (needed / max(1, queries)) ** 2


def doubt_factor(doubt: float, *excesses: float) -> float:
    """Return by what the variance of features is multiplied where real queries are unusual.

    Args:
        doubt: How fast it grows.
        excesses: By how much each measure of unusual queries is above its usual value; what is
            below it counts as 0.
    """
    return 1 + doubt * sum(max(0.0, excess) ** 2 for excess in excesses)


@dataclass(frozen=True)
class DifferenceModel:
    """A hierarchical model of the difference in nDCG@10 of two models, b − a.

    In units of the pair's scale, the difference u of a pair of kinds is distributed over
    collections as N(``mean``, ``deviation``²), and its features as
    x = ``features`` + ``slopes`` (u − ``mean``) + ε with ε ~ N(0, ``noise``). On a collection at
    the distance d from those of the fit, the variance of the prior is multiplied by
    1 + ``widening`` d², and that of ε by its square: far away the answer is the prior's. Where
    real queries lose l > ``usual_loss`` words, or the share of characters that are no letters is
    by n > ``usual_nonletters`` larger in documents than in queries, features of queries that were
    made of documents are doubted, all but the ``undoubted``: the variance of ε is also multiplied
    by 1 + ``doubt`` ((l - ``usual_loss``)² + (n - ``usual_nonletters``)²), each if positive. For a
    feature that rests on rankings of q real queries, it is multiplied by 1 + (``needed`` / q)².

    Difference and features have the joint distribution of Student's t with ``freedom`` degrees of
    freedom, so that the interval is wider the more surprising the features are.

    The ends of the interval are quantiles over collections that were left out of the fit, each of
    pairs whose estimates are about as clear, that is, as large in their standard deviations.

    Attributes:
        slopes: Feature to its slope.
        noise: (p, p) covariance of the features of a known difference.
        priors: Pair of kinds, see :func:`kind_pair`, to its prior; each pair in one order.
        others: The prior of all other pairs.
        others_caution: By what the deviations of a pair are multiplied if the kind of one of the
            two took no part in the fit. It was chosen so that decisions are right on kinds that are
            left out of the fit.
        floor: The scale of a pair is its rank distance plus this.
        freedom: Degrees of freedom; infinitely many give the normal distribution.
        widening: How fast intervals widen with the distance of a collection.
        reaches: How far 90% intervals reach, by ascending clearness of the estimate; linear in
            between and constant outside.
        doubt: How fast the noise of features grows where real queries differ from documents.
        usual_loss: The words that real queries lose without raising doubt.
        usual_nonletters: The excess of characters that are no letters that raises no doubt.
        undoubted: Features that look at real queries, and are not doubted.
        needed: Feature to the number of real queries with which its noise has twice the variance
            that it has with very many; a feature that is missing does not depend on it.
    """

    slopes: dict[str, float]
    noise: list[list[float]]
    priors: dict[str, KindPrior]
    others: KindPrior
    floor: float
    freedom: float
    widening: float
    reaches: list[Reach]
    doubt: float = 0.0
    usual_loss: float = 0.0
    usual_nonletters: float = 1.0
    undoubted: list[str] = field(default_factory=list)
    needed: dict[str, float] = field(default_factory=dict)
    others_caution: float = 1.0

    def knows(self, *kinds: str | None) -> bool:
        """Return true if models of all these kinds took part in the fit."""
        known = {kind for pair in self.priors for kind in pair.split(", ")}
        return known.issuperset(kinds)

    def prior(self, a: str | None, b: str | None) -> KindPrior:
        """Return the prior of a pair of kinds."""
        if kind_pair(a, b) in self.priors:
            return self.priors[kind_pair(a, b)]
        if kind_pair(b, a) in self.priors:
            return self.priors[kind_pair(b, a)].turned()
        return self.others

    def scale(self, distance: float) -> float:
        """Return the scale of a pair: the less two models rank alike, the more they may differ."""
        return distance + self.floor

    def doubtfulness(self, lost_words: float, nonletter_excess: float) -> float:
        """Return the factor of the variance of features for real queries unlike documents."""
        return doubt_factor(
            self.doubt,
            lost_words - self.usual_loss,
            nonletter_excess - self.usual_nonletters,
        )

    def predict(self, pair: PairFeatures) -> ExpectedDifference:
        """Return the posterior of a pair's difference on a collection that was not fitted."""
        return self.predict_all([pair])[0]

    def predict_all(self, pairs: Sequence[PairFeatures]) -> list[ExpectedDifference]:
        """Return the posteriors of several pairs."""
        gains: dict[tuple[object, ...], _Gain] = {}
        expected = []
        for pair in pairs:
            names = tuple(name for name in self.slopes if name in pair.features)
            key = (
                pair.kinds,
                names,
                pair.unlikeness,
                pair.lost_words,
                pair.nonletter_excess,
                pair.queries,
            )
            if key not in gains:
                gains[key] = self._gain(pair, names)
            expected.append(self._posterior(pair, names, gains[key]))
        return expected

    def _posterior(
        self,
        pair: PairFeatures,
        names: Sequence[str],
        gain: _Gain,
    ) -> ExpectedDifference:
        scale = self.scale(pair.distance)
        prior = gain.prior
        usual = [prior.features.get(name, 0.0) for name in names]
        scaled = [pair.features[name] / scale for name in names]
        surprise = np.array(scaled) - usual
        shift = 0.0
        deviation = gain.caution / math.sqrt(gain.precision)
        if names:
            shift = float(gain.weights @ surprise)
            squares = float(surprise @ gain.inverse @ surprise)
            freedom = self.freedom + len(names)
            deviation *= math.sqrt((self.freedom + squares) / freedom)
        mean = prior.mean + shift
        towards_zero, away = self._reach(abs(mean) / deviation)
        below, above = (towards_zero, away) if mean > 0 else (away, towards_zero)
        unit = scale * deviation / NORMAL
        return ExpectedDifference(scale * mean, unit * below, unit * above, gain.prior_share)

    def _reach(self, clearness: float) -> tuple[float, float]:
        """Return by how many deviations an interval reaches towards 0 and away from it."""
        known = [reach.clearness for reach in self.reaches]
        towards_zero = [reach.towards_zero for reach in self.reaches]
        away = [reach.away for reach in self.reaches]
        return (
            float(np.interp(clearness, known, towards_zero)),
            float(np.interp(clearness, known, away)),
        )

    def _noise_factor(self, name: str, pair: PairFeatures) -> float:
        """Return by what the variance of a feature's noise is multiplied for a pair."""
        factor = scarcity_factor(self.needed.get(name, 0.0), pair.queries)
        if name in self.undoubted:
            return factor
        return factor * self.doubtfulness(pair.lost_words, pair.nonletter_excess)

    def _gain(self, pair: PairFeatures, names: Sequence[str]) -> _Gain:
        prior = self.prior(*pair.kinds)
        caution = 1.0 if self.knows(*pair.kinds) else self.others_caution
        widening = 1 + self.widening * pair.unlikeness**2
        prior_precision = 1 / (widening * prior.deviation**2)
        if not names:
            return _Gain(
                prior=prior,
                weights=np.zeros(0),
                inverse=np.zeros((0, 0)),
                precision=prior_precision,
                prior_share=1.0,
                caution=caution,
            )
        rows = [row for row, name in enumerate(self.slopes) if name in names]
        slopes = np.array([self.slopes[name] for name in names])
        unsure = [prior.deviations.get(name, 0.0) ** 2 for name in names]
        measured_noise = np.array(self.noise)[np.ix_(rows, rows)]
        factors = np.sqrt([self._noise_factor(name, pair) for name in names])
        noise = np.outer(factors, factors) * (measured_noise + np.diag(unsure))
        weights = np.linalg.solve(widening**2 * noise, slopes)
        precision = prior_precision + float(weights @ slopes)
        of_prior = prior.deviation**2 * np.outer(slopes, slopes)
        covariance = noise + of_prior
        inverse = np.asarray(np.linalg.inv(covariance), np.float64)
        return _Gain(
            prior=prior,
            weights=weights / precision,
            inverse=inverse,
            precision=precision,
            prior_share=prior_precision / precision,
            caution=caution,
        )


@dataclass(frozen=True)
class _Gain:
    """What the evidence of a pair of kinds changes on one collection.

    Attributes:
        prior: The prior.
        weights: (p,) change of the expected difference for each unit of surprise in a feature.
        inverse: (p, p) inverse of the covariance of the surprises.
        precision: Precision of the posterior.
        prior_share: The share of the prior in it.
        caution: By what its deviation is multiplied.
    """

    prior: KindPrior
    weights: Doubles
    inverse: Doubles
    precision: float
    prior_share: float
    caution: float


@dataclass(frozen=True)
class Spread:
    """A figure over the collections of a calibration.

    Attributes:
        mean: Its mean; of the logarithm for counts.
        deviation: Its standard deviation.
    """

    mean: float
    deviation: float


@dataclass(frozen=True)
class Calibration(Record):
    """The fit that verdicts without labels rest on, and how often it was right.

    Attributes:
        collections: Names of the labelled collections.
        corpora: Content hashes of their documents, as they were cut for the fit and whole.
        trust: What is given, as in ``models``, to group of pairs to counts: ``collections``,
            ``pairs``, ``covered`` by their interval, ``decided``, ``right`` of these, ``large``
            (labels show a significant difference beyond 0.03), ``large_decided``, ``equal``
            (within the margin), ``equal_decided``. Each collection was judged by a model that was
            fitted without its family.
        date: The day of the fit.
        models: "given queries" for collections with queries, "given queries and a language model"
            if one reads what is found for them, and "corpus alone" for collections without.
        margin: The largest difference that counts as none.
        figures: Figure of a collection to its spread over the calibration, see
            :func:`~beir_cocodr.evaluation.label_free.likeness.compare_figures`.
        reliability: Bins of pairs, each in both directions, by the chance that b is better:
            ``predicted``, the share in which labels put b in front (``observed``), and the number
            of ``pairs``.
    """

    SCHEMA = 3

    collections: list[str]
    corpora: list[str]
    trust: dict[str, dict[str, dict[str, int]]]
    date: str
    models: dict[str, DifferenceModel] = field(default_factory=dict)
    margin: float = 0.01
    figures: dict[str, Spread] = field(default_factory=dict)
    reliability: list[dict[str, float]] = field(default_factory=list)

    def statement(
        self,
        given: str,
        group: str,
        corpus_sha256: str | None = None,
        left_out: str = "it and its family",
    ) -> str:
        """Return how far to trust a verdict, for a person.

        Args:
            given: A key of ``trust``.
            group: A key of its value.
            corpus_sha256: Content hash of the corpus.
            left_out: What was left out of the fits whose verdicts were counted, in words.
        """
        counts = Counter(self.trust.get(given, {}).get(group))
        if not counts["pairs"]:
            return (
                f"How often verdicts on {group} ({given}) are right is not known: the calibration "
                f"counted no such pairs ({self.date})."
            )
        decided = "no pair was decided"
        if counts["decided"]:
            decided = (
                f"the sign was right in {counts['right']} of {counts['decided']} decided pairs"
            )
        text = (
            f"For {group} ({given}), on {counts['collections']} labelled collections, each judged "
            f"by a model fitted without {left_out}: the 90% interval contained the labelled "
            f"difference in {counts['covered']} of {counts['pairs']} pairs, {decided}; of "
            f"{counts['large']} pairs whose labels differ significantly, by more than 0.03, it "
            f"decided {counts['large_decided']}, of {counts['equal']} that are equal within "
            f"{self.margin:g} it decided {counts['equal_decided']} ({self.date})."
        )
        if corpus_sha256 in self.corpora:
            text += (
                " This collection is one of them, so the verdict here is not an independent test."
            )
        return text
