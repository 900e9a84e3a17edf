"""Estimates of the cost of a step before it starts: hours, memory of a GPU, and disk.

A pass over a text costs 2 P FLOPs a token for P weights, training three times that, and gradient
caching one pass more. iDRO also multiplies gradients, in float32. A training takes as long as the
slowest of three that work at the same time: the GPU, the processes that prepare its batches, and
the thread that samples them. ``throughputs.json`` says what each sustains, with machine and date if
it was measured, otherwise as an assumption. The memory is that of :mod:`reproduce.memory`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from reproduce import memory
from reproduce.commands import fitting_processes, options_of
from reproduce.memory import BASE, GIB, SHAPES, Held, Shape
from reproduce.scales import kind_of
from reproduce.shared import COCODR, DEV, DL19, DL20, FORUMS, LENGTHS, TRAIN, TRAIN_QUERIES
from reproduce.specification import Step, names_in, task_of

HERE = Path(__file__).parent
GPU_RESULTS = HERE.parent / "results" / "gpu.json"
BM25_RESULTS = HERE.parent / "results" / "negatives.json"
INPUT_RESULTS = HERE.parent / "results" / "input.json"

_SIZES = COCODR["table5"]["rows"]
_MARCO = _SIZES["msmarco"]["documents"]

#: Documents and queries of a collection that COCO-DR's Table 5 does not list.
OTHERS = {
    TRAIN: (_MARCO, TRAIN_QUERIES),
    DEV: (_MARCO, 6_980),
    DL19: (_MARCO, 43),
    DL20: (_MARCO, 54),
    "msmarco-documents": (3_213_835, 0),
    "trec-covid-v2": (129_192, 50),
}

#: Operations for a weight and token in a step, and with gradient caching, which runs forward twice.
_OPERATIONS = 6
_CACHED_OPERATIONS = 8
#: Clusters of iDRO and tokens of a triplet in ``benchmarks/idro.py``.
_CLUSTERS = 50
_TRIPLET_TOKENS = 64 + 2 * 128
#: Bytes of a weight in a checkpoint, which has no gradients.
_CHECKPOINT_BYTES = 12
#: Cores that read BM25's lists.
_CORES = 16
#: Passages whose queries a generator writes at a time by default.
_PASSAGES_AT_ONCE = 32
#: Bytes of a document as it is downloaded, and again unpacked for memory mapping.
_DOCUMENT_BYTES = 2 * 700
#: Bytes of the place of a token, which stays in the cache.
_PLACES_BYTES = 8
#: Bytes of the vector of a token in the index of late interaction, 128 numbers of float32.
_TOKEN_BYTES = 512


def size(data: str) -> tuple[int, int]:
    """Return the documents and queries of a collection."""
    task = task_of(data)
    if task in OTHERS:
        return OTHERS[task]
    documents = _SIZES[task]["documents"]
    queries = _SIZES[task]["test_queries"]
    if "/" in data:
        return documents // len(FORUMS), queries // len(FORUMS)
    return documents, queries


@dataclass(frozen=True)
class Cost:
    """A cost.

    Attributes:
        hours: Hours on all GPUs together.
        gpu_gib: Memory of one GPU.
        disk_gib: Disk.
        steps: Steps of an optimiser.
    """

    hours: float = 0.0
    gpu_gib: float = 0.0
    disk_gib: float = 0.0
    steps: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.hours + other.hours,
            max(self.gpu_gib, other.gpu_gib),
            self.disk_gib + other.disk_gib,
            self.steps + other.steps,
        )


@cache
def throughputs() -> Any:
    """Read throughputs.json, and replace assumptions by what was measured."""
    assumed = json.loads((HERE / "throughputs.json").read_text())
    if BM25_RESULTS.is_file():
        assumed["bm25_queries_per_second_and_core"] = _measured_bm25()
    if GPU_RESULTS.is_file():
        for name, measured in _measured_gpu().items():
            assumed[name] |= measured
    if INPUT_RESULTS.is_file():
        for name, measured in _measured_input().items():
            assumed[name] |= measured
    return assumed


def _measured_input() -> dict[str, dict[str, Any]]:
    """Return what the input of a training does, and the thread that samples its rows."""
    results = json.loads(INPUT_RESULTS.read_text())
    slowest = 0.0
    for texts in results["texts"].values():
        for figures in texts["workers"].values():
            slowest = max(slowest, figures["cpu_ms_per_pair"])
    sampled = results["query_context"]
    on = f"one thread on {sampled['machine']['cpu']}, {sampled['date'][:10]}"
    return {
        "pairs_per_second_and_core": {
            "value": round(1000 / slowest),
            "why": f"the slower kind of texts, measured {results['date'][:10]}",
        },
        "sampler_ms_per_passage": {
            "value": sampled["cpu_ms_per_row"],
            "why": f"passages with generated queries, {on}",
        },
        "sampler_ms_per_pair": {
            "value": sampled["finetuning_cpu_ms_per_row"],
            "why": f"pairs with a hard negative, {on}",
        },
    }


def _measured_bm25() -> dict[str, Any]:
    results = json.loads(BM25_RESULTS.read_text())
    documents = results["settings"]["documents"]
    seconds = results["parts"]["one"]["query_ms"] / 1000 * _MARCO / documents
    why = f"measured over {documents:,} documents {results['date'][:10]}, in proportion"
    return {
        "measured": True,
        "value": round(1 / seconds, 1),
        "why": why,
    }


def _measured_gpu() -> dict[str, dict[str, Any]]:
    """Return what a GPU did a second, with the operations counted as the estimates count them."""
    results = json.loads(GPU_RESULTS.read_text())
    parts = results.get("parts", {})
    is_gpu = results.get("device", "").startswith("cuda")
    if not (is_gpu and {"encode", "coco", "idro"} <= parts.keys()):
        return {}
    sizes = results["sizes"]
    on = f"measured on {results['gpu']}, {results['date'][:10]}"
    step_seconds = median(parts["coco"]["coco with language-model losses"]["seconds"])
    tokens = 2 * sizes["batch"] * sizes["tokens"]
    training_flops = _CACHED_OPERATIONS * BASE.millions * 1e6 * tokens
    steps = parts["idro"]["steps"]
    added_seconds = steps["seconds"]["one_backward"]["median"] - steps["seconds"]["erm"]["median"]
    gram = gram_flops(
        BASE,
        layers=steps["layers_compared"],
        tokens=_TRIPLET_TOKENS * steps["triplets"],
        examples=steps["triplets"],
        clusters=_CLUSTERS,
    )
    return {
        "gpu": {
            "measured": True,
            "device": results["gpu"],
            "sustained_tflops": round(training_flops / step_seconds / 1e12),
            "encoding_tflops": round(parts["encode"]["tflops"]),
            "memory_gib": results["gpu_gib"],
            "why": f"a step of COCO and encoding, both in bf16, {on}",
        },
        "gram_tflops": {
            "measured": True,
            "value": round(gram / added_seconds / 1e12),
            "why": f"what a step of iDRO adds to one of ERM, {on}",
        },
    }


def cost(
    step: Step,
    gpus: int,
    steps: Mapping[str, Step],
) -> Cost:
    """Estimate what the commands of a step cost together, without the steps that it needs."""
    total = Cost()
    before = BASE
    for command in step.commands:
        estimate = Command(command, gpus, steps, before)
        before = estimate.shape
        if estimate.kind in ESTIMATES:
            total += ESTIMATES[estimate.kind](estimate)
    return total


def corpora_gib(names: Iterable[str]) -> float:
    """Return the disk of the collections of a table, downloaded and unpacked."""
    documents = {task_of(name): size(name)[0] for name in names}
    return sum(documents.values()) * _DOCUMENT_BYTES / GIB


def _bm25_rate() -> float:
    """Return the queries a second that one core searches over MS MARCO."""
    rate: float = throughputs()["bm25_queries_per_second_and_core"]["value"]
    return rate


def _hours(flops: float, gpus: int) -> float:
    return flops / (throughputs()["gpu"]["sustained_tflops"] * 1e12) / gpus / 3600


def _value(name: str) -> float:
    """Return a throughput, or an assumption, of throughputs.json."""
    value: float = throughputs()[name]["value"]
    return value


def _input_hours(texts: float, gpus: int) -> float:
    """Return the hours in which loader workers prepare texts; a pair is two of them."""
    workers = gpus * (_value("cores_per_gpu") - 1)
    return texts / 2 / _value("pairs_per_second_and_core") / workers / 3600


def _sampler_hours(rows: float, milliseconds: str) -> float:
    """Return the hours in which one thread samples rows; each process samples all of them.

    Args:
        rows: The rows of all steps.
        milliseconds: The throughput that says how long a row takes.
    """
    return rows * _value(milliseconds) / 1000 / 3600


def _encoding_hours(flops: float, gpus: int) -> float:
    return flops / (throughputs()["gpu"]["encoding_tflops"] * 1e12) / gpus / 3600


def _decoding_hours(flops: float, gpus: int) -> float:
    return flops / (throughputs()["gpu"]["decoding_tflops"] * 1e12) / gpus / 3600


class Command:
    """A command whose cost is estimated.

    Attributes:
        line: The command with its placeholders.
        words: Its words.
        kind: The command and its subcommand.
        values: Its words, each to the next one: the values of its options.
        data: The collections that it names.
        shape: The shape of its model.
        weights: The number of weights of its model.
        share: The mean length of a text, as a share of the longest.
        checkpoint: GiB of a checkpoint.
        gpus: The number of GPUs that it takes.
        steps: All steps of the paper.
    """

    def __init__(
        self,
        line: str,
        gpus: int,
        steps: Mapping[str, Step],
        before: Shape,
    ) -> None:
        self.line = line
        self.words = shlex.split(line)
        self.kind = kind_of(self.words)
        self.values = dict(pairwise(self.words))
        self.data = names_in(line, "data")
        # A model in the step's own folder was trained by the command before.
        unnamed = before if self.values.get("--model", "").startswith("{out}") else BASE
        self.shape = next((shape for word, shape in SHAPES.items() if word in line), unnamed)
        self.weights = self.shape.millions * 1e6
        self.share = throughputs()["share_of_length"]["value"]
        self.checkpoint = self.weights * _CHECKPOINT_BYTES / GIB
        self.gpus = fitting_processes(self.words, gpus)
        self.steps = steps

    def encoding_flops(self, data: str) -> float:
        """Return the FLOPs of encoding the documents of a collection."""
        longest = LENGTHS.get(data, LENGTHS["msmarco"])["doc_max_len"]
        length = int(self.values.get("--document-length", longest))
        return 2 * self.weights * length * self.share * size(data)[0]

    def training_flops(
        self,
        texts: int,
        length: float,
        count: int,
        held: Held,
    ) -> float:
        """Return the FLOPs of steps of some texts each, with gradient caching where it is used."""
        operations = _CACHED_OPERATIONS if held.is_cached else _OPERATIONS
        return operations * self.weights * texts * length * count

    def gram_hours(
        self,
        options: Any,
        texts: int,
        length: float,
        count: int,
    ) -> float:
        """Return the hours in which iDRO compares the gradients of clusters; 0 for others."""
        if options.weighting != "idro":
            return 0.0
        flops = gram_flops(
            self.shape,
            layers=memory.compared_layers(options, self.shape),
            tokens=texts / self.gpus * length,
            examples=options.batch_size / self.gpus,
            clusters=options.clustering.clusters,
        )
        return flops * count / (_value("gram_tflops") * 1e12) / 3600


def gram_flops(
    shape: Shape,
    layers: int,
    tokens: float,
    examples: float,
    clusters: int,
) -> float:
    """Return the operations with which a step of iDRO compares the gradients of clusters.

    For each token an outer product, of each example's gradient a sum over its cluster, and of each
    pair of clusters a product.
    """
    compared = layers * 12 * shape.width**2
    return 2 * compared * (tokens + clusters * examples + clusters**2)


def _step_count(options: Any, examples: int) -> int:
    """Return the steps of a training."""
    if options.max_steps > 0:
        return int(options.max_steps)
    return int(options.epochs * examples / options.batch_size)


def _encode(command: Command) -> Cost:
    [data] = command.data
    number_bytes = 4 if "fp32" in command.words else 2
    return Cost(
        _encoding_hours(command.encoding_flops(data), command.gpus),
        command.weights * 4 / GIB + 4,
        size(data)[0] * command.shape.width * number_bytes / GIB,
    )


def _evaluate(command: Command) -> Cost:
    data = command.data[0]
    documents, queries = size(data)
    uses_bm25 = " bm25" in command.line or "@bm25" in command.line
    reading = 0.0
    flops = 2.0 * documents * queries * command.shape.width
    if uses_bm25:
        rate = _bm25_rate() * _MARCO / documents
        reading += queries / rate / 3600 / _CORES
    elif "--store" not in command.words:
        flops += command.encoding_flops(data)
    if "rerank" in command.line:
        flops += 1000 * queries * 2 * command.weights * 200 * command.share
    if "--word-vectors" in command.words:
        rate = throughputs()["word_vector_documents_per_second"]["value"]
        reading += documents / rate / 3600
    return Cost(reading + _encoding_hours(flops, 1), 8, 1)


def _generate(command: Command) -> Cost:
    data = command.data[0]
    documents = min(size(data)[0], int(command.values.get("--max-passages", 10**12)))
    passages = documents * (8 if data == "msmarco-documents" else 1)
    per_passage = int(command.values["--per-passage"])
    tokens = passages * per_passage * 20
    read = 2 * command.weights * passages * 144 * command.share
    written = 2 * command.weights * tokens
    hours = _hours(read, command.gpus) + _decoding_hours(written, command.gpus)
    sequences = int(command.values.get("--batch-size", _PASSAGES_AT_ONCE)) * per_passage
    return Cost(hours, memory.generating_gib(command.shape, sequences), passages * 1_500 / GIB)


def _pretrain(command: Command) -> Cost:
    options = options_of(command.words, command.gpus)
    documents = sum(size(name)[0] for name in command.data)
    count = _step_count(options, documents)
    # Sentences fill a span, but not every window of a document.
    length: float = options.longest_text()
    if length == options.max_length:
        length *= command.share
    texts = len(options.row("objective").columns) * options.batch_size
    held = memory.pretraining(options, command.shape, command.gpus)
    flops = command.training_flops(texts, length, count, held)
    # Only queries may be repeated, and only texts that are compared with others are kept apart.
    objective = options.row("objective")
    is_sampled = objective.on_queries and objective.contrastive
    sampled = options.batch_size * count if is_sampled else 0
    hours = max(
        _hours(flops, command.gpus),
        _input_hours(texts * count, command.gpus),
        _sampler_hours(sampled, "sampler_ms_per_passage"),
    )
    return Cost(
        hours,
        memory.training_gib(command.shape, held),
        2 * command.checkpoint + documents * _PLACES_BYTES * 128 * command.share / GIB,
        count,
    )


def _training_data(command: Command) -> tuple[int, int]:
    """Return the queries and documents that a command trains on.

    Generated queries are five for each of 100,000 passages.
    """
    if command.data == [TRAIN]:
        return TRAIN_QUERIES, size(TRAIN)[0]
    return 500_000, 100_000


def _finetune(command: Command) -> Cost:
    options = options_of(command.words, command.gpus)
    queries, documents = _training_data(command)
    rounds = options.mining.episodes + options.mining.stages
    count = _step_count(options, queries)
    texts = options.batch_size * (2 + options.negatives)
    length = 128 * command.share
    held = memory.finetuning(options, command.gpus)
    flops = command.training_flops(texts, length, count, held)
    mining = (rounds - 1) * 2 * command.weights * documents * length
    lexical = queries / _bm25_rate() / _CORES / 3600
    # Any triplets may come together, as they are not compared over the batch.
    sampled = options.batch_size * count if options.row("loss").in_batch else 0
    training = max(
        _hours(flops, command.gpus) + command.gram_hours(options, texts, length, count),
        _input_hours(texts * count, command.gpus),
        _sampler_hours(sampled, "sampler_ms_per_pair"),
    )
    return Cost(
        rounds * training + _encoding_hours(mining, command.gpus) + lexical,
        memory.training_gib(command.shape, held) + memory.idro_gib(options, command.shape),
        rounds * 2 * command.checkpoint + 14,
        rounds * count,
    )


def _distill(command: Command) -> Cost:
    options = options_of(command.words, command.gpus)
    queries, documents = _training_data(command)
    count = _step_count(options, queries)
    texts = options.batch_size * (1 + options.list_size)
    length = 128 * command.share
    held = memory.distillation(options, command.gpus)
    flops = command.training_flops(texts, length, count, held)
    pairs = queries * 2 * options.list_size
    teacher = 2 * BASE.millions * 1e6 * 192 * command.share * pairs
    refresh = count // options.refresh_steps * 2 * command.weights * length * documents
    training = max(_hours(flops, command.gpus), _input_hours(texts * count, command.gpus))
    return Cost(
        training + _encoding_hours(teacher + refresh, command.gpus),
        memory.training_gib(command.shape, held),
        2 * command.checkpoint + 14,
        count,
    )


def _regimes(command: Command) -> Cost:
    """Estimate architectures that are trained on every set, and a corpus encoded for each."""
    recipe = options_of(command.words, command.gpus)
    [sets] = names_in(command.line, "step")[:1]
    sizes = re.findall(r"--size (\d+)", " ".join(command.steps[sets].commands))
    queries = [int(number) for number in sizes for _ in range(2)]
    if not queries:
        queries = [int(TRAIN_QUERIES * 0.8)] * 5
    weights = BASE.millions * 1e6
    length = 128 * command.share
    architectures = command.values["--architecture"].split(",")
    trained = [name for name in architectures if name != "bm25"]
    models = len(trained) * len(queries)
    texts = 2 * recipe.epochs * sum(queries)
    held_out = recipe.epochs / (recipe.select_epochs or 1) * 500 * 101
    flops = len(trained) * 6 * weights * texts * length + models * 2 * weights * held_out * length
    documents = _MARCO + sum(size(name)[0] for name in command.data)
    search = models * 2 * weights * documents * length
    count = int(len(trained) * texts / 2 / recipe.batch_size)
    # Each model searches on one GPU.
    searching_gpus = max(1, min(command.gpus, len(trained)))
    hours = _hours(flops, command.gpus) + _encoding_hours(search, searching_gpus)
    disk = models * 1.3
    if "late-interaction" in architectures:
        # One index of all tokens at a time.
        disk += documents * 128 * command.share * _TOKEN_BYTES / GIB
    return Cost(
        hours,
        memory.architectures_gib(recipe, trained, command.gpus),
        disk,
        count,
    )


def _resample(command: Command) -> Cost:
    flops = 2 * BASE.millions * 1e6 * 16 * TRAIN_QUERIES
    return Cost(_encoding_hours(flops, 1) + 0.1, 6, 14)


def _analyse(command: Command) -> Cost:
    documents = 1024 * len(command.data)
    if command.kind == "shift":
        documents = sum(size(name)[0] for name in command.data)
    return Cost(documents / 20_000 / 3600 + 0.05 * len(command.data), 6, 1)


#: A kind of command to the estimate of its cost.
ESTIMATES: dict[str, Callable[[Command], Cost]] = {
    "encode": _encode,
    "evaluate": _evaluate,
    "qpp": _evaluate,
    "generate-queries": _generate,
    "pretrain": _pretrain,
    "finetune": _finetune,
    "distill": _distill,
    "resample evaluate": _regimes,
    "overlap": _resample,
    "resample restrain": _resample,
    "resample resttest": _resample,
    "shift": _analyse,
    "representation": _analyse,
    "source-clusters": _analyse,
}
