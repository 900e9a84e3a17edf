"""Claim: without labels, intervals of differences between models hold, and decide half the pairs.

All pairs of methods are compared on labelled collections and on collections that are resampled from
them (``resampled.py``). Estimators see no labels, and labels tell the difference. A model of the
difference by the estimates is fitted once for each parent, without that parent and everything
resampled from it, and judges these. The same models then judge collections that are resampled with
another seed. Last, a model is fitted to all collections, which is the calibration that the package
carries. The searches of a collection are kept in ``--work`` and not repeated.

The script prints how often intervals hold and decide, and writes
``benchmarks/results/verdict.json`` and the calibration:

    python benchmarks/verdict.py --collections DIR

``label_free_fitting.py`` refits the calibration with an estimator of your own, on the API
documentation of installed packages.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness.page import markdown_table
from harness.script import (
    add_collections,
    add_integers,
    add_work,
    option_parser,
    origin,
    settings_of,
    write_results,
)
from harness.study import load_targets
from label_free_fitting import (
    MARGIN,
    LabelledPairs,
    Predicted,
    count_trust,
    fit,
    fit_quantile,
    leave_parents_out,
    reliability,
)
from resampled import kind_of, load_parent, resample, search

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.evaluation.label_free.estimates import features
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.likeness import text_figures
from beir_cocodr.evaluation.label_free.verdict import (
    CALIBRATION_FILE,
    CORPUS_ALONE,
    DIFFERENT_KINDS,
    GIVEN_QUERIES,
    SAME_KIND,
)
from beir_cocodr.evaluation.results import Calibration
from beir_cocodr.io import write_text

DOMAINS = ["stdlib", "numpy", "pandas", "torch", "scipy", "sklearn"]
#: The seed of the collections to which models are fitted.
FITTED = 0
PARTS = ("left out", "other seeds")


class Parent:
    """A labelled collection, and what was searched on it and on its samples.

    Attributes:
        name: Its name.
        corpus: The checksum of its documents.
        pairs: Seed and regime to the labelled pairs of every sample.
        figures: The figures of its samples, which say how far the calibration reaches.
        values: nDCG@10 of every method on every sample.
    """

    def __init__(
        self,
        name: str,
        source: str,
        options: argparse.Namespace,
    ) -> None:
        self.name = name
        self.source = source
        self.options = options
        self.corpus = load_collection(source).documents.content_hash
        self.pairs: dict[tuple[int, str], list[LabelledPairs]] = {}
        self.figures: list[dict[str, float]] = []
        self.values: dict[str, dict[str, float]] = {}
        for seed in (FITTED, options.other_seed):
            for cell in self.cells(seed):
                self.add(cell, seed)

    def cells(self, seed: int) -> list[dict[str, Any]]:
        """Search all samples of one seed, or read what was searched before."""
        options = self.options
        stem = self.name.replace("/", "-")
        file = options.work / "cells" / f"{stem}.{seed}.json"
        if not file.is_file():
            parent = load_parent(
                self.name.removeprefix("apidocs/"),
                self.source,
                options.vectors or options.work / "vectors",
                options.samples,
                options.seed,
            )
            cells = []
            for part in resample(parent, seed):
                with_queries, alone, scores = search(parent, part, seed)
                cell = search_cell(
                    f"{self.name} {part.name}",
                    with_queries,
                    alone,
                    scores,
                )
                documents = [parent.texts["docs"][row] for row in part.documents[:500]]
                queries = [parent.texts["queries"][row] for row in part.queries]
                cell["figures"] |= text_figures(len(part.documents), documents, queries)
                cells.append(cell)
            file.parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            write_text(file, json.dumps(cells))
        content: list[dict[str, Any]] = json.loads(file.read_text())
        return content

    def add(self, cell: dict[str, Any], seed: int) -> None:
        """Add what was searched on one sample."""
        self.values[f"{cell['name']} ({seed})"] = cell["values"]
        if seed == FITTED:
            self.figures.append(cell["figures"])
        for regime, content in cell["regimes"].items():
            pairs = LabelledPairs(
                name=cell["name"],
                parent=self.name,
                models=[tuple(pair) for pair in cell["models"]],
                names=cell["names"],
                features=np.array(content["features"]),
                distances=np.array(content["distances"]),
                differences=np.array(cell["differences"]),
                errors=np.array(cell["errors"]),
                queries=cell["queries"],
            )
            self.pairs.setdefault((seed, regime), []).append(pairs)


def search_cell(
    name: str,
    with_queries: Evidence,
    alone: Evidence,
    scores: dict[str, Any],
) -> dict[str, Any]:
    """Return what is seen of all pairs of methods on one sample, and what labels tell of them.

    Args:
        name: The sample's name.
        with_queries: What is seen with the sample's queries.
        alone: What is seen with its corpus alone.
        scores: Method to its nDCG@10 of every query by labels.
    """
    models = list(itertools.combinations(scores, 2))
    gaps = [scores[b] - scores[a] for a, b in models]
    regimes = {}
    names: list[str] = []
    for regime, evidence in ((GIVEN_QUERIES, with_queries), (CORPUS_ALONE, alone)):
        values = []
        distances = []
        for a, b in models:
            seen = features(evidence, a, b)
            names = list(seen)
            values.append(list(seen.values()))
            distance = rank_distance(evidence.lists[a], evidence.lists[b])
            distances.append(float(distance.mean()))
        regimes[regime] = {
            "features": values,
            "distances": distances,
        }
    return {
        "name": name,
        "models": models,
        "names": names,
        "regimes": regimes,
        "differences": [float(gap.mean()) for gap in gaps],
        "errors": [float(gap.std(ddof=1) / np.sqrt(len(gap))) for gap in gaps],
        "queries": len(gaps[0]),
        "values": {name: float(values.mean()) for name, values in scores.items()},
        "figures": {
            "BM25's nDCG@10 on held-out crops": float(with_queries.crops["bm25"].mean()),
            "BM25's nDCG@10 on generated queries": float(with_queries.generated["bm25"].mean()),
        },
    }


def judge(
    parents: Sequence[Parent], options: argparse.Namespace
) -> tuple[dict[str, Any], Calibration]:
    """Fit and judge the models of both regimes, and return the results and the calibration."""
    results: dict[str, Any] = origin() | {"settings": settings_of(options)}
    models = {}
    trust = {}
    for regime in (GIVEN_QUERIES, CORPUS_ALONE):
        fitted = []
        unseen = []
        for parent in parents:
            fitted += parent.pairs[FITTED, regime]
            unseen += parent.pairs.get((options.other_seed, regime), [])
        left_out, others = leave_parents_out(fitted, unseen)
        models[regime] = fit(fitted, fit_quantile(left_out))
        results[regime] = {
            "left out": summarize(left_out),
            "other seeds": summarize(others),
            "model": vars(models[regime]),
        }
        if regime == GIVEN_QUERIES:
            trust = {
                SAME_KIND: count_trust(left_out, lambda a, b: kind_of(a) == kind_of(b)),
                DIFFERENT_KINDS: count_trust(left_out, lambda a, b: kind_of(a) != kind_of(b)),
            }
    results["collections"] = {}
    for parent in parents:
        results["collections"] |= parent.values
    calibration = Calibration(
        [parent.name for parent in parents],
        [parent.corpus for parent in parents],
        trust,
        results["date"][:10],
        models,
        MARGIN,
        ranges_of(parents),
        reliability=results[GIVEN_QUERIES]["left out"]["reliability"],
    )
    return results, calibration


def ranges_of(parents: Sequence[Parent]) -> dict[str, tuple[float, float]]:
    """Return the least and the largest value of every figure."""
    every = [figures for parent in parents for figures in parent.figures]
    ranges = {}
    for name in every[0]:
        values = [figures[name] for figures in every]
        ranges[name] = (min(values), max(values))
    return ranges


def summarize(predictions: Sequence[Predicted]) -> dict[str, Any]:
    """Return counts of pairs, over all and by parent, widths, errors, and reliability."""
    by_parent: dict[str, list[Predicted]] = {}
    for predicted in predictions:
        by_parent.setdefault(predicted.pairs.parent, []).append(predicted)
    widths = [2 * predicted.half_widths.mean() for predicted in predictions]
    errors = [predicted.expected - predicted.pairs.differences for predicted in predictions]
    return {
        "collections": len(predictions),
        "counts": count_trust(predictions),
        "width": float(np.mean(widths)),
        "error": float(np.sqrt(np.mean(np.concatenate(errors) ** 2))),
        "reliability": reliability(predictions),
        "parents": {name: count_trust(of_parent) for name, of_parent in by_parent.items()},
    }


def describe(results: dict[str, Any]) -> str:
    """Return the tables that the script prints."""
    header = ["", "collections", "pairs", "covered", "width", "decided", "sign right"]
    header += ["large decided", "equal decided"]
    rows = []
    for regime in (GIVEN_QUERIES, CORPUS_ALONE):
        for part in PARTS:
            summary = results[regime][part]
            counts = summary["counts"]
            rows.append(
                [
                    f"{regime}, {part}",
                    summary["collections"],
                    counts["pairs"],
                    _share(counts, "covered", "pairs"),
                    f"{summary['width']:.3f}",
                    _share(counts, "decided", "pairs"),
                    _share(counts, "right", "decided"),
                    _share(counts, "large_decided", "large"),
                    _share(counts, "equal_decided", "equal"),
                ]
            )
    chances = []
    for row in results[GIVEN_QUERIES]["left out"]["reliability"]:
        chances.append([f"{row['predicted']:.2f}", f"{row['observed']:.2f}", row["pairs"]])
    columns = ["P(better), predicted", "observed", "pairs"]
    return "\n\n".join([markdown_table(header, rows), markdown_table(columns, chances)])


def _share(
    counts: dict[str, int],
    part: str,
    whole: str,
) -> str:
    return f"{counts[part] / max(1, counts[whole]):.1%}"


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "verdict")
    add_work(parser, "runs/benchmark-verdict")
    add_collections(parser)
    parser.add_argument(
        "--domains",
        nargs="*",
        default=DOMAINS,
        help="Domains of apidocs.",
    )
    parser.add_argument(
        "--dataset",
        nargs="*",
        default=[],
        help="Further labelled collections.",
    )
    integers = {
        "--documents": (2500, "The most documents of a test collection."),
        "--samples": (200, "Crops, and generated queries, of a collection."),
        "--seed": (42, "The seed of crops and generated queries."),
        "--other-seed": (7, "The seed of the samples that are judged at the end."),
    }
    add_integers(parser, integers)
    parser.add_argument(
        "--vectors",
        type=Path,
        help="The folder of embeddings. Default: a folder in --work.",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        default=CALIBRATION_FILE,
        help="Write the calibration to this file. Default: the packaged one.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    names = [f"apidocs/{name}" for name in options.domains] + options.dataset
    sources = load_targets(
        names,
        options.collections,
        options.work,
        options.documents,
    )
    parents = [Parent(name, source, options) for name, source in sources.items()]
    results, calibration = judge(parents, options)
    write_results(options.results, results)
    calibration.write(options.calibration)
    print(describe(results))


if __name__ == "__main__":
    main()
