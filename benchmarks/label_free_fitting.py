"""Fitting the model of differences to pairs of models whose difference labels tell, and counting
how often it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.results import DifferenceModel

Floats = npt.NDArray[np.float64]

#: Counts of :class:`~beir_cocodr.evaluation.results.Calibration`.
LARGE, MARGIN, MANY_QUERIES, LEVEL = 0.03, 0.01, 300, 0.9

_NORMAL = float(stats.norm.ppf(0.5 + LEVEL / 2))
_RIDGE = 1e-3


@dataclass(frozen=True)
class LabelledPairs:
    """All pairs of models on one labelled collection.

    Attributes:
        parent: the collection that this one was resampled from, or itself.
        models: (m,) names of a and b.
        features: (m, p) values of ``names``.
        distances: (m,) rank distances.
        differences, errors: (m,) mean b − a by labels, and its standard error over queries.
        queries: how many.
    """

    name: str
    parent: str
    models: list[tuple[str, str]]
    names: list[str]
    features: Floats
    distances: Floats
    differences: Floats
    errors: Floats
    queries: int

    @property
    def share(self) -> float:
        """M models have M − 1 independent differences among their M (M − 1) / 2 pairs: the weight
        of a pair.
        """
        return (len({name for pair in self.models for name in pair}) - 1) / len(self.models)


def fit(
    collections: Sequence[LabelledPairs], quantile: float = _NORMAL, bootstraps: int = 200
) -> DifferenceModel:
    """The model of differences by maximum marginal likelihood, every parent as heavy as another.

    y = x·β_c + e, β_c ~ N(β, diag(t²)), e ~ N(0, s² distance + f² + standard error²). The
    uncertainty of β is the covariance of its bootstrap over parents, added to the variance between
    collections.
    """
    if len({found.parent for found in collections}) < 3:
        raise InputError("a calibration needs at least three labelled parents")
    count = collections[0].features.shape[1]
    start = np.concatenate([np.full(count, np.log(0.1)), np.log([0.05, 0.015])])
    bounds = [(-7.0, 2.0)] * count + [(-5.0, 1.0), (-7.0, -3.5)]
    weights = _parent_weights(found.parent for found in collections)

    def loss(theta: Floats) -> float:
        stats_of = [_information(found, theta) for found in collections]
        return -_solve(stats_of, weights, theta)[1]

    found = optimize.minimize(
        loss, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 25}
    )
    seen = [_information(collection, found.x) for collection in collections]
    mean, _ = _solve(seen, weights, found.x)
    rng, parents = (
        np.random.default_rng(42),
        sorted({collection.parent for collection in collections}),
    )
    drawn = []
    for _ in range(bootstraps):
        times = Counter(rng.choice(parents, len(parents)).tolist())
        again = [w * times[c.parent] for w, c in zip(weights, collections, strict=True)]
        drawn.append(_solve(seen, again, found.x)[0])
    covariance = np.diag(np.exp(2 * found.x[:count])) + np.cov(np.array(drawn), rowvar=False)
    named = dict(zip(collections[0].names, mean.tolist(), strict=True))
    within, floor = np.exp(found.x[count:]).tolist()
    return DifferenceModel(named, covariance.tolist(), within, floor, quantile)


def _parent_weights(parents: Iterable[str]) -> list[float]:
    names = list(parents)
    sizes = Counter(names)
    return [1 / sizes[name] for name in names]


def _information(found: LabelledPairs, theta: Floats) -> tuple[Floats, Floats, float]:
    """X'V⁻¹X, X'V⁻¹y and the part of the log-likelihood without coefficients, V without what they
    vary.
    """
    count = found.features.shape[1]
    within, floor = np.exp(2 * theta[count:])
    variance = within * found.distances + floor + found.errors**2
    scaled = found.features * (found.share / variance)[:, None]
    constant = (
        -0.5 * found.share * float((np.log(variance) + found.differences**2 / variance).sum())
    )
    return scaled.T @ found.features, scaled.T @ found.differences, constant


def _solve(
    seen: Sequence[tuple[Floats, Floats, float]], weights: Sequence[float], theta: Floats
) -> tuple[Floats, float]:
    """Mean coefficients by generalised least squares, and the marginal log-likelihood there
    (Woodbury's identity).
    """
    count = len(seen[0][1])
    deviations = np.exp(theta[:count])
    left, right, parts = _RIDGE * np.eye(count), np.zeros(count), []
    for (square, cross, _), weight in zip(seen, weights, strict=True):
        inner = np.eye(count) + deviations[:, None] * square * deviations
        kept = deviations[:, None] * np.linalg.inv(inner) * deviations
        left = left + weight * (square - square @ kept @ square)
        right = right + weight * (cross - square @ kept @ cross)
        parts.append((kept, float(np.linalg.slogdet(inner)[1]), weight))
    mean = np.linalg.solve(left, right)
    total = -0.5 * _RIDGE * float(mean @ mean)
    for (square, cross, constant), (kept, determinant, weight) in zip(seen, parts, strict=True):
        rest = cross - square @ mean
        quadratic = -2 * mean @ cross + mean @ square @ mean - rest @ kept @ rest
        total += weight * (constant - 0.5 * (determinant + float(quadratic)))
    return mean, total


@dataclass(frozen=True)
class Predicted:
    """Expected differences of a collection's pairs, and their standard deviations times the model's
    quantile.
    """

    pairs: LabelledPairs
    expected: Floats
    deviations: Floats
    quantile: float

    @property
    def half_widths(self) -> Floats:
        return self.quantile * self.deviations

    @property
    def decided(self) -> npt.NDArray[np.bool_]:
        return np.abs(self.expected) > self.half_widths

    @property
    def no_difference(self) -> npt.NDArray[np.bool_]:
        return np.abs(self.expected) + self.half_widths <= MARGIN

    @property
    def covered(self) -> npt.NDArray[np.bool_]:
        """Whether the interval, widened by the labels' own error, holds the labelled difference."""
        width = np.sqrt(self.half_widths**2 + (_NORMAL * self.pairs.errors) ** 2)
        return np.abs(self.pairs.differences - self.expected) <= width


def predict(model: DifferenceModel, pairs: LabelledPairs) -> Predicted:
    values = np.array(
        [
            model.predict(dict(zip(pairs.names, x, strict=True)), d)
            for x, d in zip(pairs.features.tolist(), pairs.distances.tolist(), strict=True)
        ]
    )
    return Predicted(pairs, values[:, 0], values[:, 1], model.quantile)


def leave_parents_out(
    collections: Sequence[LabelledPairs], unseen: Sequence[LabelledPairs] = ()
) -> tuple[list[Predicted], list[Predicted]]:
    """Every collection, and every one that nothing is fitted to, by a model fitted without its
    parent and everything resampled from that. The quantile is that at which the other parents'
    collections, left out in turn, are covered.
    """
    parents = list(dict.fromkeys(found.parent for found in collections))
    models = {
        parent: fit([found for found in collections if found.parent != parent])
        for parent in parents
    }
    made = [predict(models[found.parent], found) for found in collections]
    quantiles = {
        parent: fit_quantile([one for one in made if one.pairs.parent != parent])
        for parent in parents
    }
    judged = [predict(models[found.parent], found) for found in unseen]
    held, other = (
        [replace(one, quantile=quantiles[one.pairs.parent]) for one in part]
        for part in (made, judged)
    )
    return held, other


def fit_quantile(made: Sequence[Predicted]) -> float:
    """The least multiple of standard deviations with which :data:`LEVEL` of pairs are covered,
    parents as heavy as each other, from the normal distribution's up to twice that.
    """
    weights = _parent_weights(found.pairs.parent for found in made)
    for multiple in np.arange(1.0, 2.01, 0.02):
        at = [
            Predicted(one.pairs, one.expected, one.deviations, _NORMAL * multiple) for one in made
        ]
        if np.average([one.covered.mean() for one in at], weights=weights) >= LEVEL:
            break
    return float(_NORMAL * multiple)


def count_trust(made: Iterable[Predicted], chosen: Any = None) -> dict[str, int]:
    """Counts of pairs, see :class:`~beir_cocodr.evaluation.results.Calibration`; ``chosen`` picks
    pairs by (a, b).
    """
    counts: Counter[str] = Counter()
    for one in made:
        pairs = one.pairs
        own = np.array([chosen is None or chosen(a, b) for a, b in pairs.models])
        true, decided = pairs.differences, one.decided & own
        large = own & (np.abs(true) > LARGE) & (np.abs(true) > stats.norm.ppf(0.975) * pairs.errors)
        equal = own & (np.abs(true) <= MARGIN) & (pairs.queries >= MANY_QUERIES)
        nothing = one.no_difference & own & ~one.decided
        counts.update(
            pairs=int(own.sum()),
            covered=int((one.covered & own).sum()),
            decided=int(decided.sum()),
            right=int((decided & (np.sign(one.expected) == np.sign(true))).sum()),
            large=int(large.sum()),
            large_decided=int((large & one.decided).sum()),
            equal=int(equal.sum()),
            equal_decided=int((equal & one.decided).sum()),
            no_difference=int(nothing.sum()),
            no_difference_wrong=int(
                (nothing & (np.abs(true) > MARGIN + _NORMAL * pairs.errors)).sum()
            ),
        )
    return dict(counts)


def reliability(made: Sequence[Predicted], bins: int = 10) -> list[dict[str, float]]:
    """P(better) by the model against the share of pairs where labels put b in front, each pair in
    both directions.
    """
    chance = np.concatenate([stats.norm.cdf(one.expected / one.deviations) for one in made])
    true = np.concatenate([one.pairs.differences for one in made])
    chance, better = np.concatenate([chance, 1 - chance]), np.concatenate([true > 0, true < 0])
    place = np.minimum((chance * bins).astype(int), bins - 1)
    return [
        {
            "predicted": float(chance[own].mean()),
            "observed": float(better[own].mean()),
            "pairs": int(own.sum() // 2),
        }
        for own in (place == i for i in range(bins))
        if own.any()
    ]
