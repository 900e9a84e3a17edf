"""The fit of the model of differences to labelled pairs, by moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.calibration import (
    NORMAL_REACH,
    DifferenceModel,
    KindPrior,
    Precedent,
    Reach,
    doubt_factor,
    kind_pair,
    scarcity_factor,
)
from beir_cocodr.evaluation.label_free.estimators import LIKELIHOOD, SPECIFICITY
from beir_cocodr.evaluation.label_free.verdict import (
    CORPUS_ALONE,
    GIVEN_QUERIES,
    READ_QUERIES,
)
from fitting.labelled_pairs import Floats, LabelledPairs

# Families that count for what is common to all kinds, beside those of a pair of kinds.
_SHRINKAGE = 2.0
# Added to the rank distance of a pair, so that no scale is 0.
_FLOOR = 0.05
# Degrees of freedom of differences and features. Of 1, 2, 3, 5 and 10, differences of$
# collections that are left out are likeliest with 3.
_FREEDOM = 3.0
# The share of correlations between features that is kept.
_CORRELATED = 0.8
# Ridge of the slopes towards 1, as a share of the variance of differences.
_RIDGE = 0.3
# How fast features are doubted where real queries differ from documents.
_DOUBT = 300.0
#: How many words real queries usually lose, as the logarithm of a ratio.
USUAL_LOSS = 0.22
# How many more characters that are no letters documents usually have, as a share of all.
_USUAL_NONLETTERS = 0.1
#: By what the noise of features is multiplied, because few families show how far they mislead.
#: Without real queries nothing tells if people ask in the words of the documents, and leads on
#: crops decide wrongly where they do not.
CAUTION = {GIVEN_QUERIES: 1.0, READ_QUERIES: 1.0, CORPUS_ALONE: 30.0}

#: Features that look at real queries, and are not doubted where these lose words.
UNDOUBTED = (LIKELIHOOD, SPECIFICITY)

#: Feature to the number of real queries with which its noise has twice the variance. On random
#: samples of q queries of a collection, q from 10 to 100, the feature deviates by about 4.5 / q in
#: units of the scale; with very many queries the deviation of its noise is about 0.12.
NEEDED = {SPECIFICITY: 40.0}

# By what the deviations of pairs are multiplied if the kind of one took no part in the fit.
_OTHERS_CAUTION = 1.2

# The least widening with the distance of a collection; it is never 0.
LEAST_WIDENING = 0.01


@dataclass(frozen=True)
class _Rows:
    """The pairs of all collections in one table, in units of their scale and one order of kinds.

    Attributes:
        kinds: (n,) pairs of kinds.
        families: (n,) families.
        collections: (n,) names of collections.
        weights: (n,) weights: each family has 1, shared equally among its collections.
        trusts: (n, p) by what the noise of features is divided, see
            :meth:`~beir_cocodr.evaluation.calibration.DifferenceModel.doubtfulness`.
        differences: (n,) labelled differences in nDCG@10.
        scaled: (n,) the same in units of the scale.
        features: (n, p) features in these units, NaN where evidence is absent.
        names: (p,) names of the features.
    """

    kinds: npt.NDArray[np.str_]
    families: npt.NDArray[np.str_]
    collections: npt.NDArray[np.str_]
    weights: Floats
    trusts: Floats
    differences: Floats
    scaled: Floats
    features: Floats
    names: list[str]


def fit(
    collections: Sequence[LabelledPairs],
    reaches: Sequence[Reach] = NORMAL_REACH,
    widening: float = LEAST_WIDENING,
    caution: float = 1.0,
) -> DifferenceModel:
    """Fit the hierarchical model of differences by moments, in which every family weighs the same.

    Means and deviations of a pair of kinds are shrunk towards what all kinds have in common, by
    the number of families that have such pairs. Slopes and noise are common to all kinds.

    Args:
        collections: The labelled pairs, of at least two families.
        reaches: How far the intervals reach; by default those of a normal distribution.
        widening: How fast intervals widen with the distance of a collection.
        caution: By what the noise of features is multiplied.
    """
    if len({pairs.family for pairs in collections}) < 2:
        raise InputError(
            "a fit needs labelled collections of at least two families; name more collections"
        )
    rows = _table(collections)
    residuals = rows.scaled.copy()
    surprises = rows.features.copy()
    sizes: dict[str, int] = {}
    means: dict[str, float] = {}
    expected: dict[str, Floats] = {}
    for kinds in dict.fromkeys(rows.kinds.tolist()):
        chosen = rows.kinds == kinds
        sizes[kinds] = len(set(rows.families[chosen].tolist()))
        means[kinds], expected[kinds] = _means(rows, chosen, kinds, sizes[kinds])
        residuals[chosen] -= means[kinds]
        surprises[chosen] -= expected[kinds]
    common = float(np.average(residuals**2, weights=rows.weights))
    slopes = _slopes(residuals, surprises, rows.weights[:, None] * rows.trusts)
    errors = surprises - residuals[:, None] * slopes
    noise = caution * _noise(errors * np.sqrt(rows.trusts), rows.weights)
    priors = {}
    for kinds, families in sizes.items():
        chosen = rows.kinds == kinds
        variance = np.average(residuals[chosen] ** 2, weights=_equal_families(rows, chosen))
        shrunk = (families * variance + _SHRINKAGE * common) / (families + _SHRINKAGE)
        unsure = np.sqrt(np.diag(noise) / (families + _SHRINKAGE))
        priors[kinds] = KindPrior(
            mean=means[kinds],
            deviation=float(np.sqrt(shrunk * (1 + 1 / (families + _SHRINKAGE)))),
            features=dict(zip(rows.names, expected[kinds].tolist(), strict=True)),
            deviations=dict(zip(rows.names, unsure.tolist(), strict=True)),
            precedent=_precedent(rows, chosen, kinds),
        )
    return DifferenceModel(
        slopes=dict(zip(rows.names, slopes.tolist(), strict=True)),
        noise=noise.tolist(),
        priors=priors,
        others=_others(rows, means, expected, slopes),
        floor=_FLOOR,
        freedom=_FREEDOM,
        widening=widening,
        reaches=list(reaches),
        doubt=_DOUBT,
        usual_loss=USUAL_LOSS,
        usual_nonletters=_USUAL_NONLETTERS,
        undoubted=[name for name in rows.names if name in UNDOUBTED],
        needed={name: NEEDED[name] for name in rows.names if name in NEEDED},
        others_caution=_OTHERS_CAUTION,
    )


def _table(collections: Sequence[LabelledPairs]) -> _Rows:
    """Return the pairs of calibrated kinds of all collections."""
    names: dict[str, None] = {}
    for pairs in collections:
        for values in pairs.features:
            names |= dict.fromkeys(values)
    members = Counter(pairs.family for pairs in collections)
    lines = []
    for pairs in collections:
        weight = 1 / members[pairs.family] / max(1, len(pairs.kinds))
        for row, (a, b) in enumerate(pairs.kinds):
            if a is not None and b is not None:
                lines.append(_line(pairs, row, weight, list(names)))
    return _Rows(
        kinds=np.array([line.kinds for line in lines]),
        families=np.array([line.family for line in lines]),
        collections=np.array([line.collection for line in lines]),
        weights=np.array([line.weight for line in lines]),
        trusts=np.array([_trusts(line, list(names)) for line in lines]),
        differences=np.array([line.difference for line in lines]),
        scaled=np.array([line.difference / line.scale for line in lines]),
        features=np.array([line.features for line in lines]).reshape(len(lines), len(names)),
        names=list(names),
    )


@dataclass(frozen=True)
class _Line:
    """A pair as a line of the table, turned so that its kinds are in the order of the alphabet."""

    kinds: str
    family: str
    collection: str
    weight: float
    doubtfulness: float
    queries: int
    difference: float
    scale: float
    features: list[float]


def _line(
    pairs: LabelledPairs,
    row: int,
    weight: float,
    names: Sequence[str],
) -> _Line:
    a, b = pairs.kinds[row]
    sign = 1 if str(a) <= str(b) else -1
    scale = float(pairs.distances[row]) + _FLOOR
    values = pairs.features[row]
    return _Line(
        kinds=kind_pair(*sorted([a, b], key=str)),
        family=pairs.family,
        collection=pairs.name,
        weight=weight,
        doubtfulness=doubt_factor(
            _DOUBT,
            pairs.lost_words - USUAL_LOSS,
            pairs.nonletter_excess - _USUAL_NONLETTERS,
        ),
        queries=pairs.queries,
        difference=sign * float(pairs.differences[row]),
        scale=scale,
        features=[sign * values.get(name, np.nan) / scale for name in names],
    )


def _trusts(line: _Line, names: Sequence[str]) -> list[float]:
    """Return by what the variance of features is divided to make collections comparable."""
    trusts = []
    for name in names:
        factor = scarcity_factor(NEEDED.get(name, 0.0), line.queries)
        trusts.append(1 / (factor if name in UNDOUBTED else factor * line.doubtfulness))
    return trusts


def _equal_families(rows: _Rows, chosen: npt.NDArray[np.bool_]) -> Floats:
    """Return weights of the chosen rows by which every family has the same sum."""
    weights = rows.weights[chosen]
    families, places = np.unique(rows.families[chosen], return_inverse=True)
    sums = np.bincount(places, weights, len(families))
    shares: Floats = weights / sums[places]
    return shares


def _means(
    rows: _Rows,
    chosen: npt.NDArray[np.bool_],
    kinds: str,
    families: int,
) -> tuple[float, Floats]:
    """Return the expected difference and features of a pair of kinds, shrunk towards 0.

    Two models of one kind may come in either order, so that nothing is expected of them.
    """
    count = len(rows.names)
    first, second = kinds.split(", ")
    if first == second:
        return 0.0, np.zeros(count)
    weights = _equal_families(rows, chosen)
    shrinkage = families / (families + _SHRINKAGE)
    mean = shrinkage * float(np.average(rows.scaled[chosen], weights=weights))
    values = rows.features[chosen]
    is_seen = ~np.isnan(values)
    sums = weights @ np.where(is_seen, values, 0.0)
    totals = np.maximum(weights @ is_seen, 1e-12)
    return mean, shrinkage * sums / totals


def _slopes(residuals: Floats, surprises: Floats, weights: Floats) -> Floats:
    """Return the slopes of the features in the difference, by ridge regression towards 1.

    A feature is a lead in nDCG@10 on other queries, so that without data its slope is 1.

    Args:
        residuals: (n,) differences without what is expected of their kinds.
        surprises: (n, p) features without what is expected of their kinds.
        weights: (n, p) weights.
    """
    is_seen = ~np.isnan(surprises)
    seen_weights = np.where(is_seen, weights, 0.0)
    squared = residuals[:, None] ** 2
    products = residuals[:, None] * np.where(is_seen, surprises, 0.0)
    squares = (seen_weights * squared).sum(axis=0)
    variances = (weights * squared).sum(axis=0) / weights.sum(axis=0)
    ridge = _RIDGE * variances * seen_weights.sum(axis=0)
    slopes: Floats = ((seen_weights * products).sum(axis=0) + ridge) / (squares + ridge)
    return slopes


def _noise(errors: Floats, weights: Floats) -> Floats:
    """Return the covariance of the errors of features, with smaller correlations."""
    is_seen = ~np.isnan(errors)
    values = np.where(is_seen, errors, 0.0)
    sums = (values * weights[:, None]).T @ values
    totals = (is_seen * weights[:, None]).T @ is_seen
    covariance = sums / np.maximum(totals, 1e-12)
    diagonal = np.diag(np.diag(covariance))
    shrunk = _CORRELATED * covariance + (1 - _CORRELATED) * diagonal
    values, axes = np.linalg.eigh(shrunk)
    return (axes * np.maximum(values, 1e-6)) @ axes.T


def _others(
    rows: _Rows,
    means: Mapping[str, float],
    expected: Mapping[str, Floats],
    slopes: Floats,
) -> KindPrior:
    """Return the prior of pairs of other kinds: no direction, and what kinds differ by."""
    biases = []
    for kinds, values in expected.items():
        first, second = kinds.split(", ")
        if first != second:
            biases.append(values - slopes * means[kinds])
    deviations = np.sqrt(np.mean(np.square(biases), axis=0)) if biases else np.zeros(len(slopes))
    return KindPrior(
        mean=0.0,
        deviation=float(np.sqrt(np.average(rows.scaled**2, weights=rows.weights))),
        deviations=dict(zip(rows.names, deviations.tolist(), strict=True)),
    )


def _precedent(
    rows: _Rows,
    chosen: npt.NDArray[np.bool_],
    kinds: str,
) -> Precedent | None:
    """Count in how many collections the second kind was better; None within a kind."""
    first, second = kinds.split(", ")
    if first == second:
        return None
    averages = []
    for name in dict.fromkeys(rows.collections[chosen].tolist()):
        averages.append(float(rows.differences[chosen & (rows.collections == name)].mean()))
    return Precedent(
        collections=len(averages),
        better=sum(average > 0 for average in averages),
        average=float(np.mean(averages)),
    )
