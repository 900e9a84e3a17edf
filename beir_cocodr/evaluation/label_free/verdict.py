"""From label-free estimates to a verdict, by a rule calibrated on labelled collections; models
compared and chosen.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import special

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.judgements import Judgements
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation import results as records
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.few_labels import NORMAL, Expected, FewLabels, describe_gain
from beir_cocodr.evaluation.few_labels import judge as judge_few
from beir_cocodr.evaluation.label_free.estimates import (
    FEWEST_QUERIES,
    collection_figures,
    compare_figures,
    estimate_pair,
    features,
    is_calibrated,
    kind,
)
from beir_cocodr.evaluation.label_free.evidence import LIST_DEPTH, Evidence, Gatherer, rank_distance
from beir_cocodr.evaluation.label_free.pseudo_queries import DEPTH
from beir_cocodr.evaluation.recommendation import (
    BASE,
    LABELS_FILE,
    MODES,
    TRAINING,
    ablation_families,
    modes_of,
    overall,
)
from beir_cocodr.evaluation.runs import file_names, write_run
from beir_cocodr.retrieval.ranking import Results

log = logging.getLogger(__name__)
CALIBRATION_FILE = Path(__file__).with_name("calibration.json")

#: Counts that a calibration carries for pairs of one kind and of different kinds of models.
SAME_KIND, DIFFERENT_KINDS = "models of one kind", "models of different kinds"

#: The models of a calibration: for collections with queries, and for those without.
GIVEN_QUERIES, CORPUS_ALONE = "given queries", "corpus alone"
NO_DIFFERENCE, CANNOT_TELL = "no difference", "cannot tell"


def load_calibration() -> records.Calibration:
    """The packaged calibration, which benchmarks/verdict.py makes."""
    return records.Calibration.read(CALIBRATION_FILE)


_ALIKE = records.Likeness({}, [])


def decide(
    evidence: Evidence,
    a: str,
    b: str,
    calibration: records.Calibration,
    likeness: records.Likeness = _ALIKE,
    corpus_sha256: str | None = None,
) -> records.PairVerdict:
    """The verdict on b against a, from an estimate of the difference in nDCG@10 and its 90%
    interval.

    "better" or "worse" where the interval excludes 0, "no difference" where it lies within the
    calibration's margin, else "cannot tell". Where the collection is unlike those of the
    calibration, or the calibration has no model of the kind of a or b, nothing is decided, except
    between two that rank alike. How far to trust a verdict depends on whether the corpus was one of
    the calibration's.
    """
    estimates, lists = estimate_pair(evidence, a, b), evidence.lists
    values, distances = features(evidence, a, b), rank_distance(lists[a], lists[b])
    distance = float(distances.mean()) if len(distances) else 0.0
    model = calibration.models[GIVEN_QUERIES if evidence.real else CORPUS_ALONE]
    same = (
        bool((lists[a][:, :DEPTH] == lists[b][:, :DEPTH]).all())
        and len(evidence.queries) >= FEWEST_QUERIES
    )
    mean, deviation = (0.0, 0.0) if same else model.predict(values, distance)
    interval = (mean - model.quantile * deviation, mean + model.quantile * deviation)
    margin, shown = (
        calibration.margin,
        "nDCG@10 {:+.3f}, 90% {:+.3f} to {:+.3f}".format(mean, *interval),
    )
    strange = [name for name in (a, b) if not is_calibrated(name)]
    if not any(found.applies for found in estimates):
        verdict, reason = CANNOT_TELL, "no estimator applies"
    elif same:
        verdict, reason = NO_DIFFERENCE, "both rank the same documents at the same ranks"
    elif strange:
        verdict, reason = (
            CANNOT_TELL,
            f"{shown}, but the calibration has no model of the kind of {strange[0]}",
        )
    elif likeness.remarks:
        verdict, reason = (
            CANNOT_TELL,
            f"{shown}, but the collection is unlike those of the calibration",
        )
    else:
        verdict, reason = _by_interval(mean, interval, margin)
    chance = float(special.ndtr(mean / deviation)) if deviation else 0.5
    family = SAME_KIND if kind(a) == kind(b) else DIFFERENT_KINDS
    return records.PairVerdict(
        a=a,
        b=b,
        family=family,
        verdict=verdict,
        probability=chance,
        rule="unlike" if likeness.remarks or strange else "calibrated",
        score=2 * chance - 1,
        reason=reason,
        trust=calibration.statement(family, corpus_sha256),
        features=values,
        estimates=estimates,
        distance=distance,
        estimate=mean,
        interval=interval,
    )


def _by_interval(mean: float, interval: records.Interval, margin: float) -> tuple[str, str]:
    """A verdict and its reason."""
    (low, high), shown = interval, "nDCG@10 {:+.3f}, 90% {:+.3f} to {:+.3f}".format(mean, *interval)
    if low > 0 or high < 0:
        return ("better" if low > 0 else "worse"), f"{shown}, which excludes 0"
    if max(-low, high) <= margin:
        return NO_DIFFERENCE, f"{shown}, which lies within {margin:g}"
    return CANNOT_TELL, f"{shown}, which holds 0 and more than {margin:g}"


def expected_values(
    evidence: Evidence,
    models: Sequence[str],
    calibration: records.Calibration,
    likeness: records.Likeness = _ALIKE,
) -> Expected:
    """What the calibration expects of several models, to be joined with judged queries.

    Deviations are those of :func:`decide`. Where the collection or a model is unlike those of the
    calibration, the squares of expected differences join the variances, so that none is sure by
    itself.
    """
    model = calibration.models[GIVEN_QUERIES if evidence.real else CORPUS_ALONE]
    means, variances, distances = (np.zeros((len(models), len(models))) for _ in range(3))
    for (i, a), (j, b) in itertools.combinations(enumerate(models), 2):
        distance = float(rank_distance(evidence.lists[a], evidence.lists[b]).mean())
        mean, deviation = model.predict(features(evidence, a, b), distance)
        means[i, j], means[j, i] = mean, -mean
        variances[i, j] = variances[j, i] = (deviation * model.quantile / NORMAL) ** 2
        distances[i, j] = distances[j, i] = distance
    values = means.mean(axis=0)
    strange = np.array([bool(likeness.remarks) or not is_calibrated(name) for name in models])
    variances += np.logical_or.outer(strange, strange) * np.subtract.outer(values, values) ** 2
    return Expected(values, variances, distances)


def choose(models: Sequence[str], scores: Mapping[tuple[str, str], float]) -> list[str]:
    """Models, best first, by their mean lead; ``scores`` has of each pair (a, b) the lead of b."""
    total = dict.fromkeys(models, 0.0)
    for (a, b), score in scores.items():
        total[b] += score
        total[a] -= score
    return sorted(models, key=lambda model: -round(total[model], 12))


#: The most real queries that are searched for.
MOST_QUERIES = 1_000


def compare_label_free(
    gatherer: Gatherer,
    collection: Collection,
    folder: Path,
    queries: int | None = None,
    judged: Judgements | None = None,
    reference: str | None = None,
) -> tuple[records.Findings, dict[str, Results]]:
    """Estimate how models differ, and judge of each pair whether b is better than a; also each
    model's results for real queries.

    Args:
        gatherer: of the models and the collection's corpus.
        collection: with or without queries; its labels are not looked at.
        folder: gets NAME.run for real queries.
        queries: the most real queries, evenly spaced (1,000).
        judged: of queries of the collection; estimates are then shrunken towards what is expected
            without them.
        reference: what a choice by them is held against; by default the first model.
    """
    calibration, documents, models = load_calibration(), collection.documents, gatherer.models
    if gatherer.documents.content_hash != documents.content_hash:
        raise InputError(f"{collection.name} has changed since it was read; start again")
    asked = {
        q: collection.queries[q]
        for q in spaced(collection.queries, MOST_QUERIES if queries is None else queries)
    }
    asked |= {id: query.text for id, query in judged.queries.items()} if judged else {}
    if len(asked) < len(collection.queries):
        log.info(
            "%d of %d queries are searched for, evenly spaced", len(asked), len(collection.queries)
        )
    evidence = gatherer.gather(asked)
    corpus, alike = (
        documents.content_hash,
        compare_figures(collection_figures(documents, evidence), calibration.ranges),
    )
    pairs = [
        decide(evidence, a, b, calibration, alike, corpus)
        for a, b in itertools.combinations(models, 2)
    ]
    results: dict[str, Results] = {}
    for name, file_name in file_names(models).items() if evidence.real else ():
        results[name] = evidence.rankings[name].results(documents, gatherer.drop, LIST_DEPTH)
        write_run(folder / f"{file_name}.run", results[name], file_name)
    found = None
    if judged:
        expected = expected_values(evidence, models, calibration, alike)
        found, posterior = judge_few(judged, results, expected, reference, calibration.margin)
        at = {model: i for i, model in enumerate(models)}
        pairs = [
            _with_judgements(
                pair, found, posterior.difference(at[pair.a], at[pair.b]), calibration.margin
            )
            for pair in pairs
        ]
    best, *_ = ranking = choose(models, {(pair.a, pair.b): pair.estimate for pair in pairs})
    open_pairs = records.indistinguishable(best, pairs)
    but = f", but cannot be told from {', '.join(open_pairs)}" if open_pairs else ""
    findings = records.Findings(
        ranking=ranking,
        best=records.Best(best, f"{best} has the best estimates{but}.", open_pairs),
        samples=gatherer.samples,
        seed=gatherer.seed,
        pseudo_queries=evidence.describe(),
        calibration=calibration,
        likeness=alike,
        retrieval={name: evidence.retrieval[name] for name in models},
        pairs=pairs,
        few_labels=found,
    )
    return findings, results


def _with_judgements(
    pair: records.PairVerdict, found: FewLabels, expected: tuple[float, float], margin: float
) -> records.PairVerdict:
    """The verdict once queries are judged: by the estimate that joins them with what was expected,
    and where the collection is unlike those of the calibration by the judged queries alone.
    """
    if pair.estimate == 0 and pair.interval == (0, 0):  # both rank the same
        return pair
    (mean, deviation), gain = expected, found.pairs[pair.a][pair.b]
    interval = (mean - NORMAL * deviation, mean + NORMAL * deviation)
    if pair.rule == "unlike":
        mean, interval = gain.difference, gain.interval or (-1.0, 1.0)
    verdict, reason = _by_interval(mean, interval, margin)
    chance = float(special.ndtr(mean / deviation)) if deviation else 0.5
    return replace(
        pair,
        verdict=verdict,
        probability=chance,
        rule="judged",
        score=2 * chance - 1,
        reason=f"{reason}; {describe_gain(gain, found.queries)}",
        estimate=mean,
        interval=interval,
    )


_USES = dict(zip(MODES, ("alone", "with feedback", "fused", "with RM3"), strict=True))

#: (label of a, label of b) to the pair.
LabelPairs = Mapping[tuple[str, str], records.PairVerdict]


def recommend_label_free(
    comparison: records.ComparisonRecord, candidates: Mapping[str, str]
) -> records.Recommendation:
    """Name one model and the reasons, from estimates.

    As in :func:`~beir_cocodr.evaluation.recommendation.recommend`, with the rule's verdicts for
    those of tests. Of what may be chosen, the best by estimates that the rule finds better than the
    base alone is taken, else the base.

    Args:
        comparison: of :func:`~beir_cocodr.evaluation.compare.compare_models` over the candidates
            without labels, the uses of the base before everything that they are compared with.
        candidates: label ("bm25", "base", "base, fused", "base + COCO", ...) to model name.
    """
    pairs = label_pairs(comparison, candidates)
    trained = [
        label for label in candidates if label.startswith(f"{BASE} + ") and ", " not in label
    ]
    by_use = {
        label: {_USES[mode]: pairs[BASE + mode, label + mode].verdict for mode in modes_of(label)}
        for label in trained
    }
    verdicts = {label: found["alone"] for label, found in by_use.items()}
    allowed = {"bm25"}
    allowed |= {label for label in candidates if label.startswith(f"{BASE}, ")}
    allowed |= {
        label + mode
        for label in trained
        for mode, use in _USES.items()
        if by_use[label].get(use) == "better"
    }
    labels = {name: label for label, name in candidates.items()}
    ranking = [labels[name] for name in comparison.ranking]
    winners = (
        label for label in ranking if label in allowed and pairs[BASE, label].verdict == "better"
    )
    chosen = next(winners, BASE)
    trust = {pair.family: pair.trust for pair in pairs.values()}
    return records.Recommendation(
        model=chosen,
        measure=None,
        verdict=overall(list(verdicts.values())),
        verdicts=verdicts,
        reasons=[
            "The target has no labels, so these are estimates: from held-out crops, from generated queries, "
            "and from how far the lists of models agree.",
            *([] if comparison.few_labels is None else comparison.few_labels.describe()),
            *_describe_verdicts(pairs, by_use),
            _choice(chosen, pairs),
            f"{len(pairs)} pairs were judged, each for itself: with many, one may be wrong by chance alone.",
            _describe_samples(comparison),
            _describe_candidates(comparison.labels_wanted, labels),
        ],
        verdicts_by_use=by_use,
        ranking=ranking,
        calibrated=comparison.estimated[0].rule == "calibrated",
        trust=list(
            dict.fromkeys(trust[name] for name in (SAME_KIND, DIFFERENT_KINDS) if name in trust)
        ),
    )


def label_pairs(comparison: records.ComparisonRecord, candidates: Mapping[str, str]) -> LabelPairs:
    """The pairs of a comparison by the labels of its models."""
    labels = {name: label for label, name in candidates.items()}
    return {(labels[pair.a], labels[pair.b]): pair for pair in comparison.estimated}


def training_pairs(candidates: Iterable[str]) -> list[tuple[str, str]]:
    """(base, trained encoder), each in the same use."""
    labels = list(candidates)
    encoders = [label for label in labels if label != "bm25" and ", " not in label]
    return [(a, b) for a, b in ablation_families(encoders)[TRAINING] if a in labels and b in labels]


def _describe_verdicts(pairs: LabelPairs, by_use: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for label, uses in by_use.items():
        pair = pairs[BASE, label]
        yield f"{label} against {BASE}: {uses['alone']}; {pair.reason}."
        for estimate in pair.estimates:
            yield f"{label} against {BASE}, {estimate.estimator}: {_describe_estimate(estimate)}."
        others = ", ".join(f"{use} {found}" for use, found in uses.items() if use != "alone")
        yield f"{label} against {BASE} used in the same way: {others}."


def _describe_estimate(estimate: records.Estimate) -> str:
    if estimate.difference is None:
        return f"not to be had ({estimate.remark})"
    span = ", 95% {:+.3f} to {:+.3f}".format(*estimate.interval) if estimate.interval else ""
    meaning = ("speaks for neither", "speaks for it", "speaks against it")[estimate.sign]
    meaning = meaning if estimate.applies else f"does not count: {estimate.remark}"
    return f"{estimate.a:.3f} to {estimate.b:.3f} ({estimate.difference:+.3f}{span}), {meaning}"


def _choice(chosen: str, pairs: LabelPairs) -> str:
    if chosen == BASE:
        return f"Of what may be chosen the rule finds nothing better than {BASE} alone, so keep it."
    found = pairs[BASE, chosen]
    chance = " ({:+.3f} nDCG@10, 90% {:+.3f} to {:+.3f})".format(found.estimate, *found.interval)
    same = ", and than the base used in the same way" if chosen.startswith(f"{BASE} + ") else ""
    return f"Use {chosen}: the best by estimates of what the rule finds better than {BASE} alone{chance}{same}."


def _describe_samples(comparison: records.ComparisonRecord) -> str:
    """That no pseudo-query was trained on."""
    known = sum(
        made.counts.get(records.TRAINED_ON, 0) for made in comparison.pseudo_queries.values()
    )
    drawn = f"Crops and generated queries were drawn anew with the seed {comparison.seed}, which no training used"
    return f"{drawn}; {known} that a model was trained on were left out."


def _describe_candidates(wanted: records.AnnotationCandidates, labels: Mapping[str, str]) -> str:
    between = f"{labels[wanted.a]} and {labels[wanted.b]}"
    if not wanted.pairs:
        return f"There is nothing to label that would tell {between} apart: {wanted.remark}."
    pairs = f"the {len(wanted.pairs)} pairs in {LABELS_FILE}"
    return f"Labels would tell more: {pairs} are those that tell most between {between}."
