"""Claim: what training with labels gains on two tasks of BEIR, beside what is free.

MiniLM is trained on the training split of SciFact or NFCorpus and judged on the test queries of the
same task, with its vectors alone and fused with BM25. Hard negatives come from the untrained fusion
of MiniLM and BM25; those that score within 5% of the best relevant document are left out as likely
to be relevant. Queries are also compared with the documents of the other queries in their batch,
except in one row: on NFCorpus, first trials with hard negatives alone fell from 0.316 to 0.012 and
0.013 in 300 steps. Fine-tuning weighs all queries alike (ERM) or clusters (iDRO, group DRO, CVaR).
It starts from MiniLM, from COCO on the task's corpus, or from query-as-context there. MRL learns
from the rankings of the fusion. Two rows need neither labels nor queries: MiniLM is distilled from
the best ranking without labels, by generated queries and in a third of the steps, and is judged
before and after it is merged with the base. Models that were fine-tuned or pre-trained are also
judged after a half of their weights is merged with the base. Then NFCorpus is resampled as for
interpolation and extrapolation, by ReSTrain and ReSTTest.

Everything takes about seven hours on two cores, as a step takes 3 seconds there and 30 without
labels. The cost of what is left is printed before it starts, from the steps that were timed so far.
The results file is written after each model, and a model that it has with the same settings is not
trained again. ``--rows`` and ``--seeds`` choose a part. Where a GPU is at hand, ``--every-seed
--jobs 4`` trains every row with all seeds, in four processes at once:

    python benchmarks/beir_small.py --collections DIR --work DIR [--rows ERM iDRO] [--seeds 13]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from beir_small_results import ARMS, MEASURE, TASKS, Arm, Cell, Results, device_name
from beir_small_tables import ALONE, BASE, BM25, FEEDBACK, FREE, FUSED, RM3, VECTOR, markdown
from harness.script import SEEDS, add_work, option_parser, write_results

from beir_cocodr import evaluate, fuse, load_collection
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.io import write_text
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.regimes import RegimeOptions, evaluate_regimes
from beir_cocodr.resampling.restrain import resample_restrain
from beir_cocodr.resampling.resttest import resample_resttest
from beir_cocodr.training.adapt import AdaptOptions, adapt
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.distillation.merging import Merging, copy_of, merged
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions
from beir_cocodr.training.output_folder import training_precision
from beir_cocodr.training.presets import adapt_options
from beir_cocodr.training.pretraining.pretrain import pretrain
from beir_cocodr.training.shared_options import PRECISIONS

MODEL = "minilm"
#: MiniLM reads 256 tokens of a document when it is judged, and fewer when it is trained.
JUDGED = EncoderOptions(query_length=64, document_length=256)
TRAINED = EncoderOptions(query_length=64, document_length=128)
LEARNING_RATE = 2e-5
BATCH = 16
# A step of distillation without labels reads a list of documents for each query: it takes several
# times as long as one of fine-tuning, so there are fewer of them.
FEWER_WITHOUT_LABELS = 3
CLUSTERS = 20
#: Candidates of the fusion for each training query, and the share of the best relevant document's
#: score above which a candidate is left out.
CANDIDATES = 50
MOST = 0.95

#: How NFCorpus is resampled for interpolation and extrapolation, the training queries of a set of
#: ReSTrain, and what is compared.
METHODS = ("restrain", "resttest")
SIZE = 800
ARCHITECTURES = ("bm25", "dense", "dense-hard")
#: The name of each comparison to its method and architecture.
RESAMPLED = {
    f"{method} {architecture}": (method, architecture)
    for method in METHODS
    for architecture in ARCHITECTURES
}


class Task:
    """One task, its training files, and the models that are trained for it."""

    def __init__(self, folder: Path, work: Path, steps: int, precision: str) -> None:
        """Name the folders."""
        self.dataset = str(folder)
        self.work = work / folder.name
        self.steps = steps
        self.precision = precision

    def free(self, row: str) -> Cell:
        """Judge a row that needs no training."""
        folder = self.work / "fused"
        if row in (VECTOR, FEEDBACK):
            fuse(MODEL, self.dataset, output=folder, encoder=JUDGED, resume=True)
        uses = {
            BM25: {ALONE: "bm25"},
            BASE: {ALONE: MODEL, FUSED: f"hybrid:{MODEL}"},
            RM3: {FUSED: f"rm3:{MODEL}"},
            VECTOR: {FUSED: str(folder)},
            FEEDBACK: {FUSED: f"feedback:{folder}"},
        }
        return self.judge(row, None, uses[row], 0.0)

    def train(self, arm: Arm, seed: int) -> Cell:
        """Train a model by an arm, or go on with its training, and judge it."""
        start, seconds = self.pretrained(arm, seed)
        name = f"{arm.trained_as.replace(', ', '-').replace(' ', '-')}-{seed}"
        if arm.unlabelled:
            return self.train_without_labels(arm, seed)
        if arm.distilled:
            record = distill(
                start,
                self.dataset,
                teacher="hybrid",
                output=self.work / name,
                options=DistillOptions.of(student="mrl", **self.shared(seed), warmup=0.1),
                resume=True,
            )
        elif arm.weighting:
            clusters = {} if arm.weighting == "erm" else {"clusters": CLUSTERS}
            record = finetune(
                start,
                self.dataset,
                output=self.work / name,
                options=FinetuneOptions.of(
                    weighting=arm.weighting,
                    loss=arm.loss,
                    hard_negatives=str(self.negatives()),
                    **self.shared(seed),
                    **clusters,
                ),
                resume=True,
            )
        else:
            return self.judge_trained(arm, seed, start, seconds)
        return self.judge_trained(arm, seed, str(self.work / name), seconds + record.seconds)

    def half_merged(self, trained_folder: str, folder: Path) -> str:
        """Write the mean of the trained weights and MiniLM's to a folder, and return it.

        References:
            Wortsman et al., Robust fine-tuning of zero-shot models, 2022: a half is their default.
        """
        model = load_encoder(MODEL, TRAINED)
        trained = load_encoder(trained_folder, TRAINED)
        model.load_state_dict(
            merged(copy_of(model.state_dict()), copy_of(trained.state_dict()), share=0.5)
        )
        model.save_pretrained(str(folder))
        return str(folder)

    @property
    def steps_without_labels(self) -> int:
        """Return the steps of a distillation without labels."""
        return max(1, self.steps // FEWER_WITHOUT_LABELS)

    def train_without_labels(
        self, arm: Arm, seed: int, generated: Path | None = None, **changes: Any
    ) -> Cell:
        """Adapt by distillation, as ``adapt --stages distill`` does, and judge the model.

        The stage merges what it trained with the base; ``unmerged`` judges it before.

        Args:
            arm: The row.
            seed: The seed of queries and training.
            generated: A folder of generated queries. Default: queries are generated without a
                model.
            changes: Further options of the training.
        """
        output = self.work / f"adapted-{seed}"
        unmerged = self.work / f"unmerged-{seed}"
        steps = self.steps_without_labels
        settings = self.shared(seed) | {"max_steps": steps, "refresh_steps": max(1, steps // 2)}
        settings |= changes
        generation = GenerationOptions()
        if generated is None:
            generation = GenerationOptions(tokenizer=MODEL, seed=seed)
        with keeping_unmerged(unmerged):
            record = adapt(
                MODEL,
                self.dataset,
                output=output,
                options=AdaptOptions(
                    stages="distill",
                    stage_options={"distill": adapt_options("distill", **settings)},
                    queries=10,
                    generated=None if generated is None else str(generated),
                    generation=generation,
                    search=SearchOptions(TRAINED),
                ),
                resume=True,
            )
        seconds = record.seconds["distill"] or 0.0
        model = record.models["distill"]
        if arm.unmerged and unmerged.is_dir():
            model = str(unmerged)
        cell = self.judge_trained(arm, seed, model, seconds)
        return replace(cell, steps=steps)

    def judge_trained(self, arm: Arm, seed: int, model: str, seconds: float) -> Cell:
        """Judge a trained model, alone and fused; for a half, what it makes of MiniLM."""
        if arm.half_of:
            folder = self.work / "halves" / f"{Path(model).name}"
            model = self.half_merged(model, folder)
        return self.judge(arm.name, seed, {ALONE: model, FUSED: f"hybrid:{model}"}, seconds)

    def shared(self, seed: int) -> dict[str, Any]:
        """Return the options that all fine-tuning and distillation shares."""
        return {
            "max_steps": self.steps,
            "batch_size": BATCH,
            "learning_rate": LEARNING_RATE,
            "seed": seed,
            "precision": self.precision,
            "encoder": TRAINED,
        }

    def pretrained(self, arm: Arm, seed: int) -> tuple[str, float]:
        """Return the model from which an arm starts, and the seconds of its pre-training."""
        if not arm.start:
            return MODEL, 0.0
        folder = self.work / f"{arm.start}-pretrained-{seed}"
        on_queries = arm.start == "qc"
        record = pretrain(
            MODEL,
            self.dataset,
            output=folder,
            options=PretrainOptions.of(
                objective=arm.start,
                max_steps=self.steps,
                batch_size=4 * BATCH,
                learning_rate=LEARNING_RATE,
                seed=seed,
                precision=self.precision,
                encoder=TRAINED,
            ),
            queries=str(self.generated()) if on_queries else (),
            resume=True,
        )
        return str(folder), record.seconds

    def generated(self) -> Path:
        """Generate queries without a model, unless they are there."""
        folder = self.work / "queries"
        if not (folder / "generation.json").is_file():
            options = GenerationOptions(tokenizer=MODEL)
            generate_queries(self.dataset, "lexical", folder, options)
        return folder

    def negatives(self) -> Path:
        """Write the run of hard negatives, unless it is there."""
        file = self.work / "negatives.trec"
        if file.is_file():
            return file
        collection = load_collection(self.dataset, "train")
        record = evaluate(
            {"fusion": f"hybrid:{MODEL}"},
            self.dataset,
            split="train",
            output=self.work / "fusion",
            search=SearchOptions(JUDGED, progress=True),
        )
        lines = []
        for query, candidates in _read_run(self.work / "fusion" / str(record.models["fusion"].run)):
            judged = collection.qrels[query]
            relevant = [score for document, score in candidates if judged.get(document, 0) > 0]
            most = MOST * max(relevant) if relevant else float("inf")
            negatives = [
                (document, score)
                for document, score in candidates
                if judged.get(document, 0) == 0 and score <= most
            ]
            for rank, (document, score) in enumerate(negatives[:CANDIDATES], start=1):
                lines.append(f"{query} Q0 {document} {rank} {score} negatives\n")
        write_text(file, "".join(lines))
        return file

    def judge(
        self,
        row: str,
        seed: int | None,
        models: Mapping[str, str],
        train_seconds: float,
    ) -> Cell:
        """Return nDCG@10 of every test query by each model."""
        started = time.perf_counter()
        record = evaluate(
            dict(models),
            self.dataset,
            measures=MEASURE,
            search=SearchOptions(JUDGED, progress=True),
        )
        scores = {
            use: [round(float(score), 4) for score in result.scores[MEASURE]]
            for use, result in record.models.items()
        }
        return Cell(
            row=row,
            seed=seed,
            steps=self.steps if seed is not None else 0,
            device=device_name(),
            precision=None if seed is None else self.trained_in,
            train_seconds=round(train_seconds, 1),
            judge_seconds=round(time.perf_counter() - started, 1),
            scores=scores,
        )

    @property
    def trained_in(self) -> str:
        """Return what models are trained in."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return training_precision(device, self.precision)

    def resampled(self, name: str, seed: int) -> list[dict[str, Any]]:
        """Return the rows of interpolation and extrapolation by one method and architecture."""
        method, architecture = RESAMPLED[name]
        record = evaluate_regimes(
            self.resample(method),
            output=self.work / f"{method}-{architecture}",
            architectures=[architecture],
            recipe=Recipe(
                start=MODEL,
                max_steps=self.steps,
                batch_size=BATCH,
                learning_rate=LEARNING_RATE,
                precision=self.precision,
                document_length=TRAINED.document_length,
                query_length=TRAINED.query_length,
            ),
            options=RegimeOptions(
                seeds=(seed,),
                measures=MEASURE,
                keep_models=False,
                progress=True,
            ),
        )
        return [asdict(row) for row in record.rows]

    def resample(self, method: str) -> Path:
        """Resample the queries of the task, unless the sets are there."""
        sets = self.work / method
        if sets.is_dir():
            return sets
        if method == "restrain":
            options = RestrainOptions(sizes=(SIZE,))
            resample_restrain(
                self.dataset,
                self.dataset,
                model=MODEL,
                output=sets,
                options=options,
            )
        else:
            resample_resttest(self.dataset, self.dataset, model=MODEL, output=sets)
        return sets


def _read_run(path: Path) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Yield each query of a TREC run with its documents and scores, best first."""
    candidates: dict[str, list[tuple[str, float]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        query, _, document, _, score, _ = line.split()
        candidates.setdefault(query, []).append((document, float(score)))
    yield from candidates.items()


@contextmanager
def keeping_unmerged(folder: Path) -> Iterator[None]:
    """Save what is distilled in this block as it is before it is merged with the base."""
    merge = Merging.merge

    def save_and_merge(merging: Merging) -> None:
        merging.model.save_pretrained(str(folder))
        merge(merging)

    with mock.patch.object(Merging, "merge", save_and_merge):
        yield


FREE_ROW = "free"


class Jobs:
    """Processes of this script, several at once, each of which trains a part."""

    def __init__(self, options: argparse.Namespace, results: Results) -> None:
        """Name the folder of the results of parts."""
        self.options = options
        self.results = results
        self.folder = options.work / "parts"

    def run(self) -> None:
        """Make what is shared, then train all parts, and add their results as they come."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_all([(FREE_ROW, task, self.options.seeds[0]) for task in self.options.tasks])
        self.run_all([*self.comparisons(), *self.parts()])

    def comparisons(self) -> Iterator[tuple[str, str, int]]:
        """Yield the row, the task and the seed of each comparison by resampling."""
        if "nfcorpus" in self.options.tasks:
            for name in RESAMPLED:
                if name in self.options.rows and name not in self.results.resampled:
                    yield name, "nfcorpus", self.options.seeds[0]

    def parts(self) -> Iterator[tuple[str, str, int]]:
        """Yield the rows, the task and the seed of each part.

        Rows that start from the same pre-trained model are one part, which trains it once. What has
        a spread over seeds anyway comes before the seeds that ``--every-seed`` adds.
        """
        first = self.options.seeds[0]
        groups: dict[tuple[int, str], list[Arm]] = {}
        for arm in ARMS:
            if arm.name in self.options.rows:
                for seed in seeds_of(arm, self.options):
                    groups.setdefault((seed, arm.start or arm.trained_as), []).append(arm)

        def urgency(group: tuple[tuple[int, str], list[Arm]]) -> tuple[bool, int]:
            (seed, _), arms = group
            is_extra = seed != first and not any(arm.over_seeds for arm in arms)
            return is_extra, -len(arms)

        for (seed, _), arms in sorted(groups.items(), key=urgency):
            for task in self.options.tasks:
                if not all(self.results.has(task, arm.name, seed) for arm in arms):
                    yield "|".join(arm.name for arm in arms), task, seed

    def run_all(self, parts: list[tuple[str, str, int]]) -> None:
        """Run the processes of some parts."""
        pool = ThreadPoolExecutor(self.options.jobs)
        try:
            running = [pool.submit(self.run_one, *part) for part in parts]
            for one in as_completed(running):
                self.results.merge(one.result())
        finally:
            pool.shutdown(cancel_futures=True)

    def run_one(self, rows: str, task: str, seed: int) -> Path:
        """Train one part in a process of its own, and return its results file."""
        name = f"{task}-{rows.split('|')[0].replace(', ', '-').replace(' ', '-')}-{seed}"
        part = self.folder / f"{name}.json"
        options = self.options
        command = [
            *(sys.executable, __file__, "--rows", *rows.split("|"), "--tasks", task),
            *("--seeds", str(seed), "--steps", str(options.steps), "--every-seed"),
            *("--collections", str(options.collections), "--work", str(options.work)),
            *("--precision", options.precision, "--results", str(part)),
        ]
        threads = max(1, (os.cpu_count() or 1) // options.jobs)
        with part.with_suffix(".log").open("w") as log:
            done = subprocess.run(
                command,
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                check=False,
            )
        if done.returncode:
            tail = part.with_suffix(".log").read_text().splitlines()[-1:]
            print(f"{name} failed: {' '.join(tail)}", flush=True)
        return part


def seeds_of(arm: Arm, options: argparse.Namespace) -> list[int]:
    """Return the seeds with which an arm is trained."""
    return options.seeds if arm.over_seeds or options.every_seed else options.seeds[:1]


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = option_parser(__doc__, "beir_small")
    add_work(parser)
    parser.add_argument(
        "--collections",
        type=Path,
        required=True,
        metavar="DIR",
        help="Read scifact and nfcorpus from this folder of BEIR folders.",
    )
    names = [FREE_ROW, *(arm.name for arm in ARMS), *RESAMPLED]
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=names,
        default=names,
        help="Train these rows only.",
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=TASKS,
        default=list(TASKS),
        help="Train for these tasks only.",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=list(SEEDS),
        help="Train with these seeds; rows without a spread take the first. Default: 13 42 97.",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=300,
        help="Train each stage for this many steps. Default: 300.",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="Train in this precision. Default: that of the device.",
    )
    parser.add_argument(
        "--every-seed",
        action="store_true",
        help="Train every row with every seed.",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="Train in so many processes at once, which share one GPU. Default: 1.",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="Print what is missing and what it costs, and stop.",
    )
    return parser.parse_args()


def main() -> None:
    """Measure what is missing."""
    options = parse_options()
    settings = {
        "model": MODEL,
        "steps": options.steps,
        "batch_size": BATCH,
        "learning_rate": LEARNING_RATE,
        "clusters": CLUSTERS,
    }
    results = Results(options.results, settings)
    wanted = [
        (task, arm, seed)
        for arm in ARMS
        if arm.name in options.rows
        for seed in seeds_of(arm, options)
        for task in options.tasks
    ]
    missing = [one for one in wanted if not results.has(one[0], one[1].name, one[2])]
    seconds = results.seconds_left(missing)
    cost = "a cost that the first one shows" if seconds is None else f"{seconds / 3600:.1f} hours"
    print(f"{len(missing)} models are missing: {cost}", flush=True)
    if options.plan:
        return
    if options.jobs > 1:
        Jobs(options, results).run()
    else:
        train_missing(options, results, missing)
    print(markdown(results.content(), [arm.name for arm in ARMS]))


def train_missing(
    options: argparse.Namespace,
    results: Results,
    missing: list[tuple[str, Arm, int]],
) -> None:
    """Train and judge what is missing, one after the other."""
    tasks = {
        task: Task(options.collections / task, options.work, options.steps, options.precision)
        for task in options.tasks
    }
    if FREE_ROW in options.rows:
        for name, task in tasks.items():
            prepare(task, name, results)
    for name, arm, seed in missing:
        results.add(name, tasks[name].train(arm, seed))
    if "nfcorpus" not in tasks:
        return
    for name in RESAMPLED:
        if name in options.rows and name not in results.resampled:
            results.resampled[name] = tasks["nfcorpus"].resampled(name, options.seeds[0])
            write_results(options.results, results.content())


def prepare(task: Task, name: str, results: Results) -> None:
    """Make the files that several models need, and judge what needs no training."""
    task.negatives()
    task.generated()
    if name == "nfcorpus":
        for method in METHODS:
            task.resample(method)
    for row in FREE:
        if not results.has(name, row, None):
            results.add(name, task.free(row))


if __name__ == "__main__":
    main()
