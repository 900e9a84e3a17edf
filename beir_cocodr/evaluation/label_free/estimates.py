"""Estimates that tell which one is the better model, from what was seen without labels."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from beir_cocodr import load_object
from beir_cocodr.arrays import Doubles
from beir_cocodr.evaluation.label_free.agreement import reciprocal_rank_fusion
from beir_cocodr.evaluation.label_free.estimators import (
    ESTIMATORS,
    FEWEST_QUERIES,
    PARTS,
    WITH_BM25,
    Estimator,
)
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.measures import interval
from beir_cocodr.evaluation.results import Estimate
from beir_cocodr.models.spec import BM25
from beir_cocodr.retrieval.ranking import overlap

#: Features of the agreement with BM25: the difference of s, and that of 4 s (1 - s).
LEXICAL = WITH_BM25
MIDDLE = "between BM25 and none of it"

# Beyond two standard deviations a larger effect says no more; one without variance is infinite.
_LARGEST_EFFECT = 2.0


class DerivedQueries(Estimator):
    """The nDCG@10 on queries that were derived from documents of the corpus."""

    def __init__(
        self,
        name: str,
        scores_of: Callable[[Evidence], Mapping[str, Doubles]],
        practised: Callable[[Evidence], Mapping[str, Collection[str]]],
    ) -> None:
        """Create the estimator of one kind of such queries.

        Args:
            name: The name of its row.
            scores_of: Returns the (Q,) nDCG@10 of each model on these queries.
            practised: Returns the models that practised such queries on this corpus, by how they
                did; a key completes "the one in front was ...".
        """
        super().__init__(name)
        self.scores_of = scores_of
        self.practised = practised

    def scores(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> tuple[Doubles, Doubles]:
        """Return the nDCG@10 on these queries; none of either if one model cannot be queried."""
        scores = self.scores_of(evidence)
        if a in scores and b in scores:
            return scores[a], scores[b]
        return np.zeros(0), np.zeros(0)

    def objection(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> str:
        """Return why a lead on these queries is no evidence."""
        scores = self.scores_of(evidence)
        silent = [model for model in (a, b) if model not in scores]
        if silent:
            return f"{' and '.join(silent)} cannot be queried with {self.name}"
        lead = float((scores[b] - scores[a]).mean()) if len(scores[a]) else 0.0
        for practice, models in self.practised(evidence).items():
            objection = rehearsal(lead, models, practice, a, b)
            if objection:
                return objection
        return ""


def held_out_crops(name: str) -> DerivedQueries:
    """Return the estimator by spans that were cut out of documents."""
    return DerivedQueries(
        name,
        scores_of=lambda evidence: evidence.crops,
        practised=_practised_spans,
    )


def generated_queries(name: str) -> DerivedQueries:
    """Return the estimator by queries that were generated without any of the models."""
    return DerivedQueries(
        name,
        scores_of=lambda evidence: evidence.generated,
        practised=_practised_generated,
    )


class FurtherQueries(DerivedQueries):
    """The nDCG@10 on queries of a kind that not every corpus gives."""

    def __init__(
        self,
        name: str,
        practised: Callable[[Evidence], Mapping[str, Collection[str]]],
    ) -> None:
        """Create the estimator of the kind that has the name of its row."""
        super().__init__(
            name,
            scores_of=lambda evidence: evidence.further[name].scores,
            practised=practised,
        )

    def is_available(self, evidence: Evidence) -> bool:
        """Return true if the corpus gave queries of this kind."""
        return self.name in evidence.further


def matched_crops(name: str) -> DerivedQueries:
    """Return the estimator by crops that are as long as real queries."""
    return FurtherQueries(name, _practised_spans)


def titles(name: str) -> DerivedQueries:
    """Return the estimator by titles and headings, which were taken out of their documents."""
    return FurtherQueries(
        name,
        lambda evidence: _practised_spans(evidence) | _practised_generated(evidence),
    )


def written_questions(name: str) -> DerivedQueries:
    """Return the estimator by questions that a language model wrote."""
    return FurtherQueries(name, _practised_generated)


def _practised_spans(evidence: Evidence) -> dict[str, Collection[str]]:
    return dict(evidence.contamination.practised_spans)


def _practised_generated(evidence: Evidence) -> dict[str, Collection[str]]:
    return dict(evidence.contamination.practised_generated)


class QueryLikelihood(Estimator):
    """The relevance of what a model ranks first, as a language model sees it.

    See :mod:`~beir_cocodr.evaluation.label_free.pooled_relevance`.
    """

    def is_available(self, evidence: Evidence) -> bool:
        """Return true if a language model has read pooled documents."""
        return evidence.pooled is not None

    def scores(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> tuple[Doubles, Doubles]:
        """Return the gains of both rankings, for the queries that both answer."""
        pooled = evidence.pooled
        assert pooled is not None
        first, second = pooled.gains(evidence.lists[a], evidence.lists[b])
        answered = evidence.answered_by([a, b])[pooled.queries]
        return first[answered], second[answered]


class AgreementWithBM25(Estimator):
    """The share of BM25's ten best documents that a model finds among its own.

    Crops and generated queries share words with their documents, and so flatter what matches words.
    The agreement s with BM25 corrects that, by its difference and by that of 4 s (1 - s).
    """

    def scores(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> tuple[Doubles, Doubles]:
        """Return the overlap of the best ten with BM25's."""
        first, second, lexical = evidence.lists_of([a, b, BM25])
        return overlap(first, lexical), overlap(second, lexical)

    def objection(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> str:
        """Return why models of different kinds cannot be compared: BM25 agrees with itself."""
        kind = evidence.kinds[a]
        if kind is None:
            return f"it is not known how {a} uses BM25"
        if kind == evidence.kinds[b]:
            return ""
        return "one of the two uses BM25, or they use it in different ways"

    def features(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> dict[str, float]:
        """Return the differences of s and of 4 s (1 - s); they count for all pairs."""
        agreements = []
        for shares in self.scores(evidence, a, b):
            if not len(shares):
                return {}
            agreements.append(float(shares.mean()))
        first, second = agreements
        middle = [4 * share * (1 - share) for share in agreements]
        return {LEXICAL: second - first, MIDDLE: middle[1] - middle[0]}


class AgreementWithFusion(Estimator):
    """The share of the fusion's ten best documents that a model finds among its own.

    The fusion is that of BM25's list and both models' own by reciprocal ranks, so that no other
    model takes part in it.
    """

    def scores(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> tuple[Doubles, Doubles]:
        """Return the overlap of the best ten with the fusion's."""
        models = sorted({a, b, BM25})
        lists = dict(zip(models, evidence.lists_of(models), strict=True))
        fused = reciprocal_rank_fusion(list(lists.values()))
        return overlap(lists[a], fused), overlap(lists[b], fused)

    def features(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> dict[str, float]:
        """Return nothing: the agreement follows from the other features."""
        return {}


def load_estimators(evidence: Evidence) -> list[Estimator]:
    """Return the estimators of :data:`ESTIMATORS` that the evidence has queries for."""
    estimators = [load_object(row.build)(name) for name, row in ESTIMATORS.items()]
    return [estimator for estimator in estimators if estimator.is_available(evidence)]


def features(
    evidence: Evidence,
    a: str,
    b: str,
) -> dict[str, float]:
    """Return what the difference of two models is predicted from; exchanging a and b negates all.

    Evidence that is absent, or does not count for the pair, has no feature.
    """
    values: dict[str, float] = {}
    for estimator in load_estimators(evidence):
        values |= estimator.features(evidence, a, b)
    return values


def estimate_pair(
    evidence: Evidence,
    a: str,
    b: str,
    known: Collection[str] | None = None,
) -> list[Estimate]:
    """Return the estimates of all estimators for a pair; exchanging a and b negates them.

    Args:
        evidence: What was seen of the models.
        a: The first model.
        b: The second model.
        known: Features that the calibration was fitted with. An estimate that none of them rests
            on is shown and does not count; by default all count.
    """
    counting = set(known or ())
    for name in known or ():
        counting.update(PARTS.get(name, ()))
    estimates = []
    for estimator in load_estimators(evidence):
        first, second = estimator.scores(evidence, a, b)
        objection = estimator.objection(evidence, a, b)
        names = {estimator.name, *estimator.features(evidence, a, b)}
        if known is not None and counting.isdisjoint(names):
            objection = objection or "the calibration does not count it"
        estimates.append(_estimate(estimator.name, first, second, objection))
    return estimates


def rehearsal(
    lead: float,
    practised: Collection[str],
    practice: str,
    a: str,
    b: str,
) -> str:
    """Return why a lead is no evidence: just the model in front practised such queries.

    To be behind in spite of such practice is evidence.

    Args:
        lead: The lead of b, negative if a leads.
        practised: The models that practised.
        practice: How they did; it completes "the leading model was ...".
        a: The first model.
        b: The second model.
    """
    if (a in practised) == (b in practised):
        return ""
    is_ahead = lead > 0 if b in practised else lead < 0
    return f"the leading model was {practice}, the other was not" if is_ahead else ""


def _estimate(
    name: str,
    first: Doubles,
    second: Doubles,
    objection: str,
) -> Estimate:
    count = len(first)
    remark = objection
    if count < FEWEST_QUERIES:
        remark = remark or f"only {count} queries, and {FEWEST_QUERIES} are needed"
    difference = second - first
    return Estimate(
        estimator=name,
        a=_mean(first),
        b=_mean(second),
        difference=_mean(difference),
        interval=interval(difference),
        effect=0.0 if remark else _effect(difference),
        wins=int((difference > 0).sum()),
        ties=int((difference == 0).sum()),
        losses=int((difference < 0).sum()),
        queries=count,
        applies=not remark,
        remark=remark,
    )


def _mean(values: Doubles) -> float | None:
    return float(values.mean()) if len(values) else None


def _effect(difference: Doubles) -> float:
    """Return Cohen's d of paired scores, at most 2 in size."""
    mean = float(difference.mean())
    if mean == 0:
        return 0.0
    deviation = float(difference.std(ddof=1))
    with np.errstate(divide="ignore"):
        effect = np.float64(mean) / deviation
    return float(np.clip(effect, -_LARGEST_EFFECT, _LARGEST_EFFECT))
