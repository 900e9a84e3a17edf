"""The rule that turns estimates into a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from beir_cocodr.evaluation.label_free.calibration import Calibration
from beir_cocodr.evaluation.label_free.estimates import CROPS, WITH_FUSION, Estimate, kind

#: Kinds of models whose usual advantage over a dense encoder a calibration learns.
KINDS = ("bm25", "hybrid", "feedback")
_VOTES_NEEDED = 2
#: What may vote between models of different kinds: the rest favours those that match words.
_FAIR = (CROPS, WITH_FUSION)


def features(estimates: Sequence[Estimate], a: str, b: str) -> dict[str, float]:
    """What a calibrated rule looks at; exchanging a and b changes every sign.

    The effect of each estimator, and for each kind of model 1 if b is of it, −1 if a is, 0 if both are or
    neither.
    """
    found = {estimate.estimator: estimate.effect for estimate in estimates}
    return found | {f"is {name}": float((kind(b) == name) - (kind(a) == name)) for name in KINDS}


def probability(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """P(b is better than a): logistic in the weighted sum of features, without a constant."""
    score = sum(weight * values.get(name, 0.0) for name, weight in weights.items())
    return 1 / (1 + math.exp(-score)) if score > -700 else 0.0


def decide(estimates: Sequence[Estimate], a: str, b: str, calibration: Calibration | None) -> dict[str, Any]:
    """The verdict on b against a.

    With a calibration: "better" from P(b is better) ≥ threshold, "worse" from P ≤ 1 − threshold, else "cannot
    tell". Without one each estimator votes for the model that its interval is in favour of; two votes and
    none against them decide. Between models of different kinds only held-out crops and agreement with the
    fusion vote.

    Returns:
        ``verdict``, ``probability`` (None without a calibration), ``rule`` ("calibrated" or "vote"),
        ``score`` (how far it speaks for b, −1..1), ``reason``.
    """
    if calibration is not None:
        p = probability(features(estimates, a, b), calibration.weights)
        threshold = calibration.threshold
        return {
            "verdict": "better" if p >= threshold else "worse" if p <= 1 - threshold else "cannot tell",
            "probability": p,
            "rule": "calibrated",
            "score": 2 * p - 1,
            "reason": f"P(b is better) = {p:.2f}; {threshold:.2f} is needed for a verdict",
        }
    voting = [found for found in estimates if kind(a) == kind(b) or found.estimator in _FAIR]
    signs = {found.estimator: found.sign for found in voting}
    for_b, for_a = (sum(sign == side for sign in signs.values()) for side in (1, -1))
    verdict = "cannot tell"
    if max(for_a, for_b) >= _VOTES_NEEDED and min(for_a, for_b) == 0:
        verdict = "better" if for_b else "worse"
    return {
        "verdict": verdict,
        "probability": None,
        "rule": "vote",
        "score": (for_b - for_a) / max(1, len(voting)),
        "reason": f"{for_b} of {len(voting)} estimators speak for b, {for_a} for a; {_VOTES_NEEDED} and none "
        "against are needed",
    }


def choose(models: Sequence[str], pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Models from best to worst by their mean score against all others; ties keep the order given.

    Args:
        models: their names.
        pairs: ``a``, ``b`` and the ``score`` of :func:`decide`, every pair once.
    """
    total = dict.fromkeys(models, 0.0)
    for pair in pairs:
        total[pair["b"]] += pair["score"]
        total[pair["a"]] -= pair["score"]
    return sorted(models, key=lambda model: -round(total[model], 12))
