"""What a step will cost before it starts: hours, memory of a GPU, disk, from throughputs and the
FLOPs of its commands.

A pass over a text costs 2 P FLOPs a token for P weights, training three times that, gradient
caching once more. What a GPU sustains stands in throughputs.json, with its machine and date where
it was measured, else as an assumption.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from reproduce.shared import COCODR, DEV, DL19, DL20, FORUMS, LENGTHS, TRAIN
from reproduce.specification import PLACEHOLDER, Step

HERE = Path(__file__).parent
GPU_RESULTS = HERE.parent / "results" / "gpu.json"
BM25_RESULTS = HERE.parent / "results" / "negatives.json"

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """Weights in millions, layers and width of a transformer."""

    millions: float
    layers: int
    width: int


#: What a command's models are, by the first of these words that stands in it.
SHAPES = {
    "gtr-xxl": Shape(4_800, 24, 1_024),
    "gtr-xl": Shape(1_240, 24, 1_024),
    "large": Shape(335, 24, 1_024),
    "distilbert": Shape(66, 6, 768),
    "tas-b": Shape(66, 6, 768),
    "margin-mse": Shape(66, 6, 768),
    "mrl": Shape(66, 6, 768),
    "gpl": Shape(66, 6, 768),
    "target/": Shape(66, 6, 768),
    "generator": Shape(220, 24, 768),
    "doc2query": Shape(220, 24, 768),
}
BASE = Shape(110, 12, 768)

_SIZES = COCODR["table5"]["rows"]
_MARCO = _SIZES["msmarco"]["documents"]
TRAIN_QUERIES = 502_939

#: Documents and queries of a collection that COCO-DR's Table 5 does not list.
OTHERS = {
    TRAIN: (_MARCO, TRAIN_QUERIES),
    DEV: (_MARCO, 6_980),
    DL19: (_MARCO, 43),
    DL20: (_MARCO, 54),
    "msmarco-documents": (3_213_835, 0),
    "trec-covid-v2": (129_192, 50),
}

#: Bytes a weight in training: weights, gradients and two moments in fp32; and of a saved
#: checkpoint: without gradients.
_TRAINING_BYTES, _CHECKPOINT_BYTES = 16, 12

#: Bytes that a layer keeps of a token for the backward pass, in numbers of its width (bf16).
_ACTIVATIONS = 34


def size(data: str) -> tuple[int, int]:
    """Documents and queries of a collection."""
    task = data.split("/")[0]
    if task in OTHERS:
        return OTHERS[task]
    documents, queries = _SIZES[task]["documents"], _SIZES[task]["test_queries"]
    return (
        (documents // len(FORUMS), queries // len(FORUMS)) if "/" in data else (documents, queries)
    )


@dataclass(frozen=True)
class Cost:
    """Hours on all GPUs together, of a GPU's memory and of disk in GiB, and optimiser steps."""

    hours: float = 0.0
    gpu_gib: float = 0.0
    disk_gib: float = 0.0
    steps: int = 0

    def __add__(self, other: Cost) -> Cost:
        largest = max(self.gpu_gib, other.gpu_gib)
        return Cost(
            self.hours + other.hours,
            largest,
            self.disk_gib + other.disk_gib,
            self.steps + other.steps,
        )


@cache
def throughputs() -> Any:
    """throughputs.json, with what was measured of BM25 and on a GPU in its place."""
    found = json.loads((HERE / "throughputs.json").read_text())
    if BM25_RESULTS.is_file():
        measured = json.loads(BM25_RESULTS.read_text())
        seconds = (
            measured["parts"]["one"]["query_ms"] / 1000 * _MARCO / measured["settings"]["documents"]
        )
        why = f"measured over {measured['settings']['documents']:,} documents {measured['date'][:10]}, in proportion"
        found["bm25_queries_per_second_and_core"] = {
            "measured": True,
            "value": round(1 / seconds, 1),
            "why": why,
        }
    if GPU_RESULTS.is_file():
        measured = json.loads(GPU_RESULTS.read_text())
        encode = measured.get("parts", {}).get("encode", {})
        if encode.get("tflops") and measured.get("device", "").startswith("cuda"):
            found["gpu"] |= {
                "measured": True,
                "device": measured["gpu"],
                "sustained_tflops": encode["tflops"],
            }
            found["gpu"]["why"] = f"encoding in bf16, measured {measured['date'][:10]}"
    return found


@contextmanager
def _processes(count: int) -> Iterator[None]:
    """Presets count batches by the processes that torchrun would start."""
    before = os.environ.get("WORLD_SIZE")
    os.environ["WORLD_SIZE"] = str(count)
    try:
        yield
    finally:
        os.environ.pop("WORLD_SIZE")
        if before is not None:
            os.environ["WORLD_SIZE"] = before


def cost(step: Step, gpus: int, steps: Mapping[str, Step]) -> Cost:
    """What a step's commands cost together, without what it waits for."""
    return sum((_command(command, gpus, steps) for command in step.commands), Cost())


def options_of(words: list[str], gpus: int) -> Any:
    """The options of a training command, by its preset, flags and settings."""
    from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions
    from beir_cocodr.training.presets import stage_options

    kinds = {"pretrain": PretrainOptions, "finetune": FinetuneOptions, "distill": DistillOptions}
    kind: Any = kinds[words[0]]
    given = dict(pairwise(words))
    sets = [value for name, value in pairwise(words) if name == "--set"]
    flags = {
        name: given[f"--{name.replace('_', '-')}"]
        for name in kind.__dataclass_fields__
        if f"--{name.replace('_', '-')}" in given
    }
    assigned = [*sets, *(f"{name}={value}" for name, value in flags.items())]
    with _processes(gpus):
        return stage_options(kind, words[0], given.get("--preset"), assigned)


def _shape(command: str) -> Shape:
    return next((shape for word, shape in SHAPES.items() if word in command), BASE)


def _hours(flops: float, gpus: int, decoding: bool = False) -> float:
    gpu = throughputs()["gpu"]
    return flops / (gpu["decoding_tflops" if decoding else "sustained_tflops"] * 1e12) / gpus / 3600


def _command(command: str, gpus: int, steps: Mapping[str, Step]) -> Cost:
    words, shape = shlex.split(command), _shape(command)
    data = [match[2] for match in PLACEHOLDER.finditer(command) if match[1] == "data"]
    weights, share = shape.millions * 1e6, throughputs()["share_of_length"]["value"]
    checkpoint = weights * _CHECKPOINT_BYTES / GIB
    kind = " ".join(words[:2]) if words[0] == "resample" else words[0]
    given = dict(pairwise(words))

    def encoding(name: str) -> float:
        """FLOPs of encoding a collection's documents."""
        cut = int(
            given.get("--document-length", LENGTHS.get(name, LENGTHS["msmarco"])["doc_max_len"])
        )
        return 2 * weights * cut * share * size(name)[0]

    def training(texts: int, length: float, count: int, mini: int) -> tuple[float, float]:
        """FLOPs and GiB of a GPU for so many steps of so many texts."""
        cached = texts / gpus > mini
        held = min(mini, texts / gpus) * length * shape.layers * shape.width * _ACTIVATIONS
        return (8 if cached else 6) * weights * texts * length * count, (
            weights * _TRAINING_BYTES + held
        ) / GIB

    if kind == "encode":
        documents = size(data[0])[0]
        width = 4 if "fp32" in words else 2
        return Cost(
            _hours(encoding(data[0]), gpus),
            weights * 4 / GIB + 4,
            documents * shape.width * width / GIB,
        )
    if kind in ("evaluate", "qpp"):
        documents, queries = size(data[0])
        bm25 = " bm25" in command or "@bm25" in command
        rate = throughputs()["bm25_queries_per_second_and_core"]["value"] * _MARCO / documents
        reading = queries / rate / 3600 / 16 if bm25 else 0.0
        again = encoding(data[0]) if "--store" not in words and not bm25 else 0.0
        pairs = 1000 * queries * 2 * weights * 200 * share if "rerank" in command else 0.0
        if "--word-vectors" in words:
            reading += documents / throughputs()["word_vector_documents_per_second"]["value"] / 3600
        return Cost(
            reading + _hours(2 * documents * queries * shape.width + again + pairs, 1), 8, 1
        )
    if kind == "generate-queries":
        documents = min(size(data[0])[0], int(given.get("--max-passages", 10**12)))
        passages = documents * (8 if data[0] == "msmarco-documents" else 1)
        tokens = passages * int(given["--per-passage"]) * 20
        read = 2 * weights * passages * 144 * share
        return Cost(
            _hours(read, gpus) + _hours(2 * weights * tokens, gpus, True),
            16,
            passages * 1_500 / GIB,
        )
    if kind == "pretrain":
        options = options_of(words, gpus)
        documents = sum(size(name)[0] for name in data)
        count = (
            options.max_steps
            if options.max_steps > 0
            else int(options.epochs * documents / options.batch_size)
        )
        length = (
            (options.span_tokens + 2)
            if options.objective not in ("qc", "cotmae")
            else options.max_length * share
        )
        flops, memory = training(2 * options.batch_size, length, count, options.mini_batch_size)
        return Cost(_hours(flops, gpus), memory, 2 * checkpoint + documents * 600 / GIB, count)
    if kind == "finetune":
        options = options_of(words, gpus)
        queries = TRAIN_QUERIES if data == [TRAIN] else 500_000
        documents = size(TRAIN)[0] if data == [TRAIN] else 100_000
        rounds = options.episodes + options.stages
        count = (
            options.max_steps
            if options.max_steps > 0
            else int(options.epochs * queries / options.batch_size)
        )
        texts, length = options.batch_size * (2 + options.negatives), 128 * share
        flops, memory = training(texts, length, count, options.mini_batch_size)
        mining = (rounds - 1) * 2 * weights * documents * length
        lexical = queries / throughputs()["bm25_queries_per_second_and_core"]["value"] / 16 / 3600
        return Cost(
            _hours(rounds * flops + mining, gpus) + lexical,
            memory,
            rounds * 2 * checkpoint + 14,
            rounds * count,
        )
    if kind == "distill":
        options = options_of(words, gpus)
        count = (
            options.max_steps
            if options.max_steps > 0
            else int(options.epochs * TRAIN_QUERIES / options.batch_size)
        )
        texts = options.batch_size * (1 + options.list_size)
        flops, memory = training(texts, 128 * share, count, options.mini_batch_size)
        teacher = 2 * BASE.millions * 1e6 * 192 * share * TRAIN_QUERIES * 2 * options.list_size
        refresh = count // options.refresh_steps * 2 * weights * 128 * share * _MARCO
        return Cost(_hours(flops + teacher + refresh, gpus), memory, 2 * checkpoint + 14, count)
    if kind == "adapt":  # GPL: 140,000 steps of 32 lists of two, one pseudo-labelling
        documents = size(data[0])[0]
        flops, memory = training(32 * 3, 250 * share, 140_000, 32)
        return Cost(
            _hours(flops, 1) + _hours(encoding(data[0]) * 3, 1), memory, checkpoint * 3, 140_000
        )
    if kind == "resample evaluate":
        return _regimes(words, given, command, steps, gpus)
    if kind in ("overlap", "resample restrain", "resample resttest"):
        return Cost(_hours(2 * BASE.millions * 1e6 * 16 * TRAIN_QUERIES, 1) + 0.1, 6, 14)
    if kind in ("shift", "representation", "source-clusters"):
        documents = sum(size(name)[0] for name in data) if kind == "shift" else 1024 * len(data)
        return Cost(documents / 20_000 / 3600 + 0.05 * len(data), 6, 1)
    return Cost()


def _regimes(
    words: list[str], given: dict[str, str], command: str, steps: Mapping[str, Step], gpus: int
) -> Cost:
    """Architectures of every set of a resampling: trained on all GPUs, and the corpus encoded for
    each.
    """
    [name] = [match[2] for match in PLACEHOLDER.finditer(command) if match[1] == "step"][:1]
    sizes = [int(found) for found in re.findall(r"--size (\d+)", " ".join(steps[name].commands))]
    queries = [s for s in sizes for _ in range(2)] or [int(TRAIN_QUERIES * 0.8)] * 5
    share, weights = throughputs()["share_of_length"]["value"], BASE.millions * 1e6
    trained = [one for one in given["--architecture"].split(",") if one != "bm25"]
    from beir_cocodr.training.presets import PRESETS

    settings = PRESETS[given["--preset"]]["resample evaluate"]
    texts = 2 * float(settings["epochs"]) * sum(queries)
    flops = len(trained) * 6 * weights * texts * 128 * share
    measured = (
        float(settings["epochs"]) / float(settings["select_epochs"]) * 500 * 101
    )  # of held-out queries
    flops += len(trained) * len(queries) * 2 * weights * measured * 128 * share
    ood = [match[2] for match in PLACEHOLDER.finditer(command) if match[1] == "data"]
    documents = _MARCO + sum(size(one)[0] for one in ood)
    search = len(trained) * len(queries) * 2 * weights * documents * 128 * share
    count = int(len(trained) * texts / 2 / int(settings["batch_size"]))
    hours = _hours(flops, gpus) + _hours(
        search, max(1, min(gpus, len(trained)))
    )  # each model is searched with on one
    return Cost(hours, 20, len(trained) * len(queries) * 1.3, count)
