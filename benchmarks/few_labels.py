"""What choosing by a few judged queries is worth.

All uses of one encoder that need no training are searched on labelled collections. Of each
collection 0, 10, 20 or 50 queries are drawn as judged, 50 times; a use is chosen by the estimate
that joins them with what is expected without labels, and measured on the queries that are left.
Beside it: the choice by labels alone; the choice by twenty queries of which just ten drawn pairs
each are judged, as labels_wanted.tsv asks for them; the best and the worst use, and fixed ones. Run
as:

    python benchmarks/few_labels.py --work DIR --collections FOLDER

Stores of the encoder and what was searched are kept in --work. Writes
benchmarks/results/few_labels.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from study import COLLECTIONS

from beir_cocodr import SearchOptions, load_collection
from beir_cocodr.arrays import Doubles
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
from beir_cocodr.evaluation.label_free.evidence import Gatherer
from beir_cocodr.evaluation.label_free.likeness import collection_figures, compare_figures
from beir_cocodr.evaluation.label_free.verdict import expected_values, load_calibration
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.io import write_text
from beir_cocodr.models.spec import ways_to_use
from beir_cocodr.records import versions
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode

RESULTS = Path(__file__).parent / "results" / "few_labels.json"
MODEL, FIXED = "minilm", ("minilm", "bm25", "hybrid@0.5:minilm", "feedback@0.5:minilm")
JUDGED, DRAWN, MARGIN = (0, 10, 20, 50), 20, 0.01


def search(name: str, dataset: str, work: Path, samples: int, seed: int) -> dict[str, Any]:
    """What is expected of every use, and what it found: from the work folder, if it is there."""
    file = work / f"{name.replace('/', '-')}.{samples}.{seed}.json"
    if file.is_file():
        return json.loads(file.read_text())  # type: ignore[no-any-return]
    began, store = time.process_time(), work / name.replace("/", "-")
    encode(dataset, MODEL, store)
    collection, models, calibration = (
        load_collection(dataset),
        ways_to_use(MODEL),
        load_calibration(),
    )
    queries = {query: collection.queries[query] for query in collection.qrels}
    with tempfile.TemporaryDirectory() as folder:
        options = SearchOptions(stores=(store,))
        resources = Resources(collection.documents, Path(folder), options)
        gatherer = Gatherer(resources, models, samples=samples, seed=seed)
        evidence = gatherer.gather(queries)
    alike = compare_figures(collection_figures(collection.documents, evidence), calibration.ranges)
    expected = expected_values(evidence, models, calibration, alike)
    results = {
        model: evidence.rankings[model].results(collection.documents, False, 10) for model in models
    }
    [measure] = parse_measures("nDCG@10")
    scores = [
        score_queries([measure], collection.qrels, found)[str(measure)]
        for found in results.values()
    ]
    content = {
        "documents": len(collection.documents),
        "in_calibration": collection.documents.content_hash in calibration.corpora,
        "remarks": alike.remarks,
        "expected": {part: value.tolist() for part, value in vars(expected).items()},
        "scores": np.stack(scores, axis=1).tolist(),
        "results": results,
        "qrels": collection.qrels,
        "processor_seconds": round(time.process_time() - began, 1),
    }
    write_text(file, json.dumps(content))
    return content


class Study:
    """Draws of judged queries of one collection."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.models, self.found = ways_to_use(MODEL), found
        self.scores: Doubles = np.array(found["scores"])
        self.values = self.scores.mean(axis=0)
        self.best, self.worst = int(self.values.argmax()), int(self.values.argmin())
        self.reference = self.models.index(MODEL)
        self.expected = Expected(
            **{part: np.array(value) for part, value in found["expected"].items()}
        )
        nothing = Expected.nothing(len(self.models))
        self.rules = {
            "joined": self.expected,
            "labels alone": replace(nothing, distances=self.expected.distances),
        }
        self.results: dict[str, Results] = {
            model: {query: [(d, s) for d, s in hits] for query, hits in run.items()}
            for model, run in found["results"].items()
        }

    def row(self, count: int, draws: int, seed: int) -> dict[str, Any]:
        """With so many judged queries: nDCG@10 on those that are left, over draws."""
        rng, rows = np.random.default_rng([seed, count]), []
        for _ in range(draws):
            order = rng.permutation(len(self.scores))
            judged, left = order[:count], order[count:]
            rows.append(self.measure(self.scores[judged], np.ones(count), left))
        return summary(rows, len(self.scores) - count)

    def measure(
        self, scores: Doubles, weights: Doubles, left: Sequence[int] | Doubles
    ) -> dict[str, float]:
        rest = self.scores[left].mean(axis=0)
        found = {"best": rest[self.best], "worst": rest[self.worst]}
        found |= {f"fixed {name}": rest[self.models.index(name)] for name in FIXED}
        for rule, expected in self.rules.items():
            posterior = expected.posterior(scores, weights)
            chosen = int(np.argmax(posterior.mean))
            if rule == "labels alone" and not len(scores):
                continue
            found[rule] = rest[chosen]
            if rule == "joined":
                mean, deviation = posterior.difference(self.reference, chosen)
                true = self.values[chosen] - self.values[self.reference]
                found["interval holds"] = float(abs(true - mean) <= NORMAL * deviation + 1e-9)
                found["interval width"] = 2 * NORMAL * deviation
                found["better than the encoder alone"] = float(mean > NORMAL * deviation)
                found["of these right"] = float(true > 0) if mean > NORMAL * deviation else np.nan
                if len(scores) >= FEWEST:
                    found |= self.alone(scores, weights, chosen, true)
        return found

    def alone(
        self, scores: Doubles, weights: Doubles, chosen: int, true: float
    ) -> dict[str, float]:
        """By judged queries alone: the chosen use's interval, and the gain of choosing."""
        apart = self.expected.distances
        gap = JudgedGain.of(
            scores[:, chosen] - scores[:, self.reference],
            weights,
            float(apart[chosen, self.reference]),
            MARGIN,
        )
        gain = held_out_gain(self.expected, scores, weights, self.reference, MARGIN)
        assert gap.interval is not None
        assert gain.interval is not None
        return {
            "sequence holds": float(gap.interval[0] <= true <= gap.interval[1]),
            "held-out gain": gain.difference,
            "held-out width": gain.interval[1] - gain.interval[0],
            "held-out gain above 0": float(gain.interval[0] > 0),
            "more to settle it": np.nan if gain.more is None else float(gain.more),
        }

    def drawn(self, count: int, draws: int) -> dict[str, Any]:
        """With so many queries, of which ten pairs each are drawn and judged."""
        rows = []
        ids = list(self.found["qrels"])
        for seed in range(draws):
            pairs = draw_candidates(self.results, MODEL, "bm25", (), PER_QUERY * count, seed)
            queries: dict[str, JudgedQuery] = {}
            for pair in pairs:
                one = queries.setdefault(
                    pair.query_id, JudgedQuery(probability=pair.query_probability)
                )
                one.grades[pair.document_id] = self.found["qrels"][pair.query_id].get(
                    pair.document_id, 0
                )
                one.probabilities[pair.document_id] = pair.document_probability or 1.0
            judged = Judgements("drawn", queries)
            left = [i for i, query in enumerate(ids) if query not in queries]
            scores = judged_scores(judged, list(self.results.values()))
            rows.append(self.measure(scores, query_weights(judged), left))
        return summary(rows, len(ids) - count)


def summary(rows: Sequence[dict[str, float]], left: int) -> dict[str, Any]:
    """Means over draws, and their standard deviation where it is a draw's score."""
    found: dict[str, Any] = {"queries_left": left}
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        known = values[~np.isnan(values)]
        found[name] = {
            "mean": round(float(known.mean()), 4) if len(known) else None,
            "sd": round(float(known.std(ddof=1)), 4) if len(known) > 1 else None,
            "draws": len(known),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collections", type=Path, help="folder with cranfield, cisi, npl, time")
    parser.add_argument("--domains", nargs="*", default=[], help="of apidocs")
    parser.add_argument("--work", type=Path, required=True, help="keeps stores and searches")
    parser.add_argument("--samples", type=int, default=200, help="crops, and generated queries")
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    datasets = {f"apidocs/{name}": f"apidocs/{name}" for name in given.domains}
    datasets |= {name: str(given.collections / name) for name in COLLECTIONS if given.collections}
    began, collections, seconds = time.process_time(), {}, 0.0
    for name, dataset in datasets.items():
        found = search(name, dataset, given.work, given.samples, given.seed)
        study = Study(found)
        rows = {str(count): study.row(count, given.draws, given.seed) for count in JUDGED}
        rows[f"{DRAWN} drawn"] = study.drawn(DRAWN, given.draws)
        collections[name] = {
            part: found[part] for part in ("documents", "in_calibration", "remarks")
        } | {
            "queries": len(study.scores),
            "searching_processor_seconds": found["processor_seconds"],
            "values": dict(zip(study.models, study.values.round(4).tolist(), strict=True)),
            "best": study.models[study.best],
            "worst": study.models[study.worst],
            "judged": rows,
        }
        seconds += found["processor_seconds"]
        print(
            name,
            json.dumps({count: row["joined"]["mean"] for count, row in rows.items()}),
            flush=True,
        )
    report = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "settings": {
            "draws": given.draws,
            "seed": given.seed,
            "samples": given.samples,
            "model": MODEL,
        },
        "processor_seconds": round(time.process_time() - began, 1),
        "collections": collections,
        "means": means(collections),
    }
    write_text(given.output, json.dumps(report, indent=1) + "\n")
    print(markdown(report["means"]))


def means(collections: dict[str, Any]) -> dict[str, Any]:
    """Over all collections, and over those that the calibration has not seen, by number of judged
    queries.
    """
    found: dict[str, Any] = {}
    unseen = [one for one in collections.values() if not one["in_calibration"]]
    for group, ones in (("all", list(collections.values())), ("not in the calibration", unseen)):
        for count in ones[0]["judged"] if ones else ():
            rows = [one["judged"][count] for one in ones]
            names = [
                name
                for name in rows[0]
                if name != "queries_left" and all(row[name]["mean"] is not None for row in rows)
            ]
            found.setdefault(group, {})[count] = {
                name: round(float(np.mean([row[name]["mean"] for row in rows])), 4)
                for name in names
            }
    return found


def markdown(means: dict[str, Any]) -> str:
    columns = ("worst", *(f"fixed {name}" for name in FIXED), "labels alone", "joined", "best")
    lines = [f"| judged queries | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    for group, rows in means.items():
        for count, row in rows.items():
            cells = (f"{row[name]:.4f}" if name in row else "" for name in columns)
            lines.append(f"| {count}, {group} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
