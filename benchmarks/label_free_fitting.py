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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.evaluation.label_free.estimates import features
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.results import Calibration, DifferenceModel

Floats = npt.NDArray[np.float64]

#: A difference beyond this is large.
LARGE = 0.03
#: A difference within this is none.
MARGIN = 0.01
#: The fewest queries on which two models can be called equal.
MANY_QUERIES = 300
#: The share of differences that intervals hold.
LEVEL = 0.9

_NORMAL = float(stats.norm.ppf(0.5 + LEVEL / 2))
_RIDGE = 1e-3


@dataclass(frozen=True)
class LabelledPairs:
    """All pairs of models on one labelled collection.

    Attributes:
        name: The collection's name.
        parent: The collection from which it was resampled, or itself.
        models: (m,) names of a and b.
        names: (p,) names of the features.
        features: (m, p) values of the features.
        distances: (m,) rank distances.
        differences: (m,) mean differences b − a by labels.
        errors: (m,) their standard errors over queries.
        queries: The number of queries.
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
        """Return the weight of a pair.

        M models have M − 1 independent differences among their M (M − 1) / 2 pairs.
        """
        models = {name for pair in self.models for name in pair}
        return (len(models) - 1) / len(self.models)


@dataclass(frozen=True)
class Information:
    """What one collection says about the coefficients, with V without their variance.

    Attributes:
        square: (p, p) X'V⁻¹X.
        cross: (p,) X'V⁻¹y.
        constant: The part of the log-likelihood without coefficients.
    """

    square: Floats
    cross: Floats
    constant: float


@dataclass(frozen=True)
class Predicted:
    """What a model says about the pairs of one collection.

    Attributes:
        pairs: The pairs.
        expected: (m,) expected differences.
        deviations: (m,) their standard deviations.
        quantile: How many deviations an interval has to either side.
    """

    pairs: LabelledPairs
    expected: Floats
    deviations: Floats
    quantile: float

    @property
    def half_widths(self) -> Floats:
        """Return half the widths of the intervals."""
        return self.quantile * self.deviations

    @property
    def covered(self) -> npt.NDArray[np.bool_]:
        """Return where the interval, widened by the labels' own error, holds their difference."""
        own_error = _NORMAL * self.pairs.errors
        widths = np.sqrt(self.half_widths**2 + own_error**2)
        return np.abs(self.pairs.differences - self.expected) <= widths

    @property
    def decided(self) -> npt.NDArray[np.bool_]:
        """Return where the interval excludes 0."""
        return np.abs(self.expected) > self.half_widths

    @property
    def no_difference(self) -> npt.NDArray[np.bool_]:
        """Return where the interval lies within the margin."""
        return np.abs(self.expected) + self.half_widths <= MARGIN


def fit(
    collections: Sequence[LabelledPairs],
    quantile: float = _NORMAL,
    bootstraps: int = 200,
) -> DifferenceModel:
    """Fit the model of differences by maximum marginal likelihood.

    y = x·β_c + e, β_c ~ N(β, diag(t²)), e ~ N(0, s² distance + f² + standard error²). All parents
    have the same weight. The uncertainty of β is the covariance of its bootstrap over parents,
    added to the variance between collections.

    Args:
        collections: The labelled pairs, of at least three parents.
        quantile: The quantile of the intervals.
        bootstraps: Samples of the bootstrap.
    """
    if len({pairs.parent for pairs in collections}) < 3:
        raise InputError(
            "a calibration needs at least three labelled parents; name more collections"
        )
    count = collections[0].features.shape[1]
    weights = _parent_weights(pairs.parent for pairs in collections)
    theta = _maximise_likelihood(collections, weights, count)
    informations = [_information(pairs, theta) for pairs in collections]
    mean, _ = _solve(informations, weights, theta)
    rng = np.random.default_rng(42)
    parents = sorted({pairs.parent for pairs in collections})
    drawn = []
    for _ in range(bootstraps):
        times = Counter(rng.choice(parents, len(parents)).tolist())
        drawn_weights = []
        for weight, pairs in zip(weights, collections, strict=True):
            drawn_weights.append(weight * times[pairs.parent])
        drawn.append(_solve(informations, drawn_weights, theta)[0])
    between = np.diag(np.exp(2 * theta[:count]))
    covariance = between + np.cov(np.array(drawn), rowvar=False)
    coefficients = dict(zip(collections[0].names, mean.tolist(), strict=True))
    within, floor = np.exp(theta[count:]).tolist()
    return DifferenceModel(
        coefficients,
        covariance.tolist(),
        within,
        floor,
        quantile,
    )


def _maximise_likelihood(
    collections: Sequence[LabelledPairs],
    weights: Sequence[float],
    count: int,
) -> Floats:
    """Return the logarithms of t (p,), s and f."""
    start = np.concatenate([np.full(count, np.log(0.1)), np.log([0.05, 0.015])])
    bounds = [(-7.0, 2.0)] * count + [(-5.0, 1.0), (-7.0, -3.5)]

    def loss(theta: Floats) -> float:
        informations = [_information(pairs, theta) for pairs in collections]
        _, likelihood = _solve(informations, weights, theta)
        return -likelihood

    result = optimize.minimize(
        loss,
        start,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 25},
    )
    theta: Floats = result.x
    return theta


def _parent_weights(parents: Iterable[str]) -> list[float]:
    """Weight collections so that their parents have the same weight."""
    names = list(parents)
    sizes = Counter(names)
    return [1 / sizes[name] for name in names]


def _information(pairs: LabelledPairs, theta: Floats) -> Information:
    count = pairs.features.shape[1]
    within, floor = np.exp(2 * theta[count:])
    variance = within * pairs.distances + floor + pairs.errors**2
    scaled = pairs.features * (pairs.share / variance)[:, None]
    logarithms = np.log(variance) + pairs.differences**2 / variance
    return Information(
        square=scaled.T @ pairs.features,
        cross=scaled.T @ pairs.differences,
        constant=-0.5 * pairs.share * float(logarithms.sum()),
    )


def _solve(
    informations: Sequence[Information],
    weights: Sequence[float],
    theta: Floats,
) -> tuple[Floats, float]:
    """Return mean coefficients by generalised least squares, and the marginal log-likelihood there.

    The inverses are by Woodbury's identity.
    """
    count = len(informations[0].cross)
    deviations = np.exp(theta[:count])
    left = _RIDGE * np.eye(count)
    right = np.zeros(count)
    kept = []
    determinants = []
    for one, weight in zip(informations, weights, strict=True):
        inner = np.eye(count) + deviations[:, None] * one.square * deviations
        inverse = deviations[:, None] * np.linalg.inv(inner) * deviations
        left = left + weight * (one.square - one.square @ inverse @ one.square)
        right = right + weight * (one.cross - one.square @ inverse @ one.cross)
        kept.append(inverse)
        determinants.append(float(np.linalg.slogdet(inner)[1]))
    mean = np.linalg.solve(left, right)
    total = -0.5 * _RIDGE * float(mean @ mean)
    for one, weight, inverse, determinant in zip(
        informations,
        weights,
        kept,
        determinants,
        strict=True,
    ):
        rest = one.cross - one.square @ mean
        quadratic = -2 * mean @ one.cross + mean @ one.square @ mean - rest @ inverse @ rest
        total += weight * (one.constant - 0.5 * (determinant + float(quadratic)))
    return mean, total


def predict(model: DifferenceModel, pairs: LabelledPairs) -> Predicted:
    """Predict the differences of the pairs of a collection."""
    expected = []
    deviations = []
    for row, distance in zip(pairs.features.tolist(), pairs.distances.tolist(), strict=True):
        features = dict(zip(pairs.names, row, strict=True))
        mean, deviation = model.predict(features, distance)
        expected.append(mean)
        deviations.append(deviation)
    return Predicted(
        pairs,
        np.array(expected),
        np.array(deviations),
        model.quantile,
    )


def leave_parents_out(
    collections: Sequence[LabelledPairs], unseen: Sequence[LabelledPairs] = ()
) -> tuple[list[Predicted], list[Predicted]]:
    """Predict every collection by a model that saw neither its parent nor the parent's samples.

    The quantile of a parent is the one at which the collections of the other parents, each left
    out, are covered.

    Args:
        collections: The collections to which models are fitted.
        unseen: Collections to which none is fitted.

    Returns:
        The predictions of both.
    """
    parents = list(dict.fromkeys(pairs.parent for pairs in collections))
    models = {}
    for parent in parents:
        models[parent] = fit([pairs for pairs in collections if pairs.parent != parent])
    left_out = [predict(models[pairs.parent], pairs) for pairs in collections]
    quantiles = {}
    for parent in parents:
        others = [predicted for predicted in left_out if predicted.pairs.parent != parent]
        quantiles[parent] = fit_quantile(others)
    judged = [predict(models[pairs.parent], pairs) for pairs in unseen]

    def with_quantiles(predictions: list[Predicted]) -> list[Predicted]:
        return [replace(one, quantile=quantiles[one.pairs.parent]) for one in predictions]

    return with_quantiles(left_out), with_quantiles(judged)


def fit_quantile(predictions: Sequence[Predicted]) -> float:
    """Return the least quantile at which :data:`LEVEL` of the pairs are covered.

    It is between the normal distribution's and twice that. All parents have the same weight.
    """
    weights = _parent_weights(predicted.pairs.parent for predicted in predictions)
    for multiple in np.arange(1.0, 2.01, 0.02):
        quantile = _NORMAL * multiple
        shares = [replace(one, quantile=quantile).covered.mean() for one in predictions]
        if np.average(shares, weights=weights) >= LEVEL:
            break
    return float(_NORMAL * multiple)


def count_trust(
    predictions: Iterable[Predicted], choose: Callable[[str, str], bool] | None = None
) -> dict[str, int]:
    """Count how often intervals hold and decide, as a calibration records it.

    Args:
        predictions: The predictions.
        choose: Picks pairs by the names of a and b. Default: all pairs.
    """
    counts: Counter[str] = Counter()
    for predicted in predictions:
        pairs = predicted.pairs
        if choose is None:
            chosen = np.ones(len(pairs.models), bool)
        else:
            chosen = np.array([choose(a, b) for a, b in pairs.models])
        counts.update(_count(predicted, chosen))
    return dict(counts)


def _count(predicted: Predicted, chosen: Any) -> dict[str, int]:
    pairs = predicted.pairs
    true = pairs.differences
    size = np.abs(true)
    decided = predicted.decided & chosen
    is_right = np.sign(predicted.expected) == np.sign(true)
    is_large = chosen & (size > LARGE) & (size > stats.norm.ppf(0.975) * pairs.errors)
    is_equal = chosen & (size <= MARGIN) & (pairs.queries >= MANY_QUERIES)
    nothing = predicted.no_difference & chosen & ~predicted.decided
    is_different = size > MARGIN + _NORMAL * pairs.errors
    return {
        "pairs": int(chosen.sum()),
        "covered": int((predicted.covered & chosen).sum()),
        "decided": int(decided.sum()),
        "right": int((decided & is_right).sum()),
        "large": int(is_large.sum()),
        "large_decided": int((is_large & predicted.decided).sum()),
        "equal": int(is_equal.sum()),
        "equal_decided": int((is_equal & predicted.decided).sum()),
        "no_difference": int(nothing.sum()),
        "no_difference_wrong": int((nothing & is_different).sum()),
    }


def reliability(predictions: Sequence[Predicted], bins: int = 10) -> list[dict[str, float]]:
    """Compare P(better) with the share of pairs in which labels put b in front.

    Each pair counts in both directions.
    """
    chances = [stats.norm.cdf(one.expected / one.deviations) for one in predictions]
    chance = np.concatenate(chances)
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
) -> tuple[dict[str, LabelledPairs], dict[str, float], str]:
    """Search a labelled collection by all uses of an encoder.

    Returns:
        The pairs with the collection's queries and without, its figures, and the checksum of its
        documents.
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
    pairs = {
        GIVEN_QUERIES: pairs_of(dataset, with_queries, scores),
        CORPUS_ALONE: pairs_of(dataset, alone, scores),
    }
    return pairs, collection_figures(documents, with_queries), documents.content_hash


def pairs_of(dataset: str, evidence: Evidence, scores: dict[str, Floats]) -> LabelledPairs:
    """Return all pairs of models, what was seen of them, and what labels tell."""
    pairs = list(itertools.combinations(scores, 2))
    values = [features(evidence, a, b) for a, b in pairs]
    gaps = [scores[b] - scores[a] for a, b in pairs]
    lists = evidence.lists
    return LabelledPairs(
        name=dataset,
        parent=dataset,
        models=pairs,
        names=list(values[0]),
        features=np.array([list(of_pair.values()) for of_pair in values]),
        distances=np.array([rank_distance(lists[a], lists[b]).mean() for a, b in pairs]),
        differences=np.array([gap.mean() for gap in gaps]),
        errors=np.array([gap.std(ddof=1) / np.sqrt(len(gap)) for gap in gaps]),
        queries=len(gaps[0]),
    )


def refit(options: argparse.Namespace) -> Calibration:
    """Fit the model of differences to collections, and count how often it holds on each."""
    from beir_cocodr.evaluation.label_free.verdict import CORPUS_ALONE, GIVEN_QUERIES, SAME_KIND

    if len(options.dataset) < 4:
        raise InputError(
            f"--dataset names {len(options.dataset)} collections; name at least four, because each "
            "is judged by a fit to the others"
        )
    by_regime: dict[str, list[LabelledPairs]] = {GIVEN_QUERIES: [], CORPUS_ALONE: []}
    every_figure: list[dict[str, float]] = []
    corpora = []
    for dataset in options.dataset:
        pairs, figures, corpus = collect_pairs(
            dataset, options.model, options.samples, options.seed
        )
        for regime, of_regime in pairs.items():
            by_regime[regime].append(of_regime)
        every_figure.append(figures)
        corpora.append(corpus)
        print(f"{dataset}: {len(pairs[GIVEN_QUERIES].models)} pairs of models", flush=True)
    models = {}
    trust = {}
    for regime, collections in by_regime.items():
        left_out, _ = leave_parents_out(collections)
        models[regime] = fit(collections, fit_quantile(left_out))
        trust[regime] = count_trust(left_out)
    return Calibration(
        collections=list(options.dataset),
        corpora=corpora,
        trust={SAME_KIND: trust[GIVEN_QUERIES]},
        date=datetime.date.today().isoformat(),
        models=models,
        margin=MARGIN,
        ranges={
            name: (
                min(figures[name] for figures in every_figure),
                max(figures[name] for figures in every_figure),
            )
            for name in every_figure[0]
        },
    )


def describe_fit(calibration: Calibration) -> str:
    """Return the coefficients and the counts that the script prints."""
    lines = []
    for regime, model in calibration.models.items():
        lines.append(f"{regime}: difference in nDCG@10 for each unit of a feature")
        deviations = np.sqrt(np.diag(np.array(model.covariance)))
        for (name, weight), deviation in zip(model.weights.items(), deviations, strict=True):
            lines.append(f"  {name}: {weight:+.3f} (deviation {deviation:.3f})")
    for counts in calibration.trust.values():
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
