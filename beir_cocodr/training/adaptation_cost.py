"""Estimates of an adaptation's time, disk and memory, from a short probe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import FuseOptions
from beir_cocodr.progress import describe_seconds, describe_size
from beir_cocodr.retrieval.store.encoding_cost import resident_bytes
from beir_cocodr.retrieval.vectors.dense import IN_MEMORY
from beir_cocodr.retrieval.vectors.vector_cache import VectorCache
from beir_cocodr.training.output_folder import training_precision
from beir_cocodr.training.shared_options import TrainingOptions

#: Documents of the probe.
PROBE = 32

# Documents that are encoded before the probe.
_WARM_UP = 4

# Documents whose tokens are counted.
_COUNTED = 1_000

# A step reads its texts forward, and backward at about twice the cost; with cached gradients it
# reads them forward twice.
_TRAINING = 3

# Bytes of a token that a layer keeps for the backward pass: for each number of its hidden state,
# and for each head and token that is attended to.
_LINEAR = 96
_ATTENTION = 14

# Tokens of a text where neither model nor training limits it.
_LONGEST = 512

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
        times = [f"{name} {describe_seconds(value)}" for name, value in self.seconds.items()]
        steps = ", ".join(times)
        total = describe_seconds(sum(self.seconds.values()))
        disk = describe_size(self.disk_bytes)
        memory = describe_size(self.memory_bytes)
        return (
            f"this will take about {total} ({steps}), {disk} of disk and {memory} of memory: an "
            f"estimate from a probe, which read {self.rate:,.0f} documents a second"
        )


def estimate(
    trainings: Sequence[PlannedTraining], model: COCODR, documents: Documents
) -> Cost | None:
    """Guess what an adaptation still costs: trainings without a finished model, and judging all.

    Args:
        trainings: all trainings.
        model: the base.
        documents: the target.

    Returns:
        The cost; None if nothing is left to be trained or encoded by the base, which no probe
        should do again.
    """
    cache = VectorCache.of(model, documents)
    missing = len(documents)
    if cache is not None:
        missing = cache.count_missing(documents)
    left = [training for training in trainings if not training.finished]
    if not left and not missing:
        return None
    rate = probe(model, documents)
    rates = {"float32": rate}
    corpus_seconds = len(documents) / rate
    seconds: dict[str, float] = {}
    for training in left:
        precision = _precision(model, training)
        if precision not in rates:
            rates[precision] = probe(model, documents, precision)
        seconds[training.label] = training_seconds(training, rates[precision], corpus_seconds)
    trained = sum(training.encodes for training in trainings)
    seconds[JUDGEMENT] = missing / rate + trained * corpus_seconds
    weights = sum(weight.nbytes for weight in model.parameters())
    width = int(model.get_embedding_dimension() or 0)
    vectors = 4 * len(documents) * width
    all_vectors = (1 + trained) * vectors
    checkpoints = (len(left) + 2 * _COPIES) * weights
    memory = resident_bytes(model) + _COPIES * weights
    if vectors <= IN_MEMORY:
        memory += min(all_vectors, IN_MEMORY)
    activations = [training_bytes(model, training.options) for training in left]
    memory += max(activations, default=0)
    return Cost(seconds, checkpoints + all_vectors, memory, rate)


def _precision(model: COCODR, training: PlannedTraining) -> str:
    """Return the precision in which a training computes."""
    if isinstance(training.options, TrainingOptions):
        return training_precision(model.device, training.options.precision)
    return "float32"


def probe(model: COCODR, documents: Documents, precision: str = "float32") -> float:
    """Return the documents of the corpus that are encoded a second.

    Some documents, evenly spaced, are encoded. How long documents are in the mean is counted on
    more of them, since a few long ones among those that are encoded would change the rate.

    Args:
        model: the encoder.
        documents: the corpus.
        precision: the precision in which the encoder computes, by its name in torch.
    """
    texts = _texts(model, documents, PROBE)
    autocast = torch.autocast(
        model.device.type, getattr(torch, precision), enabled=precision != "float32"
    )
    with autocast:
        model.encode_document(texts[:_WARM_UP], show_progress_bar=False)
        started = time.perf_counter()
        model.encode_document(texts, show_progress_bar=False)
        seconds = max(time.perf_counter() - started, 1e-6)
    encoded_tokens = sum(_lengths(model, texts))
    tokens_a_second = encoded_tokens / seconds
    counted_texts = _texts(model, documents, _COUNTED)
    lengths = _lengths(model, counted_texts)
    return tokens_a_second * len(lengths) / sum(lengths)


def _texts(model: COCODR, documents: Documents, most: int) -> list[str]:
    """Return the texts of at most so many documents, evenly spaced."""
    rows = spaced_rows(len(documents), most)
    text_of = model.text_format.document
    return [text_of(document) for document in documents.take(rows)]


def _lengths(model: COCODR, texts: Sequence[str]) -> list[int]:
    """Return the tokens of texts as they are encoded."""
    limit = model.text_format.document_length
    readable = [text for text, _ in model.cut(texts)]
    tokens = model.tokenizer(readable, truncation=limit is not None, max_length=limit)
    return [len(ids) for ids in tokens["input_ids"]]


def training_bytes(model: COCODR, options: TrainingOptions | FuseOptions) -> int:
    """Return the bytes of what a step keeps for its backward pass.

    Args:
        model: the base.
        options: of the training. Where gradients are cached, only the texts of a mini-batch are in
            memory at a time.

    References:
        Korthikanti et al., 2022: Reducing activation recomputation in large transformer models,
        equation 2, with numbers of four bytes.
    """
    if not isinstance(options, TrainingOptions):
        return 0
    transformer: Any = model.transformers_model
    config = transformer.config
    length = options.longest_text() or model.text_format.document_length or _LONGEST
    texts = options.cached_mini_batch() or options.batch_size
    hidden = _LINEAR * config.hidden_size
    attention = _ATTENTION * config.num_attention_heads * length
    tokens = texts * length
    return int(tokens * config.num_hidden_layers * (hidden + attention))


def training_seconds(
    training: PlannedTraining,
    rate: float,
    corpus_seconds: float,
) -> float:
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
    passes = _TRAINING
    if options.cached_mini_batch() is not None:
        passes += 1
    training_time = passes * texts / rate
    search_time = workload.searches * corpus_seconds
    return training_time + search_time
