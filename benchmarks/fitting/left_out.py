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
    Spread,
)
from beir_cocodr.evaluation.few_labels import LEVEL, NORMAL
from beir_cocodr.evaluation.label_free.likeness import spread_figures, unlikeness
from fitting.labelled_pairs import Floats, LabelledPairs
from fitting.moment_fit import LEAST_WIDENING, fit

#: A difference within this is none.
MARGIN = 0.01

# Candidates of the widening with distance.
_WIDENINGS = (LEAST_WIDENING, 0.05)


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
    def half_widths(self) -> Floats:
        """Return half the (m,) widths of the intervals."""
        return NORMAL * np.array([difference.deviation for difference in self.differences])

    @property
    def covered(self) -> npt.NDArray[np.bool_]:
        """Return where the interval holds the labelled difference."""
        return np.abs(self.pairs.differences - self.expected) <= self.half_widths

    @property
    def decided(self) -> npt.NDArray[np.bool_]:
        """Return where the interval excludes 0."""
        return np.abs(self.expected) > self.half_widths

    @property
    def no_difference(self) -> npt.NDArray[np.bool_]:
        """Return where the interval lies within the margin."""
        return np.abs(self.expected) + self.half_widths <= MARGIN


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
        asked.append(PairFeatures(kinds, values, apart, distance, pairs.lost_words))
    return Predicted(pairs, model.predict_all(asked))


def calibrate(
    collections: Sequence[LabelledPairs],
    further: int = 0,
    caution: float = 1.0,
) -> tuple[DifferenceModel, dict[str, Spread]]:
    """Fit a model whose intervals hold on families that are left out.

    Every family is left out once. The widening is that under which the differences are likeliest,
    and the quantile is that of weighted split conformal prediction.

    Args:
        collections: The labelled pairs, of at least three families.
        further: See :func:`conformal_quantile`.
        caution: See :func:`~fitting.moment_fit.fit`.

    Returns:
        The model, and the spread of the collections' figures.
    """
    fits = {}
    for family in dict.fromkeys(pairs.family for pairs in collections):
        others = [pairs for pairs in collections if pairs.family != family]
        fits[family] = (fit(others, caution=caution), spread_figures_of(others))
    best_likelihood = -np.inf
    for candidate in _WIDENINGS:
        predictions = []
        for pairs in collections:
            model, figures = fits[pairs.family]
            predictions.append(predict(replace(model, widening=candidate), pairs, figures))
        scores = [_scores(predicted) for predicted in predictions]
        likelihood = _likelihood(predictions, scores)
        if likelihood > best_likelihood:
            best_likelihood = likelihood
            widening = candidate
            families = [pairs.family for pairs in collections]
            quantile = conformal_quantile(scores, families, further=further)
    model = fit(collections, quantile, widening, caution)
    return model, spread_figures_of(collections)


def spread_figures_of(collections: Sequence[LabelledPairs]) -> dict[str, Spread]:
    """Return the spread of the figures of collections, in which every family weighs the same."""
    members = Counter(pairs.family for pairs in collections)
    weights = [1 / members[pairs.family] for pairs in collections]
    return spread_figures([pairs.figures for pairs in collections], weights)


def _scores(predicted: Predicted) -> Floats:
    """Return by how many deviations the labelled differences miss the expected ones."""
    deviations = np.array([difference.deviation for difference in predicted.differences])
    return np.abs(predicted.pairs.differences - predicted.expected) / deviations


def _likelihood(predictions: Sequence[Predicted], scores: Sequence[Floats]) -> float:
    """Return the mean log-likelihood up to a common factor of all deviations."""
    families = [predicted.pairs.family for predicted in predictions]
    weights = np.concatenate(conformal_weights(scores, families))
    widths = np.concatenate([predicted.half_widths for predicted in predictions])
    squares = np.concatenate(scores) ** 2
    common = np.average(squares, weights=weights)
    return float(-np.average(np.log(widths), weights=weights) - 0.5 * np.log(common))


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
    further: int = 0,
) -> float:
    """Return the quantile of scores by weighted split conformal prediction over families.

    With the mass of one further family at infinity the level is guaranteed for a new family that is
    exchangeable with these; without it, it holds nearly. Where the quantile would be infinite, as
    with few families, the largest score is returned.

    Args:
        scores: Scores of the pairs of each collection, from fits without its family.
        families: The families of the collections.
        level: The share of pairs of a new family that are to be covered.
        further: Families whose mass lies at infinity: 1 for the guarantee, or 0.

    References:
        Tibshirani, Foygel Barber, Candes and Ramdas, 2019; Dunn, Wasserman and Ramdas, 2023.
    """
    weights = np.concatenate(conformal_weights(scores, families))
    values = np.concatenate(scores)
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(weights[order])
    needed = level * (len(set(families)) + further)
    position = int(np.searchsorted(mass, needed - 1e-9))
    return float(values[order][min(position, len(values) - 1)])


def leave_families_out(
    collections: Sequence[LabelledPairs],
    judged: Sequence[LabelledPairs] | None = None,
    further: int = 0,
    caution: float = 1.0,
) -> list[Predicted]:
    """Predict every collection by a model that was not fitted to its family.

    Priors, slopes, widths, widening and quantile are all fitted to the other families.

    Args:
        collections: The collections to which models are fitted.
        judged: The collections to predict; by default the same.
        further: See :func:`conformal_quantile`.
        caution: See :func:`~fitting.moment_fit.fit`.
    """
    judged = collections if judged is None else judged
    models = {}
    for family in dict.fromkeys(pairs.family for pairs in judged):
        others = [pairs for pairs in collections if pairs.family != family]
        models[family] = calibrate(others, further, caution)
    predictions = []
    for pairs in judged:
        model, figures = models[pairs.family]
        predictions.append(predict(model, pairs, figures))
    return predictions


def leave_nothing_out(
    collections: Sequence[LabelledPairs],
    judged: Sequence[LabelledPairs],
    caution: float = 1.0,
) -> list[Predicted]:
    """Predict collections by a model that was fitted to them.

    No model of this form could do better with this evidence and more families: what it misses, the
    evidence lacks.

    Args:
        collections: The collections to which the model and its quantile are fitted.
        judged: The collections to predict.
        caution: See :func:`~fitting.moment_fit.fit`.
    """
    model = fit(collections, caution=caution)
    figures = spread_figures_of(collections)
    scores = [_scores(predict(model, pairs, figures)) for pairs in collections]
    families = [pairs.family for pairs in collections]
    model = replace(model, quantile=conformal_quantile(scores, families))
    return [predict(model, pairs, figures) for pairs in judged]
