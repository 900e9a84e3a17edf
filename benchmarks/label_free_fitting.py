"""Fit the calibration to collections that anyone has, also with estimators of one's own.

python benchmarks/label_free_fitting.py --script examples/custom_estimator.py
--dataset apidocs/numpy apidocs/pandas apidocs/sklearn apidocs/stdlib --output calibration.json
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter
from pathlib import Path

from fitting.counted_calibration import calibration_of
from fitting.labelled_pairs import LabelledPairs, pairs_of
from fitting.left_out import leave_families_out
from fitting.moment_fit import CAUTION

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.calibration import Calibration

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
    from beir_cocodr.evaluation.label_free.gatherer import Gatherer
    from beir_cocodr.evaluation.label_free.likeness import collection_figures
    from beir_cocodr.evaluation.label_free.verdict import CORPUS_ALONE, GIVEN_QUERIES
    from beir_cocodr.evaluation.label_free.weak_encoders import mark_weak_encoders
    from beir_cocodr.evaluation.measures import parse_measures, score_queries
    from beir_cocodr.models.spec import SearchOptions, ways_to_use
    from beir_cocodr.retrieval.resources import Resources

    collection = load_collection(dataset)
    documents = collection.documents
    models = [name for name in ways_to_use(encoder) if not name.startswith("vector:")]
    queries = {query: collection.queries[query] for query in collection.qrels}
    with Resources.temporary(documents, SearchOptions()) as resources:
        gatherer = Gatherer(resources, models, samples=samples, seed=seed)
        with_queries = mark_weak_encoders(gatherer.gather(queries), gatherer.encoders)
        alone = mark_weak_encoders(gatherer.gather({}), gatherer.encoders)
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
        pairs, corpus_sha256 = collect_pairs(dataset, options.model, options.samples, options.seed)
        corpora[dataset] = [corpus_sha256]
        for regime, of_regime in pairs.items():
            by_regime[regime].append(of_regime)
        print(f"{dataset}: {len(pairs[GIVEN_QUERIES].models)} pairs of models", flush=True)
    left_out = {}
    for regime, collections in by_regime.items():
        left_out[regime] = leave_families_out(collections, caution=CAUTION[regime])
    return calibration_of(by_regime, corpora, left_out)


def describe_fit(calibration: Calibration) -> str:
    """Return the priors, slopes and counts that the script prints."""
    from beir_cocodr.evaluation.label_free.verdict import GIVEN_QUERIES

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
    for of_group in calibration.trust[GIVEN_QUERIES].values():
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
