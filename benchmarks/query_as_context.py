"""Claim: pre-training with generated queries as context beats COCO's spans of the same passages.

MiniLM is pre-trained on the documents of all targets by COCO, by passages with generated queries
(qc), by the same mixed with neighbouring passages (mixed), and by CoT-MAE. Each model is then
fine-tuned on the queries of the source, as in the paper, and so is MiniLM (source). Distillation
without labels starts from MiniLM and sees no source. The generator of queries has no model.
Targets are API documentation and, with ``--collections``, four classic test collections, cut to
``--documents``. Then follow C, the number of queries of a passage, and the length and speed of
passage-query and passage-passage pairs. Every model and evaluation is kept in ``--work`` and not
repeated.

The script prints nDCG@10 of every row on every target, the paired tests and the costs of pairs, and
writes ``benchmarks/results/query_as_context.json``:

    python benchmarks/query_as_context.py [--seeds 13 42 97] [--collections DIR]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness.script import add_integers, write_results
from harness.study import Rows, TargetStudy, describe_targets, judge_targets, study_parser

from beir_cocodr.data.collection import load_collection
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.presets import adapt_options
from beir_cocodr.training.pretraining.context_views import ContextViews
from beir_cocodr.training.pretraining.pretrain import pretrain

SOURCE = "apidocs/stdlib+numpy+pandas+torch"
TARGETS = ["apidocs/sklearn"]
LEARNING_RATE = 2e-5
#: Tokens of the passages whose pairs are measured, as in the paper.
PAPER_TOKENS = 144

#: A row to the options of its pre-training.
ARMS: dict[str, dict[str, Any]] = {
    "COCO": {"objective": "coco"},
    "qc": {"objective": "qc"},
    "mixed": {
        "objective": "qc",
        "mix": 0.5,
    },
    "CoT-MAE": {"objective": "cotmae"},
}
#: A kind of pair to the share of passage-passage pairs that gives it.
PAIRS = {
    "passage-query": 0.0,
    "passage-passage": 1.0,
}
DISTILLED = "distilled"
ROWS = ("base", "source", *ARMS, DISTILLED)
FAMILIES = {
    "pre-trained against fine-tuning alone": [("source", arm) for arm in ARMS],
    "query as context against passage as context": [("COCO", "qc"), ("mixed", "qc")],
    "without a source against base": [("base", DISTILLED)],
}


class Study(TargetStudy):
    """All models and evaluations, each computed once."""

    in_bfloat16 = True

    def __init__(self, options: argparse.Namespace) -> None:
        """Generate the queries that pre-training reads."""
        super().__init__(options, TARGETS, EncoderOptions(document_length=options.document_length))
        self.generated = self.generate_for_targets(options.passage_tokens)

    def rows(self) -> Rows:
        """Evaluate every row on every target."""
        rows: Rows = {}
        self.judge_untrained(rows, "base", "minilm")
        for seed in self.options.seeds:
            self.judge_trained(rows, "source", seed, self.finetune(seed, "source", "minilm"))
            for arm in ARMS:
                model = self.finetune(seed, arm, self.pretrain_arm(seed, arm))
                self.judge_trained(rows, arm, seed, model)
            distilled = rows.setdefault(DISTILLED, {})
            for target in self.targets:
                cell = self.judge(self.distill(seed, target), f"{DISTILLED}-{seed}", target)
                distilled.setdefault(target, []).append(cell)
        return rows

    def sweep(self) -> Rows:
        """Pre-train on a few passages of the last target with several values of C.

        A passage is seen several times, so that it shows more than one of its queries.
        """
        target = list(self.targets)[-1]
        folder = self.generate(
            self.targets[target],
            f"sweep-{target.replace('/', '-')}",
            GenerationOptions(
                per_passage=max(self.options.sweep, default=1),
                max_passages=self.options.sweep_passages,
                passage_tokens=self.options.passage_tokens,
                tokenizer="minilm",
            ),
        )
        rows: Rows = {}
        for count in self.options.sweep:
            row = rows.setdefault(f"C {count}", {})
            for seed in self.options.seeds:
                model = self.pretrain_sweep(
                    seed,
                    count,
                    target,
                    folder,
                )
                cell = self.judge(model, f"C{count}-{seed}", target)
                row.setdefault(target, []).append(cell)
        return rows

    def pretrain_sweep(
        self,
        seed: int,
        count: int,
        target: str,
        queries: str,
    ) -> str:
        """Pre-train with C queries a passage, and return the folder of the model."""
        options = PretrainOptions.of(
            objective="qc",
            epochs=self.options.sweep_epochs,
            batch_size=8,
            learning_rate=LEARNING_RATE,
            per_passage=count,
            seed=seed,
        )
        folder = self.model_folder(f"C{count}", seed)
        datasets = [self.targets[target]]
        pretrain(
            "minilm",
            datasets,
            output=folder,
            options=options.with_overrides(encoder=self.encoder),
            resume=True,
            queries=[queries],
        )
        return str(folder)

    def pairs(self) -> dict[str, Any]:
        """Measure tokens and steps a second of both kinds of pairs, in turns."""
        encoder = EncoderOptions(document_length=PAPER_TOKENS)
        model = load_encoder("minilm", encoder)
        folders = list(self.generate_for_targets(PAPER_TOKENS).values())
        tokens = {}
        for kind, mix in PAIRS.items():
            options = self.pretrain_options(
                self.options.seeds[0],
                {
                    "objective": "qc",
                    "mix": mix,
                },
            )
            tokens[kind] = mean_tokens(ContextViews(folders, model, options))
        speed: dict[str, list[float]] = {kind: [] for kind in PAIRS}
        for turn in range(3):
            for kind, mix in PAIRS.items():
                arm = {
                    "objective": "qc",
                    "mix": mix,
                    "max_steps": self.options.speed_steps,
                }
                folder = self.work / "speed" / f"{kind}-{turn}"
                record = self.pretrain(
                    turn,
                    arm,
                    folder,
                    folders,
                    encoder,
                )
                speed[kind].append(record.steps / record.seconds)
        medians = {kind: float(np.median(values)) for kind, values in speed.items()}
        steps = {
            kind: {
                "median": medians[kind],
                "all": speed[kind],
            }
            for kind in PAIRS
        }
        return {
            "mean_tokens": tokens,
            "steps_per_second": steps,
            "speed_of_passage_query": medians["passage-query"] / medians["passage-passage"],
        }

    def generate_for_targets(self, tokens: int) -> dict[str, str]:
        """Generate queries for the passages of every target, and return their folders."""
        options = GenerationOptions(
            per_passage=self.options.per_passage,
            passage_tokens=tokens,
            tokenizer="minilm",
        )
        folders = {}
        for name, collection in self.targets.items():
            folders[name] = self.generate(collection, f"{name.replace('/', '-')}-{tokens}", options)
        return folders

    def generate(
        self,
        collection: str,
        name: str,
        options: GenerationOptions,
    ) -> str:
        """Generate queries, and return their folder."""
        folder = self.work / "queries" / name
        if not (folder / "generation.json").is_file():
            generate_queries(
                collection,
                "lexical",
                folder,
                options,
            )
        return str(folder)

    def pretrain_arm(self, seed: int, arm: str) -> str:
        """Pre-train an arm, and return the folder of the model."""
        folder = self.model_folder(f"{arm}-pretrained", seed)
        self.pretrain(
            seed,
            ARMS[arm],
            folder,
            list(self.generated.values()),
            self.encoder,
        )
        return str(folder)

    def pretrain(
        self,
        seed: int,
        arm: dict[str, Any],
        folder: Path,
        queries: Sequence[str],
        encoder: EncoderOptions,
    ) -> Any:
        """Pre-train on all targets, and return the record."""
        contexts = () if arm["objective"] == "coco" else queries
        options = self.pretrain_options(seed, arm)
        datasets = list(self.targets.values())
        return pretrain(
            "minilm",
            datasets,
            output=folder,
            options=options.with_overrides(encoder=encoder),
            resume=True,
            queries=contexts,
        )

    def pretrain_options(self, seed: int, arm: dict[str, Any]) -> PretrainOptions:
        """Return the options of pre-training an arm."""
        settings = {
            "max_steps": self.options.steps,
            "learning_rate": LEARNING_RATE,
            "seed": seed,
            "batch_size": self.options.pretrain_batch,
        }
        return PretrainOptions.of(**settings | arm)

    def finetune(
        self,
        seed: int,
        name: str,
        start: str,
    ) -> str:
        """Fine-tune on the source, and return the folder of the model."""
        options = FinetuneOptions(
            max_steps=self.options.finetune_steps,
            batch_size=self.options.batch,
            learning_rate=LEARNING_RATE,
            seed=seed,
            loss="triplet",
            weighting="erm",
        )
        folder = self.model_folder(name, seed)
        finetune(
            start,
            SOURCE,
            output=folder,
            options=options.with_overrides(encoder=self.encoder),
            resume=True,
        )
        return str(folder)

    def distill(self, seed: int, target: str) -> str:
        """Distil on one target, and return the folder of the model.

        Distillation reads one collection, and no more queries are generated than it can use.
        """
        name = f"{DISTILLED}-{target.replace('/', '-')}"
        steps = self.options.distill_steps
        options = adapt_options(
            "distill",
            seed=seed,
            max_steps=steps,
        )
        generation = GenerationOptions(
            per_passage=1,
            max_passages=steps * options.batch_size,
            passage_tokens=self.options.passage_tokens,
            tokenizer="minilm",
        )
        queries = self.generate(self.targets[target], name, generation)
        folder = self.model_folder(name, seed)
        distill(
            "minilm",
            queries,
            teacher="hybrid",
            output=folder,
            options=options.with_overrides(encoder=self.encoder),
            resume=True,
        )
        return str(folder)


def against_the_first(rows: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Return one family of comparisons: each row against the first."""
    first, *others = rows
    return {"queries of a passage": [(first, other) for other in others]}


def mean_tokens(views: ContextViews, sample: int = 1000) -> dict[str, float]:
    """Count the tokens of passage, context and both, with special ones.

    Args:
        views: The pairs.
        sample: The most pairs to look at, which are evenly spaced.
    """
    rows = np.linspace(0, len(views) - 1, min(sample, len(views))).astype(int)
    texts = views.dataset()[rows.tolist()]
    longest = views.options.max_length
    means = {}
    for column in views.columns:
        ids = views.model.tokenizer(texts[column])["input_ids"]
        means[column] = float(np.mean([min(longest, len(row)) for row in ids]))
    return means | {"pair": sum(means.values())}


def count_generated(folder: str) -> dict[str, int]:
    """Count the passages and queries of a folder."""
    collection = load_collection(folder, "train")
    return {
        "documents": len(collection.documents),
        "queries": len(collection.queries),
    }


def describe(results: dict[str, Any]) -> str:
    """Return the tables that the script prints."""
    lines = describe_targets(results["targets"], ROWS)
    sweep = results["queries_per_passage"]
    if sweep:
        [summary] = sweep.values()
        lines += ["", *describe_targets(sweep, list(summary["rows"]))]
    pairs = results["pairs"]
    for kind, tokens in pairs["mean_tokens"].items():
        speed = pairs["steps_per_second"][kind]["median"]
        lines.append(f"{kind}: {tokens['pair']:.0f} tokens a pair, {speed:.2f} steps a second")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = study_parser(__doc__, "query_as_context")
    sizes = {
        "--steps": (40, "Steps of pre-training."),
        "--pretrain-batch": (16, "Passages or documents of a pre-training step."),
        "--finetune-steps": (20, "Steps of fine-tuning."),
        "--batch": (16, "Triplets of a fine-tuning step."),
        "--distill-steps": (12, "Steps of distillation, of 8 queries with a list of 11 each."),
        "--per-passage": (5, "C, the number of queries of a passage."),
        "--passage-tokens": (64, "Tokens of a passage; the paper has 144."),
        "--document-length": (64, "Tokens of a document in training and evaluation."),
        "--sweep-passages": (64, "Passages that the sweep over C is trained on."),
        "--sweep-epochs": (4, "Times that the sweep sees each passage, in batches of 8."),
        "--speed-steps": (12, "Steps of each measurement of speed."),
        "--queries": (200, "The most queries of a target."),
        "--documents": (1000, "The most documents of a test collection."),
    }
    add_integers(parser, sizes)
    parser.add_argument(
        "--sweep",
        type=int,
        nargs="*",
        default=[1, 3, 5, 10],
        help="Values of C to compare.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    study = Study(options)
    rows = study.rows()
    sweep = study.sweep()
    pairs = study.pairs()
    fixed = {
        "source": SOURCE,
        "learning_rate": LEARNING_RATE,
        "documents_encoded_in": "bfloat16",
    }
    swept = judge_targets(sweep, against_the_first(sweep)) if sweep else {}
    results = study.results(rows, FAMILIES, fixed) | {
        "generated": {name: count_generated(path) for name, path in study.generated.items()},
        "pairs": pairs,
        "queries_per_passage": swept,
    }
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
