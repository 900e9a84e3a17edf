"""The verdict of a comparison without labels, and what stands in for one where nothing was judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from beir_cocodr.evaluation.recommendation import BASE
from beir_cocodr.report.html.collection_name import collection_name
from beir_cocodr.report.html.figures import signed, span
from beir_cocodr.report.html.found_files import Found
from beir_cocodr.report.html.headline import BETTER, CANNOT_TELL, NOT_JUDGED, WORSE, Headline


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
