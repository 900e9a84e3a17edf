"""The records of evaluations, comparisons and adaptations, and their parts.

They are written as results.json, comparison.json and adapt.json. Tests and estimates are of model
``b`` against model ``a``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from beir_cocodr.data.files.folder_facts import LeftOut
from beir_cocodr.data.judgements import AnnotationCandidate
from beir_cocodr.errors import quoted
from beir_cocodr.evaluation.calibration import Calibration, Precedent
from beir_cocodr.evaluation.chains import Chain
from beir_cocodr.evaluation.few_labels import FewLabels
from beir_cocodr.evaluation.judge.findings import JudgeFindings
from beir_cocodr.records import ContaminationStatement, Json, Record, Tabular, frame

if TYPE_CHECKING:
    import pandas as pd

#: The count of pseudo-queries left out because a model was trained on them.
TRAINED_ON = "queries_trained_on"

#: The largest p value, after Holm's correction, that is not called significant.
LEVEL = 0.05

#: What a verdict without labels rests on: the calibration; judged queries too; or little more than
#: what usually wins, because there is no evidence or it is not known what kind of model one is.
CALIBRATED = "calibrated"
JUDGED = "judged"
PRIOR = "prior"

#: A chance that is nearer to one half prefers neither side.
NO_BET = 0.05

# A larger chance is said to be larger than this, as no estimate is certain.
_SUREST = 0.99

#: Ends of an interval.
Interval = tuple[float, float]


def _negative(value: float) -> float:
    return -value


def _mirrored(interval: Interval) -> Interval:
    low, high = interval
    return -high, -low


def _complement(probability: float) -> float:
    return 1 - probability


def _opposite(verdict: str) -> str:
    return {"better": "worse", "worse": "better"}.get(verdict, verdict)


def _negatives(features: Mapping[str, float]) -> dict[str, float]:
    return {name: -value for name, value in features.items()}


def _all_turned(estimates: Sequence[Estimate]) -> list[Estimate]:
    return [estimate.turned() for estimate in estimates]


# The value of each field once b against a is turned to a against b; all other fields stay.
_TURNED: dict[str, Callable[[Any], object]] = {
    "difference": _negative,
    "effect": _negative,
    "score": _negative,
    "estimate": _negative,
    "interval": _mirrored,
    "probability": _complement,
    "verdict": _opposite,
    "features": _negatives,
    "estimates": _all_turned,
    "precedent": Precedent.turned,
}

# Fields that exchange their values.
_EXCHANGED = {"a": "b", "b": "a", "wins": "losses", "losses": "wins"}


@dataclass(frozen=True)
class _Comparison:
    """Base of what compares a model ``b`` with a model ``a``."""

    def turned(self) -> Self:
        """Return the same comparison of a against b."""
        values = vars(self)
        turned = {}
        for name, value in values.items():
            if name in _EXCHANGED:
                turned[name] = values[_EXCHANGED[name]]
            elif name in _TURNED and value is not None:
                turned[name] = _TURNED[name](value)
        return replace(self, **turned)


@dataclass(frozen=True)
class PairedTest(_Comparison):
    """The difference of model ``b`` from model ``a`` in one measure, over the same queries.

    Attributes:
        family: the question that the test belongs to.
        difference: mean of b − a.
        interval: bootstrap 95% interval of the difference; None with one query.
        t_p: p of the two-tailed paired t-test; None with one query, which has no variance.
        randomization_p: p of the two-tailed paired randomisation test of the mean; None with one
            query.
        wins, ties, losses: numbers of queries on which b is better, equal, worse.
        t_p_holm, randomization_p_holm: the p values by Holm's correction over the family, within a
            measure.
        t_p_bonferroni: p of the t-test by Bonferroni's correction, as MRL has it; no verdict
            depends on it.
        verdict: follows from the rest: "better" or "worse" where ``t_p_holm`` is below
            :data:`LEVEL`, else "cannot tell".
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
        """Derive the verdict."""
        verdict = "cannot tell"
        if self.t_p_holm is not None and self.t_p_holm < LEVEL:
            if self.difference > 0:
                verdict = "better"
            elif self.difference < 0:
                verdict = "worse"
        object.__setattr__(self, "verdict", verdict)


#: Settings in the descriptions of retrievers that are numbers, and those that are texts.
_NUMBERS = frozenset(
    {
        *("b", "bm25_weight", "constant", "depth", "dimensions", "documents", "k1", "recall"),
        *("reranked", "searched", "shards", "terms", "texts_cut", "truncated_documents"),
        *("truncated_queries", "truncation_sample", "weight"),
    }
)
_TEXTS = frozenset(
    {
        *("analyzer", "backend", "candidates", "encoder", "ids", "key", "model", "precision"),
        *("scores", "similarity", "url", "weight_reason"),
    }
)


def check_description(description: Mapping[str, object]) -> None:
    """Check the settings in the description of a retriever, and of the parts of one.

    Raises:
        ValueError: A setting has a value of the wrong type.
    """
    for name, value in description.items():
        if isinstance(value, dict):
            if name == "text_format":
                _check_text_format(value)
            elif name != "body":  # the request of a search over HTTP, which is any JSON
                check_description(value)
        elif value is None:
            continue
        elif name in _NUMBERS and not _is_number(value):
            raise ValueError(f"{name} is {quoted(value)}, which is not a number")
        elif name in _TEXTS and not isinstance(value, str):
            raise ValueError(f"{name} is {quoted(value)}, which is not text")


def _check_text_format(text_format: Mapping[str, object]) -> None:
    for setting, content in text_format.items():
        if isinstance(content, (dict, list, bool)):
            raise ValueError(
                f"text_format.{setting} is {quoted(content)}, which is neither text nor number"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model's figures on a collection.

    Attributes:
        model: its name as for ``evaluate``, or a run file.
        measures, intervals: mean over queries of each measure, and its bootstrap 95% interval.
        queries_without_results: number of queries that scored 0 because they have no results.
        retrieval: description of the retriever; empty for a run.
        index_seconds, search_seconds, seconds: 0 for a run. Parts that an earlier model shares,
            such as the same encoder's embeddings, cost nothing.
        run, per_query: files in the folder of results.json; for a run file its path and None, and
            nothing where no folder was written.
        scores: measure to (Q,) scores in the order of the qrels, where no file has them.
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

    def __post_init__(self) -> None:
        """Check the description of the retriever."""
        check_description(self.retrieval)

    @property
    def truncation(self) -> str:
        """Return "12% of documents cut at 128 tokens", or "" if none was."""
        share = self.retrieval.get("truncated_documents")
        text_format = self.retrieval.get("text_format")
        if not isinstance(share, float) or not share or not isinstance(text_format, dict):
            return ""
        return f"{share:.0%} of documents cut at {text_format['document_length']} tokens"


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(Tabular, Record):
    """The models of an evaluation on a collection with labels, as in results.json.

    Attributes:
        counts: defects of the collection that were accepted, by kind.
        left_out: files of a folder that could not be read, None where all could.
        models: label to figures, in the order in which they were given.
        comparisons: paired tests, in each measure.
        few_labels: what judgements of a file tell, where they judged.
    """

    dataset: str
    split: str | None
    documents: int
    queries: int
    corpus_sha256: str | None = None
    identical_ids: str | None = None
    top_k: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    left_out: list[LeftOut] | None = None
    models: dict[str, ModelResult]
    comparisons: list[PairedTest]
    few_labels: FewLabels | None = None

    @property
    def measures(self) -> list[str]:
        """Return the names of the measures; the first one decides."""
        return list(next(iter(self.models.values())).measures)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each model with its measures.

        Returns:
            A frame whose index is the labels and whose columns are the measures.
        """
        rows = [{"model": label, **result.measures} for label, result in self.models.items()]
        return frame(rows, ["model", *self.measures]).set_index("model")


@dataclass(frozen=True)
class Estimate(_Comparison):
    """The difference of model b from model a in one label-free estimator, over the same queries.

    Attributes:
        estimator: one of :data:`~beir_cocodr.evaluation.label_free.estimators.ESTIMATORS`.
        a, b, difference: means of a, b and b − a; None without queries.
        interval: bootstrap 95% interval of the difference over queries.
        effect: difference over the standard deviation of the per-query differences (Cohen's d for
            pairs), within −2..2; 0 where the estimator does not apply.
        wins, ties, losses: numbers of queries on which b is better, equal, worse.
        applies: true if it is evidence for this pair.
        remark: why it is none, or "".
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
        """Derive the sign."""
        low, high = self.interval if self.applies and self.interval else (0.0, 0.0)
        sign = int(low > 0) - int(high < 0)
        object.__setattr__(self, "sign", sign)


def _describe_chance(chance: float) -> str:
    """Return a chance in percent; none is certain."""
    return "more than 99%" if chance > _SUREST else f"{chance:.0%}"


@dataclass(frozen=True)
class PairVerdict(_Comparison):
    """The verdict on b against a by the label-free rule, from ``features`` and ``estimates``.

    Attributes:
        family: "models of one kind", "models of different kinds", or "models of a kind that the
            calibration does not have".
        verdict: "better", "worse", "no difference" or "cannot tell".
        probability: P(b is better than a).
        rule: "calibrated", "judged" with judged queries, or "prior" where nothing may be decided,
            because no estimator applies or it is not known what kind of model one is.
        score: evidence for b, from −1 to 1.
        reason: the estimate, and what it rests on.
        trust: how often such verdicts are right, in words.
        distance: how differently the two models rank, from 0 to 1, see
            :func:`~beir_cocodr.evaluation.label_free.agreement.rank_distance`.
        estimate, interval: difference in nDCG@10, b − a, and its 90% interval.
        prior_share: share of the answer that is what usually wins, rather than evidence of this
            corpus.
        precedent: how often b's kind was better on labelled collections; None where there is no
            such pair, or both are of one kind.
        answer: follows from the rest: the verdict, or else the better bet, as a sentence without a
            full stop, which is the same wherever it is shown.
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
    prior_share: float = 0.0
    precedent: Precedent | None = None
    answer: str = ""

    def __post_init__(self) -> None:
        """Derive the answer."""
        object.__setattr__(self, "answer", self._describe())

    @property
    def better_bet(self) -> str | None:
        """Return the model that is more likely to be better; None where neither is."""
        if abs(self.probability - 0.5) < NO_BET:
            return None
        if self.probability > 0.5:
            return self.b
        return self.a

    def _describe(self) -> str:
        expected = f"{abs(self.estimate):.3f} nDCG@10 is expected"
        if self.verdict in ("better", "worse"):
            names = [self.a, self.b]
            if self.verdict == "better":
                names.reverse()
            models = " is better than ".join(names)
            chance = max(self.probability, 1 - self.probability)
            return f"{models}: {expected}, with a chance of {_describe_chance(chance)}"
        if self.verdict == "no difference":
            return f"{self.a} and {self.b} are as good as each other"
        bet = self.better_bet
        if bet is None:
            return f"No verdict from this corpus; neither {self.a} nor {self.b} is the better bet"
        pair = self
        if bet != self.b:
            pair = self.turned()
        text = f"No verdict from this corpus; {bet} is the better bet"
        return text + pair.describe_precedent() + f" (chance {_describe_chance(pair.probability)})"

    def describe_precedent(self) -> str:
        """Return how often models such as b were better, as the end of a sentence."""
        if self.precedent is None or not self.precedent.collections:
            return ", on the evidence of this corpus alone"
        precedent = self.precedent
        total = precedent.collections
        size = f"{abs(precedent.average):.2f}"
        if size == "0.00":
            size = "less than 0.01"
        on_all = f"; on average over all {total}, "  # where count and average point apart
        is_usual = 2 * precedent.better > total
        only = "only " if 2 * precedent.better < total else ""
        count = f"in {only}{precedent.better} of {total} labelled collections it was better"
        if precedent.average > 0:
            average = f", by {size} on average" if is_usual else f"{on_all}by {size}"
            return f": {count}{average}"
        average = f"{on_all}{size} worse" if is_usual else f", and {size} worse on average"
        return f" here, on the evidence of this corpus: {count}{average}"


@dataclass(frozen=True)
class Likeness:
    """The likeness of a collection to those of the calibration.

    Attributes:
        figures: figures of the collection, by name.
        remarks: the figures that are unusual there, in words.
        distance: distance from the collections of the calibration, about 1 for one of them, see
            :func:`~beir_cocodr.evaluation.label_free.likeness.unlikeness`.
        doubts: why evidence of crops and titles counts for less here, in words; none if it does
            not.
    """

    figures: dict[str, float]
    remarks: list[str]
    distance: float = 0.0
    doubts: list[str] = field(default_factory=list)


def indistinguishable(best: str, pairs: Sequence[PairedTest] | Sequence[PairVerdict]) -> list[str]:
    """Return the models that no verdict sets apart from the best one."""
    models = []
    for pair in pairs:
        if best in (pair.a, pair.b) and pair.verdict not in ("better", "worse"):
            models.append(pair.b if pair.a == best else pair.a)
    return models


@dataclass(frozen=True)
class Best:
    """The model to prefer, why, and the models that may be as good.

    Attributes:
        model: the model with the highest value, or without labels the highest expected value.
        reason: why, as sentences for a person.
        indistinguishable: the models that no verdict sets apart from it.
        probability: without labels, the chance that it is better than its closest rival.
    """

    model: str
    reason: str
    indistinguishable: list[str]
    probability: float | None = None

    @property
    def is_bet(self) -> bool:
        """Return true unless its closest rival is as likely to be better."""
        return self.probability is None or self.probability - 0.5 >= NO_BET

    @property
    def decided(self) -> bool:
        """Return true if labels chose the model, or verdicts set it apart from all others."""
        return self.probability is None or not self.indistinguishable


@dataclass(frozen=True)
class AnnotationCandidates:
    """The pairs whose labels would tell most between two models.

    Attributes:
        a, b: the models.
        pairs: queries and documents to judge.
        remark: why there are none, or "".
    """

    a: str
    b: str
    pairs: list[AnnotationCandidate]
    remark: str


@dataclass(frozen=True)
class PseudoQueryFigures:
    """Figures of the queries that replace judged ones.

    Attributes:
        verbatim: mean share of a query's words that occur in its document; None without queries.
        counts: numbers of documents and queries that were considered and left out.
        bm25_ndcg: nDCG@10 of BM25 alone.
        of_the_collection: for the queries on which rankings are compared, true if they are the
            collection's own.
        words: mean number of words of a query.
        held_words: for the queries on which rankings are compared, model to the mean share of a
            query's words that its three best documents hold.
    """

    queries: int
    verbatim: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    bm25_ndcg: float | None = None
    of_the_collection: bool | None = None
    words: float | None = None
    held_words: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings about several models, with labels or without.

    Attributes:
        ranking: models, best first.
        best: the first of them.
        measure, evaluation: with labels, the measure that decides, and the evaluation.
        samples, seed: without labels, number and seed of the pseudo-queries.
        pseudo_queries: without labels, "held-out crops", "generated queries", and those of the
            "agreement".
        calibration: without labels, the calibration of the rule.
        likeness: without labels, how the collection compares with those of the calibration.
        retrieval: without labels, model to the description of its retriever.
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

    def __post_init__(self) -> None:
        """Check the descriptions of the retrievers."""
        check_description(self.retrieval)

    @property
    def estimated(self) -> list[PairVerdict]:
        """Return the pairs if there were no labels, else none."""
        return [pair for pair in self.pairs if isinstance(pair, PairVerdict)]


@dataclass(frozen=True, kw_only=True)
class ComparisonRecord(Tabular, Findings, Record):
    """The comparison of several models, as in comparison.json.

    Attributes:
        labels: true if labels judged.
        labels_wanted: the pairs to label next.
        seen: model to what is known of its training.
        judge: what a language model found that graded, where one was asked.
        left_out: files of a folder that could not be read, None where all could.
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
    judge: JudgeFindings | None = None
    left_out: list[LeftOut] | None = None

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each pair, b against a, and measure.

        Returns:
            A frame of the columns a, b, measure, verdict, difference, low and high, the ends of the
            interval of the difference.
        """
        rows = []
        for pair in self.pairs:
            measure = "nDCG@10"
            if isinstance(pair, PairedTest):
                measure = pair.measure
                difference = pair.difference
            else:
                difference = pair.estimate
            low, high = pair.interval or (None, None)
            rows.append(
                {
                    "a": pair.a,
                    "b": pair.b,
                    "measure": measure,
                    "verdict": pair.verdict,
                    "difference": difference,
                    "low": low,
                    "high": high,
                }
            )
        return frame(rows, ["a", "b", "measure", "verdict", "difference", "low", "high"])


@dataclass(frozen=True)
class Recommendation:
    """The model of an adaptation to use, and why.

    Attributes:
        model: its label, such as "base + COCO, fused".
        measure: the measure that decided; None without labels.
        verdict: the verdict on training: "better" if some trained encoder is, "worse" if all are,
            else "cannot tell".
        verdicts: trained encoder to the verdict against the base.
        reasons: sentences for a person.
        choice: the reason that says why this model is chosen, one of ``reasons``.
        verdicts_by_use: without labels, trained encoder to mode ("alone", "feedback", "fused",
            "RM3") to verdict, against the base in the same mode.
        ranking: without labels, the labels, best estimates first.
        calibrated: without labels, true if the rule is calibrated for these models.
        trust: without labels, how often such verdicts are right.
        probability: without labels, the chance that the model is better than the base; None for the
            base itself.
        decided: false if the model is only the best bet.
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
    probability: float | None = None
    decided: bool = True


@dataclass(frozen=True, kw_only=True)
class AdaptationRecord(Tabular, Record):
    """The models that an adaptation made, and the one to use, as in adapt.json.

    Attributes:
        corpus: the collection that the models are adapted to.
        source: the labelled collection that they are fine-tuned on.
        base: the model that is adapted.
        stages: the stages of training.
        models: name of a model's folder to its path; the base too.
        generated_queries: folder of the queries that were generated for the corpus.
        seconds: name of a model's folder to the time of its training.
        results: with labels, the ablation.
        candidates: without labels, label ("base + COCO, fused") to model name.
        chains: label of every model except BM25 to its stages and its mode.
        comparison: without labels, the comparison of the candidates.
        recommendation: the model to use, and why.
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

    def to_frame(self) -> pd.DataFrame:
        """Return the measures of each model, or without labels the verdict on each pair."""
        tables = [table for table in (self.results, self.comparison) if table is not None]
        if not tables:
            return frame([], [])
        return tables[0].to_frame()
