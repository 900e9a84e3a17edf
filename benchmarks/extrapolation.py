"""Interpolation and extrapolation of retrieval architectures and of starts, on API documentation,
over seeds.

Training and test queries of all domains, cut to what the flags say, are resampled by ReSTrain. All
architectures start from the same MiniLM and train for the same number of steps on equally many
queries; dense retrieval starts besides from random weights, and from MiniLM after COCO on the
corpus that is searched. What the paper claims is then looked up in the table: in the means, and
seed by seed. Each model and each evaluation is a cell that is kept in --output and not made again.

R@10 stands beside nDCG@10 where the paper has R@100: a query has one relevant document, and the
corpus is too small for a hundred to tell models apart.

    python benchmarks/extrapolation.py [--seeds 13 42 97] [--steps 40] [--documents 1200]

Writes benchmarks/results/extrapolation.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import machine

from beir_cocodr.data.apidocs import DOMAINS
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.io import draft_folder, write_text
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.records import versions
from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.manifest import read_manifest
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architectures import ARCHITECTURES
from beir_cocodr.resampling.regimes.regimes import RESULTS_FILE, evaluate_regimes, gap
from beir_cocodr.resampling.restrain import resample_restrain
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretrain import pretrain

RESULTS = Path(__file__).parent / "results" / "extrapolation.json"
ENCODER = "minilm"
MEASURES = "nDCG@10 R@10"
MEASURE = "nDCG@10"
STARTS = ("random", "minilm", "minilm-coco")
CUT_SEED = 42


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 42, 97])
    parser.add_argument("--architectures", nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--starts", nargs="*", default=list(STARTS), choices=STARTS)
    parser.add_argument("--domains", nargs="+", default=list(DOMAINS), choices=list(DOMAINS))
    parser.add_argument("--steps", type=int, default=40, help="of training")
    parser.add_argument("--batch", type=int, default=16, help="queries a step")
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument(
        "--negatives", type=int, default=1, help="BM25's, of dense-hard and cross-encoder"
    )
    parser.add_argument(
        "--list-size", type=int, default=4, help="documents a query, of dense-distilled"
    )
    parser.add_argument("--mlm-steps", type=int, default=60, help="before SPLADE, once a seed")
    parser.add_argument("--coco-steps", type=int, default=60, help="of COCO, once")
    parser.add_argument("--coco-batch", type=int, default=32, help="documents a step")
    parser.add_argument("--rerank", type=int, default=30, help="documents a query")
    parser.add_argument("--document-length", type=int, default=64, help="tokens")
    parser.add_argument("--query-length", type=int, default=32, help="tokens")
    parser.add_argument("--train-queries", type=int, default=1200, help="that are resampled")
    parser.add_argument("--size", type=int, default=400, help="training queries of either regime")
    parser.add_argument("--queries", type=int, default=100, help="test queries")
    parser.add_argument(
        "--documents", type=int, default=1200, help="beside relevant ones of test queries"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-extrapolation"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = Study(arguments).report()
    write_text(arguments.results, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(markdown(report))


class Study:
    """Everything is made once and kept."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.output = arguments, arguments.output
        self.collection, self.sets = self.output / "collection", self.output / "sets"
        if not self.collection.is_dir():
            cut(arguments, self.collection)
        if not self.sets.is_dir():
            whole = str(self.collection)
            resample_restrain(
                whole, whole, ENCODER, self.sets, RestrainOptions(sizes=(arguments.size,))
            )

    def report(self) -> dict[str, Any]:
        architectures = self.evaluate("minilm", self.arguments.architectures)
        starts = {start: self.evaluate(start, ["dense"]) for start in self.arguments.starts}
        rows = {row["model"]: row for row in architectures}
        rows |= {f"start {start}": found[0] for start, found in starts.items()}
        manifest = read_manifest(self.sets)
        settings = {k: v for k, v in vars(self.arguments).items() if not isinstance(v, Path)}
        names = (*self.arguments.starts, "architectures")
        return {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "seconds_of_all_cells": round(
                sum(
                    cell["training_seconds"] + cell["search_seconds"]
                    for name in names
                    for cell in map(read, (self.output / name / "cells").rglob("*.json"))
                )
            ),
            "settings": settings | {"encoder": ENCODER, "measures": MEASURES},
            "collection": {
                "documents": manifest.train.documents,
                "queries": manifest.train.queries,
                "test_queries": manifest.test.queries,
            },
            "sets": [
                {"id": found.id, "k": found.k, "queries": found.train.queries}
                for found in manifest.sets
            ],
            "overlap": asdict(manifest.overlap),
            "architectures": architectures,
            "starts": {start: found[0] for start, found in starts.items()},
            "claims": claims(rows),
            "versions": versions(),
        }

    def evaluate(self, start: str, architectures: list[str]) -> list[dict[str, Any]]:
        """All regimes of architectures from one start; dense from MiniLM is made once for both
        tables.
        """
        a = self.arguments
        recipe = Recipe(
            start=self.start(start),
            max_steps=a.steps,
            batch_size=a.batch,
            learning_rate=a.learning_rate,
            negatives=a.negatives,
            list_size=a.list_size,
            mlm_steps=a.mlm_steps,
            rerank=a.rerank,
            document_length=a.document_length,
            query_length=a.query_length,
        )
        output = self.output / ("architectures" if start == "minilm" else start)
        report = evaluate_regimes(
            self.sets,
            output,
            architectures,
            recipe=recipe,
            seeds=a.seeds,
            measures=MEASURES,
            keep_models=False,
            progress=True,
        )
        report.write(output / RESULTS_FILE)
        return [asdict(row) for row in report.rows]

    def start(self, name: str) -> str:
        folder = self.output / "starts" / name
        if name == "random" and not folder.is_dir():
            with draft_folder(folder) as draft:
                random_start(draft)
        if name == "minilm-coco":
            options = PretrainOptions(
                max_steps=self.arguments.coco_steps,
                batch_size=self.arguments.coco_batch,
                mini_batch_size=self.arguments.coco_batch,
                learning_rate=2e-5,
                max_length=self.arguments.document_length,
                seed=CUT_SEED,
            )
            pretrain([str(self.collection)], "minilm", folder, options, resume=True)
        return "minilm" if name == "minilm" else str(folder)


def cut(arguments: argparse.Namespace, folder: Path) -> None:
    """Some test and training queries, and their documents with some others."""
    name = "apidocs/" + "+".join(arguments.domains)
    train, test = (load_collection(name, split) for split in ("train", "test"))
    chooser = random.Random(CUT_SEED)
    chosen = {
        "train": some(train, arguments.train_queries, chooser),
        "test": some(test, arguments.queries, chooser),
    }
    needed = {d for qrels in chosen.values() for grades in qrels.values() for d in grades}
    others = [document for document in train.documents if document not in needed]
    tested = {d for grades in chosen["test"].values() for d in grades}
    # A corpus that has all documents of training queries would be as large as they are many: those
    # beyond the cap are left out, with their queries.
    pool = chooser.sample(sorted(needed - tested), min(arguments.documents, len(needed - tested)))
    kept = tested | set(pool)
    kept |= set(chooser.sample(others, min(arguments.documents - len(pool), len(others))))
    chosen["train"] = {q: grades for q, grades in chosen["train"].items() if grades.keys() <= kept}
    with draft_folder(folder) as draft:
        (draft / "qrels").mkdir()
        with (draft / "corpus.jsonl").open("w", encoding="utf-8") as file:
            for document, content in train.documents.items():
                if document in kept:
                    file.write(json.dumps({"_id": document, **content}, ensure_ascii=False) + "\n")
        texts = train.queries | test.queries
        with (draft / "queries.jsonl").open("w", encoding="utf-8") as file:
            for query in (*chosen["train"], *chosen["test"]):
                file.write(
                    json.dumps({"_id": query, "text": texts[query]}, ensure_ascii=False) + "\n"
                )
        for split, qrels in chosen.items():
            lines = [
                f"{q}\t{d}\t{grade}" for q, grades in qrels.items() for d, grade in grades.items()
            ]
            write_text(
                draft / "qrels" / f"{split}.tsv",
                "\n".join(["query-id\tcorpus-id\tscore", *lines, ""]),
            )


def some(collection: Collection, most: int, chooser: random.Random) -> dict[str, dict[str, int]]:
    """The judgements of a random sample of queries."""
    ids = sorted(collection.qrels)
    return {
        query: collection.qrels[query] for query in sorted(chooser.sample(ids, min(most, len(ids))))
    }


def random_start(folder: Path) -> None:
    """MiniLM's architecture, tokenizer and pooling with random weights."""
    import torch
    from transformers import AutoModel

    torch.manual_seed(CUT_SEED)
    model = load_encoder("minilm")
    transformer: Any = model.transformers_model
    transformer.load_state_dict(AutoModel.from_config(transformer.config).state_dict())
    model.save_pretrained(str(folder))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def claims(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The paper's claims as inequalities between gaps, in the means over seeds and in every
    seed.
    """
    interaction, representation = ("late-interaction", "cross-encoder"), ("dense", "splade")
    found = []

    def claim(text: str, wider: tuple[str, ...], narrower: tuple[str, ...]) -> None:
        if all(name in rows for name in wider + narrower):
            found.append(compared(text, rows, wider, narrower))

    claim(
        "dense retrieval and SPLADE lose more from interpolation to extrapolation than late interaction and "
        "reranking (Table 6)",
        representation,
        interaction,
    )
    claim(
        "pre-training on the target corpus narrows the gap of dense retrieval (Tables 8 and 9)",
        ("start minilm",),
        ("start minilm-coco",),
    )
    claim(
        "pre-training narrows it more than hard negatives and distillation do (Table 8)",
        ("dense-hard", "dense-distilled"),
        ("start minilm-coco",),
    )
    claim(
        "a random start has the widest gap (Table 9)",
        ("start random",),
        ("start minilm", "start minilm-coco"),
    )
    return found


def compared(
    text: str, rows: dict[str, dict[str, Any]], wider: tuple[str, ...], narrower: tuple[str, ...]
) -> dict[str, Any]:
    """Whether every gap of ``wider`` is below every gap of ``narrower``."""

    def holds(value: Callable[[str], float | None]) -> bool | None:
        low, high = [value(name) for name in wider], [value(name) for name in narrower]
        if None in low or None in high:
            return None
        return max(low) < min(high)  # type: ignore[type-var]

    seeds = min(len(rows[name]["seeds"]) for name in wider + narrower)
    each = [holds(lambda name, i=i: seed_gap(rows[name], i)) for i in range(seeds)]  # type: ignore[misc]
    return {
        "claim": text,
        "gaps": {name: rows[name]["measures"][MEASURE]["gap"] for name in wider + narrower},
        "seen_in_means": holds(lambda name: rows[name]["measures"][MEASURE]["gap"]),
        "seen_in_seeds": f"{sum(bool(one) for one in each)} of {seeds}",
    }


def seed_gap(row: dict[str, Any], i: int) -> float | None:
    seeds = row["measures"][MEASURE]["seeds"]
    return gap(seeds["interpolation"][i], seeds["extrapolation"][i])


def markdown(report: dict[str, Any]) -> str:
    lines = [
        f"| model | {MEASURE} inter. | extra. | gap | sd of seeds' gaps | R@10 inter. | extra. | gap |",
        "| --- " * 8 + "|",
    ]
    named = {row["model"]: row for row in report["architectures"]}
    named |= {f"dense from {start}": row for start, row in report["starts"].items()}
    for name, row in named.items():
        cells = []
        for measure in MEASURES.split():
            found = row["measures"][measure]
            cells += [
                f"{found['interpolation']:.3f}",
                f"{found['extrapolation']:.3f}",
                percent(found["gap"]),
            ]
            if measure == MEASURE:
                cells.append(percent(found["gap_sd"]))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("")
    for claim in report["claims"]:
        seen = {True: "seen", False: "not seen", None: "not defined"}[claim["seen_in_means"]]
        lines.append(f"- {claim['claim']}: {seen} in the means, in {claim['seen_in_seeds']} seeds")
    return "\n".join(lines)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.1f} %"


if __name__ == "__main__":
    main()
