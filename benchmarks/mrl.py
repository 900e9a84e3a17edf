"""Means and variances against plain vectors: two students of one teacher, over seeds.

An MRL and a dot-product student of the same width start from MiniLM and are distilled from the same
hybrid teacher (BM25 and MiniLM) on the same queries, lists and steps; both are evaluated on other
API documentation and, where
--collections names their folder, on the test collections cranfield, cisi, npl and time, cut to --documents. Then MRL's
sensitivity to beta, and the correlation of its variance with per-query quality beside pre-retrieval
predictors. Each model and each evaluation is a cell that is kept in --output and not made again.
Writes benchmarks/results/mrl.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import machine
from study import judge, judged_targets, markdown_targets, seconds_of_cells, targets

from beir_cocodr.analysis.predictors import variance_predictors
from beir_cocodr.analysis.qpp import qpp
from beir_cocodr.io import write_text
from beir_cocodr.models.loading import model_source
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.records import versions
from beir_cocodr.training.distill import distill
from beir_cocodr.training.options import DistillOptions

RESULTS = Path(__file__).parent / "results" / "mrl.json"
SOURCE = "apidocs/pandas"
TARGETS = ["apidocs/scipy", "apidocs/sklearn"]
TEACHER = "hybrid"
ENCODER = EncoderOptions(document_length=128)
STUDENTS = ("dot", "mrl")
ROWS = ("base", "mrl untrained", *STUDENTS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 42, 97])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--batch", type=int, default=8, help="queries, each with a list of 8 documents"
    )
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument(
        "--betas", type=float, nargs="*", default=[0.25, 10], help="beside 1, first seed"
    )
    parser.add_argument("--queries", type=int, default=200, help="most queries of a target")
    parser.add_argument(
        "--documents", type=int, default=1000, help="of a test collection, beside judged ones"
    )
    parser.add_argument("--collections", type=Path, help="folder with cranfield, cisi, npl, time")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-mrl"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if len(arguments.seeds) < 2:
        parser.error("a spread needs at least two seeds")
    study = Study(arguments)
    report = study.report(study.students(), study.betas(), study.predictors())
    write_text(arguments.results, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(markdown(report))


class Study:
    """All cells, each made once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.output = arguments, arguments.output
        self.targets = targets(TARGETS, arguments.collections, self.output, arguments.documents)

    def students(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Row to target to the results of its seeds."""
        rows: dict[str, dict[str, list[dict[str, Any]]]] = {row: {} for row in ROWS}
        count = len(self.arguments.seeds)
        for row, model in (("base", "minilm"), ("mrl untrained", self.untrained())):
            for target in self.targets:
                rows[row][target] = [self.judge(model, row, target)] * count
        for seed in self.arguments.seeds:
            for row in STUDENTS:
                model = self.trained(seed, row)
                for target in self.targets:
                    rows[row].setdefault(target, []).append(
                        self.judge(model, f"{row}-{seed}", target)
                    )
        return rows

    def betas(self) -> list[dict[str, Any]]:
        """MRL with other softplus curves, the first seed, our own targets."""
        seed, points = self.arguments.seeds[0], []
        for beta in sorted({1.0, *self.arguments.betas}):
            name = "mrl" if beta == 1 else f"mrl-beta{beta:g}"
            model = self.trained(seed, "mrl", name, None if beta == 1 else beta)
            for target in TARGETS:
                found = self.judge(model, f"{name}-{seed}", target)
                points.append({"beta": beta, "seed": seed, "target": target, **found["measures"]})
        return points

    def predictors(self) -> dict[str, list[dict[str, Any]]]:
        """Target to correlations of each seed's MRL."""
        found: dict[str, list[dict[str, Any]]] = {}
        for target, collection in self.targets.items():
            for seed in self.arguments.seeds:
                model = str(self.output / "models" / f"mrl-{seed}")
                cell = self.judge(model, f"mrl-{seed}", target)
                quality = dict(zip(cell["query_ids"], cell["per_query"], strict=True))
                variance = variance_predictors(model, collection, encoder=ENCODER)
                folder = self.output / "qpp" / f"{target.replace('/', '-')}-{seed}"
                prediction = qpp(collection, model, folder, quality, extra=variance)
                rows = {row.predictor: asdict(row) for row in prediction.record.predictors}
                found.setdefault(target, []).append({"seed": seed, **rows})
        return found

    def trained(
        self, seed: int, student: str, name: str | None = None, beta: float | None = None
    ) -> str:
        options = DistillOptions(
            student=student,
            beta=beta,
            max_steps=self.arguments.steps,
            batch_size=self.arguments.batch,
            learning_rate=self.arguments.learning_rate,
            warmup=0.1,
            held_out=0.0,  # equal steps, no early stopping
            positives=1,
            m_bm25=3,
            m_hard=4,
            seed=seed,
        )
        folder = self.output / "models" / f"{name or student}-{seed}"
        distill(SOURCE, "minilm", TEACHER, folder, options, resume=True, encoder=ENCODER)
        return str(folder)

    def untrained(self) -> str:
        """The start of the first seed's MRL."""
        seed = self.arguments.seeds[0]
        folder = self.output / "models" / f"untrained-{seed}"
        if not (folder / "modules.json").is_file():
            MRL(model_source("minilm"), seed=seed, **ENCODER.overrides()).save_pretrained(
                str(folder)
            )
        return str(folder)

    def judge(self, model: str, name: str, target: str) -> dict[str, Any]:
        folder = self.output / "results" / name.replace(" ", "-") / target.replace("/", "-")
        return judge(model, self.targets[target], folder, self.arguments.queries, encoder=ENCODER)

    def report(
        self,
        rows: dict[str, dict[str, list[dict[str, Any]]]],
        betas: list[dict[str, Any]],
        predictors: dict[str, list[dict[str, Any]]],
    ) -> dict[str, Any]:
        families = {
            "mrl against dot": [("dot", "mrl")],
            "against base": [("base", student) for student in STUDENTS],
        }
        settings = {k: v for k, v in vars(self.arguments).items() if not isinstance(v, Path)}
        return {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "seconds_of_all_cells": round(seconds_of_cells(self.output)),
            "settings": settings | {"source": SOURCE, "teacher": TEACHER, **ENCODER.overrides()},
            "training": {
                folder.name: record(folder)
                for folder in sorted((self.output / "models").glob("*-*"))
            },
            "targets": judged_targets(rows, families),
            "beta": betas,
            "query_performance": predictors,
            "versions": versions(),
        }


def record(folder: Path) -> dict[str, Any]:
    """How training went."""
    file = folder / "training.json"
    if not file.is_file():
        return {}
    training = json.loads(file.read_text())
    return {name: training[name] for name in ("lists", "training_loss", "seconds")}


def markdown(report: dict[str, Any]) -> str:
    lines = markdown_targets(report["targets"], ROWS)
    lines += [f"beta {p['beta']:g}, {p['target']}: {p['nDCG@10']:.4f}" for p in report["beta"]]
    for target, seeds in report["query_performance"].items():
        for name in [name for name in seeds[0] if name != "seed"]:
            told = ", ".join(
                "none" if s[name]["pearson"] is None else f"{s[name]['pearson']:+.3f}"
                for s in seeds
            )
            lines.append(f"{target}: {name}: Pearson {told}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
