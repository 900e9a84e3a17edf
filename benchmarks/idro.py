"""The time and memory of one fine-tuning step: ERM, and iDRO by one backward, by a sketch, and by K
calls.

Triplets of 64 query and 128 document tokens, K = 50 clusters, the optimiser's step included. Two
shapes: BERT-base (random weights, the last 3 of 12 layers, --base-batch triplets) and MiniLM (the
last 2 of 6, --batch triplets). In one process the four ways take turns; the time and the peak
memory of each step are taken. Writes benchmarks/results/idro.json, in which a shape that --shapes
leaves out stays as it is.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine

from beir_cocodr.io import write_text
from beir_cocodr.losses.dro import ClusterLoss, IDROLoss
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.records import versions

RESULTS = Path(__file__).parent / "results" / "idro.json"
CLUSTERS = 50
QUERY, DOCUMENT = 64, 128
LAYERS = {"bert-base": 3, "minilm": 2, "tiny": 1}
WAYS = ("erm", "one_backward", "sketch", "k_calls")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--base-batch", type=int, default=16, help="triplets for BERT-base (paper: 64)"
    )
    parser.add_argument("--batch", type=int, default=64, help="triplets for MiniLM")
    parser.add_argument("--base-repeats", type=int, default=5, help="rounds for BERT-base")
    parser.add_argument("--repeats", type=int, default=5, help="rounds for MiniLM")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="+", default=["bert-base", "minilm"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    sizes = {
        "bert-base": (arguments.base_batch, arguments.base_repeats),
        "minilm": (arguments.batch, arguments.repeats),
    }
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": machine()
        | ({"gpu": torch.cuda.get_device_name()} if arguments.device.startswith("cuda") else {}),
        "clusters": CLUSTERS,
        "tokens": {"query": QUERY, "document": DOCUMENT},
        "shapes": {
            shape: measure(shape, *sizes[shape], arguments.device) for shape in arguments.shapes
        },
        "versions": versions(),
    }
    write_text(arguments.results, json.dumps(report, indent=2) + "\n")
    for shape, found in report["shapes"].items():
        print(shape, json.dumps(found, indent=2))


def measure(shape: str, batch: int, repeats: int, device: str) -> dict[str, Any]:
    model = encoder(shape, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    losses = {way: loss_of(model, way, shape) for way in WAYS}
    features, labels = triplets(batch, device)
    for way in WAYS[:-1]:  # to warm up; K calls are long enough not to need it
        step(losses[way], optimizer, features, labels)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    peaks: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(repeats):
        for way, loss in losses.items():
            forget_peak(device)
            seconds[way].append(step(loss, optimizer, features, labels))
            peaks[way].append(peak(device))
            print(
                f"{shape} {turn + 1} {way}: {seconds[way][-1]:.1f} s, {peaks[way][-1]:,.0f} MiB",
                flush=True,
            )
    medians = {way: float(np.median(values)) for way, values in seconds.items()}
    return {
        "triplets": batch,
        "layers_compared": LAYERS[shape],
        "clusters_present": int(labels.unique().numel()),
        "seconds": {
            way: {"median": medians[way], "all": values} for way, values in seconds.items()
        },
        "one_backward_to_erm": medians["one_backward"] / medians["erm"],
        "sketch_to_erm": medians["sketch"] / medians["erm"],
        "k_calls_to_one_backward": medians["k_calls"] / medians["one_backward"],
        "overhead_of_k_calls_to_one_backward": (medians["k_calls"] - medians["erm"])
        / (medians["one_backward"] - medians["erm"]),
        "peak_memory_mib": {way: max(values) for way, values in peaks.items()},
    }


def step(
    loss: ClusterLoss, optimizer: torch.optim.Optimizer, features: Any, labels: torch.Tensor
) -> float:
    """Seconds of one training step."""
    start = time.perf_counter()
    loss([dict(column) for column in features], labels).backward()
    loss.finish_step()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if labels.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def loss_of(model: Any, way: str, shape: str) -> ClusterLoss:
    if way == "erm":
        return ClusterLoss(model, CLUSTERS)
    return IDROLoss(model, CLUSTERS, gram=way, gradient_layers=LAYERS[shape])


def triplets(batch: int, device: str) -> tuple[list[dict[str, torch.Tensor]], torch.Tensor]:
    """Random tokens of full length, and clusters drawn uniformly."""
    generator = torch.Generator().manual_seed(42)
    columns = []
    for length in (QUERY, DOCUMENT, DOCUMENT):
        ids = torch.randint(1000, 30_000, (batch, length), generator=generator)
        columns.append(
            {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids).to(device)}
        )
    return columns, torch.randint(0, CLUSTERS, (batch,), generator=generator).to(device)


def encoder(shape: str, device: str) -> Any:
    if shape == "minilm":
        return load_encoder("minilm", EncoderOptions(device=device)).train()
    from reproduce.make import shaped

    with tempfile.TemporaryDirectory() as folder:
        shaped(Path(folder), *((2, 64) if shape == "tiny" else (12, 768)))
        return load_encoder(folder, EncoderOptions(device=device)).train()


def forget_peak(device: str) -> None:
    """Let the peak begin at what is in use now: the model, its optimiser's state and what Python
    holds.
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)  # what an earlier step has freed is not this one's
        Path("/proc/self/clear_refs").write_text("5")


def peak(device: str) -> float:
    """MiB, the most since."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
