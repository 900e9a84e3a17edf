"""Claim: a few judged queries choose the best use of an encoder.

All uses of one encoder that need no training search labelled collections. Of each collection 0, 10,
20 or 50 queries are drawn as judged, 50 times. A use is chosen by the estimate that joins them with
what is expected without labels, and measured on the queries that are left. It is compared with the
choice by labels alone; with the choice by twenty queries, when only ten drawn pairs of each are
judged, as ``labels_wanted.tsv`` asks for them; with the best and the worst use; and with fixed
uses. Stores and searches are kept in ``--work``.

The script prints the means of all choices, and writes ``benchmarks/results/few_labels.json``:

    python benchmarks/few_labels.py --work DIR --collections FOLDER [--domains numpy scipy]
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import timed
from harness.page import markdown_table
from harness.script import (
    add_collections,
    add_integers,
    add_work,
    option_parser,
    origin,
    read_json,
    write_results,
)
from harness.study import COLLECTIONS

from beir_cocodr import SearchOptions, load_collection
from beir_cocodr.arrays import Doubles
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.judgements import JudgedQuery, Judgements
from beir_cocodr.evaluation.annotation import PER_QUERY, draw_candidates
from beir_cocodr.evaluation.few_labels import (
    FEWEST,
    NORMAL,
    Expected,
    JudgedGain,
    held_out_gain,
    judged_scores,
    query_weights,
)
from beir_cocodr.evaluation.label_free.evidence import Evidence, Gatherer
from beir_cocodr.evaluation.label_free.likeness import collection_figures, compare_figures
from beir_cocodr.evaluation.label_free.verdict import (
    decide,
    expected_values,
    load_calibration,
)
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.io import write_text
from beir_cocodr.models.spec import ways_to_use
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode

MODEL = "minilm"
#: Uses that are taken whatever the labels say.
FIXED = ("minilm", "bm25", "hybrid@0.5:minilm", "feedback@0.5:minilm")
#: Numbers of judged queries.
JUDGED = (0, 10, 20, 50)
#: Queries that are judged by a few drawn pairs each.
DRAWN = 20
#: The largest gain that counts as none.
MARGIN = 0.01
LABELS_ALONE = "labels alone"


def search_all(
    name: str,
    dataset: str,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Search a collection by every use, or read what was searched before.

    Returns:
        What is expected of every use without labels, its scores, and its rankings.
    """
    stem = name.replace("/", "-")
    file = options.work / f"{stem}.{options.samples}.{options.seed}.json"
    if not file.is_file():
        store = options.work / stem
        content, timing = timed(lambda: _search(dataset, store, options))
        content["processor_seconds"] = round(timing.processor, 1)
        write_text(file, json.dumps(content))
    return read_json(file)


def _search(
    dataset: str,
    store: Path,
    options: argparse.Namespace,
) -> dict[str, Any]:
    encode(dataset, MODEL, store)
    collection = load_collection(dataset)
    models = ways_to_use(MODEL)
    calibration = load_calibration()
    queries = {query: collection.queries[query] for query in collection.qrels}
    with tempfile.TemporaryDirectory() as folder:
        search = SearchOptions(stores=(store,))
        resources = Resources(collection.documents, Path(folder), search)
        gatherer = Gatherer(
            resources,
            models,
            samples=options.samples,
            seed=options.seed,
        )
        evidence = gatherer.gather(queries)
    figures = collection_figures(collection.documents, evidence)
    alike = compare_figures(figures, calibration.figures)
    pairs = [
        decide(evidence, a, b, calibration, alike) for a, b in itertools.combinations(models, 2)
    ]
    expected = expected_values(models, pairs)
    results, scores = _score(collection, evidence, models)
    return {
        "documents": len(collection.documents),
        "in_calibration": collection.documents.content_hash in calibration.corpora,
        "remarks": alike.remarks,
        "expected": {part: value.tolist() for part, value in vars(expected).items()},
        "scores": scores.tolist(),
        "results": results,
        "qrels": collection.qrels,
    }


def _score(
    collection: Collection,
    evidence: Evidence,
    models: Sequence[str],
) -> tuple[dict[str, Any], Doubles]:
    """Return the rankings of every use, and (Q, M) nDCG@10."""
    [measure] = parse_measures("nDCG@10")
    results = {}
    columns = []
    for model in models:
        ranking = evidence.rankings[model]
        results[model] = ranking.results(collection.documents, False, 10)
        scores = score_queries([measure], collection.qrels, results[model])
        columns.append(scores[str(measure)])
    return results, np.stack(columns, axis=1)


class Study:
    """Draws of judged queries of one collection."""

    def __init__(self, searched: dict[str, Any]) -> None:
        self.models = ways_to_use(MODEL)
        self.qrels: dict[str, dict[str, int]] = searched["qrels"]
        self.scores: Doubles = np.array(searched["scores"])
        self.values = self.scores.mean(axis=0)
        self.best = int(self.values.argmax())
        self.worst = int(self.values.argmin())
        self.reference = self.models.index(MODEL)
        expected = {part: np.array(value) for part, value in searched["expected"].items()}
        self.expected = Expected(**expected)
        nothing = Expected.nothing(len(self.models))
        self.rules = {
            "joined": self.expected,
            LABELS_ALONE: replace(nothing, distances=self.expected.distances),
        }
        self.results: dict[str, Results] = {}
        for model, run in searched["results"].items():
            self.results[model] = {
                query: [(document, score) for document, score in hits]
                for query, hits in run.items()
            }

    def judge_queries(
        self,
        count: int,
        draws: int,
        seed: int,
    ) -> dict[str, Any]:
        """Draw judged queries many times, and measure the choices on the queries left."""
        rng = np.random.default_rng([seed, count])
        rows = []
        for _ in range(draws):
            order = rng.permutation(len(self.scores))
            judged = self.scores[order[:count]]
            rows.append(self.measure(judged, np.ones(count), order[count:]))
        return summarize(rows, len(self.scores) - count)

    def judge_pairs(self, count: int, draws: int) -> dict[str, Any]:
        """Draw pairs of some queries many times, as a user is asked for them, and measure."""
        queries = list(self.qrels)
        rows = []
        for seed in range(draws):
            pairs = draw_candidates(
                self.results,
                MODEL,
                "bm25",
                (),
                PER_QUERY * count,
                seed,
            )
            judgements = self._judge(pairs)
            judged = judgements.queries
            left = [row for row, query in enumerate(queries) if query not in judged]
            scores = judged_scores(judgements, list(self.results.values()))
            rows.append(self.measure(scores, query_weights(judgements), left))
        return summarize(rows, len(queries) - count)

    def _judge(self, pairs: Sequence[Any]) -> Judgements:
        """Judge drawn pairs by the labels."""
        queries: dict[str, JudgedQuery] = {}
        for pair in pairs:
            query = queries.setdefault(
                pair.query_id, JudgedQuery(probability=pair.query_probability)
            )
            grade = self.qrels[pair.query_id].get(pair.document_id, 0)
            query.grades[pair.document_id] = grade
            query.probabilities[pair.document_id] = pair.document_probability or 1.0
        return Judgements("drawn", queries)

    def measure(
        self,
        scores: Doubles,
        weights: Doubles,
        left: Sequence[int] | Doubles,
    ) -> dict[str, float]:
        """Choose a use by every rule, and measure it.

        Args:
            scores: (q, M) scores of the judged queries.
            weights: (q,) weights of these queries.
            left: Rows of the queries on which the choice is measured.
        """
        means = self.scores[left].mean(axis=0)
        row = {
            "best": means[self.best],
            "worst": means[self.worst],
        }
        for name in FIXED:
            row[f"fixed {name}"] = means[self.models.index(name)]
        if len(scores):
            posterior = self.rules[LABELS_ALONE].posterior(scores, weights)
            row[LABELS_ALONE] = means[int(np.argmax(posterior.mean))]
        posterior = self.expected.posterior(scores, weights)
        chosen = int(np.argmax(posterior.mean))
        row["joined"] = means[chosen]
        mean, deviation = posterior.difference(self.reference, chosen)
        gain = self.values[chosen] - self.values[self.reference]
        half_width = NORMAL * deviation
        is_better = mean > half_width
        row["interval holds"] = float(abs(gain - mean) <= half_width + 1e-9)
        row["interval width"] = 2 * half_width
        row["better than the encoder alone"] = float(is_better)
        row["of these right"] = float(gain > 0) if is_better else np.nan
        if len(scores) >= FEWEST:
            row |= self.measure_alone(scores, weights, chosen)
        return row

    def measure_alone(
        self,
        scores: Doubles,
        weights: Doubles,
        chosen: int,
    ) -> dict[str, float]:
        """Measure the intervals that judged queries alone give, of the choice and of choosing."""
        distance = float(self.expected.distances[chosen, self.reference])
        differences = scores[:, chosen] - scores[:, self.reference]
        judged = JudgedGain.of(
            differences,
            weights,
            distance,
            MARGIN,
        )
        held_out = held_out_gain(
            self.expected,
            scores,
            weights,
            self.reference,
            MARGIN,
        )
        assert judged.interval is not None
        assert held_out.interval is not None
        gain = self.values[chosen] - self.values[self.reference]
        low, high = held_out.interval
        return {
            "sequence holds": float(judged.interval[0] <= gain <= judged.interval[1]),
            "held-out gain": held_out.difference,
            "held-out width": high - low,
            "held-out gain above 0": float(low > 0),
            "more to settle it": np.nan if held_out.more is None else float(held_out.more),
        }

    def describe(self) -> dict[str, Any]:
        """Return the values of all uses."""
        values = self.values.round(4).tolist()
        return {
            "queries": len(self.scores),
            "values": dict(zip(self.models, values, strict=True)),
            "best": self.models[self.best],
            "worst": self.models[self.worst],
        }


def summarize(rows: Sequence[Mapping[str, float]], left: int) -> dict[str, Any]:
    """Return mean and standard deviation over the draws that define a figure."""
    summary: dict[str, Any] = {"queries_left": left}
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        defined = values[~np.isnan(values)]
        summary[name] = {
            "mean": round(float(defined.mean()), 4) if len(defined) else None,
            "sd": round(float(defined.std(ddof=1)), 4) if len(defined) > 1 else None,
            "draws": len(defined),
        }
    return summary


def means_over(collections: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return means over collections by the number of judged queries."""
    means: dict[str, Any] = {}
    for count in collections[0]["judged"] if collections else ():
        rows = [collection["judged"][count] for collection in collections]
        means[count] = {}
        for name in rows[0]:
            if name == "queries_left":
                continue
            values = [row[name]["mean"] for row in rows]
            if None not in values:
                means[count][name] = round(float(np.mean(values)), 4)
    return means


def group_means(collections: dict[str, Any]) -> dict[str, Any]:
    """Return means over all collections, and over those that the calibration has not seen."""
    every = list(collections.values())
    unseen = [collection for collection in every if not collection["in_calibration"]]
    groups = {
        "all": means_over(every),
        "not in the calibration": means_over(unseen),
    }
    return {group: means for group, means in groups.items() if means}


def describe(groups: dict[str, Any]) -> str:
    """Return the table that the script prints."""
    columns = ["worst", *(f"fixed {name}" for name in FIXED), LABELS_ALONE, "joined", "best"]
    rows = []
    for group, means in groups.items():
        for count, row in means.items():
            cells = [f"{row[name]:.4f}" if name in row else "" for name in columns]
            rows.append([f"{count}, {group}", *cells])
    return markdown_table(["judged queries", *columns], rows)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "few_labels")
    add_work(parser)
    add_collections(parser)
    parser.add_argument(
        "--domains",
        nargs="*",
        default=[],
        help="Also use these of apidocs.",
    )
    integers = {
        "--samples": (200, "Crops, and generated queries, of a collection."),
        "--draws": (50, "Draws of judged queries."),
        "--seed": (42, "The seed of samples and draws."),
    }
    add_integers(parser, integers)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    options.work.mkdir(
        parents=True,
        exist_ok=True,
    )
    datasets = {f"apidocs/{name}": f"apidocs/{name}" for name in options.domains}
    if options.collections:
        datasets |= {name: str(options.collections / name) for name in COLLECTIONS}
    started = time.process_time()
    collections = {}
    for name, dataset in datasets.items():
        searched = search_all(name, dataset, options)
        study = Study(searched)
        rows = {}
        for count in JUDGED:
            rows[str(count)] = study.judge_queries(count, options.draws, options.seed)
        rows[f"{DRAWN} drawn"] = study.judge_pairs(DRAWN, options.draws)
        collections[name] = {
            "documents": searched["documents"],
            "in_calibration": searched["in_calibration"],
            "remarks": searched["remarks"],
            "searching_processor_seconds": searched["processor_seconds"],
            **study.describe(),
            "judged": rows,
        }
        print(name, {count: row["joined"]["mean"] for count, row in rows.items()}, flush=True)
    settings = {name: getattr(options, name) for name in ("draws", "seed", "samples")}
    groups = group_means(collections)
    results = origin() | {
        "settings": settings | {"model": MODEL},
        "processor_seconds": round(time.process_time() - started, 1),
        "collections": collections,
        "means": groups,
    }
    write_results(options.results, results)
    print(describe(groups))


if __name__ == "__main__":
    main()
