"""Honest widths: families of collections that are left out of the fit that judges them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from beir_cocodr.evaluation.calibration import (
    DifferenceModel,
    ExpectedDifference,
    PairFeatures,
    Reach,
    Spread,
)
from beir_cocodr.evaluation.few_labels import LEVEL
from beir_cocodr.evaluation.label_free.evidence import WEAK
from beir_cocodr.evaluation.label_free.likeness import spread_figures, unlikeness
from beir_cocodr.evaluation.label_free.verdict import MOST_PRIOR
from fitting.labelled_pairs import Floats, LabelledPairs
from fitting.moment_fit import LEAST_WIDENING, fit

#: A difference within this is none.
MARGIN = 0.01

# The name of a kind that is left out.
_NEW_KIND = "new kind"

# Candidates of the widening with distance.
_WIDENINGS = (LEAST_WIDENING, 0.05)

# The clearness of estimates at which intervals are calibrated, and the bandwidth of the Gaussian
# kernel by which pairs of another clearness are weighted there.
_CLEARNESS = (0.0, 1.0, 2.0)
_BANDWIDTH = 0.75


@dataclass(frozen=True)
class Predicted:
    """What a model says about the pairs of one collection.

    Attributes:
        pairs: The pairs.
        differences: (m,) the posterior of each.
    """

    pairs: LabelledPairs
    differences: list[ExpectedDifference]

    @property
    def expected(self) -> Floats:
        """Return the (m,) expected differences."""
        return np.array([difference.mean for difference in self.differences])

    @property
    def lows(self) -> Floats:
        """Return the (m,) lower ends of the intervals."""
        return np.array([difference.interval[0] for difference in self.differences])

    @property
    def highs(self) -> Floats:
        """Return the (m,) upper ends of the intervals."""
        return np.array([difference.interval[1] for difference in self.differences])

    @property
    def widths(self) -> Floats:
        """Return the (m,) widths of the intervals."""
        return self.highs - self.lows

    @property
    def covered(self) -> npt.NDArray[np.bool_]:
        """Return where the interval holds the labelled difference."""
        return (self.lows <= self.pairs.differences) & (self.pairs.differences <= self.highs)

    @property
    def decided(self) -> npt.NDArray[np.bool_]:
        """Return where the interval excludes 0."""
        return (self.lows > 0) | (self.highs < 0)

    def take(self, rows: npt.NDArray[np.bool_]) -> Predicted:
        """Return the predictions of some pairs."""
        differences = [self.differences[row] for row in np.flatnonzero(rows).tolist()]
        return Predicted(self.pairs.take(rows), differences)

    def as_told(self) -> Predicted:
        """Return what a comparison tells: an interval on too little evidence holds 0."""
        told = [
            difference.holding_zero() if difference.prior_share > MOST_PRIOR else difference
            for difference in self.differences
        ]
        return replace(self, differences=told)

    @property
    def no_difference(self) -> npt.NDArray[np.bool_]:
        """Return where the interval lies within the margin."""
        return np.maximum(-self.lows, self.highs) <= MARGIN


def predict(
    model: DifferenceModel,
    pairs: LabelledPairs,
    figures: Mapping[str, Spread],
) -> Predicted:
    """Predict the differences of the pairs of a collection.

    Args:
        model: The model.
        pairs: The pairs.
        figures: Spread of the figures over the collections of the fit.
    """
    distance = unlikeness(pairs.figures, figures)
    asked = []
    for kinds, values, apart in zip(
        pairs.kinds, pairs.features, pairs.distances.tolist(), strict=True
    ):
        asked.append(
            PairFeatures(
                kinds,
                values,
                apart,
                distance,
                pairs.lost_words,
                pairs.nonletter_excess,
                pairs.queries,
            )
        )
    return Predicted(pairs, model.predict_all(asked))


def calibrate(
    collections: Sequence[LabelledPairs],
    further_family: bool = False,
    caution: float = 1.0,
) -> tuple[DifferenceModel, dict[str, Spread]]:
    """Fit a model whose intervals hold on families that are left out.

    Every family is left out once. The widening is that under which the differences are likeliest.

    Args:
        collections: The labelled pairs, of at least three families.
        further_family: Let all intervals have the one reach of split conformal prediction, see
            :func:`conformal_quantile`, instead of those of :func:`local_reaches`.
        caution: See :func:`~fitting.moment_fit.fit`.

    Returns:
        The model, and the spread of the collections' figures.
    """
    fits = {}
    for family in dict.fromkeys(pairs.family for pairs in collections):
        others = [pairs for pairs in collections if pairs.family != family]
        fits[family] = (fit(others, caution=caution), spread_figures_of(others))
    best: list[Predicted] = []
    best_likelihood = -np.inf
    for candidate in _WIDENINGS:
        predictions = []
        for pairs in collections:
            model, figures = fits[pairs.family]
            predictions.append(predict(replace(model, widening=candidate), pairs, figures))
        likelihood = _likelihood(predictions)
        if likelihood > best_likelihood:
            best_likelihood = likelihood
            widening = candidate
            best = predictions
    reaches = reach_with_further_family(best) if further_family else local_reaches(best)
    model = fit(collections, reaches, widening, caution)
    return model, spread_figures_of(collections)


def spread_figures_of(collections: Sequence[LabelledPairs]) -> dict[str, Spread]:
    """Return the spread of the figures of collections, in which every family weighs the same."""
    members = Counter(pairs.family for pairs in collections)
    weights = [1 / members[pairs.family] for pairs in collections]
    return spread_figures([pairs.figures for pairs in collections], weights)


def _deviations(predicted: Predicted) -> Floats:
    return np.array([difference.deviation for difference in predicted.differences])


def _misses(predicted: Predicted) -> Floats:
    """Return by how many deviations the labelled differences lie above the expected ones."""
    return (predicted.pairs.differences - predicted.expected) / _deviations(predicted)


def _likelihood(predictions: Sequence[Predicted]) -> float:
    """Return the mean log-likelihood up to a common factor of all deviations."""
    weights = _family_weights(predictions)
    deviations = np.concatenate([_deviations(predicted) for predicted in predictions])
    squares = np.concatenate([_misses(predicted) for predicted in predictions]) ** 2
    common = np.average(squares, weights=weights)
    return float(-np.average(np.log(deviations), weights=weights) - 0.5 * np.log(common))


def reach_with_further_family(predictions: Sequence[Predicted]) -> list[Reach]:
    """Return one reach for all intervals, as of split conformal prediction."""
    scores = [np.abs(_misses(predicted)) for predicted in predictions]
    families = [predicted.pairs.family for predicted in predictions]
    quantile = conformal_quantile(scores, families)
    return [Reach(0.0, quantile, quantile)]


def local_reaches(predictions: Sequence[Predicted]) -> list[Reach]:
    """Return the reaches of intervals by the clearness of estimates.

    At each clearness, the pairs whose estimates are about as clear tell how far differences lie on
    either side: 5% lie beyond each end. At 0 an estimate has no side, and both reaches are equal.
    This is localized conformal prediction without its correction for the new point, so no level is
    guaranteed.

    Args:
        predictions: The pairs of each collection, from fits without its family, whose deviations
            are not calibrated.

    References:
        Guan, 2023: Localized conformal prediction. Romano, Patterson and Candes, 2019:
        Conformalized quantile regression, with quantiles of their own for either side.
    """
    deviations = np.concatenate([_deviations(predicted) for predicted in predictions])
    expected = np.concatenate([predicted.expected for predicted in predictions])
    misses = np.concatenate([_misses(predicted) for predicted in predictions])
    beyond = np.where(expected > 0, misses, -misses)
    clearness = np.minimum(np.abs(expected) / deviations, _CLEARNESS[-1])
    of_families = _family_weights(predictions)
    tail = (1 - LEVEL) / 2
    reaches = []
    for centre in _CLEARNESS:
        weights = of_families * np.exp(-0.5 * ((clearness - centre) / _BANDWIDTH) ** 2)
        towards_zero = weighted_quantile(-beyond, weights, 1 - tail)
        away = weighted_quantile(beyond, weights, 1 - tail)
        if centre == 0:
            towards_zero = away = weighted_quantile(np.abs(beyond), weights, LEVEL)
        reaches.append(Reach(centre, max(0.0, towards_zero), max(0.0, away)))
    return reaches


def weighted_quantile(
    values: Floats,
    weights: Floats,
    share: float,
) -> float:
    """Return the smallest value that with those below it has a share of the weight."""
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(weights[order])
    position = int(np.searchsorted(mass, share * mass[-1] * (1 - 1e-9)))
    return float(values[order][min(position, len(values) - 1)])


def _family_weights(predictions: Sequence[Predicted]) -> Floats:
    """Return the weights of all pairs, in which each family has 1."""
    sizes = [predicted.expected for predicted in predictions]
    families = [predicted.pairs.family for predicted in predictions]
    return np.concatenate(conformal_weights(sizes, families))


def conformal_weights(scores: Sequence[Floats], families: Sequence[str]) -> list[Floats]:
    """Return the weights of scores: each family has 1, shared equally among its pairs."""
    sizes: Counter[str] = Counter()
    for family, of_collection in zip(families, scores, strict=True):
        sizes[family] += len(of_collection)
    weights = []
    for family, of_collection in zip(families, scores, strict=True):
        weights.append(np.full(len(of_collection), 1 / max(1, sizes[family])))
    return weights


def conformal_quantile(
    scores: Sequence[Floats],
    families: Sequence[str],
    level: float = LEVEL,
) -> float:
    """Return the quantile of scores by weighted split conformal prediction over families.

    One further family has its mass at infinity, as split conformal prediction has it for the new
    one. The level holds nearly, not by a guarantee: the scores come from several fits. Where the
    quantile would be infinite, as with few families, the largest score is returned.

    Args:
        scores: Scores of the pairs of each collection, from fits without its family.
        families: The families of the collections.
        level: The share of pairs of a new family that are to be covered.

    References:
        Tibshirani, Foygel Barber, Candes and Ramdas, 2019; Dunn, Wasserman and Ramdas, 2023.
    """
    weights = np.concatenate(conformal_weights(scores, families))
    values = np.concatenate(scores)
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(weights[order])
    needed = level * (len(set(families)) + 1)
    position = int(np.searchsorted(mass, needed - 1e-9))
    return float(values[order][min(position, len(values) - 1)])


def leave_families_out(
    collections: Sequence[LabelledPairs],
    judged: Sequence[LabelledPairs] | None = None,
    further_family: bool = False,
    caution: float = 1.0,
) -> list[Predicted]:
    """Predict every collection by a model that was not fitted to its family.

    Priors, slopes, widths, widening and reaches are all fitted to the other families.

    Args:
        collections: The collections to which models are fitted.
        judged: The collections to predict; by default the same.
        further_family: See :func:`calibrate`.
        caution: See :func:`~fitting.moment_fit.fit`.
    """
    judged = collections if judged is None else judged
    models = {}
    for family in dict.fromkeys(pairs.family for pairs in judged):
        others = [pairs for pairs in collections if pairs.family != family]
        if not others:
            raise SystemExit(f"no collection is of another family than {family}; collect further")
        models[family] = calibrate(others, further_family, caution)
    predictions = []
    for pairs in judged:
        model, figures = models[pairs.family]
        predictions.append(predict(model, pairs, figures).as_told())
    return predictions


def leave_kinds_out(
    collections: Sequence[LabelledPairs],
    judged: Sequence[LabelledPairs],
    caution: float = 1.0,
) -> dict[str, list[Predicted]]:
    """Predict the pairs of each kind of models by fits that had neither the kind nor the family.

    The uses of a weak encoder are left out with those of others.

    Args:
        collections: The collections to which models are fitted.
        judged: The collections to predict.
        caution: See :func:`~fitting.moment_fit.fit`.

    Returns:
        Kind to the predictions of its pairs.
    """
    kinds: dict[str, None] = {}
    for pairs in collections:
        for pair in pairs.kinds:
            kinds |= dict.fromkeys(_base_kind(kind) for kind in pair if kind is not None)
    predictions = {}
    for left_out in kinds:
        rest = [pairs.take(~_has_kind(pairs, left_out)) for pairs in collections]
        asked = [_as_new_kind(pairs, left_out) for pairs in judged]
        asked = [pairs for pairs in asked if pairs.models]
        predictions[left_out] = leave_families_out(rest, asked, caution=caution)
    return predictions


def _base_kind(kind: str | None) -> str | None:
    return None if kind is None else kind.removeprefix(WEAK)


def _has_kind(pairs: LabelledPairs, left_out: str | None) -> npt.NDArray[np.bool_]:
    """Return the (m,) pairs with a model of a kind."""
    return np.array([left_out in map(_base_kind, pair) for pair in pairs.kinds], bool)


def _as_new_kind(pairs: LabelledPairs, left_out: str | None) -> LabelledPairs:
    """Return the pairs with a model of a kind, under a name that no fit knows."""
    chosen = pairs.take(_has_kind(pairs, left_out))
    renamed = []
    for a, b in chosen.kinds:
        first, second = (_NEW_KIND if _base_kind(kind) == left_out else kind for kind in (a, b))
        renamed.append((first, second))
    return replace(chosen, kinds=renamed)


def leave_nothing_out(
    collections: Sequence[LabelledPairs],
    judged: Sequence[LabelledPairs],
    caution: float = 1.0,
) -> list[Predicted]:
    """Predict collections by a model that was fitted to them.

    No model of this form could do better with this evidence and more families: what it misses, the
    evidence lacks.

    Args:
        collections: The collections to which the model and its reaches are fitted.
        judged: The collections to predict.
        caution: See :func:`~fitting.moment_fit.fit`.
    """
    model = fit(collections, caution=caution)
    figures = spread_figures_of(collections)
    seen = [predict(model, pairs, figures) for pairs in collections]
    model = replace(model, reaches=local_reaches(seen))
    return [predict(model, pairs, figures).as_told() for pairs in judged]
