"""Claim: a step of iDRO by one backward pass costs little more than a step of plain fine-tuning.

Triplets have 64 query and 128 document tokens, there are K = 50 clusters, and a step includes the
optimiser. ERM, iDRO by one backward pass, iDRO by a sketch, and iDRO by K gradient calls take turns
in one process. Two shapes are measured: BERT-base with random weights, whose last 3 of 12 layers
are watched, and MiniLM, whose last 2 of 6 are. Kernels are counted as a GPU launches them, for a
batch with all clusters.

The script prints the seconds and the peak memory of every step, and writes
``benchmarks/results/idro.json``:

    python benchmarks/idro.py [--shapes bert-base minilm] [--device cpu]

With ``--before`` a step whose gradients an earlier version of ``cluster_gradients.py`` compares
takes turns with one of today, and with plain fine-tuning:

    python benchmarks/idro.py --before FILE --results benchmarks/results/idro_before.json
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from harness.launches import Launches
from harness.measure import MIB, peak_memory, seconds, timed
from harness.script import option_parser, origin, write_results

from beir_cocodr.losses import cluster_gradients, dro
from beir_cocodr.losses.dro import ClusterLoss, IDROLoss
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions

CLUSTERS = 50
QUERY_TOKENS = 64
DOCUMENT_TOKENS = 128
#: A shape to the number of layers whose gradients iDRO compares.
LAYERS = {
    "bert-base": 3,
    "minilm": 2,
    "tiny": 1,
}
WAYS = ("erm", "one_backward", "sketch", "k_calls")
#: Triplets of the batch whose launches are counted, one of each cluster at least, and their tokens:
#: the number of launches does not depend on them.
COUNTED_TRIPLETS = 64
COUNTED_TOKENS = 8


@dataclass(frozen=True)
class Batch:
    """Triplets and the clusters of their queries.

    Attributes:
        columns: The tokens of queries, positives and negatives.
        labels: (B,) clusters.
    """

    columns: list[dict[str, torch.Tensor]]
    labels: torch.Tensor


def measure(
    shape: str,
    triplets: int,
    repeats: int,
    device: str,
) -> dict[str, Any]:
    """Measure all ways in turns on one shape."""
    model = load_shape(shape, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    losses = {way: loss_of(model, way, shape) for way in WAYS}
    batch = draw_batch(triplets, device)
    for way in WAYS[:-1]:  # A warm-up; the K calls take so long that they need none.
        train_step(losses[way], optimizer, batch)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    peaks: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(repeats):
        for way, loss in losses.items():
            reset_peak(device)
            taken = seconds(lambda loss=loss: train_step(loss, optimizer, batch))
            times[way].append(taken)
            peaks[way].append(peak_mib(device))
            print(f"{shape} {turn + 1} {way}: {taken:.1f} s, {peaks[way][-1]:,.0f} MiB", flush=True)
    medians = {way: float(np.median(values)) for way, values in times.items()}
    overhead_of_calls = medians["k_calls"] - medians["erm"]
    overhead_of_one = medians["one_backward"] - medians["erm"]
    return {
        "triplets": triplets,
        "layers_compared": LAYERS[shape],
        "clusters_present": int(batch.labels.unique().numel()),
        "seconds": {
            way: {
                "median": medians[way],
                "all": times[way],
            }
            for way in WAYS
        },
        "one_backward_to_erm": medians["one_backward"] / medians["erm"],
        "sketch_to_erm": medians["sketch"] / medians["erm"],
        "k_calls_to_one_backward": medians["k_calls"] / medians["one_backward"],
        "overhead_of_k_calls_to_one_backward": overhead_of_calls / overhead_of_one,
        "peak_memory_mib": {way: max(values) for way, values in peaks.items()},
        "launches": count_launches(model, optimizer, shape),
    }


def count_launches(
    model: Any,
    optimizer: torch.optim.Optimizer,
    shape: str,
) -> dict[str, int]:
    """Count the kernels of a step of plain fine-tuning, and those that iDRO adds to it.

    On the CPU they are counted as on a GPU, where positions without gradients are not looked for.
    """
    labels = torch.arange(COUNTED_TRIPLETS, device=model.device) % CLUSTERS
    ids = torch.randint(1000, 30_000, (COUNTED_TRIPLETS, COUNTED_TOKENS), device=model.device)
    column = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
    }
    batch = Batch([column] * 3, labels)
    can_read = getattr(cluster_gradients, "_can_read", None)
    cluster_gradients._can_read = lambda device: False
    counts = {}
    for way in WAYS[:-1]:
        loss = loss_of(model, way, shape)
        train_step(loss, optimizer, batch)
        with Launches() as launches:
            train_step(loss, optimizer, batch)
        counts[way] = len(launches.names)
    cluster_gradients._can_read = can_read
    added = {way: counts[way] - counts["erm"] for way in ("one_backward", "sketch")}
    return {"erm": counts["erm"]} | {f"{way}_adds": number for way, number in added.items()}


def compare_before(
    shape: str,
    triplets: int,
    repeats: int,
    device: str,
    file: Path,
) -> dict[str, Any]:
    """Measure processor seconds of plain steps, of an earlier version's and of today's in turns."""
    model = load_shape(shape, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    losses = {way: loss_of(model, way, shape) for way in ("erm", "one_backward")}
    batch = draw_batch(triplets, device)
    versions = {"before": _version(file), "now": cluster_gradients}
    train_step(losses["erm"], optimizer, batch)
    ratios: dict[str, list[float]] = {name: [] for name in versions}
    for _ in range(repeats):
        _, plain = timed(lambda: train_step(losses["erm"], optimizer, batch))
        for name, version in versions.items():
            dro.ClusterStep = version.ClusterStep
            _, taken = timed(lambda: train_step(losses["one_backward"], optimizer, batch))
            ratios[name].append(taken.processor / plain.processor)
        print(shape, {name: round(values[-1], 2) for name, values in ratios.items()}, flush=True)
    launches = {}
    for name, version in versions.items():
        dro.ClusterStep = version.ClusterStep
        launches[name] = count_launches(model, optimizer, shape)
    return {
        "triplets": triplets,
        "clusters_present": int(batch.labels.unique().numel()),
        "to_erm": {
            name: {
                "median": float(np.median(values)),
                "all": values,
            }
            for name, values in ratios.items()
        },
        "launches": launches,
    }


def _version(file: Path) -> ModuleType:
    """Import an earlier version of a module from its file."""
    spec = importlib.util.spec_from_file_location("before", file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"--before: {file} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_step(
    loss: ClusterLoss,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
) -> None:
    """Train one step, and wait until it is done."""
    columns = [dict(column) for column in batch.columns]
    loss(columns, batch.labels).backward()
    loss.finish_step()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if batch.labels.is_cuda:
        torch.cuda.synchronize()


def loss_of(
    model: Any,
    way: str,
    shape: str,
) -> ClusterLoss:
    """Return the loss of one way."""
    if way == "erm":
        return ClusterLoss(model, CLUSTERS)
    return IDROLoss(
        model,
        CLUSTERS,
        gram=way,
        gradient_layers=LAYERS[shape],
    )


def draw_batch(triplets: int, device: str) -> Batch:
    """Draw random tokens of full length, and clusters uniformly."""
    generator = torch.Generator().manual_seed(42)
    columns = []
    for length in (QUERY_TOKENS, DOCUMENT_TOKENS, DOCUMENT_TOKENS):
        ids = torch.randint(
            1000,
            30_000,
            (triplets, length),
            generator=generator,
        )
        column = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
        }
        columns.append({name: value.to(device) for name, value in column.items()})
    labels = torch.randint(
        0,
        CLUSTERS,
        (triplets,),
        generator=generator,
    )
    return Batch(columns, labels.to(device))


def load_shape(shape: str, device: str) -> Any:
    """Load MiniLM, or an encoder of another shape with random weights."""
    options = EncoderOptions(device=device)
    if shape == "minilm":
        return load_encoder("minilm", options).train()
    from reproduce.make import shaped

    layers, width = (2, 64) if shape == "tiny" else (12, 768)
    with tempfile.TemporaryDirectory() as folder:
        shaped(Path(folder), layers, width)
        return load_encoder(folder, options).train()


def reset_peak(device: str) -> None:
    """Begin the peak memory at what is in use now: the model and the state of its optimiser."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        return
    # Return to the system what an earlier step has freed.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def peak_mib(device: str) -> float:
    """Return the peak memory since :func:`reset_peak`, in MiB."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / MIB
    return peak_memory() / MIB


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "idro")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=list(LAYERS),
        default=["bert-base", "minilm"],
        help="Measure these shapes. Default: bert-base and minilm.",
    )
    parser.add_argument(
        "--base-batch",
        type=int,
        default=16,
        help="Triplets for BERT-base; the paper has 64.",
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=64,
        help="Triplets for other shapes.",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="Rounds of all ways. Default: 5.",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FILE",
        help="Compare with an earlier version of cluster_gradients.py alone.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    shapes: dict[str, Any] = {}
    for shape in options.shapes:
        triplets = options.base_batch if shape == "bert-base" else options.batch
        settings = (shape, triplets, options.repeats, options.device)
        if options.before is not None:
            shapes[shape] = compare_before(*settings, options.before)
        else:
            shapes[shape] = measure(*settings)
    details = {}
    if options.device.startswith("cuda"):
        details["gpu"] = torch.cuda.get_device_name()
    results = origin(**details) | {
        "clusters": CLUSTERS,
        "tokens": {
            "query": QUERY_TOKENS,
            "document": DOCUMENT_TOKENS,
        },
        "shapes": shapes,
    }
    write_results(options.results, results)
    for shape, figures in shapes.items():
        print(shape, json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
