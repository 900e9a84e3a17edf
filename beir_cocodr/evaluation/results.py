"""What evaluations, comparisons and adaptations find: results.json, comparison.json, adapt.json,
their parts.

Tests and estimates are of model ``b`` against model ``a``.
"""

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from beir_cocodr.data.judgements import AnnotationCandidate
from beir_cocodr.evaluation.chains import Chain
from beir_cocodr.evaluation.few_labels import FewLabels
from beir_cocodr.models.spec import DENSE
from beir_cocodr.records import ContaminationStatement, Json, Record

#: The count of pseudo-queries left out because a model was trained on them.
TRAINED_ON = "queries_trained_on"


#: The largest p value, after Holm's correction, that is not called significant.
LEVEL = 0.05

#: What a verdict without labels rests on: the calibration; judged queries too; or nothing, because
#: the collection or a model is unlike those of the calibration.
CALIBRATED = "calibrated"
JUDGED = "judged"
UNLIKE = "unlike"

#: Ends of an interval.
Interval = tuple[float, float]

# What becomes of b against a when it is turned to a against b; all else stays.
_TURNED: dict[str, Callable[[Any], object]] = {
    **dict.fromkeys(("difference", "effect", "score", "estimate"), operator.neg),
    "interval": lambda ends: (-ends[1], -ends[0]),
    "probability": lambda chance: 1 - chance,
    "verdict": lambda found: {"better": "worse", "worse": "better"}.get(found, found),
    "features": lambda found: {name: -value for name, value in found.items()},
    "estimates": lambda found: [estimate.turned() for estimate in found],
}
_EXCHANGED = {"a": "b", "b": "a", "wins": "losses", "losses": "wins"}


@dataclass(frozen=True)
class _Comparison:
    """Base of what is found of a model ``b`` against a model ``a``."""

    def turned(self) -> Self:
        """The same of a against b."""
        found = vars(self)
        turned = {
            name: _TURNED[name](value)
            for name, value in found.items()
            if name in _TURNED and value is not None
        }
        return replace(
            self,
            **turned,
            **{name: found[other] for name, other in _EXCHANGED.items() if name in found},
        )


@dataclass(frozen=True)
class PairedTest(_Comparison):
    """How model ``b`` differs from model ``a`` in one measure, over the same queries.

    Attributes:
        family: the question that the test belongs to.
        difference: mean of b − a.
        interval: bootstrap 95% interval of the difference; None with one query.
        t_p: two-tailed paired t-test; None with one query, which has no variance to test against.
        randomization_p: two-tailed paired randomisation test of the mean; None like ``t_p``.
        wins, ties, losses: queries on which b is better, equal, worse.
        t_p_holm, randomization_p_holm: the same, by Holm's correction over its family, within a
            measure.
        t_p_bonferroni: the same by Bonferroni's correction, as MRL has it; no verdict depends on
            it.
        verdict: from the rest: "better" or "worse" where ``t_p_holm`` is below :data:`LEVEL`, else
        "cannot tell".
    """

    family: str
    measure: str
    a: str
    b: str
    difference: float
    interval: Interval | None
    t_p: float | None
    randomization_p: float | None
    wins: int
    ties: int
    losses: int
    t_p_holm: float | None = None
    randomization_p_holm: float | None = None
    t_p_bonferroni: float | None = None
    verdict: str = ""

    def __post_init__(self) -> None:
        significant = self.t_p_holm is not None and self.t_p_holm < LEVEL and self.difference != 0
        found = "cannot tell" if not significant else "better" if self.difference > 0 else "worse"
        object.__setattr__(self, "verdict", found)


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model's figures on a collection.

    Attributes:
        model: its name as for ``evaluate``, or a run file.
        measures, intervals: mean over queries of each measure, and its bootstrap 95% interval.
        queries_without_results: how many queries scored 0 for want of results.
        retrieval: description of the retriever; empty for a run file.
        index_seconds, search_seconds, seconds: 0 for a run file. What an earlier model has made,
            such as the same encoder's embeddings, costs nothing.
        run, per_query: files in the folder of results.json; a run file has no file of scores.
        scores: measure to (Q,) scores in the order of the qrels, for run files only.
    """

    model: str
    measures: dict[str, float]
    intervals: dict[str, Interval | None]
    queries: int
    queries_without_results: int
    documents: int | None = None
    identical_ids: str | None = None
    retrieval: Json = field(default_factory=dict)
    index_seconds: float = 0.0
    search_seconds: float = 0.0
    seconds: float = 0.0
    run: str
    per_query: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    scores: dict[str, list[float]] | None = None

    @property
    def truncation(self) -> str:
        """ "12% of documents cut at 128 tokens", or "" where none was."""
        share, text_format = (
            self.retrieval.get("truncated_documents"),
            self.retrieval.get("text_format"),
        )
        if not isinstance(share, float) or not share or not isinstance(text_format, dict):
            return ""
        return f"{share:.0%} of documents cut at {text_format['document_length']} tokens"


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(Record):
    """results.json: models on a collection with labels.

    Attributes:
        counts: what was counted on loading.
        models: label to figures, in the order in which they were named.
        few_labels: by judgements of a file alone.
    """

    dataset: str
    split: str | None
    documents: int
    queries: int
    corpus_sha256: str | None = None
    identical_ids: str | None = None
    top_k: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    models: dict[str, ModelResult]
    comparisons: list[PairedTest]
    few_labels: FewLabels | None = None

    @property
    def measures(self) -> list[str]:
        """Names of the measures; the first one decides."""
        return list(next(iter(self.models.values())).measures)


@dataclass(frozen=True)
class Estimate(_Comparison):
    """How model b differs from model a in one label-free estimator, over the same queries.

    Attributes:
        estimator: one of :data:`~beir_cocodr.evaluation.label_free.estimators.ESTIMATORS`.
        a, b, difference: means of a, b and b − a; None without queries.
        interval: bootstrap 95% interval of the difference over queries.
        effect: difference over the standard deviation of the per-query differences (Cohen's d for
            pairs), within −2..2; 0 where the estimator does not apply.
        wins, ties, losses: queries on which b is better, equal, worse.
        applies, remark: whether it is evidence for this pair, and why not, or "".
        sign: follows from the rest: 1 or −1 where the interval lies on one side of 0 and the
        estimator applies, else 0.
    """

    estimator: str
    a: float | None
    b: float | None
    difference: float | None
    interval: Interval | None
    effect: float
    wins: int
    ties: int
    losses: int
    queries: int
    applies: bool
    remark: str
    sign: int = 0

    def __post_init__(self) -> None:
        low, high = self.interval if self.applies and self.interval else (0.0, 0.0)
        object.__setattr__(self, "sign", int(low > 0) - int(high < 0))


@dataclass(frozen=True)
class PairVerdict(_Comparison):
    """The verdict on b against a by the label-free rule, from ``features`` and ``estimates``.

    Attributes:
        family: whether the two are models of one kind.
        verdict: "better", "worse", "no difference" or "cannot tell".
        probability: P(b is better than a).
        rule: "calibrated", "judged" with judged queries, or "unlike" where the collection or a
            model is unlike those of the calibration.
        score: how far it speaks for b, −1..1.
        trust: how often such verdicts are right.
        distance: how differently the two rank, 0..1, see
            :func:`~beir_cocodr.evaluation.label_free.agreement.rank_distance`.
        estimate, interval: difference in nDCG@10, b − a, and its 90% interval.
    """

    a: str
    b: str
    family: str
    verdict: str
    probability: float
    rule: str
    score: float
    reason: str
    trust: str
    features: dict[str, float]
    estimates: list[Estimate]
    distance: float
    estimate: float
    interval: Interval


@dataclass(frozen=True)
class DifferenceModel:
    """How the difference of two models in nDCG@10 by labels follows from what is seen without
    labels.

    The difference is β·x + error, with coefficients β that differ from collection to collection (a
    random-effects model): β ~ N(``weights``, ``covariance``), error ~ N(0, ``within``² · distance +
    ``floor``²).

    Attributes:
        weights: feature to its mean coefficient.
        covariance: (p, p) of a new collection's coefficients: variance between collections, and of
            the mean.
        within, floor: of pairs in one collection.
        quantile: half-widths of a 90% interval in standard deviations, as leaving collections out
        needs them.
    """

    weights: dict[str, float]
    covariance: list[list[float]]
    within: float
    floor: float
    quantile: float

    def knows(self, kind: str) -> bool:
        """Return true if models of a kind took part in the fit."""
        return kind == DENSE or f"is {kind}" in self.weights

    def predict(self, features: Mapping[str, float], distance: float) -> tuple[float, float]:
        """The expected difference and its standard deviation, for a collection that the model has
        not seen.
        """
        x = np.array([features[name] for name in self.weights])
        mean, spread = x @ list(self.weights.values()), x @ np.array(self.covariance) @ x
        return float(mean), math.sqrt(
            max(float(spread), 0.0) + self.within**2 * distance + self.floor**2
        )


@dataclass(frozen=True)
class Calibration(Record):
    """What the label-free rule rests on, and how often it was right.

    Attributes:
        models: "given queries" for collections with queries, "corpus alone" for those without.
        margin: differences within it are not worth having.
        ranges: figures of a collection to their range over the calibration, see
            :func:`~beir_cocodr.evaluation.label_free.likeness.compare_figures`.
        collections, corpora: names of the labelled collections, and content hashes of their
            documents.
        trust: family of pairs to counts of pairs: ``pairs``, ``covered`` by their interval,
            ``decided``, ``right`` of these, ``large`` (labels tell a difference beyond 0.03),
            ``large_decided``, ``equal`` (at least 300 queries, within the margin),
            ``equal_decided``; each collection was judged by a model fitted without it and
            everything resampled from it.
        weights, threshold: of comparisons that were written before there were intervals.
        reliability: bins of pairs, each in both directions, by the chance that b is better:
            ``predicted``, the share in which labels put b in front (``observed``), and the number
            of ``pairs``.
    """

    collections: list[str]
    corpora: list[str]
    trust: dict[str, dict[str, int]]
    date: str
    models: dict[str, DifferenceModel] = field(default_factory=dict)
    margin: float = 0.01
    ranges: dict[str, Interval] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    threshold: float | None = None
    reliability: list[dict[str, float]] = field(default_factory=list)

    def statement(self, family: str, corpus_sha256: str | None = None) -> str:
        """How far to trust a verdict, for a person."""
        counts = Counter(self.trust.get(family))
        text = (
            f"For {family}, on {len(self.collections)} labelled collections and parts of them, each judged by a model "
            f"fitted without it: "
            f"the 90% interval held the labelled difference in {counts['covered']} of {counts['pairs']} pairs, the "
            f"sign was right in {counts['right']} of {counts['decided']} decided pairs; of {counts['large']} pairs "
            f"that labels tell apart by more than 0.03 it decided {counts['large_decided']}, "
            f"of {counts['equal']} that are equal within {self.margin:g} on at least 300 queries "
            f"{counts['equal_decided']} ({self.date})."
        )
        if corpus_sha256 in self.corpora:
            text += " This collection is one of them, so the verdict here is no independent test."
        return text


@dataclass(frozen=True)
class Likeness:
    """Whether a collection is like those of the calibration.

    Attributes:
        figures: of the collection.
        remarks: what lies outside of the calibration's range, in words; none where it is alike.
    """

    figures: dict[str, float]
    remarks: list[str]


def indistinguishable(best: str, pairs: Sequence[PairedTest] | Sequence[PairVerdict]) -> list[str]:
    """The models that no verdict sets apart from the best one: it cannot tell, or finds no
    difference.
    """
    others = [
        (pair.b if pair.a == best else pair.a, pair) for pair in pairs if best in (pair.a, pair.b)
    ]
    return [other for other, pair in others if pair.verdict not in ("better", "worse")]


@dataclass(frozen=True)
class Best:
    """The model to prefer, why, and the models that may be as good."""

    model: str
    reason: str
    indistinguishable: list[str]


@dataclass(frozen=True)
class AnnotationCandidates:
    """The pairs whose labels would tell most between models a and b; without any, ``remark`` says
    why.
    """

    a: str
    b: str
    pairs: list[AnnotationCandidate]
    remark: str


@dataclass(frozen=True)
class PseudoQueryFigures:
    """Queries that stand in for judged ones.

    Attributes:
        verbatim: mean share of a query's words that stand in its document; None without queries.
        counts: what was looked at and left out.
        bm25_ndcg: nDCG@10 of BM25 alone.
        of_the_collection: of the queries on which lists are compared: whether they are the
        collection's own.
    """

    queries: int
    verbatim: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    bm25_ndcg: float | None = None
    of_the_collection: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was found about several models, with labels or without.

    Attributes:
        ranking: models, best first.
        best: the first of them.
        measure, evaluation: with labels: the measure that decides, and what ``evaluate`` found.
        samples, seed: without labels: of the pseudo-queries.
        pseudo_queries: without labels: "held-out crops", "generated queries", and those of the
            "agreement".
        calibration: without labels: of the rule.
        likeness: without labels: of the collection to those of the calibration.
        retrieval: without labels: model to the description of its retriever.
        pairs: all pairs, b against a: paired tests with labels, else the rule's verdicts.
        few_labels: what judged queries tell, where some were given.
    """

    ranking: list[str]
    best: Best
    measure: str | None = None
    evaluation: EvaluationRecord | None = None
    samples: int | None = None
    seed: int | None = None
    pseudo_queries: dict[str, PseudoQueryFigures] = field(default_factory=dict)
    calibration: Calibration | None = None
    likeness: Likeness | None = None
    retrieval: dict[str, Json] = field(default_factory=dict)
    pairs: list[PairedTest] | list[PairVerdict]
    few_labels: FewLabels | None = None

    @property
    def estimated(self) -> list[PairVerdict]:
        """The pairs, if there were no labels; else none."""
        return [pair for pair in self.pairs if isinstance(pair, PairVerdict)]


@dataclass(frozen=True, kw_only=True)
class ComparisonRecord(Findings, Record):
    """comparison.json.

    Attributes:
        labels: whether labels judged.
        labels_wanted: what to label next.
        seen: model to what is known of its training.
    """

    dataset: str
    split: str | None
    labels: bool
    documents: int
    queries: int
    corpus_sha256: str
    identical_ids: str
    models: list[str]
    labels_wanted: AnnotationCandidates
    seen: dict[str, ContaminationStatement]
    versions: dict[str, str]


@dataclass(frozen=True)
class Recommendation:
    """Which model of an adaptation to use, and why.

    Attributes:
        model: its label, such as "base + COCO, fused".
        measure: that decided; None without labels.
        verdict: on training: "better" if some trained encoder is, "worse" if all are, else "cannot
            tell".
        verdicts: trained encoder to the verdict against the base.
        choice: the reason that says why this model is chosen, one of ``reasons``.
        verdicts_by_use: without labels: trained encoder to mode ("alone", "feedback", "fused",
            "RM3") to verdict, against the base in the same mode.
        ranking, calibrated, trust: without labels: labels, best estimates first; whether the rule
            is calibrated; how often its verdicts are right.
    """

    model: str
    measure: str | None
    verdict: str
    verdicts: dict[str, str]
    reasons: list[str]
    choice: str = ""
    verdicts_by_use: dict[str, dict[str, str]] | None = None
    ranking: list[str] | None = None
    calibrated: bool | None = None
    trust: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class AdaptationRecord(Record):
    """adapt.json: the models that an adaptation made, and which one to use.

    Attributes:
        corpus, source, base, stages: what was adapted to what.
        models: name of a model's folder to where it is; the base too.
        seconds: of each training.
        results: with labels: the ablation.
        candidates: without labels: label ("base + COCO, fused") to model name.
        chains: label to the stages and the mode that it says, of every model but BM25.
        comparison: without labels: of the candidates.
        path: name of the recommended model.
    """

    corpus: str
    source: str | None = None
    base: str
    stages: list[str]
    models: dict[str, str]
    generated_queries: str | None = None
    seconds: dict[str, float | None] = field(default_factory=dict)
    results: EvaluationRecord | None = None
    candidates: dict[str, str] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)
    comparison: ComparisonRecord | None = None
    recommendation: Recommendation
    path: str
