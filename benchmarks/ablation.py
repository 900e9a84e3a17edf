"""COCO and iDRO taken away one at a time, on real text, over seeds; iDRO's sensitivity to K and
tau.

MiniLM is pre-trained by COCO on the documents of source and targets and fine-tuned on the source's
queries with BM25 negatives. Targets are API documentation and, where --collections names their
folder, the test collections cranfield, cisi, npl and time, cut to --documents (all judged and a
random sample). Each model and each evaluation is a cell that is kept in --output and not made
again. Writes benchmarks/results/ablation.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

from machine import machine
from study import judge, judged_targets, markdown_targets, seconds_of_cells, targets

from beir_cocodr.io import write_text
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.records import versions
from beir_cocodr.training.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.pretrain import pretrain

RESULTS = Path(__file__).parent / "results" / "ablation.json"
SOURCE = "apidocs/stdlib+numpy+pandas+torch"
TARGETS = ["apidocs/scipy", "apidocs/sklearn"]
ENCODER = EncoderOptions(document_length=128)
#: Row of the table to (starts from COCO?, weighting).
ARMS = {
    "-COCO": (False, "idro"),
    "-iDRO": (True, "erm"),
    "GroupDRO": (True, "groupdro"),
    "full": (True, "idro"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 42, 97])
    parser.add_argument("--steps", type=int, default=40, help="of COCO and of fine-tuning")
    parser.add_argument("--pretrain-batch", type=int, default=32, help="documents")
    parser.add_argument("--batch", type=int, default=16, help="triplets")
    parser.add_argument("--clusters", type=int, default=16)
    parser.add_argument("--queries", type=int, default=200, help="most queries of a target")
    parser.add_argument(
        "--documents", type=int, default=2500, help="most documents of a test collection"
    )
    parser.add_argument("--collections", type=Path, help="folder with cranfield, cisi, npl, time")
    parser.add_argument("--sensitivity-clusters", type=int, nargs="*", default=[4, 50])
    parser.add_argument("--sensitivity-tau", type=float, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-ablation"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if len(arguments.seeds) < 2:
        parser.error("a spread needs at least two seeds")
    study = Study(arguments)
    rows = study.ablation()
    sensitivity = study.sensitivity()
    report = study.report(rows, sensitivity)
    write_text(arguments.results, json.dumps(report, indent=2) + "\n")
    print(markdown(report))


class Study:
    """All cells, each made once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.output = arguments, arguments.output
        self.targets = targets(TARGETS, arguments.collections, self.output, arguments.documents)

    def ablation(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Row to target to the results of its seeds."""
        rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
        base = {target: self.judge("minilm", "base", target) for target in self.targets}
        rows["base"] = {
            target: [found] * len(self.arguments.seeds) for target, found in base.items()
        }
        for seed in self.arguments.seeds:
            for arm, (coco, weighting) in ARMS.items():
                model = self.finetuned(seed, arm, coco, {"weighting": weighting})
                for target in self.targets:
                    found = self.judge(model, f"{arm}-{seed}", target)
                    rows.setdefault(arm, {}).setdefault(target, []).append(found)
        return rows

    def sensitivity(self) -> list[dict[str, Any]]:
        """iDRO with other K and tau, the first seed, the first target; tau = K / rho."""
        seed, target = self.arguments.seeds[0], TARGETS[0]
        usual = self.arguments.clusters
        cells = [(k, k / 0.05) for k in sorted({usual, *self.arguments.sensitivity_clusters})]
        cells += [(usual, tau) for tau in self.arguments.sensitivity_tau]
        points = []
        for k, tau in cells:
            name = "full" if (k, tau) == (usual, usual / 0.05) else f"K{k}-tau{tau:g}"
            model = self.finetuned(
                seed, name, True, {"weighting": "idro", "clusters": k, "rho": k / tau}
            )
            found = self.judge(model, f"{name}-{seed}", target)
            points.append(
                {"clusters": k, "tau": tau, "seed": seed, "target": target, **found["measures"]}
            )
        return points

    def finetuned(self, seed: int, name: str, coco: bool, settings: dict[str, Any]) -> str:
        start = self.pretrained(seed) if coco else "minilm"
        options = FinetuneOptions(
            max_steps=self.arguments.steps,
            batch_size=self.arguments.batch,
            learning_rate=2e-5,
            seed=seed,
            loss="triplet",
            **{"clusters": self.arguments.clusters, **settings},
        )
        folder = self.output / "models" / f"{name}-{seed}"
        finetune(SOURCE, start, folder, options, resume=True, encoder=ENCODER)
        return str(folder)

    def pretrained(self, seed: int) -> str:
        options = PretrainOptions(
            max_steps=self.arguments.steps,
            batch_size=self.arguments.pretrain_batch,
            learning_rate=2e-5,
            seed=seed,
        )
        folder = self.output / "models" / f"coco-{seed}"
        pretrain(
            [SOURCE, *self.targets.values()],
            "minilm",
            folder,
            options,
            resume=True,
            encoder=ENCODER,
        )
        return str(folder)

    def judge(self, model: str, name: str, target: str) -> dict[str, Any]:
        folder = self.output / "results" / name / target.replace("/", "-")
        return judge(model, self.targets[target], folder, self.arguments.queries, encoder=ENCODER)

    def report(
        self, rows: dict[str, dict[str, list[dict[str, Any]]]], sensitivity: list[Any]
    ) -> dict[str, Any]:
        families = {
            "against base": [("base", row) for row in ARMS],
            "full against one part less": [(row, "full") for row in ARMS if row != "full"],
        }
        settings = {k: v for k, v in vars(self.arguments).items() if not isinstance(v, Path)}
        return {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "seconds_of_all_cells": round(seconds_of_cells(self.output)),
            "settings": settings | {"source": SOURCE, "learning_rate": 2e-5, **ENCODER.overrides()},
            "targets": judged_targets(rows, families),
            "sensitivity": sensitivity,
            "versions": versions(),
        }


def markdown(report: dict[str, Any]) -> str:
    lines = markdown_targets(report["targets"], ["base", *ARMS])
    lines += [
        f"K {p['clusters']}, tau {p['tau']:g}: {p['nDCG@10']:.4f}" for p in report["sensitivity"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
