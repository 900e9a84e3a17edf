"""COCO-DR's path over a million documents on two processes: what each phase takes, and whether
kills change anything.

Documents are pieces of the installed packages' documentation, a query is six words of its relevant
one, and the encoder is a tiny BERT with random weights, so that what is not the encoder shows. The
path is that of the paper: COCO for some steps, negatives of BM25, the warm-up, a mining by the
model, new clusters, iDRO, and an evaluation over a store. It runs once undisturbed, where the
phases are told from the files that appear, and the processor seconds of each process are read from
the system; and once killed in every phase, all processes at once, and resumed. Writes
benchmarks/results/path.json. Run as:

    OMP_NUM_THREADS=1 python benchmarks/path.py --work DIR
    OMP_NUM_THREADS=1 python benchmarks/path.py --work DIR --documents 20000 --queries 500  # small
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from negatives import SOURCES, pieces
from reproduce.make import tiny

from beir_cocodr import load_collection
from beir_cocodr.io import file_sha256, write_text
from beir_cocodr.records import versions

RESULTS = Path(__file__).parent / "results" / "path.json"
TESTED, STEPS, WIDTH, PROCESSES = 200, 20, 96, 2

#: Phase to the file by which it is told to be under way; the next one's ends it.
PHASES = {
    "tokens counted": "cache/token-counts/*.parts",
    "COCO": "coco/checkpoints/checkpoint-5/complete.json",
    "BM25 index": "cache/bm25/*.parts",
    "BM25 negatives": "cache/bm25/negatives-*",
    "warm-up": "dr/episodes/0/checkpoints/checkpoint-5/complete.json",
    "mining": "dr/episodes/1/checkpoints/corpus-*/store.json",
    "clusters and iDRO": "dr/episodes/1/checkpoints/checkpoint-5/complete.json",
    "encoding": "store/store.json",
    "evaluation": "judged/.unfinished*",
}
#: How many files of a kind there have to be, before a phase is killed in the middle.
ENOUGH = {
    "tokens counted": "cache/token-counts/*.parts/*.npy",
    "BM25 index": "cache/bm25/*.parts/*.npz",
}
ENOUGH |= {
    "BM25 negatives": "cache/bm25/negatives-*/*",
    "mining": "dr/episodes/1/checkpoints/corpus-*/*.npy",
}
ENOUGH |= {"encoding": "store/*.npy"}


def write_data(work: Path, documents: int, queries: int) -> None:
    source = load_collection(SOURCES, "train")
    words = [document["text"].split() for document in source.documents.values()]
    relevant = np.random.default_rng(1).choice(documents, queries + TESTED, replace=False).tolist()
    number = {row: query for query, row in enumerate(relevant)}
    (work / "data" / "qrels").mkdir(parents=True)
    texts: dict[int, str] = {}
    some: list[str] = []
    with (work / "data" / "corpus.jsonl").open("w") as file:
        for row, text in enumerate(pieces(words, documents, 16, 32, 0)):
            file.write(json.dumps({"_id": f"d{row}", "title": "", "text": text}) + "\n")
            if row in number:
                texts[number[row]] = " ".join(text.split()[3:9]) or "array"
            if row < 2_000:
                some.append(text)
    lines = (
        json.dumps({"_id": f"q{query}", "text": texts[query]}) + "\n" for query in sorted(texts)
    )
    (work / "data" / "queries.jsonl").write_text("".join(lines))
    for split, part in (("train", range(queries)), ("test", range(queries, queries + TESTED))):
        rows = "".join(f"q{query}\td{relevant[query]}\t1\n" for query in part)
        (work / "data" / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    tiny(work / "model", some, 0, width=WIDTH)


def commands(work: Path, out: Path) -> list[list[str]]:
    data = ["--dataset", str(work / "data")]
    few = ["--max-steps", str(STEPS), "--set", "save_steps=5", "--resume"]
    spawned = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={PROCESSES}",
    ]
    spawned += ["-m", "beir_cocodr.cli"]
    cut = ["--query-length", "16", "--document-length", "48"]
    coco = [
        "--model",
        str(work / "model"),
        "--output",
        str(out / "coco"),
        "--batch-size",
        "64",
        "--span-tokens",
        "12",
    ]
    dr = [
        "--model",
        str(out / "coco"),
        "--output",
        str(out / "dr"),
        "--batch-size",
        "16",
        "--weighting",
        "idro",
    ]
    dr += [
        word
        for one in ("episodes=1", "clusters=5", "query_length=16", "document_length=48")
        for word in ("--set", one)
    ]
    here = [sys.executable, "-m", "beir_cocodr.cli"]
    encoded = [
        *data,
        "--model",
        str(out / "dr"),
        "--output",
        str(out / "store"),
        "--processes",
        str(PROCESSES),
        *cut,
    ]
    judged = [
        *data,
        "--model",
        str(out / "dr"),
        "--store",
        str(out / "store"),
        "--output",
        str(out / "judged"),
        *cut,
    ]
    return [
        [*spawned, "pretrain", *data, *coco, *few],
        [*spawned, "finetune", *data, *dr, *few],
        [*here, "encode", *encoded],
        [*here, "evaluate", *judged, "--split", "test", "--overwrite"],
    ]


def processes(root: int) -> dict[int, tuple[int, float]]:
    """Living descendants of a process: parent, and processor seconds with those of children that it
    waited for.
    """
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(file.parent.name)] = (
            int(fields[1]),
            sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"),
        )
    kept = {root}
    while more := {pid for pid, (parent, _) in found.items() if parent in kept} - kept:
        kept |= more
    return {pid: found[pid] for pid in kept if pid in found}


def busy(root: int) -> list[float]:
    """Processor seconds of each training process with all that it started, in order of their
    numbers.
    """
    living = processes(root)
    ranks = sorted(pid for pid, (parent, _) in living.items() if parent == root)
    return [round(sum(seconds for _, seconds in processes(rank).values()), 1) for rank in ranks]


class Run:
    """The path in a folder; phases are noted as they begin."""

    def __init__(self, work: Path, name: str) -> None:
        self.work, self.out = work, work / name
        self.out.mkdir()
        self.environment = os.environ | {
            "BEIR_COCODR_CACHE": str(self.out / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        self.began: dict[str, float] = {}
        self.shares: dict[str, list[list[float]]] = {}
        self.peak = 0
        self.killed: list[str] = []

    def found(self) -> Iterator[str]:
        for phase, pattern in PHASES.items():
            if phase in self.began or next(self.out.glob(pattern), None) is not None:
                yield phase

    def whole(self, kill: bool) -> None:
        for command in commands(self.work, self.out):
            while not self.once(command, kill):
                pass

    def once(self, command: list[str], kill: bool) -> bool:
        """Run a command; False if it was killed, as one phase of it was under way."""
        with (self.out / "log").open("a") as log:
            running = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, cwd=self.work
            )
            while running.poll() is None:
                for phase in self.found():
                    self.began.setdefault(phase, time.perf_counter())
                now = list(self.began)[-1] if self.began else "start"
                if kill and now not in (*self.killed, "start") and self.enough(now):
                    for pid in processes(running.pid):  # torchrun's are groups of their own
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    running.wait()
                    self.killed.append(now)
                    return False
                if len(ranks := busy(running.pid)) == PROCESSES:
                    self.shares.setdefault(now, []).append(ranks)
                time.sleep(0.2)
        if running.returncode:
            raise SystemExit(
                f"{' '.join(command)}: status {running.returncode}, see {self.out / 'log'}"
            )
        return True

    def enough(self, phase: str) -> bool:
        pattern = ENOUGH.get(phase)
        return pattern is None or sum(1 for _ in self.out.glob(pattern)) > 2

    def phases(self, ended: float) -> dict[str, Any]:
        """Seconds of each phase by the clock, and by the processors of each process."""
        found: dict[str, Any] = {}
        moments = [*self.began.values(), ended]
        for phase, start, end in zip(self.began, moments, moments[1:], strict=False):
            found[phase] = {"seconds": round(end - start, 1)}
            if ranks := self.shares.get(phase):
                grown = np.diff(np.array(ranks), axis=0)  # falls where a command ended
                found[phase]["cpu_seconds_of_each_process"] = (
                    np.where(grown > 0, grown, 0).sum(axis=0).round(1).tolist()
                )
        return found

    def weights(self) -> dict[str, str]:
        return {name: file_sha256(self.out / name / "model.safetensors") for name in ("coco", "dr")}


def settings(given: argparse.Namespace) -> dict[str, Any]:
    sizes = {"documents": given.documents, "queries": given.queries, "steps": STEPS, "width": WIDTH}
    return {**sizes, "processes": PROCESSES, "seeds": [0, 1]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument(
        "--work", type=Path, required=True, help="New folder for everything; removed at the end."
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.work = given.work.resolve()
    given.work.mkdir(parents=True)
    write_data(given.work, given.documents, given.queries)
    whole, began = Run(given.work, "whole"), time.perf_counter()
    whole.whole(kill=False)
    ended = time.perf_counter()
    phases = whole.phases(ended)
    print(json.dumps(phases, indent=1), flush=True)
    killed = Run(given.work, "killed")
    killed.whole(kill=True)
    figures = [
        json.loads((run.out / "judged" / "results.json").read_text())["models"]
        for run in (whole, killed)
    ]
    measures = [next(iter(found.values()))["measures"] for found in figures]
    content = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "settings": settings(given),
        "seconds": round(ended - began, 1),
        "phases": phases,
        "killed_in": killed.killed,
        "same_weights": killed.weights() == whole.weights(),
        "same_measures": measures[0] == measures[1],
    }
    write_text(given.output, json.dumps(content, indent=1) + "\n")
    print(
        json.dumps(
            {
                name: content[name]
                for name in ("seconds", "killed_in", "same_weights", "same_measures")
            }
        )
    )
    shutil.rmtree(given.work)


if __name__ == "__main__":
    main()
