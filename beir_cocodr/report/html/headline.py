"""The verdict in one sentence: with labels, without, and where nothing was judged."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beir_cocodr.evaluation.annotation import LABELS_FILE
from beir_cocodr.evaluation.chains import BASE
from beir_cocodr.evaluation.recommendation import TRAINING
from beir_cocodr.evaluation.results import ComparisonRecord, PairedTest, Recommendation
from beir_cocodr.report.html.results_folder import LabelledEvaluation, ResultsFolder
from beir_cocodr.report.wording import UNLIKE, capitalized, collection_name, p_value, signed, span

CANNOT_TELL, NO_DIFFERENCE, NOT_JUDGED = "cannot tell", "no difference", "not judged"


@dataclass(frozen=True)
class Advice:
    """What to do now and why, by commands for a shell, and by code in Python where there is
    some.
    """

    title: str
    text: str
    commands: list[str]
    code: str = ""


_CODE = """from beir_cocodr import Searcher

searcher = Searcher({}, {})
for hit in searcher.search("a question"):
    print(hit.rank, hit.place, hit.snippet)"""


@dataclass(frozen=True)
class Headline:
    """What stands at the top of the page.

    Attributes:
        verdict: "better", "worse", "no difference", "cannot tell" or "not judged".
        sentence, facts: the whole of it, and the same as terms and values.
        notes, reasons: what has to be known beside it, and what a recommendation rests on.
        pair: (a, b), the labels it is about.
    """

    verdict: str
    sentence: str
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    reasons: Sequence[str] = ()
    pair: tuple[str, str] | None = None


def headline_of(found: ResultsFolder, names: Mapping[str, str]) -> Headline:
    """The verdict of an output folder; ``names`` has label to the name that is shown."""
    recommendation = found.adaptation.recommendation if found.adaptation is not None else None
    if found.evaluation is not None:
        return _labelled_headline(found.evaluation, names, recommendation)
    if found.comparison is not None:
        return label_free_headline(found.comparison, names, found.candidates, recommendation)
    return _unjudged_headline(found)


def recommended_use(found: ResultsFolder, names: Mapping[str, str]) -> Advice | None:
    """The model to use now, and how: what an adaptation or a comparison recommends, else the best
    of an evaluation's models that are significantly better than the first, or the first. None where
    nothing, or runs alone, were judged.
    """
    evaluation, adaptation = found.evaluation, found.adaptation
    if adaptation is not None:
        label, model = adaptation.recommendation.model, adaptation.path
        why = adaptation.recommendation.choice
    elif found.comparison is not None:
        label, why = found.comparison.best.model, _with_names(found.comparison.best.reason, names)
        model = label
    elif evaluation is not None:
        first = evaluation.reference
        better = [
            label
            for label in names
            if (t := evaluation.test(first, label)) and t.verdict == "better"
        ]
        label = max(better, key=evaluation.value, default=first)
        model = evaluation.results.models[label].model
        why = (
            f"{'It' if better else 'Nothing'} is significantly better than {names[first]}."
            if len(names) > 1
            else ""
        )
    else:
        return None
    if _is_run(found, label) or found.judged is None:
        return None
    dataset = found.judged.dataset
    command = shlex.join(
        ["beir-cocodr", "search", "--dataset", dataset, "--model", model, "a question"]
    )
    code = _CODE.format(*(json.dumps(name, ensure_ascii=False) for name in (dataset, model)))
    return Advice(f"Use {names.get(label, label)}", why, [command], code)


def _is_run(found: ResultsFolder, label: str) -> bool:
    result = found.evaluation.results.models.get(label) if found.evaluation is not None else None
    return result is not None and result.run == result.model


def way_to_labels(found: ResultsFolder, headline: Headline) -> Advice | None:
    """How to come to a verdict where there is none: by judging pairs."""
    pair, judged = headline.pair, found.judged
    if headline.verdict != CANNOT_TELL or judged is None or pair is None or _is_run(found, pair[1]):
        return None
    results = found.evaluation.results.models if found.evaluation is not None else {}
    models = [results[label].model if label in results else label for label in pair]
    compare = ["beir-cocodr", "compare", *models, "--dataset", judged.dataset]
    serve = [
        "beir-cocodr",
        "serve",
        "--dataset",
        judged.dataset,
        *(word for m in models for word in ("--model", m)),
    ]
    table, folder = found.folder / LABELS_FILE, found.folder.resolve()
    how = "fill the column “judgement” of {}: 0 is not relevant, 1 or higher is."
    commands, text = [serve], f"Judge on a page, by the first command. Or {how.format(table)}"
    if not table.is_file():
        asked = folder.with_name(f"{folder.name}-asked")
        table = asked / LABELS_FILE
        commands.append([*compare, "--no-labels", "--output", str(asked)])
        text = f"Judge on a page, by the first command. Or let the second write a table, and {how.format(table)}"
    commands.append(
        [
            *compare,
            "--judgements",
            str(table),
            "--output",
            str(folder.with_name(f"{folder.name}-judged")),
        ]
    )
    return Advice("How to come to a verdict", text, [shlex.join(command) for command in commands])


def _labelled_headline(
    evaluation: LabelledEvaluation, names: Mapping[str, str], recommendation: Recommendation | None
) -> Headline:
    """The verdict of paired tests.

    Of an adaptation it is the verdict on training: the best encoder of those that it rests on,
    against the base. Else the best model against the reference, or, where that is itself the best,
    the next best.
    """
    others = [label for label in evaluation.results.models if label != evaluation.reference]
    if not others:
        return _alone(evaluation, names)
    family: str | None = None
    notes: list[str] = []
    reasons: Sequence[str] = ()
    if recommendation is not None and recommendation.verdicts:
        others, reasons, family = _rested_on(recommendation), recommendation.reasons, TRAINING
    best = max(others, key=evaluation.value)
    if recommendation is None and len(others) > 1:
        notes.append(_many(evaluation, best, names))
    test = evaluation.test(evaluation.reference, best, family=family)
    if test is None:
        sentence = f"{names[best]} was not tested against {names[evaluation.reference]}."
        return Headline(NOT_JUDGED, sentence, notes=notes, reasons=reasons)
    facts = [
        (test.measure, f"{evaluation.value(test.a):.3f} → {evaluation.value(test.b):.3f}"),
        ("Difference", signed(test.difference)),
        ("95% interval", span(test.interval)),
        ("p after Holm", p_value(test.t_p_holm)),
        ("Won / tied / lost", f"{test.wins:,} / {test.ties:,} / {test.losses:,}"),
    ]
    pair = evaluation.reference, best
    return Headline(test.verdict, _sentence(test, evaluation, names), facts, notes, reasons, pair)


def _rested_on(recommendation: Recommendation) -> list[str]:
    """The encoders that the verdict on training rests on."""
    verdicts = recommendation.verdicts
    return [label for label, found in verdicts.items() if found == recommendation.verdict] or list(
        verdicts
    )


def _sentence(test: PairedTest, evaluation: LabelledEvaluation, names: Mapping[str, str]) -> str:
    a, b, where = names[test.a], names[test.b], collection_name(evaluation.results.dataset)
    verdict = f"{b} is {test.verdict} than {a} on {where}"
    if test.verdict == CANNOT_TELL:
        verdict = f"It cannot be told whether {b} is better or worse than {a} on {where}"
    interval = "" if test.interval is None else f", 95% interval {span(test.interval)}"
    holm = "" if test.t_p_holm is None else " after Holm"
    p = p_value(test.t_p_holm, name=True)
    return f"{verdict}: {signed(test.difference)} {test.measure}{interval}, {p}{holm}."


def _many(evaluation: LabelledEvaluation, best: str, names: Mapping[str, str]) -> str:
    count = len(evaluation.results.models)
    if evaluation.value(best) <= evaluation.value(evaluation.reference):
        return f"Of {count} models none is above {names[evaluation.reference]}; {names[best]} comes next."
    return (
        f"{names[best]} has the highest {evaluation.measure} of {count} models; it was picked on these "
        "labels, so its own figure is optimistic."
    )


def _alone(evaluation: LabelledEvaluation, names: Mapping[str, str]) -> Headline:
    label, measure = evaluation.reference, evaluation.measure
    interval, value = (
        evaluation.results.models[label].intervals[measure],
        f"{evaluation.value(label):.3f}",
    )
    within = "" if interval is None else f" (95% interval {span(interval, sign='')})"
    where = collection_name(evaluation.results.dataset)
    return Headline(
        NOT_JUDGED,
        f"{names[label]} reaches {value} {measure}{within} on {where}; there is no second model to hold against it.",
        [("Models", "1"), (measure, value)],
    )


def label_free_headline(
    comparison: ComparisonRecord,
    names: Mapping[str, str],
    candidates: Mapping[str, str] | None = None,
    recommendation: Recommendation | None = None,
) -> Headline:
    """The rule's verdict on one pair.

    Of an adaptation it is the best by estimates of the encoders that its verdict rests on, against
    the base. Else the best model against the first, or the next best where the first is best.
    """
    first, others = label_free_reference(comparison, candidates), set(comparison.models)
    reasons: Sequence[str] = ()
    notes = [_with_names(comparison.best.reason, names)] if len(others) > 2 else []
    if candidates and recommendation is not None:
        notes, reasons = [], recommendation.reasons
        others = {candidates[label] for label in _rested_on(recommendation)}
    other = next(model for model in comparison.ranking if model != first and model in others)
    pair = next(pair for pair in comparison.estimated if {pair.a, pair.b} == {first, other})
    if pair.a != first:
        pair = pair.turned()
    a, b, where = names[first], names[other], collection_name(comparison.dataset)
    by, few = "estimates without labels", comparison.few_labels
    if few is not None:
        by = f"{few.queries} judged queries and estimates"
        notes += [
            _with_names(sentence, names) for sentence in few.describe() if sentence not in reasons
        ]
    verdict = f"By {by}, {b} is {pair.verdict} than {a} on {where}"
    if pair.verdict == CANNOT_TELL:
        verdict = f"By {by} it cannot be told whether {b} is better or worse than {a} on {where}"
    elif pair.verdict == NO_DIFFERENCE:
        verdict = f"By {by}, {b} is as good as {a} on {where}, as near as matters"
    counts = ", not counted" if pair.rule == UNLIKE else ""
    facts = [
        ("Estimated nDCG@10", f"{signed(pair.estimate)} (90% {span(pair.interval)}){counts}"),
        ("Chance to be better", f"{pair.probability:.2f}"),
    ]
    for estimate in pair.estimates:
        if estimate.difference is not None:
            within = "" if estimate.interval is None else f" ({span(estimate.interval)})"
            counts = "" if estimate.applies else ", not counted"
            facts.append(
                (capitalized(estimate.estimator), signed(estimate.difference) + within + counts)
            )
    unlike = ", which is not counted, as the collection is unlike those of the calibration" * (
        pair.rule == UNLIKE
    )
    reason = (
        f"{signed(pair.estimate)} nDCG@10 is expected, 90% interval {span(pair.interval)}{unlike}"
    )
    return Headline(
        pair.verdict, f"{verdict}: {reason}.", facts, [*notes, pair.trust], reasons, (first, other)
    )


def label_free_reference(comparison: ComparisonRecord, candidates: Mapping[str, str] | None) -> str:
    """The model that the others are held against: the base of an adaptation, else the first."""
    return candidates[BASE] if candidates else comparison.models[0]


def _unjudged_headline(found: ResultsFolder) -> Headline:
    """Where nothing was judged: a training alone."""
    last = found.trained[0]
    sentence = f"A model was trained ({last.record.stage}, {last.record.steps or '?'} steps)"
    if any(model.curves for model in found.trained):
        sentence += "; its measures after every round are below, without a paired test"
    return Headline(
        NOT_JUDGED,
        f"{sentence}; nothing here says whether it got better.",
        notes=[
            "Judge it with beir-cocodr compare BASE MODEL --dataset D --output O, and report O."
        ],
    )


def _with_names(text: str, names: Mapping[str, str]) -> str:
    """A sentence with the names that are shown instead of model names, the longest first."""
    for model in sorted(names, key=len, reverse=True):
        text = text.replace(model, names[model])
    return text
