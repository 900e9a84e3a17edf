"""Claim: dense encoders lose more than interaction models on queries unlike their training queries.

Training and test queries of API documentation are resampled by ReSTrain. All architectures start
from MiniLM and train for the same number of steps on equally many queries. Dense retrieval also
starts from random weights, and from MiniLM after COCO on the corpus that is searched. The script
then checks what the paper claims, in the means over seeds and in every seed. R@10 takes the place
of the paper's R@100, as the corpus is too small for a hundred documents to tell models apart. Every
model and evaluation is kept in ``--work`` and not repeated.

The script prints the table of gaps and the claims, and writes
``benchmarks/results/extrapolation.json``:

    python benchmarks/extrapolation.py [--seeds 13 42 97] [--steps 40] [--documents 1200]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.page import markdown_table
from harness.script import (
    add_integers,
    add_seeds,
    add_work,
    option_parser,
    origin,
    read_json,
    settings_of,
    write_results,
)

from beir_cocodr.data.apidocs import DOMAINS
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.io import draft_folder, write_jsonl, write_qrels
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.manifest import read_manifest
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architecture_rows import ARCHITECTURES
from beir_cocodr.resampling.regimes.regimes import (
    RESULTS_FILE,
    RegimeOptions,
    evaluate_regimes,
    gap,
)
from beir_cocodr.resampling.restrain import resample_restrain
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretraining.pretrain import pretrain

ENCODER = "minilm"
MEASURES = "nDCG@10 R@10"
MEASURE = "nDCG@10"
STARTS = ("random", "minilm", "minilm-coco")
CUT_SEED = 42

#: Judgements of a split: query to document to grade.
Qrels = dict[str, dict[str, int]]

#: A row of the table by its name.
GapRows = dict[str, dict[str, Any]]

#: The paper's claims: the rows whose gap is wider, and those whose gap is narrower.
CLAIMS = {
    "dense retrieval and SPLADE lose more from interpolation to extrapolation than late "
    "interaction and reranking (Table 6)": (
        ("dense", "splade"),
        ("late-interaction", "cross-encoder"),
    ),
    "pre-training on the target corpus narrows the gap of dense retrieval (Tables 8 and 9)": (
        ("start minilm",),
        ("start minilm-coco",),
    ),
    "pre-training narrows it more than hard negatives and distillation do (Table 8)": (
        ("dense-hard", "dense-distilled"),
        ("start minilm-coco",),
    ),
    "a random start has the widest gap (Table 9)": (
        ("start random",),
        ("start minilm", "start minilm-coco"),
    ),
}


class Study:
    """All models and evaluations, each computed once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work = options.work
        self.collection = self.work / "collection"
        self.sets = self.work / "sets"
        if not self.collection.is_dir():
            cut_collection(options, self.collection)
        if not self.sets.is_dir():
            dataset = str(self.collection)
            restrain = RestrainOptions(sizes=(options.size,))
            resample_restrain(
                dataset,
                dataset,
                model=ENCODER,
                output=self.sets,
                options=restrain,
            )

    def results(self) -> dict[str, Any]:
        """Evaluate all architectures and starts, and check the claims."""
        architectures = self.evaluate("minilm", self.options.architectures)
        starts = {}
        for start in self.options.starts:
            [starts[start]] = self.evaluate(start, ["dense"])
        rows = {row["model"]: row for row in architectures}
        for start, row in starts.items():
            rows[f"start {start}"] = row
        manifest = read_manifest(self.sets)
        sets = []
        for entry in manifest.sets:
            sets.append(
                {
                    "id": entry.id,
                    "k": entry.k,
                    "queries": entry.train.queries,
                }
            )
        fixed = {
            "encoder": ENCODER,
            "measures": MEASURES,
        }
        return {
            "seconds_of_all_cells": round(self.seconds_of_cells()),
            "settings": settings_of(self.options) | fixed,
            "collection": {
                "documents": manifest.train.documents,
                "queries": manifest.train.queries,
                "test_queries": manifest.test.queries,
            },
            "sets": sets,
            "overlap": asdict(manifest.overlap),
            "architectures": architectures,
            "starts": starts,
            "claims": check_claims(rows),
        }

    def seconds_of_cells(self) -> float:
        """Add up the seconds of all trainings and searches."""
        total = 0.0
        for name in (*self.options.starts, "architectures"):
            for file in (self.work / name / "cells").rglob("*.json"):
                cell = read_json(file)
                total += cell["training_seconds"] + cell["search_seconds"]
        return total

    def evaluate(self, start: str, architectures: list[str]) -> list[dict[str, Any]]:
        """Train and evaluate architectures from one start in both regimes.

        Dense retrieval from MiniLM is trained once for both tables.
        """
        options = self.options
        recipe = Recipe(
            start=self.start(start),
            max_steps=options.steps,
            batch_size=options.batch,
            learning_rate=options.learning_rate,
            negatives=options.negatives,
            list_size=options.list_size,
            mlm_steps=options.mlm_steps,
            rerank=options.rerank,
            document_length=options.document_length,
            query_length=options.query_length,
        )
        output = self.work / ("architectures" if start == "minilm" else start)
        record = evaluate_regimes(
            self.sets,
            output=output,
            architectures=architectures,
            recipe=recipe,
            options=RegimeOptions(
                seeds=tuple(options.seeds), measures=MEASURES, keep_models=False, progress=True
            ),
        )
        record.write(output / RESULTS_FILE)
        return [asdict(row) for row in record.rows]

    def start(self, name: str) -> str:
        """Make the model of a start, and return its name or folder."""
        if name == "minilm":
            return name
        folder = self.work / "starts" / name
        if name == "random" and not folder.is_dir():
            with draft_folder(folder) as draft:
                save_random_start(draft)
        if name == "minilm-coco":
            options = PretrainOptions(
                max_steps=self.options.coco_steps,
                batch_size=self.options.coco_batch,
                mini_batch_size=self.options.coco_batch,
                learning_rate=2e-5,
                max_length=self.options.document_length,
                seed=CUT_SEED,
            )
            pretrain("minilm", [str(self.collection)], output=folder, options=options, resume=True)
        return str(folder)


def cut_collection(options: argparse.Namespace, folder: Path) -> None:
    """Write some training and test queries, their documents, and a sample of the others.

    A corpus with all documents of the training queries would grow with their number. Documents
    beyond ``--documents`` are left out, and so are their training queries.
    """
    name = "apidocs/" + "+".join(options.domains)
    train = load_collection(name, "train")
    test = load_collection(name, "test")
    chooser = random.Random(CUT_SEED)
    trained = draw_queries(train, options.train_queries, chooser)
    tested = draw_queries(test, options.queries, chooser)
    kept = _draw_documents(
        train,
        trained,
        tested,
        options.documents,
        chooser,
    )
    trained = {query: grades for query, grades in trained.items() if grades.keys() <= kept}
    texts = train.queries | test.queries
    with draft_folder(folder) as draft:
        (draft / "qrels").mkdir()
        corpus = (
            {
                "_id": i,
                **text,
            }
            for i, text in train.documents.items()
            if i in kept
        )
        write_jsonl(draft / "corpus.jsonl", corpus)
        queries = (
            {
                "_id": query,
                "text": texts[query],
            }
            for query in (*trained, *tested)
        )
        write_jsonl(draft / "queries.jsonl", queries)
        for split, qrels in (("train", trained), ("test", tested)):
            write_qrels(draft / "qrels" / f"{split}.tsv", _qrels_rows(qrels))


def _draw_documents(
    collection: Collection,
    trained: Qrels,
    tested: Qrels,
    count: int,
    chooser: random.Random,
) -> set[str]:
    """Draw documents: all of test queries, then those of training queries, then others."""
    of_tests = {document for grades in tested.values() for document in grades}
    of_training = {document for grades in trained.values() for document in grades}
    needed = of_tests | of_training
    others = [document for document in collection.documents if document not in needed]
    only_trained = sorted(needed - of_tests)
    drawn = chooser.sample(only_trained, min(count, len(only_trained)))
    rest = chooser.sample(others, min(count - len(drawn), len(others)))
    return of_tests | set(drawn) | set(rest)


def _qrels_rows(qrels: Qrels) -> list[tuple[str, str, int]]:
    rows = []
    for query, grades in qrels.items():
        for document, grade in grades.items():
            rows.append((query, document, grade))
    return rows


def draw_queries(
    collection: Collection,
    most: int,
    chooser: random.Random,
) -> Qrels:
    """Return the judgements of a random sample of queries."""
    queries = sorted(collection.qrels)
    drawn = chooser.sample(queries, min(most, len(queries)))
    return {query: collection.qrels[query] for query in sorted(drawn)}


def save_random_start(folder: Path) -> None:
    """Save MiniLM's architecture, tokenizer and pooling with random weights."""
    import torch
    from transformers import AutoModel

    torch.manual_seed(CUT_SEED)
    model = load_encoder("minilm")
    transformer: Any = model.transformers_model
    random_weights = AutoModel.from_config(transformer.config).state_dict()
    transformer.load_state_dict(random_weights)
    model.save_pretrained(str(folder))


def check_claims(rows: GapRows) -> list[dict[str, Any]]:
    """Check the claims whose rows were evaluated."""
    checked = []
    for claim, (wider, narrower) in CLAIMS.items():
        names = wider + narrower
        if not all(name in rows for name in names):
            continue
        gaps = {name: rows[name]["measures"][MEASURE]["gap"] for name in names}
        seeds = min(len(rows[name]["seeds"]) for name in names)
        holds_in = [
            _holds(wider, narrower, lambda name, seed=seed: _gap_of_seed(rows[name], seed))
            for seed in range(seeds)
        ]
        checked.append(
            {
                "claim": claim,
                "gaps": gaps,
                "seen_in_means": _holds(wider, narrower, gaps.__getitem__),
                "seen_in_seeds": f"{sum(map(bool, holds_in))} of {seeds}",
            }
        )
    return checked


def _holds(
    wider: tuple[str, ...],
    narrower: tuple[str, ...],
    gap_of: Callable[[str], float | None],
) -> bool | None:
    """Say whether every gap of ``wider`` is below every gap of ``narrower``: a loss is negative.

    The answer is None if a gap is not defined.
    """
    lower = []
    higher = []
    for names, gaps in ((wider, lower), (narrower, higher)):
        for name in names:
            value = gap_of(name)
            if value is None:
                return None
            gaps.append(value)
    return max(lower) < min(higher)


def _gap_of_seed(row: dict[str, Any], seed: int) -> float | None:
    values = row["measures"][MEASURE]["seeds"]
    return gap(values["interpolation"][seed], values["extrapolation"][seed])


def describe(results: dict[str, Any]) -> str:
    """Return the table and the claims that the script prints."""
    rows = {row["model"]: row for row in results["architectures"]}
    for start, row in results["starts"].items():
        rows[f"dense from {start}"] = row
    table = []
    for name, row in rows.items():
        cells = [name]
        for measure in MEASURES.split():
            values = row["measures"][measure]
            cells.append(f"{values['interpolation']:.3f}")
            cells.append(f"{values['extrapolation']:.3f}")
            cells.append(_percent(values["gap"]))
            if measure == MEASURE:
                cells.append(_percent(values["gap_sd"]))
        table.append(cells)
    header = ["model", f"{MEASURE} inter.", "extra.", "gap", "sd of seeds' gaps"]
    header += ["R@10 inter.", "extra.", "gap"]
    lines = [markdown_table(header, table), ""]
    verdicts = {
        True: "seen",
        False: "not seen",
        None: "not defined",
    }
    for claim in results["claims"]:
        verdict = verdicts[claim["seen_in_means"]]
        seeds = f"in {claim['seen_in_seeds']} seeds"
        lines.append(f"- {claim['claim']}: {verdict} in the means, {seeds}")
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.1f} %"


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "extrapolation")
    add_seeds(parser)
    add_work(parser, "runs/benchmark-extrapolation")
    parser.add_argument(
        "--architectures",
        nargs="+",
        default=list(ARCHITECTURES),
    )
    parser.add_argument(
        "--starts",
        nargs="*",
        default=list(STARTS),
        choices=STARTS,
    )
    parser.add_argument(
        "--domains",
        nargs="+",
        default=list(DOMAINS),
        choices=list(DOMAINS),
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=2e-5,
    )
    sizes = {
        "--steps": (40, "Steps of each training."),
        "--batch": (16, "Queries of a step."),
        "--negatives": (1, "BM25 negatives of dense-hard and cross-encoder."),
        "--list-size": (4, "Documents of a query in dense-distilled."),
        "--mlm-steps": (60, "Steps of masked language modelling before SPLADE, once a seed."),
        "--coco-steps": (60, "Steps of COCO, once."),
        "--coco-batch": (32, "Documents of a COCO step."),
        "--rerank": (30, "Documents of a query that are reranked."),
        "--document-length": (64, "Tokens of a document."),
        "--query-length": (32, "Tokens of a query."),
        "--train-queries": (1200, "Training queries that are resampled."),
        "--size": (400, "Training queries of either regime."),
        "--queries": (100, "Test queries."),
        "--documents": (1200, "Documents beside the relevant ones of test queries."),
    }
    add_integers(parser, sizes)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    results = origin() | Study(options).results()
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
