"""Claim: COCO and iDRO each make the fine-tuned encoder better on targets that it has not seen.

MiniLM is pre-trained by COCO on the documents of source and targets, and fine-tuned on the source's
queries with BM25 negatives. One part is then taken away at a time. Targets are API documentation
and, with ``--collections``, four classic test collections, cut to ``--documents``. The sensitivity
of iDRO to K and tau follows. Every model and evaluation is kept in ``--work`` and not repeated.

The script prints nDCG@10 of every row on every target, the paired tests and the sensitivity, and
writes ``benchmarks/results/ablation.json``:

    python benchmarks/ablation.py [--seeds 13 42 97] [--collections DIR]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from harness.script import add_integers, write_results
from harness.study import Rows, TargetStudy, describe_targets, study_parser

from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.pretraining.pretrain import pretrain

SOURCE = "apidocs/stdlib+numpy+pandas+torch"
TARGETS = ["apidocs/scipy", "apidocs/sklearn"]
ENCODER = EncoderOptions(document_length=128)
LEARNING_RATE = 2e-5
USUAL_RHO = 0.05


@dataclass(frozen=True)
class Arm:
    """A row of the table.

    Attributes:
        after_coco: Fine-tune the model that COCO pre-trained, not the base.
        weighting: The weighting of fine-tuning.
    """

    after_coco: bool
    weighting: str


ARMS = {
    "-COCO": Arm(
        after_coco=False,
        weighting="idro",
    ),
    "-iDRO": Arm(
        after_coco=True,
        weighting="erm",
    ),
    "GroupDRO": Arm(
        after_coco=True,
        weighting="groupdro",
    ),
    "full": Arm(
        after_coco=True,
        weighting="idro",
    ),
}

FAMILIES = {
    "against base": [("base", row) for row in ARMS],
    "full against one part less": [(row, "full") for row in ARMS if row != "full"],
}


class Study(TargetStudy):
    """All models and evaluations, each computed once."""

    def rows(self) -> Rows:
        """Evaluate the base and every arm on every target."""
        rows: Rows = {}
        self.judge_untrained(rows, "base", "minilm")
        for seed in self.options.seeds:
            for name, arm in ARMS.items():
                model = self.finetune(seed, name, arm.after_coco, {"weighting": arm.weighting})
                self.judge_trained(rows, name, seed, model)
        return rows

    def sensitivity(self) -> list[dict[str, Any]]:
        """Evaluate iDRO with other K and tau = K / rho, on the first seed and target."""
        seed = self.options.seeds[0]
        usual = self.options.clusters
        usual_tau = usual / USUAL_RHO
        pairs = []
        for clusters in sorted({usual, *self.options.sensitivity_clusters}):
            pairs.append((clusters, clusters / USUAL_RHO))
        for tau in self.options.sensitivity_tau:
            pairs.append((usual, tau))
        points = []
        for clusters, tau in pairs:
            is_usual = (clusters, tau) == (usual, usual_tau)
            name = "full" if is_usual else f"K{clusters}-tau{tau:g}"
            settings = {
                "weighting": "idro",
                "clusters": clusters,
                "rho": clusters / tau,
            }
            model = self.finetune(
                seed,
                name,
                True,
                settings,
            )
            cell = self.judge(model, f"{name}-{seed}", TARGETS[0])
            point = {
                "clusters": clusters,
                "tau": tau,
                "seed": seed,
                "target": TARGETS[0],
            }
            points.append(point | cell.measures)
        return points

    def finetune(
        self,
        seed: int,
        name: str,
        after_coco: bool,
        settings: dict[str, Any],
    ) -> str:
        """Fine-tune on the source, and return the folder of the model."""
        settings = {"clusters": self.options.clusters} | settings
        options = FinetuneOptions.of(
            max_steps=self.options.steps,
            batch_size=self.options.batch,
            learning_rate=LEARNING_RATE,
            seed=seed,
            loss="triplet",
            **settings,
        )
        start = self.pretrain(seed) if after_coco else "minilm"
        folder = self.model_folder(name, seed)
        finetune(
            start,
            SOURCE,
            output=folder,
            options=options.with_overrides(encoder=self.encoder),
            resume=True,
        )
        return str(folder)

    def pretrain(self, seed: int) -> str:
        """Pre-train by COCO on source and targets, and return the folder of the model."""
        options = PretrainOptions(
            max_steps=self.options.steps,
            batch_size=self.options.pretrain_batch,
            learning_rate=LEARNING_RATE,
            seed=seed,
        )
        folder = self.model_folder("coco", seed)
        datasets = [SOURCE, *self.targets.values()]
        pretrain(
            "minilm",
            datasets,
            output=folder,
            options=options.with_overrides(encoder=self.encoder),
            resume=True,
        )
        return str(folder)


def describe(results: dict[str, Any]) -> str:
    """Return the tables that the script prints."""
    lines = describe_targets(results["targets"], ["base", *ARMS])
    for point in results["sensitivity"]:
        settings = f"K {point['clusters']}, tau {point['tau']:g}"
        lines.append(f"{settings}: {point['nDCG@10']:.4f}")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = study_parser(__doc__, "ablation")
    sizes = {
        "--steps": (40, "Steps of each training."),
        "--pretrain-batch": (32, "Documents of a COCO step."),
        "--batch": (16, "Triplets of a fine-tuning step."),
        "--clusters": (16, "Clusters K of the queries."),
        "--queries": (200, "The most queries of a target."),
        "--documents": (2500, "The most documents of a test collection."),
    }
    add_integers(parser, sizes)
    parser.add_argument(
        "--sensitivity-clusters",
        type=int,
        nargs="*",
        default=[4, 50],
        help="Other numbers of clusters K for the sensitivity.",
    )
    parser.add_argument(
        "--sensitivity-tau",
        type=float,
        nargs="*",
        default=[10, 100, 1000],
        help="Other values of tau for the sensitivity.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    study = Study(options, TARGETS, ENCODER)
    rows = study.rows()
    sensitivity = study.sensitivity()
    fixed = {
        "source": SOURCE,
        "learning_rate": LEARNING_RATE,
        **ENCODER.overrides(),
    }
    results = study.results(rows, FAMILIES, fixed) | {"sensitivity": sensitivity}
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
