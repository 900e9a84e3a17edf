"""Fitting the rule to pairs of models whose difference labels tell, and counting how often it is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.estimates import ESTIMATORS, kind
from beir_cocodr.evaluation.label_free.verdict import DIFFERENT_KINDS, SAME_KIND, probability

#: The share of wrong ones among decided pairs that a threshold is chosen for.
ERROR_ALLOWED = 0.1

_THRESHOLDS = tuple(np.round(np.arange(0.55, 1.0, 0.01), 2).tolist())


@dataclass(frozen=True)
class LabelledPair:
    """Two models on a labelled collection.

    Attributes:
        collection: its name.
        a, b: the models.
        features: of :func:`~beir_cocodr.evaluation.label_free.verdict.features`.
        difference: mean of b − a by labels.
        truth: "better", "worse" or "cannot tell", b against a, by a test on labels.
    """

    collection: str
    a: str
    b: str
    features: Mapping[str, float]
    difference: float
    truth: str

    @property
    def family(self) -> str:
        return SAME_KIND if kind(self.a) == kind(self.b) else DIFFERENT_KINDS


def fit_weights(pairs: Sequence[LabelledPair]) -> dict[str, float]:
    """Logistic regression without a constant, on pairs that labels tell apart, each collection as heavy.

    Ridge penalty 1 on features scaled to a root mean square of 1. The weights of estimators are not negative: none may
    count against the model that it favours.

    Raises:
        InputError: labels tell no pair apart.
    """
    told = [pair for pair in pairs if pair.truth != "cannot tell"]
    if not told:
        raise InputError("labels tell no pair of models apart: there is nothing to calibrate on")
    names = list(told[0].features)
    x = np.array([[pair.features[name] for name in names] for pair in told])
    sizes = Counter(pair.collection for pair in told)
    heavy = np.array([len(told) / len(sizes) / sizes[pair.collection] for pair in told])
    scale = np.sqrt((x**2).mean(axis=0))
    scale[scale == 0] = 1.0
    sides = np.array([1.0 if pair.truth == "better" else -1.0 for pair in told])
    signed = x / scale * sides[:, None]

    def loss(weights: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        margins = signed @ weights
        slopes = -heavy * special.expit(-margins)
        value = float(heavy @ np.logaddexp(0, -margins) + weights @ weights / 2)
        return value, signed.T @ slopes + weights

    bounds = [(0.0 if name in ESTIMATORS else None, None) for name in names]
    found = optimize.minimize(loss, np.zeros(len(names)), jac=True, bounds=bounds, method="L-BFGS-B")
    return dict(zip(names, (found.x / scale).tolist(), strict=True))


def fit_threshold(pairs: Sequence[LabelledPair]) -> float:
    """The lowest threshold with at most a tenth of decided pairs wrong, each collection left out in turn.

    Here every decided pair counts, also one that labels cannot tell apart, and is wrong if the mean by labels differs
    the other way: between models that are about as good half of all verdicts are wrong, which keeps the rule from
    deciding on them.
    """
    found = [
        (p, pair.difference)
        for name in _collections(pairs)
        for pair, p in _judged(_others(pairs, name), _own(pairs, name))
    ]
    for threshold in _THRESHOLDS:
        decided = [(p, true) for p, true in found if _verdict(p, threshold) != "cannot tell"]
        wrong = sum((p - 0.5) * true <= 0 for p, true in decided)
        if wrong <= ERROR_ALLOWED * len(decided):
            return float(threshold)
    return float(_THRESHOLDS[-1])


def leave_one_out(pairs: Sequence[LabelledPair]) -> list[dict[str, Any]]:
    """The verdict on every pair by weights and a threshold that were fitted without its collection.

    Raises:
        InputError: there are fewer than three collections, as a threshold needs two more.
    """
    names = _collections(pairs)
    if len(names) < 3:
        raise InputError(f"a calibration needs at least three labelled collections, not {len(names)}")
    rows = []
    for name in names:
        others = _others(pairs, name)
        threshold = fit_threshold(others)
        for pair, p in _judged(others, _own(pairs, name)):
            rows.append(
                {
                    "collection": name,
                    "a": pair.a,
                    "b": pair.b,
                    "family": pair.family,
                    "probability": p,
                    "threshold": threshold,
                    "verdict": _verdict(p, threshold),
                    "truth": pair.truth,
                }
            )
    return rows


def count_trust(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """How often verdicts were right, by family of pairs; see :class:`Calibration`."""
    trust = {
        family: dict.fromkeys(("right", "wrong", "cannot tell", "claimed", "silent"), 0)
        for family in (SAME_KIND, DIFFERENT_KINDS)
    }
    for row in rows:
        decided = row["verdict"] != "cannot tell"
        if row["truth"] == "cannot tell":
            outcome = "claimed" if decided else "silent"
        else:
            outcome = ("right" if row["verdict"] == row["truth"] else "wrong") if decided else "cannot tell"
        trust[row["family"]][outcome] += 1
    return trust


def _judged(fitted_to: Sequence[LabelledPair], judged: Sequence[LabelledPair]) -> list[tuple[LabelledPair, float]]:
    weights = fit_weights(fitted_to)
    return [(pair, probability(pair.features, weights)) for pair in judged]


def _verdict(p: float, threshold: float) -> str:
    return "better" if p >= threshold else "worse" if p <= 1 - threshold else "cannot tell"


def _collections(pairs: Sequence[LabelledPair]) -> list[str]:
    return list(dict.fromkeys(pair.collection for pair in pairs))


def _own(pairs: Sequence[LabelledPair], name: str) -> list[LabelledPair]:
    return [pair for pair in pairs if pair.collection == name]


def _others(pairs: Sequence[LabelledPair], name: str) -> list[LabelledPair]:
    return [pair for pair in pairs if pair.collection != name]
