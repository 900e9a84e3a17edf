"""How often a verdict without labels is right: pairs of models on labelled collections, and the pick of one.

Models are BM25, MiniLM, its fusion and its feedback, copies of MiniLM that are worse on purpose (noise on the weights,
fewer layers), and those named with --model. Every pair is judged without labels and with them on every collection: API
documentation and, where --collections names their folder, cranfield, cisi, npl and time, cut to --documents (all judged
and a random sample). The rule is fitted with each collection left out in turn, and then to all of them, which is the
calibration that the package carries. A collection is a cell that is kept in --output and not searched again. Writes
benchmarks/results/verdict.json and the calibration.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from label_free_fitting import LabelledPair, count_trust, fit_threshold, fit_weights, leave_one_out
from machine import machine
from study import targets

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.compare import COMPARISON_FILE, compare_models
from beir_cocodr.evaluation.label_free.estimates import kind
from beir_cocodr.evaluation.label_free.verdict import CALIBRATION_FILE, choose, decide
from beir_cocodr.evaluation.measures import compare, parse_measures, score_queries
from beir_cocodr.evaluation.records import ComparisonRecord, PairedTest
from beir_cocodr.evaluation.runs import file_names, ranked_run
from beir_cocodr.io import write_text
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.records import versions

RESULTS = Path(__file__).parent / "results" / "verdict.json"
DOMAINS = ["stdlib", "numpy", "pandas", "torch", "scipy", "sklearn"]
METHODS = ["bm25", "minilm", "hybrid:minilm", "feedback:minilm"]
MEASURE, LEVEL = "nDCG@10", 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", nargs="*", default=DOMAINS, help="of apidocs")
    parser.add_argument("--dataset", nargs="*", default=[], help="further labelled collections")
    parser.add_argument("--collections", type=Path, help="folder with cranfield, cisi, npl, time")
    parser.add_argument("--documents", type=int, default=2500, help="most documents of a test collection")
    parser.add_argument("--queries", type=int, default=200, help="most queries of a collection")
    parser.add_argument("--document-length", type=int, default=128, help="tokens of a document")
    parser.add_argument("--samples", type=int, default=300, help="crops, and generated queries")
    parser.add_argument("--model", nargs="*", default=[], help="adapted models, also judged as methods")
    parser.add_argument("--noise", type=float, nargs="*", default=[0.1, 0.2, 0.4])
    parser.add_argument("--layers", type=int, nargs="*", default=[5, 4])
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-verdict"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--calibration", type=Path, default=CALIBRATION_FILE, help="where it is written")
    arguments = parser.parse_args()
    study = Study(arguments)
    for name in study.collections:
        study.judge(name)
    report, calibration = study.report()
    write_text(arguments.results, json.dumps(report, indent=2) + "\n")
    write_text(arguments.calibration, json.dumps(calibration, indent=2) + "\n")
    print(markdown(report))


@dataclass(frozen=True)
class Cell:
    """A collection, compared without labels and judged with them: tests and means, queries, seconds."""

    comparison: ComparisonRecord
    tests: dict[tuple[str, str], PairedTest]
    values: dict[str, float]
    queries: int
    seconds: float


class Study:
    """All collections, each searched once, and what is learned from them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.output = arguments, arguments.output
        own = [f"apidocs/{name}" for name in arguments.domains] + arguments.dataset
        self.collections = targets(own, arguments.collections, self.output, arguments.documents)
        self.methods = METHODS + arguments.model
        damaged = [self.damaged(f"noise-{x:g}", noise=x) for x in arguments.noise]
        damaged += [self.damaged(f"layers-{n}", layers=n) for n in arguments.layers]
        self.models = self.methods + damaged + [f"hybrid:{model}" for model in damaged[-1:]]
        self.cells: dict[str, Cell] = {}

    def damaged(self, name: str, noise: float = 0.0, layers: int | None = None) -> str:
        """A copy of MiniLM with noise of so many standard deviations of each weight, or its first layers."""
        import torch

        from beir_cocodr.models.loading import load_encoder

        folder = self.output / "models" / name
        if (folder / "done").is_file():
            return str(folder)
        model: Any = load_encoder("minilm", EncoderOptions(device="cpu"))
        generator = torch.Generator().manual_seed(self.arguments.seed)
        with torch.no_grad():
            for weight in model.parameters() if noise else ():
                if weight.ndim > 1:
                    weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
        if layers is not None:
            inner = model[0].auto_model
            inner.encoder.layer = inner.encoder.layer[:layers]
            inner.config.num_hidden_layers = layers
        model.save_pretrained(str(folder))
        write_text(folder / "done", "")
        return str(folder)

    def judge(self, name: str) -> None:
        """Search one collection without its labels, unless that was done, and judge the runs with them."""
        folder = self.output / "cells" / name.replace("/", "-")
        if not (folder / COMPARISON_FILE).is_file():
            begun = time.perf_counter()
            compare_models(
                self.models,
                self.collections[name],
                folder,
                labels=False,
                queries=self.arguments.queries,
                samples=self.arguments.samples,
                seed=self.arguments.seed,
                search=SearchOptions(EncoderOptions(document_length=self.arguments.document_length)),
            )
            write_text(folder / "seconds.json", json.dumps(time.perf_counter() - begun))
        comparison = ComparisonRecord.read(folder / COMPARISON_FILE)
        if comparison.models != self.models:
            raise SystemExit(f"{folder} was made with other models; choose another --output")
        runs = {m: ranked_run(folder / f"{file}.run") for m, file in file_names(self.models).items()}
        asked = set().union(*runs.values())
        qrels = load_collection(self.collections[name]).qrels
        judged = {query: grades for query, grades in qrels.items() if query in asked}
        scores = {m: score_queries(parse_measures(MEASURE), judged, run) for m, run in runs.items()}
        pairs = list(itertools.combinations(self.models, 2))
        tests = {(test.a, test.b): test for test in compare(scores, {"pairs": pairs})}
        values = {m: float(found[MEASURE].mean()) for m, found in scores.items()}
        seconds = json.loads((folder / "seconds.json").read_text())
        self.cells[name] = Cell(comparison, tests, values, len(judged), seconds)

    def labelled_pairs(self) -> list[LabelledPair]:
        pairs = []
        for name, cell in self.cells.items():
            for pair in cell.comparison.estimated:
                test = cell.tests[pair.a, pair.b]
                significant = test.t_p is not None and test.t_p < LEVEL and test.difference != 0
                truth = ("better" if test.difference > 0 else "worse") if significant else "cannot tell"
                pairs.append(LabelledPair(name, pair.a, pair.b, pair.features, test.difference, truth))
        return pairs

    def report(self) -> tuple[dict[str, Any], dict[str, Any]]:
        pairs = self.labelled_pairs()
        rows = leave_one_out(pairs)
        weights, threshold, trust = fit_weights(pairs), fit_threshold(pairs), count_trust(rows)
        # The rule of a package without a calibration, for comparison.
        voted = [row | {"verdict": vote} for row, vote in zip(rows, self.votes(pairs), strict=True)]
        date = datetime.date.today().isoformat()
        settings = {k: v for k, v in vars(self.arguments).items() if not isinstance(v, Path)}
        report = {
            "date": date,
            "machine": machine(),
            "settings": settings | {"measure": MEASURE, "level": LEVEL, "models": self.models},
            "collections": {
                name: {
                    "documents": cell.comparison.documents,
                    "queries": cell.queries,
                    "seconds": round(cell.seconds, 1),
                    "values": cell.values,
                    "pseudo_queries": {k: asdict(v) for k, v in cell.comparison.pseudo_queries.items()},
                    "counts": count_trust([row for row in rows if row["collection"] == name]),
                }
                for name, cell in self.cells.items()
            },
            "counts": trust,
            "counts_by_vote": count_trust(voted),
            "pick": self.pick(rows),
            "weights": weights,
            "threshold": threshold,
            "pairs": [
                row | {"features": dict(pair.features), "difference": pair.difference}
                for row, pair in zip(rows, pairs, strict=True)
            ],
            "versions": versions(),
        }
        calibration = {
            "calibrated": True,
            "weights": weights,
            "threshold": threshold,
            "collections": list(self.cells),
            "corpora": [cell.comparison.corpus_sha256 for cell in self.cells.values()],
            "trust": trust,
            "date": date,
        }
        return report, calibration

    def votes(self, pairs: list[LabelledPair]) -> list[str]:
        """The verdicts by vote on the same pairs."""
        found = {
            (name, pair.a, pair.b): pair.estimates
            for name, cell in self.cells.items()
            for pair in cell.comparison.estimated
        }
        return [decide(found[pair.collection, pair.a, pair.b], pair.a, pair.b, None).verdict for pair in pairs]

    def pick(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The method picked on each collection without labels, beside every constant choice and the best."""
        picked = {}
        for name in self.cells:
            scores = {
                (row["a"], row["b"]): 2 * row["probability"] - 1
                for row in rows
                if row["collection"] == name and row["a"] in self.methods and row["b"] in self.methods
            }
            picked[name] = choose(self.methods, scores)[0]
        values = {name: cell.values for name, cell in self.cells.items()}
        return {
            "picked": picked,
            "mean_of_picks": float(np.mean([values[name][model] for name, model in picked.items()])),
            "mean_of_constants": {
                method: float(np.mean([found[method] for found in values.values()])) for method in self.methods
            },
            "mean_of_oracle": float(
                np.mean([max(found[method] for method in self.methods) for found in values.values()])
            ),
        }


def markdown(report: dict[str, Any]) -> str:
    lines = ["| pairs | right | wrong | cannot tell | labels cannot tell: decided | left open |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for title, counts in (("", report["counts"]), (", by vote", report["counts_by_vote"])):
        for family, found in counts.items():
            lines.append(f"| {family}{title} | " + " | ".join(str(value) for value in found.values()) + " |")
    lines += ["", f"| choice | mean {MEASURE} |", "| --- | --- |"]
    pick = report["pick"]
    for method, value in pick["mean_of_constants"].items():
        lines.append(f"| always {method} ({kind(method)}) | {value:.4f} |")
    lines.append(f"| picked without labels | {pick['mean_of_picks']:.4f} |")
    lines.append(f"| best of each (labels) | {pick['mean_of_oracle']:.4f} |")
    lines += ["", f"threshold {report['threshold']:.2f}; weights:"]
    lines += [f"- {name}: {weight:+.2f}" for name, weight in report["weights"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
