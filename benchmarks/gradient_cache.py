"""Claim: gradient caching makes a COCO step as fast as the host's cached loss, in little memory.

MiniLM sees two spans of each of 2,048 API documents, a batch that only gradient caching fits. The
rival is sentence-transformers' ``CachedMultipleNegativesRankingLoss`` on the same batch with the
same mini-batches. COCO runs without language-model losses for that comparison, and once with them.
Each loss has a process of its own, so that its peak memory is its own, and the processes take
turns. A step is forward and backward, without dropout.

The script prints seconds, documents a second, peak memory and whether the aims were met, and writes
``benchmarks/results/gradient_cache.json``:

    python benchmarks/gradient_cache.py [--documents 2048] [--mini-batch-size 32] [--repeats 3]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from harness.measure import (
    Worker,
    check_bound,
    describe_target,
    paired_ratio,
    peak_memory,
    say,
    thread_environment,
    timed,
)
from harness.script import option_parser, origin, write_results

LOSSES = {
    "coco": "COCO, contrastive loss alone",
    "host": "sentence-transformers' CachedMultipleNegativesRankingLoss",
    "coco_mlm": "COCO with its language-model losses",
}
#: The least that COCO's throughput may be of the host's.
LEAST_RATIO = 0.9
#: The most memory of any COCO step.
MOST_GIB = 6.0
GIB = 2**30
#: Columns of a batch that the losses read.
KEYS = ("input_ids", "attention_mask", "token_type_ids", "mlm_labels")


def prepare(kind: str, options: argparse.Namespace) -> tuple[Any, list[dict[str, Any]]]:
    """Return a loss, and one batch: a column of first and a column of second spans."""
    from harness.texts import CORPORA

    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.losses.coco import COCOLoss, infonce
    from beir_cocodr.models.checkpoints.loading import load_encoder, model_source
    from beir_cocodr.models.spec import EncoderOptions
    from beir_cocodr.training.options import PretrainOptions
    from beir_cocodr.training.pretraining.document_views import DocumentViews
    from beir_cocodr.training.pretraining.pretrain import attach_head
    from beir_cocodr.training.start import Start

    settings = PretrainOptions.of(mlm_weight=1.0 if kind == "coco_mlm" else 0.0)
    model = load_encoder("minilm", EncoderOptions(device="cpu"))
    collections = [load_collection(name, labels="none") for name in CORPORA]
    views = DocumentViews(collections, model, settings)
    if len(views.rows) < options.documents:
        raise SystemExit(
            f"--documents {options.documents}: only {len(views.rows)} documents have two spans; "
            "ask for fewer"
        )
    if settings.masked:
        attach_head(Start("minilm", model_source("minilm"), model), settings)
    model.eval()
    rows = views.dataset().shuffle(seed=0)
    batch = views.collator()([rows[i] for i in range(options.documents)])
    columns = []
    for name in views.columns:
        present = [key for key in KEYS if f"{name}_{key}" in batch]
        columns.append({key: batch[f"{name}_{key}"] for key in present})
    loss = infonce if kind == "host" else COCOLoss
    return loss(model, mini_batch_size=options.mini_batch_size), columns


def serve(kind: str, options: argparse.Namespace) -> None:
    """Serve one loss: answer every line with the seconds, loss and peak memory of a step."""
    import torch

    torch.set_num_threads(options.threads)
    loss, columns = prepare(kind, options)
    ids = b"".join(column["input_ids"].numpy().tobytes() for column in columns)
    tokens = sum(int(column["attention_mask"].sum()) for column in columns)
    loaded = peak_memory() / GIB
    few = []
    for column in columns:
        few.append({key: value[: options.mini_batch_size] for key, value in column.items()})
    loss(few, None).backward()  # a warm-up
    say(
        {
            "texts": hashlib.sha256(ids).hexdigest(),
            "tokens": tokens,
            "loaded_gib": loaded,
        }
    )
    for _ in sys.stdin:
        loss.model.zero_grad()
        copies = [dict(column) for column in columns]
        value, timing = timed(lambda copies=copies: _step(loss, copies))
        say(
            {
                "seconds": timing.wall,
                "loss": value,
                "peak_gib": peak_memory() / GIB,
            }
        )


def _step(loss: Any, columns: list[dict[str, Any]]) -> float:
    value = loss(columns, None)
    value.backward()
    return float(value.item())


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let all losses take turns."""
    names = ("documents", "mini_batch_size", "threads")
    sizes = {name: getattr(options, name) for name in names}
    environment = thread_environment(options.threads)
    workers = {
        kind: Worker(
            __file__,
            {
                "worker": kind,
                **sizes,
            },
            environment,
        )
        for kind in LOSSES
    }
    about = {kind: worker.answer() for kind, worker in workers.items()}
    if about["coco"]["texts"] != about["host"]["texts"]:
        raise SystemExit("the two losses do not see the same texts")
    steps: dict[str, list[dict[str, Any]]] = {kind: [] for kind in LOSSES}
    for repeat in range(options.repeats):
        # The first place changes with every round. The language-model losses have no rival and are
        # timed once.
        order = ["coco", "host"] if repeat % 2 == 0 else ["host", "coco"]
        if repeat == 0:
            order.append("coco_mlm")
        for kind in order:
            step = workers[kind].ask("step")
            steps[kind].append(step)
            print(f"round {repeat + 1}, {kind}: {step['seconds']:.1f} s", file=sys.stderr)
    for worker in workers.values():
        worker.close()
    losses = {}
    for kind in LOSSES:
        losses[kind] = summarize(
            kind,
            steps[kind],
            about[kind],
            options.documents,
        )
    return {
        "losses": losses,
        "targets": targets(losses),
    }


def summarize(
    kind: str,
    steps: Sequence[dict[str, Any]],
    about: dict[str, Any],
    documents: int,
) -> dict[str, Any]:
    """Summarise the steps of one loss."""
    times = [step["seconds"] for step in steps]
    median = statistics.median(times)
    return {
        "what": LOSSES[kind],
        "median_seconds": median,
        "seconds": times,
        "documents_per_second": documents / median,
        "peak_gib": max(step["peak_gib"] for step in steps),
        "loaded_gib": about["loaded_gib"],
        "tokens": about["tokens"],
        "loss": steps[0]["loss"],
    }


def targets(losses: dict[str, Any]) -> dict[str, Any]:
    """Check both aims: throughput against the host's, and memory."""
    ratio = paired_ratio(losses["host"]["seconds"], losses["coco"]["seconds"])
    peak = max(losses["coco"]["peak_gib"], losses["coco_mlm"]["peak_gib"])
    return {
        "throughput coco / host": ratio | check_bound(ratio["median"], at_least=LEAST_RATIO),
        "peak_gib coco": {
            "value": peak,
            **check_bound(peak, at_most=MOST_GIB),
        },
    }


def describe(results: dict[str, Any]) -> str:
    """Return the lines that the script prints."""
    lines = []
    for kind, loss in results["losses"].items():
        speed = f"{loss['documents_per_second']:.0f} documents/s"
        figures = f"median {loss['median_seconds']:.1f} s, {speed}, peak {loss['peak_gib']:.2f} GiB"
        lines.append(f"{kind:9} {figures}  ({loss['what']})")
    for name, target in results["targets"].items():
        value = target["median"] if "median" in target else target["value"]
        lines.append(describe_target(name, value, target))
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "gradient_cache")
    parser.add_argument(
        "--documents",
        type=int,
        default=2048,
        help="Documents of the batch.",
    )
    parser.add_argument(
        "--mini-batch-size",
        type=int,
        default=32,
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="Rounds of both losses.",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="Threads of every loss.",
    )
    parser.add_argument(
        "--worker",
        choices=list(LOSSES),
        help=argparse.SUPPRESS,
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.worker:
        serve(options.worker, options)
        return
    from harness.texts import CORPORA

    names = ("documents", "mini_batch_size", "threads", "repeats")
    sizes = {name: getattr(options, name) for name in names}
    results = origin() | {
        "sizes": sizes
        | {
            "spans_per_document": 2,
            "corpora": CORPORA,
        }
    }
    results |= measure(options)
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
