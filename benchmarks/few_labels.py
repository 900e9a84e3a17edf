"""Claim: a few judged queries choose the best use of an encoder.

BM25 and the uses of MiniLM that need no training were searched on labelled collections
(``collect.py``). What is expected of them without labels comes from a calibration that was fitted
without the collection and its family. Of each collection 0, 10, 20 or 50 queries are drawn as
judged, 50 times. A use is chosen by the estimate that joins them with what is expected, and
measured on the queries that are left. It is compared with the choice by labels alone; with the
choice by twenty queries, when only ten drawn pairs of each are judged, as ``labels_wanted.tsv``
asks for them; with the best and the worst use; and with fixed uses. Collections on which BM25 is at
0.9 or above, that are judged in pools, or that have fewer than 70 queries take no part.

The script prints the means of all choices, and writes ``benchmarks/results/few_labels.json``:

    python benchmarks/few_labels.py --work runs/collect
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from collecting.query_sets import QUERIES
from collecting.searched import Searched, load_searched
from fitting.judged_collections import FITTED, JudgedCollection, use_of
from fitting.left_out import calibrate
from fitting.moment_fit import CAUTION
from harness.page import Marks, markdown_table
from harness.script import add_integers, add_work, option_parser, origin, write_results

from beir_cocodr.arrays import Doubles
from beir_cocodr.data.judgements import JudgedQuery, Judgements
from beir_cocodr.evaluation.annotation import PER_QUERY, draw_candidates
from beir_cocodr.evaluation.calibration import Calibration
from beir_cocodr.evaluation.few_labels import (
    FEWEST,
    NORMAL,
    Expected,
    JudgedGain,
    held_out_gain,
    judged_scores,
    query_weights,
)
from beir_cocodr.evaluation.label_free.likeness import compare_figures
from beir_cocodr.evaluation.label_free.verdict import GIVEN_QUERIES, decide, expected_values
from beir_cocodr.retrieval.ranking import Results

MODEL = "minilm"
#: Uses that are taken whatever the labels say.
FIXED = ("minilm", "bm25", "hybrid@0.5:minilm", "feedback@0.5:minilm")
#: Numbers of judged queries.
JUDGED = (0, 10, 20, 50)
#: Queries that are judged by a few drawn pairs each.
DRAWN = 20
#: The fewest queries of a collection.
LEAST_QUERIES = 70
#: The largest gain that counts as none.
MARGIN = 0.01
#: Around the table of docs/results.md.
MARKS = Marks("<!-- few labels -->", "<!-- end of few labels -->")
LABELS_ALONE = "labels alone"


def calibration_without(
    family: str,
    collections: Sequence[JudgedCollection],
) -> Calibration:
    """Return the calibration that is fitted to all collections but those of a family."""
    others = [one.fitted(GIVEN_QUERIES) for one in collections if one.searched.family != family]
    model, figures = calibrate(others, caution=CAUTION[GIVEN_QUERIES])
    return Calibration([], [], {}, "", {GIVEN_QUERIES: model}, MARGIN, figures)


def undamaged_uses(searched: Searched) -> list[str]:
    """Return BM25 and the uses of the encoder, without known defects."""
    names = []
    for name, system in searched.systems.items():
        if not system.is_defect and use_of(searched, name) in FITTED:
            names.append(name)
    return names


def expect(
    one: JudgedCollection,
    models: Sequence[str],
    calibration: Calibration,
) -> Expected:
    """Return what a calibration expects of some systems without labels."""
    alike = compare_figures(one.pairs[GIVEN_QUERIES].figures, calibration.figures)
    evidence = one.searched.with_queries
    pairs = [
        decide(evidence, a, b, calibration, alike) for a, b in itertools.combinations(models, 2)
    ]
    return expected_values(models, pairs)


class Study:
    """Draws of judged queries of one collection.

    Args:
        searched: The collection.
        models: The systems.
        expected: What is expected of them.
    """

    def __init__(
        self,
        searched: Searched,
        models: Sequence[str],
        expected: Expected,
    ) -> None:
        """Read the scores and the rankings of the systems."""
        self.models = list(models)
        collection = searched.parent.load()
        self.queries = list(searched.query_sets[QUERIES].queries)
        self.qrels = {query: collection.qrels[query] for query in self.queries}
        self.scores: Doubles = np.stack([searched.scores[name] for name in models], axis=1)
        self.values = self.scores.mean(axis=0)
        self.best = int(self.values.argmax())
        self.worst = int(self.values.argmin())
        self.reference = self.models.index(MODEL)
        self.expected = expected
        nothing = Expected.nothing(len(self.models))
        self.from_nothing = replace(nothing, distances=expected.distances)
        ids = list(collection.documents)
        self.results: dict[str, Results] = {}
        for name in models:
            ranked = searched.ranked(name, QUERIES)
            run = {}
            for query, rows, scores in zip(self.queries, ranked.rows, ranked.scores, strict=True):
                hits = zip(rows.tolist(), scores.tolist(), strict=True)
                run[query] = [(ids[row], score) for row, score in hits if row >= 0]
            self.results[name] = run

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
            left = [row for row, query in enumerate(self.queries) if query not in judged]
            scores = judged_scores(judgements, list(self.results.values()))
            rows.append(self.measure(scores, query_weights(judgements), left))
        return summarize(rows, len(self.queries) - count)

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
            posterior = self.from_nothing.posterior(scores, weights)
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
    """Return means over the draws of all collections by the number of judged queries."""
    means: dict[str, Any] = {}
    for count in collections[0]["judged"] if collections else ():
        rows = [collection["judged"][count] for collection in collections]
        means[count] = {}
        for name in rows[0]:
            if name == "queries_left":
                continue
            defined = [row[name] for row in rows if row[name]["draws"]]
            if defined:
                values = [figure["mean"] for figure in defined]
                draws = [figure["draws"] for figure in defined]
                means[count][name] = round(float(np.average(values, weights=draws)), 4)
    return means


#: Figure to its header in the table.
COLUMNS = {
    "worst": "worst",
    "fixed bm25": "BM25",
    "fixed minilm": "MiniLM",
    "fixed hybrid@0.5:minilm": "fusion",
    LABELS_ALONE: "chosen, alone",
    "joined": "chosen",
    "best": "best",
    "better than the encoder alone": "decided",
    "of these right": "of these right",
}


def describe(means: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table that the script prints."""
    rows = []
    for count, row in means.items():
        rows.append([count, *(f"{row[name]:.3f}" if name in row else "" for name in COLUMNS)])
    return markdown_table(["judged queries", *COLUMNS.values()], rows)


def parse_options() -> argparse.Namespace:
    """Return the options of the script."""
    parser = option_parser(__doc__, "few_labels")
    add_work(parser, "runs/benchmark-collect")
    integers = {
        "--draws": (50, "Draws of judged queries."),
        "--seed": (42, "The seed of draws."),
    }
    add_integers(parser, integers)
    return parser.parse_args()


def judge_collection(
    one: JudgedCollection,
    calibration: Calibration,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Return the figures of a collection by the number of judged queries."""
    models = undamaged_uses(one.searched)
    study = Study(one.searched, models, expect(one, models, calibration))
    rows = {}
    for count in JUDGED:
        rows[str(count)] = study.judge_queries(count, options.draws, options.seed)
    rows[f"{DRAWN} drawn"] = study.judge_pairs(DRAWN, options.draws)
    return {"family": one.searched.family, **study.describe(), "judged": rows}


def main() -> None:
    """Judge all collections, and print and write the results."""
    options = parse_options()
    started = time.process_time()
    collections = []
    for searched in load_searched(options.work, (MODEL,)):
        if not searched.facts.pooled:
            collections.append(JudgedCollection.of(searched))
    calibrations: dict[str, Calibration] = {}
    figures = {}
    for one in collections:
        if one.is_easy or len(one.searched.query_sets[QUERIES].queries) < LEAST_QUERIES:
            continue
        family = one.searched.family
        if family not in calibrations:
            calibrations[family] = calibration_without(family, collections)
        figures[one.name] = judge_collection(one, calibrations[family], options)
        joined = {
            count: row["joined"]["mean"] for count, row in figures[one.name]["judged"].items()
        }
        print(one.name, joined, flush=True)
    if not figures:
        raise SystemExit(
            f"{options.work}: no collection takes part; collect some with {LEAST_QUERIES} queries "
            "on which BM25 is below 0.9"
        )
    means = means_over(list(figures.values()))
    results = origin() | {
        "settings": {"draws": options.draws, "seed": options.seed, "model": MODEL},
        "processor_seconds": round(time.process_time() - started, 1),
        "collections": figures,
        "means": means,
    }
    write_results(options.results, results)
    print(describe(means))


if __name__ == "__main__":
    main()
