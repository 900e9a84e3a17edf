"""The verdict in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from beir_cocodr.evaluation.recommendation import TRAINING, verdict
from beir_cocodr.report.html.collection_name import collection_name
from beir_cocodr.report.html.figures import p_value, signed, span
from beir_cocodr.report.html.judgement import Judgement

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
