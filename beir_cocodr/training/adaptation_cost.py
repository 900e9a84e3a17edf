"""Estimates of an adaptation's time, disk and memory, from a short probe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import FuseOptions
from beir_cocodr.progress import describe_seconds, describe_size
from beir_cocodr.retrieval.store.encoding_cost import resident_bytes
from beir_cocodr.retrieval.vectors.dense import IN_MEMORY
from beir_cocodr.training.shared_options import TrainingOptions

#: Documents of the probe.
PROBE = 32

# Documents that are encoded before the probe.
_WARM_UP = 4

# A step reads its texts forward, and backward at about twice the cost.
_TRAINING = 3

# AdamW holds weights, gradients and two moments.
_COPIES = 4

#: The step of an adaptation in which its models are compared.
JUDGEMENT = "judgement"


@dataclass(frozen=True)
class PlannedTraining:
    """A training of an adaptation.

    Attributes:
        label: its name in tables.
        options: its options.
        examples: examples of a pass over its data.
        finished: whether its model is there already.
    """

    label: str
    options: TrainingOptions | FuseOptions
    examples: int
    finished: bool = False

    @property
    def encodes(self) -> bool:
        """Return true if its model encodes the corpus anew."""
        return isinstance(self.options, TrainingOptions)


@dataclass(frozen=True)
class Cost:
    """A guess of what an adaptation costs.

    Attributes:
        seconds: step to its seconds.
        disk_bytes: models, checkpoints and embeddings on disk.
        memory_bytes: main memory, or that of the GPU.
        rate: documents of the probe encoded a second.
    """

    seconds: dict[str, float]
    disk_bytes: int
    memory_bytes: int
    rate: float

    def __str__(self) -> str:
        """Return the guess in a sentence."""
        steps = [f"{name} {describe_seconds(value)}" for name, value in self.seconds.items()]
        disk = describe_size(self.disk_bytes)
        memory = describe_size(self.memory_bytes)
        return (
            f"this will take about {describe_seconds(sum(self.seconds.values()))} "
            f"({', '.join(steps)}), {disk} of disk and {memory} "
            f"of memory: an estimate from a probe, which read {self.rate:,.0f} documents a second"
        )


def estimate(trainings: Sequence[PlannedTraining], model: COCODR, documents: Documents) -> Cost:
    """Guess what an adaptation still costs: trainings without a finished model, and judging all.

    Args:
        trainings: all trainings.
        model: the base.
        documents: the target.
    """
    rate = probe(model, documents)
    corpus_seconds = len(documents) / rate
    seconds: dict[str, float] = {}
    for training in trainings:
        if not training.finished:
            seconds[training.label] = training_seconds(training, rate, corpus_seconds)
    encoders = 1 + sum(training.encodes for training in trainings)
    weights = sum(weight.nbytes for weight in model.parameters())
    vectors = 4 * len(documents) * int(model.get_embedding_dimension() or 0)
    in_memory = vectors <= IN_MEMORY
    held = 0
    if in_memory:
        held = min(encoders * vectors, IN_MEMORY)
    models = (len(seconds) + 2 * _COPIES) * weights
    disk = models if in_memory and held else models + encoders * vectors
    memory = resident_bytes(model) + _COPIES * weights + held
    return Cost(seconds | {JUDGEMENT: encoders * corpus_seconds}, disk, memory, rate)


def probe(model: COCODR, documents: Documents) -> float:
    """Return the documents that are encoded a second, by some of them, evenly spaced."""
    rows = spaced_rows(len(documents), PROBE)
    texts = [model.text_format.document(document) for document in documents.take(rows)]
    model.encode_document(texts[:_WARM_UP], show_progress_bar=False)
    started = time.perf_counter()
    model.encode_document(texts, show_progress_bar=False)
    return len(texts) / max(time.perf_counter() - started, 1e-6)


def training_seconds(training: PlannedTraining, rate: float, corpus_seconds: float) -> float:
    """Return the seconds of a training.

    Args:
        training: it reads its texts forward and backward, and searches the corpus on the way.
        rate: texts encoded a second.
        corpus_seconds: seconds of encoding the corpus.
    """
    options = training.options
    if not isinstance(options, TrainingOptions):  # fuse: the dense vectors are there
        return min(options.sample / rate, corpus_seconds)
    workload = options.workload(training.examples)
    texts = workload.steps * options.batch_size * workload.texts
    return _TRAINING * texts / rate + workload.searches * corpus_seconds
