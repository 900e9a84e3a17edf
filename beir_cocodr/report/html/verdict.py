"""The verdict in one sentence.

The verdict of a comparison without labels, and what stands in for one where nothing was judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from beir_cocodr.evaluation.recommendation import BASE, TRAINING, verdict
from beir_cocodr.report.html.outputs import Found, Judgement
from beir_cocodr.report.html.text import collection_name, p_value, signed, span

BETTER, WORSE, CANNOT_TELL, NOT_JUDGED = "better", "worse", "cannot tell", "not judged"


@dataclass(frozen=True)
class Headline:
    """What stands at the top of the page.

    Attributes:
        verdict: "better", "worse", "cannot tell" or "not judged".
        sentence: the whole of it.
        facts: term and value, the same taken apart.
        notes: what has to be known beside it.
        reasons: what a recommendation rests on.
        pair: (a, b), the labels it is about.
    """

    verdict: str
    sentence: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    pair: tuple[str, str] | None = None


def labelled_headline(
    judged: Judgement, names: Mapping[str, str], recommendation: Mapping[str, Any] | None = None
) -> Headline:
    """The verdict of paired tests.

    Of an adaptation it is the verdict on training: the best encoder of those that it rests on, against the
    base. Else the best model against the reference, or, where that is itself the best, the next best.

    Args:
        judged: the evaluation.
        names: label to the name that is shown.
        recommendation: of an adaptation.
    """
    others = [label for label in judged.models if label != judged.reference]
    if not others:
        return _alone(judged, names)
    family, notes, reasons = None, [], []
    if recommendation is not None and recommendation.get("verdicts"):
        said = recommendation["verdicts"]
        others = [label for label in said if said[label] == recommendation["verdict"]] or list(said)
        family, notes = TRAINING, [f"Recommended: {recommendation['model']}."]
        reasons = list(recommendation["reasons"])
    best = max(others, key=judged.value)
    if recommendation is None and len(others) > 1:
        notes.append(_many(judged, best, names))
    test = judged.test(judged.reference, best, family=family)
    if test is None:
        told = f"{names[best]} was not tested against {names[judged.reference]}."
        return Headline(NOT_JUDGED, told, notes=notes, reasons=reasons)
    found = verdict(test)
    sentence, pair = _sentence(found, test, judged, names), (judged.reference, best)
    return Headline(found, sentence, _facts(test, judged), notes, reasons, pair)


def _sentence(found: str, test: dict[str, Any], judged: Judgement, names: Mapping[str, str]) -> str:
    a, b, where = names[test["a"]], names[test["b"]], collection_name(judged.dataset)
    told = {
        BETTER: f"{b} is better than {a} on {where}",
        WORSE: f"{b} is worse than {a} on {where}",
        CANNOT_TELL: f"It cannot be told whether {b} is better or worse than {a} on {where}",
    }[found]
    interval = "" if test["interval"] is None else f", 95% interval {span(test['interval'])}"
    p = p_value(test["t_p_holm"], name=True)
    holm = "" if test["t_p_holm"] is None else " after Holm"
    return f"{told}: {signed(test['difference'])} {judged.measure}{interval}, {p}{holm}."


def _facts(test: dict[str, Any], judged: Judgement) -> list[tuple[str, str]]:
    return [
        (judged.measure, f"{judged.value(test['a']):.3f} → {judged.value(test['b']):.3f}"),
        ("Difference", signed(test["difference"])),
        ("95% interval", span(test["interval"])),
        ("p after Holm", p_value(test["t_p_holm"])),
        ("Win / tie / loss", f"{test['wins']:,} / {test['ties']:,} / {test['losses']:,}"),
    ]


def _many(judged: Judgement, best: str, names: Mapping[str, str]) -> str:
    count = len(judged.models)
    if judged.value(best) <= judged.value(judged.reference):
        return f"Of {count} models none is above {names[judged.reference]}; {names[best]} comes next."
    return (
        f"{names[best]} has the highest {judged.measure} of {count} models; it was picked on these labels, "
        "so its own figure is optimistic."
    )


def _alone(judged: Judgement, names: Mapping[str, str]) -> Headline:
    record = judged.models[judged.reference]
    interval = record["intervals"][judged.measure]
    told = "" if interval is None else f" (95% interval {interval[0]:.3f} to {interval[1]:.3f})"
    return Headline(
        NOT_JUDGED,
        f"{names[judged.reference]} reaches {judged.value(judged.reference):.3f} {judged.measure}{told} on "
        f"{collection_name(judged.dataset)}; there is no second model to hold against it.",
        [("Models", "1"), (judged.measure, f"{judged.value(judged.reference):.3f}")],
    )


def label_free_headline(
    comparison: Mapping[str, Any], names: Mapping[str, str], adaptation: Mapping[str, Any] | None = None
) -> Headline:
    """The rule's verdict on one pair.

    Of an adaptation it is the best by estimates of the encoders that its verdict rests on, against the base.
    Else the best model against the first, or the next best where the first is best.

    Args:
        comparison: of ``compare`` without labels.
        names: model to the name that is shown.
        adaptation: the adapt.json that the comparison stands in.
    """
    first, others = label_free_reference(comparison, adaptation), set(comparison["models"])
    reasons: list[str] = []
    notes = [_with_names(comparison["best"]["reason"], names)] if len(others) > 2 else []
    if adaptation is not None:
        said = adaptation["recommendation"]
        resting = [label for label, found in said["verdicts"].items() if found == said["verdict"]]
        others = {adaptation["candidates"][label] for label in resting or said["verdicts"]}
        notes, reasons = [f"Recommended: {said['model']}."], list(said["reasons"])
    other = next(model for model in comparison["ranking"] if model != first and model in others)
    pair = next(pair for pair in comparison["pairs"] if {pair["a"], pair["b"]} == {first, other})
    turned = pair["a"] != first
    found = {BETTER: WORSE, WORSE: BETTER}.get(pair["verdict"], CANNOT_TELL) if turned else pair["verdict"]
    a, b, where = names[first], names[other], collection_name(comparison["dataset"])
    told = {
        BETTER: f"By estimates without labels, {b} is better than {a} on {where}",
        WORSE: f"By estimates without labels, {b} is worse than {a} on {where}",
        CANNOT_TELL: f"Without labels it cannot be told whether {b} is better or worse than {a} on {where}",
    }[found]
    facts = [("P(better)", f"{_chance(pair, turned):.2f}")] if pair["probability"] is not None else []
    for estimate in pair["estimates"]:
        if estimate["difference"] is not None:
            name = estimate["estimator"]
            facts.append((name[0].upper() + name[1:], _estimate(estimate, turned)))
    sentence = f"{told}: {_reason(pair, turned, a, b)}."
    return Headline(found, sentence, facts, [*notes, pair["trust"]], reasons, (first, other))


def label_free_reference(comparison: Mapping[str, Any], adaptation: Mapping[str, Any] | None) -> str:
    """The model that the others are held against: the base of an adaptation, else the first."""
    if adaptation is not None:
        return str(adaptation["candidates"][BASE])
    return str(comparison["models"][0])


def unjudged_headline(found: Found) -> Headline:
    """Where nothing was judged: an adaptation to a corpus without labels, or a training alone."""
    if found.adaptation is not None:
        recommendation = found.adaptation["recommendation"]
        where = collection_name(found.adaptation.get("corpus", "the corpus"))
        return Headline(
            CANNOT_TELL,
            f"It cannot be told whether adaptation to {where} helped: there are no labels.",
            notes=[f"Recommended: {recommendation['model']}."],
            reasons=list(recommendation["reasons"]),
        )
    last = found.trained[0]
    told = f"A model was trained ({last.record['stage']}, {last.record.get('steps', '?')} steps)"
    if found.curves:
        told += "; its measures after every round are below, without a paired test"
    return Headline(
        NOT_JUDGED,
        f"{told}; nothing here says whether it got better.",
        notes=["Judge it with beir-cocodr compare BASE MODEL --dataset D --output O, and report O."],
    )


def _estimate(estimate: Mapping[str, Any], turned: bool) -> str:
    low_high, difference = estimate["interval"], estimate["difference"]
    if turned:
        difference = -difference
        low_high = None if low_high is None else [-low_high[1], -low_high[0]]
    return signed(difference) + ("" if low_high is None else f" ({span(low_high)})")


def _chance(pair: Mapping[str, Any], turned: bool) -> float:
    return float(1 - pair["probability"] if turned else pair["probability"])


def _with_names(text: str, names: Mapping[str, str]) -> str:
    """A sentence with the names that are shown instead of model names, the longest first."""
    for model in sorted(names, key=len, reverse=True):
        text = text.replace(model, names[model])
    return text


def _reason(pair: Mapping[str, Any], turned: bool, a: str, b: str) -> str:
    """What the rule saw, of b against a."""
    if pair["probability"] is not None:
        return f"the chance that {b} is better is put at {_chance(pair, turned):.2f}"
    signs = [estimate["sign"] * (-1 if turned else 1) for estimate in pair["estimates"]]
    return (
        f"{signs.count(1)} of {len(signs)} estimates speak for {b}, {signs.count(-1)} for {a}; it takes two, "
        "and none on the other side"
    )
