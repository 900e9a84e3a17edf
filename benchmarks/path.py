"""Claim: COCO-DR's path over a million documents shares its work between processes and resumes.

Documents are pieces of the documentation of installed packages, a query is six words of its
relevant one, and the encoder is a tiny BERT with random weights, so that everything except the
encoder shows. The path is the paper's: COCO for some steps, negatives of BM25, the warm-up, a
mining by the model, new clusters, iDRO, and an evaluation over a store. It runs once undisturbed on
two processes, where phases are recognised by the files that appear, and the system reports the
processor seconds of each process. It runs a second time and is killed in every phase, all processes
at once, and resumed.

The script prints the seconds of each phase and whether weights and measures are the same, and
writes ``benchmarks/results/path.json``:

    OMP_NUM_THREADS=1 python benchmarks/path.py --work DIR
    OMP_NUM_THREADS=1 python benchmarks/path.py --work DIR --documents 20000 --queries 500
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import timed
from harness.script import (
    add_integers,
    add_work,
    option_parser,
    origin,
    read_json,
    write_results,
)
from harness.texts import cut_pieces, source_words
from reproduce.make import tiny

from beir_cocodr.io import file_sha256, write_jsonl, write_qrels

#: Queries of the evaluation.
TESTED = 200
#: Steps of each training.
STEPS = 20
#: Dimensions of the encoder.
WIDTH = 96
PROCESSES = 2
#: Documents from whose words the encoder's vocabulary is made.
VOCABULARY_TEXTS = 2_000


@dataclass(frozen=True)
class Phase:
    """A part of the path.

    Attributes:
        begins: The pattern of a file that shows that it has begun; the next phase ends it.
        middle: The pattern of its files; three of them show that it is in its middle.
    """

    begins: str
    middle: str = ""


PHASES = {
    "tokens counted": Phase("cache/token-counts/*.parts", "cache/token-counts/*.parts/*.npy"),
    "COCO": Phase("coco/checkpoints/checkpoint-5/complete.json"),
    "BM25 index": Phase("cache/bm25/*.parts", "cache/bm25/*.parts/*.npz"),
    "BM25 negatives": Phase("cache/bm25/negatives-*", "cache/bm25/negatives-*/*"),
    "warm-up": Phase("dr/episodes/0/checkpoints/checkpoint-5/complete.json"),
    "mining": Phase(
        "dr/episodes/1/checkpoints/corpus-*/store.json",
        "dr/episodes/1/checkpoints/corpus-*/*.npy",
    ),
    "clusters and iDRO": Phase("dr/episodes/1/checkpoints/checkpoint-5/complete.json"),
    "encoding": Phase("store/store.json", "store/*.npy"),
    "evaluation": Phase("judged/.unfinished*"),
}


def write_data(
    work: Path,
    documents: int,
    queries: int,
) -> None:
    """Write the collection and the encoder."""
    total = queries + TESTED
    relevant = np.random.default_rng(1).choice(documents, total, replace=False).tolist()
    query_of = {row: query for query, row in enumerate(relevant)}
    (work / "data" / "qrels").mkdir(parents=True)
    query_texts: dict[int, str] = {}
    vocabulary_texts: list[str] = []

    def read_rows() -> Iterator[dict[str, object]]:
        pieces = cut_pieces(
            source_words(),
            documents,
            (16, 32),
            seed=0,
        )
        for row, text in enumerate(pieces):
            if row in query_of:
                query_texts[query_of[row]] = " ".join(text.split()[3:9]) or "array"
            if row < VOCABULARY_TEXTS:
                vocabulary_texts.append(text)
            yield {
                "_id": f"d{row}",
                "title": "",
                "text": text,
            }

    write_jsonl(work / "data" / "corpus.jsonl", read_rows())
    rows = (
        {
            "_id": f"q{query}",
            "text": query_texts[query],
        }
        for query in sorted(query_texts)
    )
    write_jsonl(work / "data" / "queries.jsonl", rows)
    for split, numbers in (("train", range(queries)), ("test", range(queries, total))):
        qrels = [(f"q{query}", f"d{relevant[query]}", 1) for query in numbers]
        write_qrels(work / "data" / "qrels" / f"{split}.tsv", qrels)
    tiny(
        work / "model",
        vocabulary_texts,
        0,
        width=WIDTH,
    )


def path_commands(work: Path, output: Path) -> list[list[str]]:
    """Return the commands of the path."""
    program = [sys.executable, "-m", "beir_cocodr.cli"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += [f"--nproc-per-node={PROCESSES}", "-m", "beir_cocodr.cli"]
    dataset = f"--dataset={work / 'data'}"
    trained = [f"--max-steps={STEPS}", "--set", "save_steps=5", "--resume"]
    lengths = ["--query-length=16", "--document-length=48"]
    coco = output / "coco"
    model = output / "dr"
    store = output / "store"
    pretrain = [f"--model={work / 'model'}", f"--output={coco}"]
    pretrain += ["--batch-size=64", "--span-tokens=12"]
    finetune = [f"--model={coco}", f"--output={model}", "--batch-size=16", "--weighting=idro"]
    for setting in ("episodes=1", "clusters=5", "query_length=16", "document_length=48"):
        finetune += ["--set", setting]
    encode = [f"--model={model}", f"--output={store}", f"--processes={PROCESSES}", *lengths]
    evaluate = [f"--model={model}", f"--store={store}", f"--output={output / 'judged'}", *lengths]
    return [
        [*torchrun, "pretrain", dataset, *pretrain, *trained],
        [*torchrun, "finetune", dataset, *finetune, *trained],
        [*program, "encode", dataset, *encode],
        [*program, "evaluate", dataset, *evaluate, "--split=test", "--overwrite"],
    ]


@dataclass(frozen=True)
class Process:
    """A living process.

    Attributes:
        parent: The id of its parent.
        seconds: Its processor seconds, with those of the children that it waited for.
    """

    parent: int
    seconds: float


def living_processes(root: int) -> dict[int, Process]:
    """Return a process and all its living descendants by their ids."""
    ticks = os.sysconf("SC_CLK_TCK")
    processes = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It ended meanwhile.
        seconds = sum(map(int, fields[11:15])) / ticks
        processes[int(file.parent.name)] = Process(int(fields[1]), seconds)
    family = {root}
    while True:
        children = {pid for pid, process in processes.items() if process.parent in family}
        if children <= family:
            break
        family |= children
    return {pid: processes[pid] for pid in family if pid in processes}


def busy_seconds(root: int) -> list[float]:
    """Return the processor seconds of each training process with all that it started."""
    family = living_processes(root)
    ranks = sorted(pid for pid, process in family.items() if process.parent == root)
    seconds = []
    for rank in ranks:
        total = sum(process.seconds for process in living_processes(rank).values())
        seconds.append(round(total, 1))
    return seconds


class Run:
    """The path in a folder of its own; it notes when each phase begins."""

    def __init__(self, work: Path, name: str) -> None:
        self.work = work
        self.output = work / name
        self.output.mkdir()
        cache = str(self.output / "cache")
        self.environment = os.environ | {
            "BEIR_COCODR_CACHE": cache,
            "OMP_NUM_THREADS": "1",
        }
        self.began: dict[str, float] = {}
        self.busy: dict[str, list[list[float]]] = {}
        self.killed: list[str] = []

    def run(self, kill: bool = False) -> None:
        """Run all commands; with ``kill``, each phase is killed once."""
        for command in path_commands(self.work, self.output):
            while not self.run_command(command, kill):
                pass

    def run_command(self, command: list[str], kill: bool) -> bool:
        """Run a command, and say whether it ended; it did not if a phase was killed."""
        with (self.output / "log").open("a") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.work,
            )
            while process.poll() is None:
                phase = self.note_phases()
                if kill and self.is_due(phase):
                    self.kill(process, phase)
                    return False
                seconds = busy_seconds(process.pid)
                if len(seconds) == PROCESSES:
                    self.busy.setdefault(phase, []).append(seconds)
                time.sleep(0.2)
        if process.returncode:
            raise SystemExit(
                f"{' '.join(command)}: status {process.returncode}; see {self.output / 'log'}"
            )
        return True

    def note_phases(self) -> str:
        """Note the phases that have begun, and return the latest."""
        for name, phase in PHASES.items():
            has_begun = name in self.began or any(self.output.glob(phase.begins))
            if has_begun:
                self.began.setdefault(name, time.perf_counter())
        return list(self.began)[-1] if self.began else "start"

    def is_due(self, phase: str) -> bool:
        """Say whether a phase is in its middle, and was not killed yet."""
        if phase == "start" or phase in self.killed:
            return False
        pattern = PHASES[phase].middle
        return not pattern or len(list(self.output.glob(pattern))) > 2

    def kill(self, process: subprocess.Popen[bytes], phase: str) -> None:
        """Kill all processes at once; those of torchrun are groups of their own."""
        for pid in living_processes(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        self.killed.append(phase)

    def describe_phases(self, ended: float) -> dict[str, Any]:
        """Return the seconds of each phase by the clock, and of each process's processors."""
        phases: dict[str, Any] = {}
        moments = [*self.began.values(), ended]
        for phase, start, end in zip(
            self.began,
            moments,
            moments[1:],
            strict=False,
        ):
            phases[phase] = {"seconds": round(end - start, 1)}
            if phase in self.busy:
                growth = np.diff(np.array(self.busy[phase]), axis=0)
                growth = np.where(growth > 0, growth, 0)  # It falls where a command ended.
                totals = growth.sum(axis=0).round(1).tolist()
                phases[phase]["cpu_seconds_of_each_process"] = totals
        return phases

    def weights(self) -> dict[str, str]:
        """Return the checksums of both models."""
        checksums = {}
        for name in ("coco", "dr"):
            checksums[name] = file_sha256(self.output / name / "model.safetensors")
        return checksums

    def measures(self) -> dict[str, float]:
        """Return the measures of the evaluation."""
        [model] = read_json(self.output / "judged" / "results.json")["models"].values()
        measures: dict[str, float] = model["measures"]
        return measures


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "path")
    add_work(parser)
    integers = {
        "--documents": (1_000_000, "Documents of the corpus."),
        "--queries": (5_000, "Training queries."),
    }
    add_integers(parser, integers)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    work = options.work.resolve()
    work.mkdir(parents=True)
    write_data(work, options.documents, options.queries)
    undisturbed = Run(work, "whole")
    _, timing = timed(undisturbed.run)
    phases = undisturbed.describe_phases(time.perf_counter())
    print(json.dumps(phases, indent=2), flush=True)
    killed = Run(work, "killed")
    killed.run(kill=True)
    comparison = {
        "killed_in": killed.killed,
        "same_weights": killed.weights() == undisturbed.weights(),
        "same_measures": killed.measures() == undisturbed.measures(),
    }
    results = origin() | {
        "settings": {
            "documents": options.documents,
            "queries": options.queries,
            "steps": STEPS,
            "width": WIDTH,
            "processes": PROCESSES,
            "seeds": [0, 1],
        },
        "seconds": round(timing.wall, 1),
        "phases": phases,
        **comparison,
    }
    write_results(options.results, results)
    print(
        json.dumps(
            {
                "seconds": results["seconds"],
                **comparison,
            }
        )
    )
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
