"""The head of the page: the verdict in one sentence, and what to do now."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.evaluation.annotation import LABELS_FILE
from beir_cocodr.evaluation.chains import BASE
from beir_cocodr.evaluation.recommendation import TRAINING
from beir_cocodr.evaluation.results import (
    ComparisonRecord,
    Estimate,
    PairedTest,
    PairVerdict,
    Recommendation,
)
from beir_cocodr.models.spec import RUN
from beir_cocodr.report.html.gate_section import gate_headline
from beir_cocodr.report.html.headline_record import CANNOT_TELL, NOT_JUDGED, Headline
from beir_cocodr.report.html.passages_section import passages_headline
from beir_cocodr.report.html.results_folder import LabelledEvaluation, ResultsFolder
from beir_cocodr.report.wording import (
    capitalized,
    collection_name,
    p_value,
    says_something,
    signed,
    span,
)

BETTER = "better"
NO_DIFFERENCE = "no difference"

#: What a verdict without labels and judged queries rests on.
WITHOUT_LABELS = "estimates without labels"

#: Label to the name that the page shows.
Names = Mapping[str, str]


@dataclass(frozen=True)
class Advice:
    """Advice on the next step.

    Attributes:
        title: the advice in a few words.
        text: the reason.
        commands: lines for a shell.
        code: the same in Python, if it can be done there.
    """

    title: str
    text: str
    commands: list[str]
    code: str = ""


def headline_of(output: ResultsFolder, names: Names) -> Headline:
    """Return the verdict of an output folder."""
    if output.gate is not None:
        return gate_headline(output.gate)
    if output.passages is not None:
        return passages_headline(output.passages)
    recommendation = None
    if output.adaptation is not None:
        recommendation = output.adaptation.recommendation
    if output.evaluation is not None:
        return _labelled_headline(output.evaluation, names, recommendation)
    if output.comparison is not None:
        return label_free_headline(
            output.comparison,
            names,
            output.candidates,
            recommendation,
        )
    return _unjudged_headline(output)


@dataclass(frozen=True)
class _Recommended:
    """The model to use.

    Attributes:
        label: its label.
        model: its name.
        reason: why, in sentences.
        decided: false if it is only the best bet.
        is_bet: false if another model is as likely to be the best.
        is_kept: true for the model that the others were compared with, which is in use already.
    """

    label: str
    model: str
    reason: str
    decided: bool = True
    is_bet: bool = True
    is_kept: bool = False

    @property
    def verb(self) -> str:
        """Return what to do with the model."""
        if self.is_kept:
            return "Keep"
        if self.decided:
            return "Use"
        return "Best bet:" if self.is_bet else "Undecided, for example"


_CODE = """from beir_cocodr import Searcher

searcher = Searcher({}, {})
for hit in searcher.search("a question"):
    print(hit.rank, hit.place, hit.snippet)"""


def recommended_use(output: ResultsFolder, names: Names) -> Advice | None:
    """Return which model to use now, and how; None if only runs were judged, or nothing.

    It is the model that an adaptation or a comparison recommends. Among the models of an
    evaluation, it is the best of those that are significantly better than the first one, or the
    first one.
    """
    choice = _choice(output, names)
    if choice is None or output.judged is None or _is_run(output, choice.label):
        return None
    dataset = output.judged.dataset
    shown_name = names.get(choice.label, choice.label)
    command = ["beir-cocodr", "search"]
    command += ["--dataset", dataset]
    command += ["--model", choice.model]
    command.append("a question")
    dataset_literal = json.dumps(dataset, ensure_ascii=False)
    model_literal = json.dumps(choice.model, ensure_ascii=False)
    return Advice(
        title=f"{choice.verb} {shown_name}",
        text=choice.reason,
        commands=[shlex.join(command)],
        code=_CODE.format(dataset_literal, model_literal),
    )


def _choice(output: ResultsFolder, names: Names) -> _Recommended | None:
    adaptation = output.adaptation
    if adaptation is not None:
        recommendation = adaptation.recommendation
        return _Recommended(
            label=recommendation.model,
            model=adaptation.path,
            reason=recommendation.choice,
            decided=recommendation.decided,
            is_kept=adaptation.path == adaptation.base,
        )
    if output.evaluation is not None:
        return _best_of(output.evaluation, names)
    if output.comparison is not None:
        best = output.comparison.best
        first = output.comparison.models[0]
        return _Recommended(
            label=best.model,
            model=best.model,
            reason=_with_names(best.reason, names),
            decided=best.decided,
            is_bet=best.is_bet,
            is_kept=best.model == first,
        )
    return None


def _best_of(evaluation: LabelledEvaluation, names: Names) -> _Recommended:
    """Return the best of the models that are better than the reference, else the reference."""
    reference = evaluation.reference
    better = []
    for label in names:
        test = evaluation.test(reference, label)
        if test is not None and test.verdict == BETTER:
            better.append(label)
    label = max(better, key=evaluation.value, default=reference)
    model = evaluation.results.models[label].model
    if len(names) == 1:
        return _Recommended(label, model, reason="")
    subject = "It" if better else "Nothing"
    return _Recommended(
        label,
        model,
        reason=f"{subject} is significantly better than {names[reference]}.",
        is_kept=not better,
    )


def _is_run(output: ResultsFolder, label: str) -> bool:
    """Return whether a label names a run file, which cannot search."""
    if output.evaluation is not None:
        result = output.evaluation.results.models.get(label)
        return result is not None and result.run == result.model
    if output.comparison is not None:
        return output.comparison.retrieval.get(label, {}).get("model") == RUN
    return False


def way_to_labels(output: ResultsFolder, headline: Headline) -> Advice | None:
    """Return how to reach a verdict by judging pairs, if there is none yet."""
    pair = headline.pair
    if headline.verdict != CANNOT_TELL or output.judged is None or pair is None:
        return None
    if any(_is_run(output, label) for label in pair):
        return None
    models = [_model_name(output, label) for label in _open_models(output, pair)]
    dataset = output.judged.dataset
    serve = ["beir-cocodr", "serve", "--dataset", dataset]
    for model in models:
        serve += ["--model", model]
    compare = ["beir-cocodr", "compare", *models, "--dataset", dataset]
    folder = output.folder.resolve()
    table = output.folder / LABELS_FILE
    text = "Judge pairs on a page with the first command. "
    commands = [serve]
    if table.is_file():
        text += f"Or fill in {_column_of(table)}"
    else:
        asked = folder.with_name(f"{folder.name}-asked")
        table = asked / LABELS_FILE
        commands.append([*compare, "--no-labels", "--output", str(asked)])
        text += f"Or write a table with the second command, and fill in {_column_of(table)}"
    judged = folder.with_name(f"{folder.name}-judged")
    commands.append([*compare, "--judgements", str(table), "--output", str(judged)])
    return Advice(
        title="How to reach a verdict",
        text=text,
        commands=[shlex.join(command) for command in commands],
    )


def _open_models(output: ResultsFolder, pair: tuple[str, str]) -> list[str]:
    """Return a pair, and the other models that may be as good as the best; runs cannot search."""
    labels = list(pair)
    if output.comparison is not None:
        best = output.comparison.best
        labels += [best.model, *best.indistinguishable]
    return [label for label in dict.fromkeys(labels) if not _is_run(output, label)]


def _column_of(table: Path) -> str:
    return f"the column “judgement” of {table}: 0 is not relevant, and 1 or more is relevant."


def _model_name(output: ResultsFolder, label: str) -> str:
    if output.evaluation is None:
        return label
    result = output.evaluation.results.models.get(label)
    if result is None:
        return label
    return result.model


def _labelled_headline(
    evaluation: LabelledEvaluation, names: Names, recommendation: Recommendation | None
) -> Headline:
    """Return the verdict of paired tests.

    For an adaptation, it is the verdict on training: the best of the encoders that decide it,
    against the base. Otherwise it is about the recommended model against the reference, or about
    the best of the others if the reference is recommended.
    """
    reference = evaluation.reference
    others = [label for label in evaluation.results.models if label != reference]
    if not others:
        return _single_model_headline(evaluation, names)
    notes: list[str] = []
    if recommendation is not None and recommendation.verdicts:
        best = max(_deciding_encoders(recommendation), key=evaluation.value)
        reasons = recommendation.reasons
        test = evaluation.test(reference, best, family=TRAINING)
    else:
        best = _best_of(evaluation, names).label
        if best == reference:
            best = max(others, key=evaluation.value)
        reasons = []
        test = evaluation.test(reference, best)
    if recommendation is None and len(others) > 1:
        notes.append(_best_of_many(evaluation, best, names))
    if test is None:
        sentence = f"{names[best]} was not tested against {names[reference]}."
        return Headline(NOT_JUDGED, sentence, notes=notes, reasons=reasons)
    collection = collection_name(evaluation.results.dataset)
    return Headline(
        test.verdict,
        _sentence(test, names, collection),
        _labelled_facts(test, evaluation),
        notes,
        reasons,
        (reference, best),
    )


def _labelled_facts(test: PairedTest, evaluation: LabelledEvaluation) -> list[tuple[str, str]]:
    """Return the figures of a paired test, each with its name."""
    value_a = evaluation.value(test.a)
    value_b = evaluation.value(test.b)
    facts = [
        (test.measure, f"{value_a:.3f} → {value_b:.3f}"),
        ("Difference", signed(test.difference)),
    ]
    if says_something(test):
        facts.append(("95% interval", span(test.interval)))
    counts = f"{test.wins:,} / {test.ties:,} / {test.losses:,}"
    facts += [
        ("p after Holm", p_value(test.t_p_holm)),
        ("Won / tied / lost", counts),
    ]
    return facts


def _deciding_encoders(recommendation: Recommendation) -> list[str]:
    """Return the labels of the encoders that decide the verdict on training."""
    verdicts = recommendation.verdicts
    deciding = [label for label in verdicts if verdicts[label] == recommendation.verdict]
    return deciding or list(verdicts)


def _sentence(test: PairedTest, names: Names, collection: str) -> str:
    a = names[test.a]
    b = names[test.b]
    if not test.wins and not test.losses:
        return f"{a} and {b} have the same {test.measure} on each query of {collection}."
    if test.verdict == CANNOT_TELL:
        verdict = f"The labels do not show whether {b} is better or worse than {a} on {collection}"
    else:
        verdict = f"{b} is {test.verdict} than {a} on {collection}"
    interval = ""
    if says_something(test):
        interval = f", 95% interval {span(test.interval)}"
    difference = f"{signed(test.difference)} {test.measure}{interval}"
    p = p_value(test.t_p_holm, name=True)
    if test.t_p_holm is not None:
        p += " after Holm"
    return f"{verdict}: {difference}, {p}."


def _best_of_many(evaluation: LabelledEvaluation, best: str, names: Names) -> str:
    count = len(evaluation.results.models)
    reference = evaluation.reference
    highest = max(evaluation.results.models, key=evaluation.value)
    if highest not in (best, reference):
        return (
            f"{names[highest]} has the highest {evaluation.measure} of {count} models, but is not "
            f"significantly better than {names[reference]}."
        )
    if evaluation.value(best) <= evaluation.value(reference):
        return (
            f"None of {count} models is above {names[reference]}; {names[best]} is the second best."
        )
    return (
        f"{names[best]} has the highest {evaluation.measure} of {count} models. It was chosen on "
        "these labels, so its own figure is optimistic."
    )


def _single_model_headline(evaluation: LabelledEvaluation, names: Names) -> Headline:
    label = evaluation.reference
    measure = evaluation.measure
    results = evaluation.results
    value = f"{evaluation.value(label):.3f}"
    interval = results.models[label].intervals[measure]
    within = ""
    if interval is not None:
        within = f" (95% interval {span(interval, sign='')})"
    collection = collection_name(results.dataset)
    sentence = (
        f"{names[label]} reaches {value} {measure}{within} on {collection}; there is no second "
        "model to compare it with."
    )
    facts = [("Models", "1"), (measure, value)]
    return Headline(NOT_JUDGED, sentence, facts)


def label_free_headline(
    comparison: ComparisonRecord,
    names: Names,
    candidates: Mapping[str, str] | None = None,
    recommendation: Recommendation | None = None,
) -> Headline:
    """Return the verdict without labels on one pair.

    For an adaptation, the pair is the base and the best, by estimates, of the encoders that decide
    its verdict. Otherwise it is the first model and the best one, or the second best if the first
    is the best.

    Args:
        comparison: the comparison.
        names: model name to the name that the page shows.
        candidates: label to model name, of an adaptation.
        recommendation: the recommendation of an adaptation.
    """
    first = label_free_reference(comparison, candidates)
    others = set(comparison.models)
    reasons: Sequence[str] = ()
    notes = []
    if candidates and recommendation is not None:
        reasons = recommendation.reasons
        others = {candidates[label] for label in _deciding_encoders(recommendation)}
    elif len(others) > 2:
        notes.append(_with_names(comparison.best.reason, names))
    others.discard(first)
    other = next(model for model in comparison.ranking if model in others)
    pair = _pair(comparison, first, other)
    way = WITHOUT_LABELS
    few = comparison.few_labels
    if few is not None:
        way = f"{few.queries} judged queries and estimates"
        for sentence in few.describe():
            if sentence not in reasons:
                notes.append(_with_names(sentence, names))
    notes.append(pair.trust)
    collection = collection_name(comparison.dataset)
    return Headline(
        pair.verdict,
        _label_free_sentence(pair, names, collection, way),
        _label_free_facts(pair),
        notes,
        reasons,
        (first, other),
    )


def _pair(comparison: ComparisonRecord, first: str, other: str) -> PairVerdict:
    """Return the verdict of a model against the first one, also if it was made the other way."""
    models = {first, other}
    pair = next(pair for pair in comparison.estimated if {pair.a, pair.b} == models)
    if pair.a == first:
        return pair
    return pair.turned()


def _label_free_sentence(pair: PairVerdict, names: Names, collection: str, way: str) -> str:
    a = names[pair.a]
    b = names[pair.b]
    if pair.verdict == CANNOT_TELL:
        answer = _with_names(pair.answer, names)
        if way == WITHOUT_LABELS:
            return f"{answer}."
        return f"According to {way}, there is {answer[0].lower()}{answer[1:]}."
    if pair.verdict == NO_DIFFERENCE:
        verdict = (
            f"According to {way}, {b} is as good as {a} on {collection} for all practical purposes"
        )
    else:
        verdict = f"According to {way}, {b} is {pair.verdict} than {a} on {collection}"
    expected = f"{signed(pair.estimate)} nDCG@10 is expected"
    interval = f"90% interval {span(pair.interval)}"
    return f"{verdict}: {expected}, {interval}."


def _label_free_facts(pair: PairVerdict) -> list[tuple[str, str]]:
    estimated = f"{signed(pair.estimate)} (90% {span(pair.interval)})"
    facts = [
        ("Estimated nDCG@10", estimated),
        ("Chance to be better", f"{pair.probability:.2f}"),
        ("Share of the prior", f"{pair.prior_share:.0%}"),
    ]
    for estimate in pair.estimates:
        if estimate.difference is not None and estimate.applies:
            name = capitalized(estimate.estimator)
            facts.append((name, _estimate(estimate)))
    return facts


def _estimate(estimate: Estimate) -> str:
    text = signed(estimate.difference or 0.0)
    if estimate.interval is not None:
        text += f" ({span(estimate.interval)})"
    return text


def label_free_reference(comparison: ComparisonRecord, candidates: Mapping[str, str] | None) -> str:
    """Return the model that others are compared with: an adaptation's base, else the first one."""
    if candidates:
        return candidates[BASE]
    return comparison.models[0]


def _unjudged_headline(output: ResultsFolder) -> Headline:
    """Return the headline of a training alone."""
    record = output.trained[0].record
    steps = record.steps or "?"
    sentence = f"A model was trained ({record.stage}, {steps} steps)"
    if any(trained.curves for trained in output.trained):
        sentence += "; its measures after every round are below, without a paired test"
    advice = "Judge it with beir-cocodr compare BASE MODEL --dataset D --output O, then report O."
    sentence += "; nothing here shows whether it got better."
    return Headline(NOT_JUDGED, sentence, notes=[advice])


def _with_names(text: str, names: Names) -> str:
    """Return a sentence of a record with the page's names in the place of model names."""
    longest_first = sorted(names, key=len, reverse=True)  # a name may be part of a longer one
    models = "|".join(map(re.escape, longest_first))
    whole_name = rf"(?<!\w)({models})(?!\w)"
    return re.sub(
        whole_name,
        lambda match: names[match[1]],
        text,
    )
