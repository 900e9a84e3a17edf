"""Query-as-context pre-training against COCO on the same passages, over seeds, and what its pairs
cost.

MiniLM is pre-trained on the documents of all targets by COCO, by passages with generated queries
(qc), by the same mixed with neighbouring passages (mixed), and by CoT-MAE; each is then fine-tuned
on the source's queries, as the paper does, and so is MiniLM itself (source). Label-free
distillation starts from MiniLM and sees no source. Queries come from the model-free generator.
Targets are API documentation and, where --collections names their folder, the test collections
cranfield, cisi, npl and time, cut to --documents (all judged and a random sample). Then C, the
queries of a passage, on a few passages that are seen several times; and length and speed of
passage-query and passage-passage pairs. Each model and each evaluation is a cell that is kept in
--output and not made again. Writes benchmarks/results/query_as_context.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from study import judge, judged_targets, markdown_targets, seconds_of_cells, targets

from beir_cocodr.data.collection import load_collection
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.io import write_text
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.records import versions
from beir_cocodr.training.distill import distill
from beir_cocodr.training.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.presets import adapt_options
from beir_cocodr.training.pretrain import pretrain
from beir_cocodr.training.pretrain_data import ContextViews

RESULTS = Path(__file__).parent / "results" / "query_as_context.json"
SOURCE = "apidocs/stdlib+numpy+pandas+torch"
TARGETS = ["apidocs/sklearn"]
LEARNING_RATE = 2e-5
PAPER_TOKENS = 144  # of a passage, as the pairs are measured
#: Row to what its pre-training has of its own.
ARMS: dict[str, dict[str, Any]] = {
    "COCO": {"objective": "coco"},
    "qc": {"objective": "qc"},
    "mixed": {"objective": "qc", "mix": 0.5},
    "CoT-MAE": {"objective": "cotmae"},
}
DISTILLED = "distilled"
ROWS = ("base", "source", *ARMS, DISTILLED)
FAMILIES = {
    "pre-trained against fine-tuning alone": [("source", arm) for arm in ARMS],
    "query as context against passage as context": [("COCO", "qc"), ("mixed", "qc")],
    "without a source against base": [("base", DISTILLED)],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 42, 97])
    parser.add_argument("--steps", type=int, default=40, help="of pre-training")
    parser.add_argument("--pretrain-batch", type=int, default=16, help="passages or documents")
    parser.add_argument("--finetune-steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="triplets")
    parser.add_argument(
        "--distill-steps", type=int, default=12, help="of 8 queries, each with a list of 11"
    )
    parser.add_argument("--per-passage", type=int, default=5, help="C, queries of a passage")
    parser.add_argument("--passage-tokens", type=int, default=64, help="paper: 144")
    parser.add_argument(
        "--document-length", type=int, default=64, help="tokens, of training and evaluation"
    )
    parser.add_argument("--sweep", type=int, nargs="*", default=[1, 3, 5, 10], help="values of C")
    parser.add_argument(
        "--sweep-passages", type=int, default=64, help="they are seen --sweep-epochs times"
    )
    parser.add_argument("--sweep-epochs", type=int, default=4, help="in batches of 8")
    parser.add_argument("--speed-steps", type=int, default=12)
    parser.add_argument("--queries", type=int, default=200, help="most queries of a target")
    parser.add_argument(
        "--documents", type=int, default=1000, help="of a test collection, beside judged ones"
    )
    parser.add_argument("--collections", type=Path, help="folder with cranfield, cisi, npl, time")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-query-as-context"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if len(arguments.seeds) < 2:
        parser.error("a spread needs at least two seeds")
    study = Study(arguments)
    rows, sweep, pairs = study.rows(), study.sweep(), study.pairs()
    settings = {k: v for k, v in vars(arguments).items() if not isinstance(v, Path)}
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "seconds_of_all_cells": round(seconds_of_cells(arguments.output)),
        "settings": settings
        | {"source": SOURCE, "learning_rate": LEARNING_RATE, "documents_encoded_in": "bfloat16"},
        "generated": {name: generated(folder) for name, folder in study.generated.items()},
        "pairs": pairs,
        "targets": judged_targets(rows, FAMILIES),
        "queries_per_passage": judged_targets(sweep, against_the_first(sweep)) if sweep else {},
        "versions": versions(),
    }
    write_text(arguments.results, json.dumps(report, indent=2) + "\n")
    print(markdown(report))


class Study:
    """All cells, each made once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.output = arguments, arguments.output
        self.encoder = EncoderOptions(document_length=arguments.document_length)
        self.targets = targets(TARGETS, arguments.collections, self.output, arguments.documents)
        self.most = max(arguments.sweep, default=1)
        self.generated = self.generate_all(arguments.passage_tokens)

    def rows(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Row to target to the results of its seeds."""
        rows: dict[str, dict[str, list[dict[str, Any]]]] = {row: {} for row in ROWS}
        for target in self.targets:
            rows["base"][target] = [self.judge("minilm", "base", target)] * len(
                self.arguments.seeds
            )
        for seed in self.arguments.seeds:
            models = {"source": self.finetuned(seed, "source", "minilm")}
            models |= {arm: self.finetuned(seed, arm, self.pretrained(seed, arm)) for arm in ARMS}
            for row, model in models.items():
                for target in self.targets:
                    rows[row].setdefault(target, []).append(
                        self.judge(model, f"{row}-{seed}", target)
                    )
            for target in self.targets:
                name = f"{DISTILLED}-{seed}"
                found = self.judge(self.distilled(seed, target), name, target)
                rows[DISTILLED].setdefault(target, []).append(found)
        return rows

    def sweep(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """As rows, C where a passage is seen several times: pre-training on a few passages of one
        target.
        """
        target = list(self.targets)[-1]
        name = f"sweep-{target.replace('/', '-')}"
        tokens, passages = self.arguments.passage_tokens, self.arguments.sweep_passages
        folder = self.generate(self.targets[target], name, self.most, tokens, passages)
        rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for count in self.arguments.sweep:
            for seed in self.arguments.seeds:
                options = PretrainOptions(
                    objective="qc",
                    epochs=self.arguments.sweep_epochs,
                    batch_size=8,
                    learning_rate=LEARNING_RATE,
                    per_passage=count,
                    seed=seed,
                )
                model = self.output / "models" / f"C{count}-{seed}"
                pretrain(
                    [self.targets[target]],
                    "minilm",
                    model,
                    options,
                    True,
                    [folder],
                    encoder=self.encoder,
                )
                found = self.judge(str(model), f"C{count}-{seed}", target)
                rows.setdefault(f"C {count}", {}).setdefault(target, []).append(found)
        return rows

    def pairs(self) -> dict[str, Any]:
        """Tokens and steps a second of pairs of passage and query, and of two passages, in
        turns.
        """
        model = load_encoder("minilm", EncoderOptions(document_length=PAPER_TOKENS))
        folders = list(self.generate_all(PAPER_TOKENS).values())
        tokens = {}
        for kind, mix in (("passage-query", 0.0), ("passage-passage", 1.0)):
            options = self.pretraining(self.arguments.seeds[0], {"objective": "qc", "mix": mix})
            tokens[kind] = mean_tokens(ContextViews(folders, model, options))
        speed: dict[str, list[float]] = {kind: [] for kind in tokens}
        for turn in range(3):
            for kind, mix in (("passage-query", 0.0), ("passage-passage", 1.0)):
                shape = {"objective": "qc", "mix": mix, "max_steps": self.arguments.speed_steps}
                place = self.output / "speed" / f"{kind}-{turn}"
                record = self.pretrain(turn, shape, place, folders, document_length=PAPER_TOKENS)
                speed[kind].append(record.steps / record.seconds)
        medians = {kind: float(np.median(values)) for kind, values in speed.items()}
        return {
            "mean_tokens": tokens,
            "steps_per_second": {k: {"median": medians[k], "all": v} for k, v in speed.items()},
            "speed_of_passage_query": medians["passage-query"] / medians["passage-passage"],
        }

    def generate_all(self, tokens: int) -> dict[str, str]:
        """Target to the folder of queries for its passages."""
        count = self.arguments.per_passage
        return {
            name: self.generate(collection, f"{name.replace('/', '-')}-{tokens}", count, tokens)
            for name, collection in self.targets.items()
        }

    def generate(
        self, collection: str, name: str, per_passage: int, tokens: int, passages: int | None = None
    ) -> str:
        folder = self.output / "queries" / name
        options = GenerationOptions(
            per_passage=per_passage,
            max_passages=passages,
            passage_tokens=tokens,
            tokenizer="minilm",
        )
        if not (folder / "generation.json").is_file():
            generate_queries(collection, "lexical", folder, options)
        return str(folder)

    def pretrained(self, seed: int, arm: str) -> str:
        folder = self.output / "models" / f"{arm}-pretrained-{seed}"
        self.pretrain(seed, ARMS[arm], folder, list(self.generated.values()), self.encoder)
        return str(folder)

    def pretrain(
        self,
        seed: int,
        shape: dict[str, Any],
        folder: Path,
        contexts: Sequence[str],
        encoder: EncoderOptions,
    ) -> dict[str, Any]:
        queries = () if shape["objective"] == "coco" else contexts
        options = self.pretraining(seed, shape)
        return pretrain(
            list(self.targets.values()), "minilm", folder, options, True, queries, encoder
        )

    def pretraining(self, seed: int, shape: dict[str, Any]) -> PretrainOptions:
        settings = {"max_steps": self.arguments.steps, "learning_rate": LEARNING_RATE, "seed": seed}
        return PretrainOptions(**settings | {"batch_size": self.arguments.pretrain_batch} | shape)

    def finetuned(self, seed: int, name: str, start: str) -> str:
        options = FinetuneOptions(
            max_steps=self.arguments.finetune_steps,
            batch_size=self.arguments.batch,
            learning_rate=LEARNING_RATE,
            seed=seed,
            loss="triplet",
            weighting="erm",
        )
        folder = self.output / "models" / f"{name}-{seed}"
        finetune(SOURCE, start, folder, options, resume=True, encoder=self.encoder)
        return str(folder)

    def distilled(self, seed: int, target: str) -> str:
        """Each target has its own, as distillation reads one collection; no more queries than it
        can use.
        """
        name = f"{DISTILLED}-{target.replace('/', '-')}"
        folder, steps = self.output / "models" / f"{name}-{seed}", self.arguments.distill_steps
        options = adapt_options("hybrid-distill", seed=seed, max_steps=steps)
        used, tokens = steps * options.batch_size, self.arguments.passage_tokens
        queries = self.generate(self.targets[target], name, 1, tokens, used)
        distill(queries, "minilm", "hybrid", folder, options, resume=True, encoder=self.encoder)
        return str(folder)

    def judge(self, model: str, name: str, target: str) -> dict[str, Any]:
        folder = self.output / "results" / name / target.replace("/", "-")
        return judge(
            model, self.targets[target], folder, self.arguments.queries, True, encoder=self.encoder
        )


def against_the_first(rows: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """One family: each row against the first."""
    first, *others = rows
    return {"queries of a passage": [(first, other) for other in others]}


def mean_tokens(views: ContextViews, sample: int = 1000) -> dict[str, float]:
    """Tokens of passage, context and both, special ones included, evenly spaced over the
    passages.
    """
    rows = np.linspace(0, len(views) - 1, min(sample, len(views))).astype(int)
    drawn = views.dataset()[rows.tolist()]
    most = views.options.max_length
    length = {
        column: float(
            np.mean(
                [min(most, len(ids)) for ids in views.model.tokenizer(drawn[column])["input_ids"]]
            )
        )
        for column in views.columns
    }
    return length | {"pair": sum(length.values())}


def generated(folder: str) -> dict[str, Any]:
    """How many passages and queries there are."""
    collection = load_collection(folder, "train")
    return {"documents": len(collection.documents), "queries": len(collection.queries)}


def markdown(report: dict[str, Any]) -> str:
    lines = markdown_targets(report["targets"], ROWS)
    if swept := report["queries_per_passage"]:
        lines += ["", *markdown_targets(swept, list(next(iter(swept.values()))["rows"]))]
    for kind, found in report["pairs"]["mean_tokens"].items():
        speed = report["pairs"]["steps_per_second"][kind]["median"]
        lines.append(f"{kind}: {found['pair']:.0f} tokens a pair, {speed:.2f} steps a second")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
