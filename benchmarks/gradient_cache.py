"""One COCO step over a batch that only gradient caching fits: time and peak memory against the
host's loss.

MiniLM sees two spans of each of --documents API documents. The rival is sentence-transformers'
CachedMultipleNegativesRankingLoss on the same batch with the same mini-batches; COCO runs without
language-model losses for that comparison, and once with them. Each loss has a process of its own,
so that its peak memory is its own, and the processes take turns. A step is forward and backward,
dropout off.

    python benchmarks/gradient_cache.py [--documents 2048] [--mini-batch-size 32] [--repeats 3]

Writes benchmarks/results/gradient_cache.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import machine

from beir_cocodr.models.spec import EncoderOptions

RESULTS = Path(__file__).parent / "results" / "gradient_cache.json"
LOSSES = {
    "coco": "COCO, contrastive loss alone",
    "host": "sentence-transformers' CachedMultipleNegativesRankingLoss",
    "coco_mlm": "COCO with its language-model losses",
}
#: The least that COCO's throughput may be of the host's, and the most memory that any COCO step may
#: take.
LEAST_RATIO, MOST_GIB = 0.9, 6.0
# Together about 2,900 documents of two spans; scipy's and sklearn's are the quickstart's target.
CORPORA = ("apidocs/torch", "apidocs/scipy", "apidocs/pandas", "apidocs/numpy", "apidocs/sklearn")
GIB = 2**30


def peak_memory() -> float:
    """GiB, the most this process has held so far."""
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte / GIB


def prepare(kind: str, options: argparse.Namespace) -> tuple[Any, list[dict[str, Any]]]:
    """The loss, and one batch: a column of first and a column of second spans."""
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.losses.coco import COCOLoss, infonce
    from beir_cocodr.models.loading import load_encoder
    from beir_cocodr.training.options import PretrainOptions
    from beir_cocodr.training.pretrain import attach_head
    from beir_cocodr.training.pretrain_data import DocumentViews

    settings = PretrainOptions(mlm_weight=float(kind == "coco_mlm"))
    model = load_encoder("minilm", EncoderOptions(device="cpu"))
    collections = [load_collection(name, labels="none") for name in CORPORA]
    views = DocumentViews(collections, model, settings)
    if len(views.rows) < options.documents:
        raise SystemExit(
            f"only {len(views.rows)} documents have two spans, not {options.documents}"
        )
    if settings.masked:
        attach_head(model, "minilm", settings)
    model.eval()
    rows = views.dataset().shuffle(seed=0)
    batch = views.collator()([rows[i] for i in range(options.documents)])
    keys = ("input_ids", "attention_mask", "token_type_ids", "mlm_labels")
    columns = [
        {key: batch[f"{column}_{key}"] for key in keys if f"{column}_{key}" in batch}
        for column in views.columns
    ]
    if kind == "host":
        return infonce(model, mini_batch_size=options.mini_batch_size), columns
    return COCOLoss(model, mini_batch_size=options.mini_batch_size), columns


def worker(kind: str, options: argparse.Namespace) -> None:
    """Serve one loss: every line on stdin is a step, answered by its time, loss and peak memory."""
    import torch

    torch.set_num_threads(options.threads)
    loss, columns = prepare(kind, options)
    ids = b"".join(column["input_ids"].numpy().tobytes() for column in columns)
    tokens = sum(int(column["attention_mask"].sum()) for column in columns)
    about = {
        "texts": hashlib.sha256(ids).hexdigest(),
        "tokens": tokens,
        "loaded_gib": peak_memory(),
    }
    few = [
        {key: value[: options.mini_batch_size] for key, value in column.items()}
        for column in columns
    ]
    loss(few, None).backward()  # warms up
    print(json.dumps(about), flush=True)
    for _ in sys.stdin:
        loss.model.zero_grad()
        copies = [dict(column) for column in columns]
        started = time.perf_counter()
        value = loss(copies, None)
        value.backward()
        seconds = time.perf_counter() - started
        print(
            json.dumps({"seconds": seconds, "loss": value.item(), "peak_gib": peak_memory()}),
            flush=True,
        )


class Process:
    """A worker at the other end of a pipe."""

    def __init__(self, kind: str, options: argparse.Namespace) -> None:
        sizes = ("documents", "mini_batch_size", "threads")
        arguments = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in sizes]
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", kind, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict.fromkeys(names, str(options.threads)),
        )
        self.about = self.answer()

    def step(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        print("step", file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker died with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(options: argparse.Namespace) -> dict[str, Any]:
    processes = {kind: Process(kind, options) for kind in LOSSES}
    if processes["coco"].about["texts"] != processes["host"].about["texts"]:
        raise SystemExit("the rivals do not see the same texts")
    steps: dict[str, list[dict[str, Any]]] = {kind: [] for kind in LOSSES}
    for repeat in range(options.repeats):
        # Whoever comes first changes with every round; language-model losses are timed once, beside
        # no rival.
        order = ("coco", "host") if repeat % 2 == 0 else ("host", "coco")
        for kind in (*order, *(["coco_mlm"] if repeat == 0 else [])):
            steps[kind].append(processes[kind].step())
            print(
                f"round {repeat + 1}, {kind}: {steps[kind][-1]['seconds']:.1f} s", file=sys.stderr
            )
    for process in processes.values():
        process.process.communicate()
    losses = {kind: summary(kind, steps[kind], processes[kind].about, options) for kind in LOSSES}
    return {"losses": losses, "targets": targets(losses, steps)}


def summary(
    kind: str, steps: list[dict[str, Any]], about: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    seconds = [step["seconds"] for step in steps]
    median = statistics.median(seconds)
    return {
        "what": LOSSES[kind],
        "median_seconds": median,
        "seconds": seconds,
        "documents_per_second": options.documents / median,
        "peak_gib": max(step["peak_gib"] for step in steps),
        "loaded_gib": about["loaded_gib"],
        "tokens": about["tokens"],
        "loss": steps[0]["loss"],
    }


def targets(losses: dict[str, Any], steps: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """COCO's throughput over the host's, of medians and of each round; whether memory stays in its
    bound.
    """
    rounds = [
        host["seconds"] / ours["seconds"]
        for ours, host in zip(steps["coco"], steps["host"], strict=True)
    ]
    ratio = losses["host"]["median_seconds"] / losses["coco"]["median_seconds"]
    peak = max(losses["coco"]["peak_gib"], losses["coco_mlm"]["peak_gib"])
    return {
        "throughput coco / host": {
            "median": ratio,
            "rounds": rounds,
            "at_least": LEAST_RATIO,
            "met": ratio >= LEAST_RATIO,
        },
        "peak_gib coco": {"value": peak, "at_most": MOST_GIB, "met": peak <= MOST_GIB},
    }


def show(report: dict[str, Any]) -> None:
    for kind, found in report["losses"].items():
        times = f"median {found['median_seconds']:.1f} s, {found['documents_per_second']:.0f} documents/s"
        print(f"{kind:9} {times}, peak {found['peak_gib']:.2f} GiB  ({found['what']})")
    throughput, memory = report["targets"].values()
    spread = f"{min(throughput['rounds']):.2f} to {max(throughput['rounds']):.2f}"
    verdicts = {True: "met", False: "MISSED"}
    print(
        f"throughput {throughput['median']:.2f} of the host's ({spread}), at least {LEAST_RATIO}: "
        f"{verdicts[throughput['met']]}; memory {memory['value']:.2f} GiB, at most {MOST_GIB}: "
        f"{verdicts[memory['met']]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=2048)
    parser.add_argument("--mini-batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="threads of every loss")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--worker", choices=LOSSES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options)
        return
    from beir_cocodr.io import write_text
    from beir_cocodr.records import versions

    sizes = {
        name: getattr(options, name)
        for name in ("documents", "mini_batch_size", "threads", "repeats")
    }
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | versions(),
        "sizes": sizes | {"spans_per_document": 2, "corpora": CORPORA},
        **measure(options),
    }
    show(report)
    write_text(options.output, json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
