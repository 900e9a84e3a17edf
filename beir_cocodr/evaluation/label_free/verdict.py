"""From estimates without labels to a verdict, by a rule calibrated on labelled collections."""

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.judgement_log import TYPED_PREFIX
from beir_cocodr.data.judgements import Judgements
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation import results as records
from beir_cocodr.evaluation.calibration import (
    Calibration,
    DifferenceModel,
    ExpectedDifference,
    PairFeatures,
    Precedent,
)
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.few_labels import (
    NORMAL,
    Expected,
    FewLabels,
    Posterior,
    describe_gain,
    judge,
)
from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.evaluation.label_free.estimates import estimate_pair, features
from beir_cocodr.evaluation.label_free.estimators import FEWEST_QUERIES
from beir_cocodr.evaluation.label_free.evidence import LIST_DEPTH, Evidence
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.likeness import (
    collection_figures,
    compare_figures,
    describe_doubts,
)
from beir_cocodr.evaluation.label_free.pseudo_queries import DEPTH
from beir_cocodr.evaluation.label_free.weak_encoders import mark_weak_encoders
from beir_cocodr.evaluation.results import CALIBRATED, JUDGED, PRIOR, Interval
from beir_cocodr.evaluation.runs import file_names, write_run
from beir_cocodr.models.spec import RERANKED
from beir_cocodr.retrieval.ranking import Results

log = logging.getLogger(__name__)

CALIBRATION_FILE = Path(__file__).with_name("calibration.json")

#: Families of pairs, for which a calibration counts how often it was right.
SAME_KIND = "models of one kind"
DIFFERENT_KINDS = "models of different kinds"
NEW_KIND = "models of a kind that the calibration does not have"

# What was left out of the fits whose verdicts on a family of pairs were counted.
_LEFT_OUT = {NEW_KIND: "it, its family, and the kind of one of the two"}
_USUALLY_LEFT_OUT = "it and its family"

#: The models of a calibration: for collections with queries, also if a language model reads what is
#: found for them, and for collections without.
GIVEN_QUERIES = "given queries"
READ_QUERIES = "given queries and a language model"
CORPUS_ALONE = "corpus alone"

BETTER = "better"
WORSE = "worse"
NO_DIFFERENCE = "no difference"
CANNOT_TELL = "cannot tell"

#: The most real queries that are searched for.
MOST_QUERIES = 1_000

_ALIKE = records.Likeness({}, [])

#: With a larger share of the prior, too little was seen of the corpus to decide.
MOST_PRIOR = 0.9

#: Kinds that queries made of documents mislead about, unless a calibration was fitted to them: by
#: what the deviations of their pairs are multiplied. Nothing is decided on them.
MISLED = {RERANKED: 1.8}


def load_calibration() -> Calibration:
    """Read the packaged calibration, which benchmarks/verdict.py writes."""
    return Calibration.read(CALIBRATION_FILE)


@dataclass(frozen=True)
class Rule:
    """The rule by which a pair of models is judged on one collection.

    Attributes:
        evidence: What was seen of the models.
        calibration: What the rule rests on.
        likeness: How the collection compares with those of the calibration.
    """

    evidence: Evidence
    calibration: Calibration
    likeness: records.Likeness = _ALIKE

    @property
    def given(self) -> str:
        """Return what is given, as a key of the calibration's models.

        A calibration that was not fitted with a language model has no model for it.
        """
        if not self.evidence.real:
            return CORPUS_ALONE
        if self.evidence.pooled is not None and READ_QUERIES in self.calibration.models:
            return READ_QUERIES
        return GIVEN_QUERIES

    @property
    def model(self) -> DifferenceModel:
        """Return the calibration's model for what is given."""
        return self.calibration.models[self.given]

    def expected(self, a: str, b: str) -> ExpectedDifference:
        """Return the posterior of the difference of model b and model a."""
        pair = PairFeatures(
            kinds=self.kinds(a, b),
            features=features(self.evidence, a, b),
            distance=self.distance(a, b),
            unlikeness=self.likeness.distance,
            lost_words=self.evidence.lost_words,
            nonletter_excess=self.evidence.nonletter_excess,
            queries=len(self.evidence.lists_of([a, b])[0]),
        )
        expected = self.model.predict(pair)
        for model in self.misleading(a, b):
            expected = expected.widened(MISLED[str(self.evidence.kinds[model])])
        return expected

    def misleading(self, a: str, b: str) -> list[str]:
        """Return those of two models that queries made of documents mislead about."""
        return [model for model in self.of_new_kind(a, b) if self.evidence.kinds[model] in MISLED]

    def precedent(self, a: str, b: str) -> Precedent | None:
        """Return how often models of b's kind were better than those of a's."""
        return self.model.prior(*self.kinds(a, b)).precedent

    def kinds(self, a: str, b: str) -> tuple[str | None, str | None]:
        """Return the kinds of a pair; the usual ones if the calibration has no weak encoders."""
        kinds = self.evidence.pair_kinds(a, b)
        if all(kind is None or self.model.knows(kind) for kind in kinds):
            return kinds
        return self.evidence.kinds[a], self.evidence.kinds[b]

    def family(self, a: str, b: str) -> str:
        """Return the family of a pair, for which the calibration counts how often it was right."""
        if self.of_new_kind(a, b):
            return NEW_KIND
        kinds = (self.evidence.kinds[a], self.evidence.kinds[b])
        return SAME_KIND if is_same_kind(kinds) else DIFFERENT_KINDS

    def of_new_kind(self, a: str, b: str) -> list[str]:
        """Return those of two models whose kind the calibration does not have."""
        kinds = self.evidence.kinds
        return [model for model in (a, b) if not self.model.knows(kinds[model])]

    def distance(self, a: str, b: str) -> float:
        """Return the mean rank distance of two models.

        It is 1 where they answer no query in common, or where neither has any result.
        """
        first, second = self.evidence.lists_of([a, b])
        if not ((first >= 0).any() or (second >= 0).any()):
            return 1.0
        return float(rank_distance(first, second).mean())

    def rank_alike(self, a: str, b: str) -> bool:
        """Return true if two models rank the same documents at the same ranks.

        Lists without results are no such sign.
        """
        first, second = self.evidence.lists_of([a, b])
        is_same = first[:, :DEPTH] == second[:, :DEPTH]
        has_results = (first[:, :DEPTH] >= 0).any(axis=1)
        return int(has_results.sum()) >= FEWEST_QUERIES and bool(is_same.all())

    def trust(self, a: str, b: str, corpus_sha256: str | None) -> str:
        """Return how often such verdicts are right, or that judgements are needed for one."""
        unknown = [model for model in (a, b) if self.evidence.kinds[model] is None]
        undecided = unknown + self.misleading(a, b)
        if undecided:
            return f"Nothing is decided on {' and '.join(undecided)} without judgements"
        family = self.family(a, b)
        left_out = _LEFT_OUT.get(family, _USUALLY_LEFT_OUT)
        return self.calibration.statement(self.given, family, corpus_sha256, left_out)

    def objection(
        self,
        estimates: Sequence[records.Estimate],
        expected: ExpectedDifference,
        a: str,
        b: str,
    ) -> str:
        """Return why nothing may be decided on a pair, or "" if something may."""
        unknown = [model for model in (a, b) if self.evidence.kinds[model] is None]
        if not any(estimate.applies for estimate in estimates):
            return "no estimator applies"
        if unknown:
            return f"it is not known what kind of model {unknown[0]} is"
        misleading = self.misleading(a, b)
        if misleading:
            return (
                f"{misleading[0]} is reranked by a cross-encoder, and how well one finds documents "
                "by their crops and titles does not tell how well it ranks for real queries"
            )
        if expected.prior_share > MOST_PRIOR:
            return "this corpus gives too little evidence"
        return ""


def is_same_kind(kinds: tuple[str | None, str | None]) -> bool:
    """Return true if two models are of one kind."""
    a, b = kinds
    return a == b


def decide(
    evidence: Evidence,
    a: str,
    b: str,
    calibration: Calibration,
    likeness: records.Likeness = _ALIKE,
    corpus_sha256: str | None = None,
) -> records.PairVerdict:
    """Judge b against a from an estimate of their difference in nDCG@10 and its 90% interval.

    The estimate joins what usually wins with the evidence of this corpus. The verdict is "better"
    or "worse" if the interval excludes 0, "no difference" if it lies within the calibration's
    margin, and "cannot tell" otherwise. The interval widens with the distance of the collection
    from those of the calibration, and where the calibration has no models of the kind of a or b.
    Nothing is decided if no estimator applies, if the kind of a or b is not known at all, or if
    one of them is reranked by a cross-encoder; two models that rank alike are an exception. A
    statement says how far to trust the verdict; it depends on whether the corpus was one of the
    calibration's.

    Args:
        evidence: What was seen of the models.
        a: The first model.
        b: The second model.
        calibration: What the rule rests on.
        likeness: How the collection compares with those of the calibration.
        corpus_sha256: Content hash of the corpus.
    """
    rule = Rule(evidence, calibration, likeness)
    estimates = estimate_pair(evidence, a, b, rule.model.slopes)
    alike = rule.rank_alike(a, b)
    expected = ExpectedDifference(0.0, 0.0, 0.0, 0.0) if alike else rule.expected(a, b)
    objection = "" if alike else rule.objection(estimates, expected, a, b)
    if objection:
        expected = expected.holding_zero()
    if alike:
        verdict = NO_DIFFERENCE
        reason = "both rank the same documents at the same ranks"
    elif objection:
        verdict = CANNOT_TELL
        reason = f"{_describe_interval(expected.mean, expected.interval)}, but {objection}"
    else:
        verdict, reason = _by_interval(expected.mean, expected.interval, calibration.margin)
    family = rule.family(a, b)
    if not alike and family == NEW_KIND:
        new = " or ".join(rule.of_new_kind(a, b))
        reason += f"; the calibration has no models of the kind of {new}"
    elif not alike:
        reason += f"; {expected.prior_share:.0%} of the estimate is what usually wins"
    return records.PairVerdict(
        a=a,
        b=b,
        family=family,
        verdict=verdict,
        probability=expected.chance,
        rule=PRIOR if objection else CALIBRATED,
        score=2 * expected.chance - 1,
        reason=reason,
        trust=rule.trust(a, b, corpus_sha256),
        features=features(evidence, a, b),
        estimates=estimates,
        distance=rule.distance(a, b),
        estimate=expected.mean,
        interval=expected.interval,
        prior_share=expected.prior_share,
        precedent=rule.precedent(a, b),
    )


def as_their_twins(pairs: Sequence[records.PairVerdict]) -> list[records.PairVerdict]:
    """Return verdicts in which a model about which nothing may be decided is judged as its twin.

    Models that rank alike for real queries are equally good. A fusion that was fitted to the corpus
    and ranks as an unfitted one thus has the verdicts of that one.

    Args:
        pairs: The verdicts on all pairs of some models.
    """
    by_models = {(pair.a, pair.b): pair for pair in pairs}
    by_models |= {(pair.b, pair.a): pair.turned() for pair in pairs}
    twins: dict[str, list[str]] = {}
    for a, b in by_models:
        if _rank_alike(by_models[a, b]):
            twins.setdefault(a, []).append(b)
    judged = []
    for pair in pairs:
        if pair.rule == PRIOR:
            for a, b in itertools.product(
                [pair.a, *twins.get(pair.a, [])], [pair.b, *twins.get(pair.b, [])]
            ):
                other = by_models.get((a, b), pair)
                if other.rule == CALIBRATED and not _rank_alike(other):
                    pair = _as_twin(pair, other)
                    break
        judged.append(pair)
    return judged


def _rank_alike(pair: records.PairVerdict) -> bool:
    """Return true if both models of a pair rank the same documents at the same ranks."""
    return pair.rule == CALIBRATED and pair.estimate == 0 and pair.interval == (0, 0)


def _as_twin(
    pair: records.PairVerdict,
    other: records.PairVerdict,
) -> records.PairVerdict:
    """Return the verdict on a pair by that on two models that rank as they do."""
    twin_of = {pair.a: other.a, pair.b: other.b}
    twins = [f"{model} ranks as {twin}" for model, twin in twin_of.items() if model != twin]
    return replace(
        pair,
        family=other.family,
        verdict=other.verdict,
        probability=other.probability,
        rule=other.rule,
        score=other.score,
        reason=f"{other.reason}; {' and '.join(twins)}",
        trust=other.trust,
        estimate=other.estimate,
        interval=other.interval,
        prior_share=other.prior_share,
        precedent=other.precedent,
    )


def _describe_interval(mean: float, interval: Interval) -> str:
    low, high = interval
    return f"nDCG@10 {mean:+.3f}, 90% {low:+.3f} to {high:+.3f}"


def _by_interval(
    mean: float,
    interval: Interval,
    margin: float,
) -> tuple[str, str]:
    """Return a verdict and its reason."""
    low, high = interval
    described = _describe_interval(mean, interval)
    if low > 0:
        return BETTER, f"{described}, which excludes 0"
    if high < 0:
        return WORSE, f"{described}, which excludes 0"
    if max(-low, high) <= margin:
        return NO_DIFFERENCE, f"{described}, which lies within {margin:g}"
    return CANNOT_TELL, f"{described}, which contains 0 and more than {margin:g}"


def expected_values(
    models: Sequence[str],
    pairs: Sequence[records.PairVerdict],
) -> Expected:
    """Return what the verdicts expect of several models, to be joined with judged queries.

    Args:
        models: The models.
        pairs: The verdicts on all pairs of them, without judged queries.
    """
    numbers = {model: number for number, model in enumerate(models)}
    size = len(models)
    means = np.zeros((size, size))
    variances = np.zeros((size, size))
    distances = np.zeros((size, size))
    for pair in pairs:
        i = numbers[pair.a]
        j = numbers[pair.b]
        mean = _centre(pair)
        means[i, j] = mean
        means[j, i] = -mean
        variances[[i, j], [j, i]] = _deviation(pair) ** 2
        distances[[i, j], [j, i]] = pair.distance
    return Expected(means.mean(axis=0), variances, distances)


def _centre(pair: records.PairVerdict) -> float:
    """Return the mean of the normal distribution that has the interval of a pair.

    Where nothing may be decided, the interval was widened around the estimate, which stays.
    """
    return pair.estimate if pair.rule == PRIOR else sum(pair.interval) / 2


def _deviation(pair: records.PairVerdict) -> float:
    """Return the deviation of the expected difference of a pair."""
    low, high = pair.interval
    return (high - low) / 2 / NORMAL


def rank_by_lead(models: Sequence[str], leads: Mapping[tuple[str, str], float]) -> list[str]:
    """Return models, best first, by their mean lead.

    Args:
        models: The models; equal ones keep this order.
        leads: (a, b) to the lead of b over a.
    """
    total = dict.fromkeys(models, 0.0)
    for (a, b), lead in leads.items():
        total[b] += lead
        total[a] -= lead
    return sorted(models, key=lambda model: -round(total[model], 12))


def compare_label_free(
    gatherer: Gatherer,
    collection: Collection,
    folder: Path | None,
    queries: int | None = None,
    judged: Judgements | None = None,
    reference: str | None = None,
    calibration: Calibration | None = None,
) -> tuple[records.Findings, dict[str, Results]]:
    """Estimate how models differ, and judge for each pair whether b is better than a.

    Args:
        gatherer: Searches of the models over the collection's corpus.
        collection: With or without queries; its labels are not used.
        folder: Receives NAME.run for the queries that are searched for; None writes nothing.
        queries: The most queries of the collection, evenly spaced (1,000).
        judged: Judged queries of the collection; they then adjust what is expected without them.
        reference: The model that a choice by judged queries is compared with; by default the first.
        calibration: What the verdicts rest on; by default the packaged one.

    Returns:
        The findings, and each model's results for the queries that were searched for.

    Raises:
        InputError: The collection has changed since ``gatherer`` read it.
    """
    documents = collection.documents
    if gatherer.documents.content_hash != documents.content_hash:
        raise InputError(f"{collection.name} has changed since it was read; start again")
    if calibration is None:
        calibration = load_calibration()
    asked = _queries(collection, queries, judged)
    seen = gatherer.gather(asked, proposed=_proposed(collection, judged))
    evidence = mark_weak_encoders(seen, gatherer.encoders)
    figures = collection_figures(documents, evidence)
    likeness = replace(
        compare_figures(figures, calibration.figures),
        doubts=describe_doubts(evidence, Rule(evidence, calibration).model),
    )
    pairs = [
        decide(evidence, a, b, calibration, likeness, documents.content_hash)
        for a, b in itertools.combinations(gatherer.models, 2)
    ]
    pairs = as_their_twins(pairs)
    results = _write_runs(gatherer, evidence, folder) if asked else {}
    few_labels = None
    if judged:
        expected = expected_values(gatherer.models, pairs)
        few_labels, posterior = judge(
            judged,
            results,
            expected,
            reference,
            calibration.margin,
        )
        pairs = _judged_pairs(
            pairs,
            gatherer.models,
            few_labels,
            posterior,
            calibration.margin,
        )
    leads = {(pair.a, pair.b): pair.estimate for pair in pairs}
    ranking = undefeated_first(rank_by_lead(gatherer.models, leads), pairs)
    findings = records.Findings(
        ranking=ranking,
        best=best_of(ranking, pairs),
        samples=gatherer.samples,
        seed=gatherer.seed,
        pseudo_queries=evidence.describe(),
        calibration=calibration,
        likeness=likeness,
        retrieval={name: evidence.retrieval[name] for name in gatherer.models},
        pairs=pairs,
        few_labels=few_labels,
    )
    return findings, results


def _queries(
    collection: Collection,
    most: int | None,
    judged: Judgements | None,
) -> dict[str, str]:
    """Return the queries to search for: evenly spaced ones, and all that are judged."""
    chosen = spaced(
        collection.queries,
        MOST_QUERIES if most is None else most,
    )
    queries = {query: collection.queries[query] for query in chosen}
    if judged:
        queries |= {query: judgement.text for query, judgement in judged.queries.items()}
    if len(queries) < len(collection.queries):
        log.info(
            "%d of %d queries are searched for, evenly spaced",
            len(queries),
            len(collection.queries),
        )
    return queries


def _proposed(collection: Collection, judged: Judgements | None) -> set[str]:
    """Return the ids of judged queries that were proposed: nobody asked them.

    They were drawn, as those of the collection are, and are none of these.
    """
    if judged is None:
        return set()
    return {
        id
        for id, query in judged.queries.items()
        if id.startswith(TYPED_PREFIX)
        and query.probability is not None
        and id not in collection.queries
    }


def _write_runs(
    gatherer: Gatherer,
    evidence: Evidence,
    folder: Path | None,
) -> dict[str, Results]:
    """Return the results of all queries, and write their runs if there is a folder."""
    results: dict[str, Results] = {}
    specs = {model: gatherer.resources.spec(model) for model in gatherer.models}
    for model, name in file_names(gatherer.models, specs).items():
        ranking = evidence.all_rankings[model]
        results[model] = ranking.results(
            gatherer.documents,
            gatherer.drop,
            LIST_DEPTH,
        )
        if folder is not None:
            write_run(folder / f"{name}.run", results[model], name)
    return results


def best_of(ranking: Sequence[str], pairs: Sequence[records.PairVerdict]) -> records.Best:
    """Return the model with the highest expected value, how sure that is, and what it rests on."""
    model = ranking[0]
    against = [
        pair if pair.b == model else pair.turned() for pair in pairs if model in _sides(pair)
    ]
    closest = min(against, key=lambda pair: pair.probability)
    as_good = records.indistinguishable(model, pairs)
    reason = f"{closest.answer}."
    if len(ranking) > 2:
        rival = next(name for name in _sides(closest) if name != model)
        reason = (
            f"{model} has the highest expected nDCG@10 of {len(ranking)} models. Against {rival}, "
            f"the closest: {reason}"
        )
    if as_good:
        reason += f" {_basis(closest)}"
    return records.Best(model, reason, as_good, closest.probability)


def _sides(pair: records.PairVerdict) -> tuple[str, str]:
    return pair.a, pair.b


def _basis(pair: records.PairVerdict) -> str:
    """Say what an estimate rests on."""
    if pair.verdict == NO_DIFFERENCE:
        return "Their difference does not matter."
    if pair.rule == JUDGED and not pair.prior_share:
        return "This estimate rests on the judged queries alone."
    judged = " and judged queries" if pair.rule == JUDGED else ""
    has_evidence = judged or any(estimate.applies for estimate in pair.estimates)
    if not has_evidence and pair.family == NEW_KIND:
        return (
            "The calibration has no models of the kind of one of the two, and this corpus gives no "
            "evidence on them."
        )
    if not has_evidence:
        return "This estimate is what usually wins; this corpus gives no evidence on it."
    if pair.family == NEW_KIND:
        return (
            "The calibration has no models of the kind of one of the two, so this estimate rests "
            f"on evidence from this corpus{judged}."
        )
    return (
        f"{pair.prior_share:.0%} of this estimate is what usually wins, the rest is evidence from "
        f"this corpus{judged}."
    )


def undefeated_first(
    ranking: Sequence[str],
    pairs: Sequence[records.PairVerdict],
) -> list[str]:
    """Return a ranking whose first model is not expected to lose against any other.

    Pairs are judged each by itself, so that their mean leads may contradict one of them.
    """
    defeated = {
        pair.a if pair.better_bet == pair.b else pair.b for pair in pairs if pair.better_bet
    }
    first = next((model for model in ranking if model not in defeated), ranking[0])
    return [first, *(model for model in ranking if model != first)]


def _judged_pairs(
    pairs: Sequence[records.PairVerdict],
    models: Sequence[str],
    few_labels: FewLabels,
    posterior: Posterior,
    margin: float,
) -> list[records.PairVerdict]:
    """Return the verdicts once queries are judged."""
    numbers = {model: number for number, model in enumerate(models)}
    judged = []
    for pair in pairs:
        difference = posterior.difference(numbers[pair.a], numbers[pair.b])
        judged.append(_with_judgements(pair, few_labels, difference, margin))
    return judged


def _with_judgements(
    pair: records.PairVerdict,
    few_labels: FewLabels,
    difference: tuple[float, float],
    margin: float,
) -> records.PairVerdict:
    """Return the verdict by the estimate that joins judged queries with what was expected.

    Where nothing may be decided without labels, ten or more judged queries alone decide, and fewer
    decide nothing.
    """
    if _rank_alike(pair):
        return pair
    mean, deviation = difference
    before = _deviation(pair)
    share = pair.prior_share * min(1.0, (deviation / before) ** 2) if before else 0.0
    joined = ExpectedDifference(mean, deviation, deviation, share)
    interval = joined.interval
    gain = few_labels.pairs[pair.a][pair.b]
    if pair.rule == PRIOR:
        joined = joined.holding_zero()
        interval = joined.interval
        if gain.interval is not None:
            interval = gain.interval
            half = interval[1] - gain.difference
            joined = ExpectedDifference(gain.difference, half / NORMAL, half / NORMAL, 0.0)
    verdict, reason = _by_interval(joined.mean, interval, margin)
    is_decided = verdict != CANNOT_TELL
    alone = describe_gain(gain, few_labels.queries, is_decided=is_decided)
    return replace(
        pair,
        verdict=verdict,
        probability=joined.chance,
        rule=JUDGED,
        score=2 * joined.chance - 1,
        reason=f"{reason}; {alone}",
        estimate=joined.mean,
        interval=interval,
        prior_share=joined.prior_share,
    )
