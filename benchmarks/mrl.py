"""Claim: an encoder of means and variances (MRL) ranks better than one of plain vectors.

An MRL and a dot-product student of the same width start from MiniLM. The same hybrid teacher (BM25
and MiniLM) distils both with the same queries, lists and steps. Targets are API documentation and,
with ``--collections``, four classic test collections, cut to ``--documents``. The sensitivity of
MRL to beta follows, and the correlation of its variance with the quality of queries, beside
pre-retrieval predictors. Every model and evaluation is kept in ``--work`` and not repeated.

The script prints nDCG@10 of every row on every target, the paired tests and the correlations, and
writes ``benchmarks/results/mrl.json``:

    python benchmarks/mrl.py [--seeds 13 42 97] [--collections DIR]
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.script import add_integers, read_json, write_results
from harness.study import Rows, TargetStudy, describe_targets, study_parser

from beir_cocodr.analysis.predictors import variance_predictors
from beir_cocodr.analysis.qpp import qpp
from beir_cocodr.models.checkpoints.loading import model_source
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.options import DistillOptions

SOURCE = "apidocs/pandas"
TARGETS = ["apidocs/scipy", "apidocs/sklearn"]
TEACHER = "hybrid"
ENCODER = EncoderOptions(document_length=128)
STUDENTS = ("dot", "mrl")
ROWS = ("base", "mrl untrained", *STUDENTS)
FAMILIES = {
    "mrl against dot": [("dot", "mrl")],
    "against base": [("base", student) for student in STUDENTS],
}


class Study(TargetStudy):
    """All models and evaluations, each computed once."""

    def rows(self) -> Rows:
        """Evaluate the base, the untrained MRL and both students on every target."""
        rows: Rows = {}
        self.judge_untrained(rows, "base", "minilm")
        self.judge_untrained(rows, "mrl untrained", self.untrained())
        for seed in self.options.seeds:
            for student in STUDENTS:
                self.judge_trained(rows, student, seed, self.distill(seed, student, student))
        return rows

    def betas(self) -> list[dict[str, Any]]:
        """Evaluate MRL with other softplus curves, on the first seed and our own targets."""
        seed = self.options.seeds[0]
        points = []
        for beta in sorted({1.0, *self.options.betas}):
            if beta == 1:
                name = "mrl"
                model = self.distill(seed, "mrl", name)
            else:
                name = f"mrl-beta{beta:g}"
                model = self.distill(
                    seed,
                    "mrl",
                    name,
                    beta,
                )
            for target in TARGETS:
                cell = self.judge(model, f"{name}-{seed}", target)
                points.append(
                    {
                        "beta": beta,
                        "seed": seed,
                        "target": target,
                        **cell.measures,
                    }
                )
        return points

    def predictors(self) -> dict[str, list[dict[str, Any]]]:
        """Correlate predictors with the quality of queries, on every target and with every seed."""
        correlations: dict[str, list[dict[str, Any]]] = {}
        for target, collection in self.targets.items():
            correlations[target] = []
            for seed in self.options.seeds:
                model = str(self.model_folder("mrl", seed))
                cell = self.judge(model, f"mrl-{seed}", target)
                variance = variance_predictors(model, collection, encoder=self.encoder)
                folder = self.work / "qpp" / f"{target.replace('/', '-')}-{seed}"
                prediction = qpp(
                    model,
                    collection,
                    output=folder,
                    per_query=cell.per_query,
                    predictors=variance,
                )
                rows = {row.predictor: asdict(row) for row in prediction.record.predictors}
                correlations[target].append(
                    {
                        "seed": seed,
                        **rows,
                    }
                )
        return correlations

    def distill(
        self,
        seed: int,
        student: str,
        name: str,
        beta: float | None = None,
    ) -> str:
        """Distil a student, and return its folder."""
        options = DistillOptions.of(
            student=student,
            beta=beta,
            max_steps=self.options.steps,
            batch_size=self.options.batch,
            learning_rate=self.options.learning_rate,
            warmup=0.1,
            held_out=0.0,  # Both students train for the same number of steps.
            positives=1,
            m_bm25=3,
            m_hard=4,
            seed=seed,
        )
        folder = self.model_folder(name, seed)
        distill(
            "minilm",
            SOURCE,
            teacher=TEACHER,
            output=folder,
            options=options.with_overrides(encoder=self.encoder),
            resume=True,
        )
        return str(folder)

    def untrained(self) -> str:
        """Save the MRL that the first seed starts from, and return its folder."""
        seed = self.options.seeds[0]
        folder = self.model_folder("untrained", seed)
        if not (folder / "modules.json").is_file():
            model = MRL(
                model_source("minilm"),
                seed=seed,
                **self.encoder.overrides(),
            )
            model.save_pretrained(str(folder))
        return str(folder)


def describe_training(folder: Path) -> dict[str, Any]:
    """Return lists, loss and seconds of a training; an untrained model has none."""
    file = folder / "training.json"
    if not file.is_file():
        return {}
    record = read_json(file)
    return {name: record[name] for name in ("lists", "training_loss", "seconds")}


def describe(results: dict[str, Any]) -> str:
    """Return the tables that the script prints."""
    lines = describe_targets(results["targets"], ROWS)
    for point in results["beta"]:
        lines.append(f"beta {point['beta']:g}, {point['target']}: {point['nDCG@10']:.4f}")
    for target, seeds in results["query_performance"].items():
        for predictor in seeds[0]:
            if predictor != "seed":
                values = [_correlation(seed[predictor]["pearson"]) for seed in seeds]
                lines.append(f"{target}: {predictor}: Pearson {', '.join(values)}")
    return "\n".join(lines)


def _correlation(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"


def parse_options() -> argparse.Namespace:
    parser = study_parser(__doc__, "mrl")
    sizes = {
        "--steps": (40, "Steps of each distillation."),
        "--batch": (8, "Queries of a step, each with a list of 8 documents."),
        "--queries": (200, "The most queries of a target."),
        "--documents": (1000, "The most documents of a test collection."),
    }
    add_integers(parser, sizes)
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=2e-5,
        help="The learning rate. Default: 2e-5.",
    )
    parser.add_argument(
        "--betas",
        type=float,
        nargs="*",
        default=[0.25, 10],
        help="Values of beta beside 1.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    study = Study(options, TARGETS, ENCODER)
    rows = study.rows()
    betas = study.betas()
    predictors = study.predictors()
    trained = sorted((options.work / "models").glob("*-*"))
    fixed = {
        "source": SOURCE,
        "teacher": TEACHER,
        **ENCODER.overrides(),
    }
    results = study.results(rows, FAMILIES, fixed) | {
        "training": {folder.name: describe_training(folder) for folder in trained},
        "beta": betas,
        "query_performance": predictors,
    }
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
