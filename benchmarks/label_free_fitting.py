"""The model of differences without labels: its fit to labelled pairs, and how often it holds.

A pair is two models on one labelled collection, whose difference labels tell. As a script, this
file fits the model to collections that anyone has, also with estimators of one's own:

    python benchmarks/label_free_fitting.py --script examples/custom_estimator.py
    --dataset apidocs/numpy apidocs/pandas apidocs/sklearn apidocs/stdlib --output calibration.json
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.calibration import (
    Calibration,
    DifferenceModel,
    ExpectedDifference,
    KindPrior,
    PairFeatures,
    Precedent,
    Spread,
    kind_pair,
)
from beir_cocodr.evaluation.few_labels import LEVEL, NORMAL
from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.evaluation.label_free.estimates import features
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.likeness import spread_figures, unlikeness

Floats = npt.NDArray[np.float64]
Kinds = tuple[str | None, str | None]

#: Differences beyond these are large and very large.
LARGE = 0.03
VERY_LARGE = 0.05
#: A difference within this is none.
MARGIN = 0.01
#: A labelled difference beyond so many standard errors is significant.
_SIGNIFICANT = 1.96

# Families that count for what is common to all kinds, beside those of a pair of kinds.
_SHRINKAGE = 2.0
# Added to the rank distance of a pair, so that no scale is 0.
_FLOOR = 0.02
# Degrees of freedom of differences and features.
_FREEDOM = 2.0
# The share of correlations between features that is kept.
_CORRELATED = 0.8
# Ridge of the slopes, as a share of the variance of differences.
_RIDGE = 0.1
# Candidates of the widening with distance; it is never 0.
_WIDENINGS = (0.01, 0.05)


@dataclass(frozen=True)
class LabelledPairs:
    """All pairs of models on one labelled collection.

    Attributes:
        name: The collection's name.
        family: The family of collections that is left out with it.
        models: (m,) names of a and b.
        kinds: (m,) kinds of a and b.
        features: (m,) features of each pair; absent evidence is missing.
        distances: (m,) rank distances.
        differences: (m,) mean differences b − a by labels.
        errors: (m,) their standard errors over queries.
        figures: Figures of the collection, which say how like others it is.
        damaged: (m,) true where one of the two models has a planted defect.
    """

    name: str
    family: str
    models: list[tuple[str, str]]
    kinds: list[Kinds]
    features: list[dict[str, float]]
    distances: Floats
    differences: Floats
    errors: Floats
    figures: dict[str, float] = field(default_factory=dict)
    damaged: npt.NDArray[np.bool_] | None = None

    def take(self, rows: npt.NDArray[np.bool_]) -> LabelledPairs:
        """Return some of the pairs."""
        chosen = np.flatnonzero(rows).tolist()
        return replace(
            self,
            models=[self.models[row] for row in chosen],
            kinds=[self.kinds[row] for row in chosen],
            features=[self.features[row] for row in chosen],
            distances=self.distances[rows],
            differences=self.differences[rows],
            errors=self.errors[rows],
            damaged=None if self.damaged is None else self.damaged[rows],
        )


@dataclass(frozen=True)
class _Rows:
    """The pairs of all collections in one table, in units of their scale and one order of kinds.

    Attributes:
        kinds: (n,) pairs of kinds.
        families: (n,) families.
        collections: (n,) names of collections.
        weights: (n,) weights: each family has 1, shared equally among its collections.
        differences: (n,) labelled differences in nDCG@10.
        scaled: (n,) the same in units of the scale.
        features: (n, p) features in these units, NaN where evidence is absent.
        names: (p,) names of the features.
    """

    kinds: npt.NDArray[np.str_]
    families: npt.NDArray[np.str_]
    collections: npt.NDArray[np.str_]
    weights: Floats
    differences: Floats
    scaled: Floats
    features: Floats
    names: list[str]


def fit(
    collections: Sequence[LabelledPairs],
    quantile: float = NORMAL,
    widening: float = _WIDENINGS[0],
) -> DifferenceModel:
    """Fit the hierarchical model of differences by moments, in which every family weighs the same.

    Means and deviations of a pair of kinds are shrunk towards what all kinds have in common, by
    the number of families that have such pairs. Slopes and noise are common to all kinds.

    Args:
        collections: The labelled pairs, of at least two families.
        quantile: The quantile of the intervals.
        widening: How fast intervals widen with the distance of a collection.
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
    slopes = _slopes(residuals, surprises, rows.weights)
    noise = _noise(surprises - residuals[:, None] * slopes, rows.weights)
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
        quantile=quantile,
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
        difference=sign * float(pairs.differences[row]),
        scale=scale,
        features=[sign * values.get(name, np.nan) / scale for name in names],
    )


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
    """Return the slopes of the features in the difference, by ridge regression."""
    is_seen = ~np.isnan(surprises)
    products = residuals[:, None] * np.where(is_seen, surprises, 0.0)
    squares = weights * residuals**2 @ is_seen
    ridge = _RIDGE * float(np.average(residuals**2, weights=weights)) * weights @ is_seen
    slopes: Floats = (weights @ products) / (squares + ridge)
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


# Honest widths: collections that are left out with their family.


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
        asked.append(PairFeatures(kinds, values, apart, distance))
    return Predicted(pairs, model.predict_all(asked))


def calibrate(
    collections: Sequence[LabelledPairs],
    further: int = 0,
) -> tuple[DifferenceModel, dict[str, Spread]]:
    """Fit a model whose intervals hold on families that are left out.

    Every family is left out once. The widening is that under which the differences are likeliest,
    and the quantile is that of weighted split conformal prediction.

    Args:
        collections: The labelled pairs, of at least three families.
        further: See :func:`conformal_quantile`.

    Returns:
        The model, and the spread of the collections' figures.
    """
    fits = {}
    for family in dict.fromkeys(pairs.family for pairs in collections):
        others = [pairs for pairs in collections if pairs.family != family]
        fits[family] = (fit(others), spread_figures_of(others))
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
    return fit(collections, quantile, widening), spread_figures_of(collections)


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
) -> list[Predicted]:
    """Predict every collection by a model of which nothing was fitted to its family.

    Priors, slopes, widths, widening and quantile are all fitted to the other families.

    Args:
        collections: The collections to which models are fitted.
        judged: The collections to predict; by default the same.
        further: See :func:`conformal_quantile`.
    """
    judged = collections if judged is None else judged
    models = {}
    for family in dict.fromkeys(pairs.family for pairs in judged):
        others = [pairs for pairs in collections if pairs.family != family]
        models[family] = calibrate(others, further)
    predictions = []
    for pairs in judged:
        model, figures = models[pairs.family]
        predictions.append(predict(model, pairs, figures))
    return predictions


def count_trust(
    predictions: Iterable[Predicted], choose: Callable[[Kinds], bool] | None = None
) -> dict[str, int]:
    """Count how often intervals hold and decide, as a calibration records it.

    Args:
        predictions: The predictions.
        choose: Picks pairs by the kinds of a and b. Default: all pairs.
    """
    counts: Counter[str] = Counter()
    for predicted in predictions:
        pairs = predicted.pairs
        if choose is None:
            chosen = np.ones(len(pairs.models), bool)
        else:
            chosen = np.array([choose(kinds) for kinds in pairs.kinds], bool)
        counts.update(_count(predicted, chosen))
    return dict(counts)


def _count(predicted: Predicted, chosen: npt.NDArray[np.bool_]) -> dict[str, int]:
    pairs = predicted.pairs
    size = np.abs(pairs.differences)
    decided = predicted.decided & chosen
    is_right = np.sign(predicted.expected) == np.sign(pairs.differences)
    is_significant = size > _SIGNIFICANT * pairs.errors
    is_large = chosen & (size > LARGE) & is_significant
    is_very_large = chosen & (size > VERY_LARGE) & is_significant
    is_equal = chosen & (size <= MARGIN)
    nothing = predicted.no_difference & chosen & ~predicted.decided
    is_different = size > MARGIN + NORMAL * pairs.errors
    return {
        "pairs": int(chosen.sum()),
        "covered": int((predicted.covered & chosen).sum()),
        "decided": int(decided.sum()),
        "right": int((decided & is_right).sum()),
        "large": int(is_large.sum()),
        "large_decided": int((is_large & predicted.decided).sum()),
        "very_large": int(is_very_large.sum()),
        "very_large_decided": int((is_very_large & predicted.decided).sum()),
        "equal": int(is_equal.sum()),
        "equal_decided": int((is_equal & predicted.decided).sum()),
        "no_difference": int(nothing.sum()),
        "no_difference_wrong": int((nothing & is_different).sum()),
    }


def reliability(predictions: Sequence[Predicted], bins: int = 10) -> list[dict[str, float]]:
    """Compare P(better) with the share of pairs in which labels put b in front.

    Each pair counts in both directions.
    """
    chances = [difference.chance for one in predictions for difference in one.differences]
    chance = np.array(chances)
    true = np.concatenate([one.pairs.differences for one in predictions])
    chance = np.concatenate([chance, 1 - chance])
    is_better = np.concatenate([true > 0, true < 0])
    bin_of = np.minimum((chance * bins).astype(int), bins - 1)
    rows = []
    for number in range(bins):
        inside = bin_of == number
        if inside.any():
            rows.append(
                {
                    "predicted": float(chance[inside].mean()),
                    "observed": float(is_better[inside].mean()),
                    "pairs": int(inside.sum() // 2),
                }
            )
    return rows


# The fit to collections that anyone has.

#: Collections that every installation can make for itself.
DATASETS = ("apidocs/numpy", "apidocs/pandas", "apidocs/sklearn", "apidocs/stdlib")


def register_rows(script: Path) -> None:
    """Import a script by its path, and call its function ``register``, which adds rows."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    if spec is None or spec.loader is None:
        raise InputError(f"--script {script} is no Python file; name one")
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    spec.loader.exec_module(module)
    module.register()


def collect_pairs(
    dataset: str,
    encoder: str,
    samples: int,
    seed: int,
) -> tuple[dict[str, LabelledPairs], str]:
    """Search a labelled collection by all uses of an encoder.

    Returns:
        The pairs with the collection's queries and without, and the checksum of its documents.
    """
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.evaluation.label_free.evidence import Gatherer
    from beir_cocodr.evaluation.label_free.likeness import collection_figures
    from beir_cocodr.evaluation.label_free.verdict import CORPUS_ALONE, GIVEN_QUERIES
    from beir_cocodr.evaluation.measures import parse_measures, score_queries
    from beir_cocodr.models.spec import SearchOptions, ways_to_use
    from beir_cocodr.retrieval.resources import Resources

    collection = load_collection(dataset)
    documents = collection.documents
    models = [name for name in ways_to_use(encoder) if not name.startswith("vector:")]
    queries = {query: collection.queries[query] for query in collection.qrels}
    with Resources.temporary(documents, SearchOptions()) as resources:
        gatherer = Gatherer(resources, models, samples=samples, seed=seed)
        with_queries = gatherer.gather(queries)
        alone = gatherer.gather({})
    [measure] = parse_measures("nDCG@10")
    scores = {}
    for model in models:
        results = with_queries.rankings[model].results(documents, False, 10)
        scores[model] = score_queries([measure], collection.qrels, results)[str(measure)]
    pairs = {}
    for regime, evidence in ((GIVEN_QUERIES, with_queries), (CORPUS_ALONE, alone)):
        figures = collection_figures(documents, evidence)
        pairs[regime] = pairs_of(dataset, dataset, evidence, scores, figures)
    return pairs, documents.content_hash


def pairs_of(
    name: str,
    family: str,
    evidence: Evidence,
    scores: Mapping[str, Floats],
    figures: dict[str, float],
    pairs: Sequence[tuple[str, str]] | None = None,
) -> LabelledPairs:
    """Return pairs of models, what was seen of them, and what labels tell.

    Args:
        name: The collection's name.
        family: The family of collections that is left out with it.
        evidence: What was seen of the models.
        scores: Model to its nDCG@10 of every query by labels.
        figures: Figures of the collection.
        pairs: The pairs. Default: all.
    """
    pairs = list(itertools.combinations(scores, 2)) if pairs is None else list(pairs)
    gaps = [scores[b] - scores[a] for a, b in pairs]
    lists = evidence.lists
    return LabelledPairs(
        name=name,
        family=family,
        models=pairs,
        kinds=[(evidence.kinds[a], evidence.kinds[b]) for a, b in pairs],
        features=[features(evidence, a, b) for a, b in pairs],
        distances=np.array([rank_distance(lists[a], lists[b]).mean() for a, b in pairs]),
        differences=np.array([gap.mean() for gap in gaps]),
        errors=np.array([gap.std(ddof=1) / np.sqrt(len(gap)) for gap in gaps]),
        figures=figures,
    )


def refit(options: argparse.Namespace) -> Calibration:
    """Fit the model of differences to collections, and count how often it holds on each."""
    from beir_cocodr.evaluation.label_free.verdict import CORPUS_ALONE, GIVEN_QUERIES

    if len(options.dataset) < 4:
        raise InputError(
            f"--dataset names {len(options.dataset)} collections; name at least four, because each "
            "is judged by a fit to the others"
        )
    by_regime: dict[str, list[LabelledPairs]] = {GIVEN_QUERIES: [], CORPUS_ALONE: []}
    corpora = {}
    for dataset in options.dataset:
        pairs, corpora[dataset] = collect_pairs(
            dataset, options.model, options.samples, options.seed
        )
        for regime, of_regime in pairs.items():
            by_regime[regime].append(of_regime)
        print(f"{dataset}: {len(pairs[GIVEN_QUERIES].models)} pairs of models", flush=True)
    return calibration_of(by_regime, corpora, leave_families_out(by_regime[GIVEN_QUERIES]))


def calibration_of(
    by_regime: Mapping[str, Sequence[LabelledPairs]],
    corpora: Mapping[str, str],
    left_out: Sequence[Predicted],
) -> Calibration:
    """Return the calibration that is fitted to all collections.

    Args:
        by_regime: "given queries" and "corpus alone" to the pairs of the collections.
        corpora: Collection to the content hash of its documents.
        left_out: The collections with queries, each predicted without its family.
    """
    from beir_cocodr.evaluation.label_free.verdict import (
        DIFFERENT_KINDS,
        GIVEN_QUERIES,
        SAME_KIND,
        is_same_kind,
    )

    models = {}
    for regime, collections in by_regime.items():
        models[regime], _ = calibrate(collections)
    return Calibration(
        collections=list(corpora),
        corpora=list(corpora.values()),
        trust={
            SAME_KIND: count_trust(left_out, is_same_kind),
            DIFFERENT_KINDS: count_trust(left_out, lambda kinds: not is_same_kind(kinds)),
        },
        date=datetime.date.today().isoformat(),
        models=models,
        margin=MARGIN,
        figures=spread_figures_of(by_regime[GIVEN_QUERIES]),
        reliability=reliability(left_out),
    )


def describe_fit(calibration: Calibration) -> str:
    """Return the priors, slopes and counts that the script prints."""
    lines = []
    for regime, model in calibration.models.items():
        lines.append(f"{regime}:")
        for kinds, prior in model.priors.items():
            if prior.precedent is not None:
                precedent = prior.precedent
                lines.append(
                    f"  {kinds}: the second is better in {precedent.better} of "
                    f"{precedent.collections} collections, by {precedent.average:+.3f} on average"
                )
        for name, slope in model.slopes.items():
            lines.append(f"  {name}: {slope:+.3f} for each unit of difference")
    counts: Counter[str] = Counter()
    for of_group in calibration.trust.values():
        counts.update(of_group)
    held = f"the interval holds {counts['covered']} of {counts['pairs']} pairs"
    right = f"the sign is right in {counts['right']} of {counts['decided']} decided ones"
    lines.append(f"with each collection left out once, {held}, {right}")
    return "\n".join(lines)


def main() -> None:
    """Fit the model of differences, print it, and write a calibration."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dataset",
        nargs="+",
        default=list(DATASETS),
        help="Labelled collections, at least four.",
    )
    parser.add_argument("--model", default="minilm", help="The encoder whose uses are compared.")
    parser.add_argument(
        "--script",
        type=Path,
        help="A script whose function register adds rows, such as an estimator.",
    )
    parser.add_argument("--samples", type=int, default=200, help="Crops, and generated queries.")
    parser.add_argument("--seed", type=int, default=42, help="The seed of these.")
    parser.add_argument("--output", type=Path, required=True, help="File of the calibration.")
    options = parser.parse_args()
    if options.script is not None:
        register_rows(options.script)
    calibration = refit(options)
    calibration.write(options.output)
    print(describe_fit(calibration))


if __name__ == "__main__":
    main()
