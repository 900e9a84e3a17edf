"""The rule of the gate: from paired scores and the distance of lists to a decision.

NEW is worse for one of two reasons.

- Lost documents: the lists of both are close, and on queries whose document is known NEW loses a
  larger share of what OLD finds than twice the margin, and significantly so, by a one-sided test at
  5%. Shuffled vectors and missing documents show like that. The factor is there because documents
  that an approximate index misses are seldom answers. For the same reason nothing is lost if the
  lists for at least ten queries of the collection differ by less than the margin, unless NEW is
  known to hold fewer documents than OLD.
- The estimate a·d + c·D·tanh(t/2) of the difference in nDCG@10, NEW − OLD. Here d is the mean
  difference on queries whose document is known, t is its paired t statistic, and D is the share of
  the discounts that both lists spend on different documents. Lists that differ much cost much, in
  the direction that t shows: a damaged encoder loses more on questions than on spans. The deviation
  of the error grows with D, so that lists which hardly differ leave little room for a loss.

Lists of NEW that are those of OLD cut short can only lose, so the direction is certain without t.

Lists that are the same for every query leave nothing to decide: NEW is "not worse" at any margin.

Lists with little in common come from different systems. Queries made of documents say little about
these, because they favour what matches words. Without labels NEW is then never called "not worse".

Exchanging OLD and NEW negates the estimate. ``benchmarks/gate.py`` fits the coefficients to some
families of labelled collections and measures the error rates on others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from beir_cocodr.arrays import Doubles

#: Decisions about NEW.
WORSE = "worse"
NOT_WORSE = "not worse"
CANNOT_TELL = "cannot tell"

#: Kinds of queries: those whose document is known, the collection's own, and judged ones.
SPANS = "spans of documents"
GENERATED = "generated queries"
REAL = "queries of the collection"
LABELLED = "labelled queries"
JUDGED = "judged queries"

# Kinds whose scores compare OLD and NEW by a document that is known to be the answer.
_KNOWN = (SPANS, GENERATED)
_HUMAN = (LABELLED, JUDGED)

# One more judged query that differs by this counts in the variance of judged differences, so that
# few queries without a difference are no proof of equality.
_FURTHER_DIFFERENCE = 0.3

# A smaller distance is due to rounding. If the documents at the ranks 9 and 10 of one list change
# places, the distance is 0.0026, divided by the number of queries.
_NO_DISTANCE = 1e-9

_NORMAL = NormalDist()
_QUANTILE_95 = _NORMAL.inv_cdf(0.95)


@dataclass(frozen=True)
class GateEvidence:
    """The figures of OLD and NEW on queries of one kind.

    Attributes:
        kind: what the queries are.
        queries: their number.
        old: nDCG@10 of OLD; None for queries without known answers.
        new: nDCG@10 of NEW.
        difference: NEW − OLD.
        standard_error: of the difference.
        better: queries on which NEW is better.
        worse: queries on which NEW is worse.
        distance: the mean share of DCG's discounts that both lists spend on different documents; 0
            for the same lists, 1 for lists without a common document.
        remark: why the scores of queries with a known document do not count; "" where they do.
    """

    kind: str
    queries: int
    distance: float
    old: float | None = None
    new: float | None = None
    difference: float | None = None
    standard_error: float | None = None
    better: int = 0
    worse: int = 0
    remark: str = ""

    @property
    def is_scored(self) -> bool:
        """Return true if answers are known."""
        return self.difference is not None

    @property
    def has_same_lists(self) -> bool:
        """Return true if both give the same documents of the collection at the same ranks."""
        return self.distance < _NO_DISTANCE

    @classmethod
    def of(
        cls,
        kind: str,
        distances: Doubles,
        scores: tuple[Doubles, Doubles] | None = None,
        weights: Doubles | None = None,
        remark: str = "",
    ) -> GateEvidence:
        """Return the figures of (Q,) distances and, where answers are known, of paired scores.

        Args:
            kind: what the queries are.
            distances: (Q,) distances of both lists.
            scores: (Q,) scores of OLD, and of NEW.
            weights: (Q,) weights of the queries; None weighs them equally.
            remark: why scores are left out.
        """
        distance = float(distances.mean())
        if scores is None:
            return cls(kind, len(distances), distance, remark=remark)
        old, new = scores
        differences = new - old
        mean = float(np.average(differences, weights=weights))
        return cls(
            kind=kind,
            queries=len(differences),
            distance=distance,
            old=float(np.average(old, weights=weights)),
            new=float(np.average(new, weights=weights)),
            difference=mean,
            standard_error=_standard_error(differences, weights, kind in _HUMAN),
            better=int((differences > 0).sum()),
            worse=int((differences < 0).sum()),
        )


def _standard_error(
    differences: Doubles,
    weights: Doubles | None,
    with_further: bool,
) -> float:
    """Return the standard error of a weighted mean, with one more difference if asked for."""
    shares = np.full(len(differences), 1 / len(differences))
    if weights is not None:
        shares = weights / weights.sum()
    mean = float(shares @ differences)
    squares = float(shares**2 @ (differences - mean) ** 2)
    if with_further:
        squares += (_FURTHER_DIFFERENCE * float(shares.mean())) ** 2
    return math.sqrt(squares)


@dataclass(frozen=True)
class GateRule:
    """The coefficients of the rule.

    Attributes:
        known: a, the weight of the difference on queries with a known document.
        direction: c, the loss in nDCG@10 of lists at distance 1 whose direction is certain.
        error: deviation of the error for equal lists.
        error_by_distance: what it grows by with the distance.
        unknown_direction: deviation for lists at distance 1, where no query has a known document.
        alarm: the least probability of a loss beyond the margin for the decision "worse".
        clear: the largest for "not worse".
        close: the largest distance of lists at which lost documents decide.
        lost: the share of what OLD finds that NEW may lose at most, in margins.
        enough: the least number of the collection's queries whose lists can show that lost
            documents do not matter.
        far: the distance of lists from which "not worse" needs labels.
        cleared_by_labels: the largest probability, by judged queries alone, of a loss beyond the
            margin at which lost documents do not count.
    """

    known: float = 0.07
    direction: float = 0.13
    error: float = 0.002
    error_by_distance: float = 0.13
    unknown_direction: float = 0.22
    alarm: float = 0.6
    clear: float = 0.2
    close: float = 0.25
    lost: float = 2.0
    enough: int = 10
    far: float = 0.5
    cleared_by_labels: float = 0.05


#: The rule, fitted to families of collections other than those on which it was measured.
RULE = GateRule()


@dataclass(frozen=True)
class Assessment:
    """What the evidence says of the difference in nDCG@10, NEW − OLD.

    Attributes:
        estimate: the mean of a normal distribution of the difference.
        deviation: its standard deviation.
        probability_worse: the probability that NEW is worse by more than the margin.
        loses_documents: true if NEW no longer finds documents, while its lists are close to those
            of OLD.
        loses_unasked_documents: true if NEW no longer finds documents, but its lists for the
            collection's queries hardly differ from those of OLD.
        can_clear: false if lists with little in common cannot be called "not worse".
        is_unchanged: true if the lists of both are the same for every query, and NEW holds what OLD
            holds.
        is_cut: true if NEW gives the lists of OLD cut short, and so cannot gain.
    """

    estimate: float
    deviation: float
    probability_worse: float
    loses_documents: bool = False
    loses_unasked_documents: bool = False
    can_clear: bool = True
    is_unchanged: bool = False
    is_cut: bool = False

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 90% interval of the difference; it ends at 0 where nothing can be gained."""
        half = _QUANTILE_95 * self.deviation
        high = self.estimate + half
        return self.estimate - half, min(high, 0.0) if self.is_cut else high

    def decide(self, rule: GateRule = RULE) -> str:
        """Return "worse", "not worse" or "cannot tell"."""
        if self.loses_documents or self.probability_worse >= rule.alarm:
            return WORSE
        if self.is_unchanged:
            return NOT_WORSE
        is_clear = self.can_clear and self.probability_worse <= rule.clear
        return NOT_WORSE if is_clear else CANNOT_TELL


def assess(
    evidence: Sequence[GateEvidence],
    margin: float,
    rule: GateRule = RULE,
    *,
    lacks_documents: bool = False,
    is_cut: bool = False,
) -> Assessment:
    """Assess the difference by all evidence.

    Queries with known documents are pooled. Judged queries are an independent estimate, and both
    are weighted by their precision.

    Args:
        evidence: the figures, at most one for each kind of queries.
        margin: the loss in nDCG@10 that is tolerated.
        rule: the coefficients.
        lacks_documents: true if NEW holds fewer documents of the collection than OLD, so that it is
            another system even if the lists are the same, and what it loses counts.
        is_cut: true if NEW gives the lists of OLD, some of them cut short, so that it cannot gain.

    Raises:
        ValueError: there is no evidence.
    """
    if not evidence:
        raise ValueError("no evidence to assess")
    real = [figures for figures in evidence if figures.kind not in _KNOWN]
    known = [figures for figures in evidence if figures.kind in _KNOWN and figures.is_scored]
    human = [figures for figures in evidence if figures.kind in _HUMAN]
    distance = _distance(real or evidence)
    estimate = 0.0
    deviation = math.hypot(rule.error, rule.unknown_direction * distance)
    loses_documents = loses_unasked_documents = False
    if is_cut:
        estimate = -rule.direction * distance
        deviation = math.hypot(rule.error, rule.error_by_distance * distance)
    if known:
        difference, standard_error = _pooled(known)
        if not is_cut:
            estimate = _estimate(difference, standard_error, distance, rule)
        deviation = math.hypot(rule.error, rule.error_by_distance * distance)
        if distance < rule.close and _is_loss(known, rule.lost * margin):
            hardly_differ = asks_enough(evidence, rule) and distance < margin
            loses_unasked_documents = hardly_differ and not lacks_documents
            loses_documents = not loses_unasked_documents
    for figures in human:
        assert figures.difference is not None
        assert figures.standard_error is not None
        by_labels = _probability(figures.difference, figures.standard_error, margin)
        if by_labels <= rule.cleared_by_labels:
            loses_documents = False
        estimate, deviation = _joined(
            (estimate, deviation), (figures.difference, figures.standard_error)
        )
    return Assessment(
        estimate=estimate,
        deviation=deviation,
        probability_worse=_probability(estimate, deviation, margin),
        loses_documents=loses_documents,
        loses_unasked_documents=loses_unasked_documents,
        can_clear=bool(human) or distance < rule.far,
        is_unchanged=not lacks_documents and all(figures.has_same_lists for figures in evidence),
        is_cut=is_cut,
    )


def asks_enough(evidence: Sequence[GateEvidence], rule: GateRule = RULE) -> bool:
    """Return true if enough queries of the collection were asked to show what people are given."""
    real = sum(figures.queries for figures in evidence if figures.kind not in _KNOWN)
    return real >= rule.enough


def _is_loss(known: Sequence[GateEvidence], tolerated: float) -> bool:
    """Return true if NEW significantly loses a larger share of what OLD finds than is tolerated."""
    difference, standard_error = _pooled(known)
    queries = sum(figures.queries for figures in known)
    total = sum((figures.old or 0.0) * figures.queries for figures in known)
    is_significant = difference + _QUANTILE_95 * standard_error < 0
    return is_significant and difference < -tolerated * (total / queries)


def _estimate(difference: float, standard_error: float, distance: float, rule: GateRule) -> float:
    """Return the estimate without labels, see the top of this module."""
    if standard_error:
        direction = math.tanh(difference / standard_error / 2)
    else:
        direction = float(np.sign(difference))
    return rule.known * difference + rule.direction * distance * direction


def _probability(estimate: float, deviation: float, margin: float) -> float:
    """Return the probability of a difference below −margin."""
    return _NORMAL.cdf((-margin - estimate) / deviation)


def _joined(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """Return mean and deviation of two independent estimates, weighted by their precision."""
    first_mean, first_deviation = first
    second_mean, second_deviation = second
    first_precision = first_deviation**-2
    second_precision = second_deviation**-2
    total = first_precision + second_precision
    mean = (first_precision * first_mean + second_precision * second_mean) / total
    return mean, total**-0.5


def _distance(evidence: Sequence[GateEvidence]) -> float:
    """Return the mean distance of the lists over all queries."""
    queries = sum(figures.queries for figures in evidence)
    total = sum(figures.distance * figures.queries for figures in evidence)
    return total / queries


def _pooled(known: Sequence[GateEvidence]) -> tuple[float, float]:
    """Return the mean difference of all queries with a known document, and its standard error."""
    queries = sum(figures.queries for figures in known)
    mean = 0.0
    variance = 0.0
    for figures in known:
        assert figures.difference is not None
        assert figures.standard_error is not None
        share = figures.queries / queries
        mean += share * figures.difference
        variance += (share * figures.standard_error) ** 2
    return mean, math.sqrt(variance)


@dataclass(frozen=True)
class GateRates:
    """How often the rule was right without labels, by ``benchmarks/gate.py``.

    Attributes:
        margin: the margin at which it was measured.
        collections: labelled collections, of families to which nothing was fitted.
        faults: seeded faults that cost more than 0.02 in nDCG@10.
        found: share of them that ended with "worse".
        faults_undecided: share of them that ended with "cannot tell".
        changes: harmless changes.
        false_alarms: share of them that ended with "worse".
        changes_undecided: share of them that ended with "cannot tell".
        queries: the most queries of a collection that were asked as well, 0 for none.
    """

    margin: float
    collections: int
    faults: int
    found: float
    faults_undecided: float
    changes: int
    false_alarms: float
    changes_undecided: float
    queries: int


#: What ``benchmarks/results/gate.json`` holds, for collections with at least 50 queries.
RATES_WITH_QUERIES = GateRates(
    margin=0.01,
    collections=8,
    faults=92,
    found=0.9891,
    faults_undecided=0.0,
    changes=165,
    false_alarms=0.0,
    changes_undecided=0.0,
    queries=300,
)

#: The same with ten queries of each collection.
RATES_WITH_FEW_QUERIES = replace(RATES_WITH_QUERIES, found=0.9761, false_alarms=0.0145, queries=10)

#: The same without queries.
RATES_WITHOUT_QUERIES = replace(RATES_WITH_QUERIES, false_alarms=0.0606, queries=0)

# The fewest queries for the rates with all queries.
_MANY = 50


def measured_rates(evidence: Sequence[GateEvidence]) -> GateRates | None:
    """Return how often the rule is right on such evidence without labels.

    It was measured with queries whose document is known; without them there are no rates.
    """
    if not any(figures.kind in _KNOWN and figures.is_scored for figures in evidence):
        return None
    if not asks_enough(evidence):
        return RATES_WITHOUT_QUERIES
    real = sum(figures.queries for figures in evidence if figures.kind not in _KNOWN)
    return RATES_WITH_QUERIES if real >= _MANY else RATES_WITH_FEW_QUERIES
