"""Estimates of an adaptation's time, disk and memory, from a short probe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.models.chunk_pooling import FIRST
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import FuseOptions
from beir_cocodr.progress import describe_seconds, describe_size
from beir_cocodr.retrieval.store.encoding_cost import resident_bytes
from beir_cocodr.retrieval.vectors.dense import IN_MEMORY
from beir_cocodr.retrieval.vectors.vector_cache import VectorCache
from beir_cocodr.training.distillation.merging import SHARES
from beir_cocodr.training.distillation.teacher_rows import TEACHERS, teacher_kind
from beir_cocodr.training.distillation.teachers import CrossEncoderTeacher
from beir_cocodr.training.held_out import most_encoded
from beir_cocodr.training.output_folder import training_precision
from beir_cocodr.training.shared_options import TrainingOptions, Workload

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

# Words of a document that stand for a query when a teacher is probed.
_QUERY_WORDS = 8

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
        teacher: the name of its teacher; None if it has none.
    """

    label: str
    options: TrainingOptions | FuseOptions
    examples: int
    finished: bool = False
    teacher: str | None = None

    @property
    def encodes(self) -> bool:
        """Return true if its model encodes the corpus anew."""
        return isinstance(self.options, TrainingOptions)


@dataclass(frozen=True)
class WantedQueries:
    """Queries that are still to be generated.

    Attributes:
        count: about how many.
        generator: what writes them.
        retriever: what filters them; None if nothing does.
    """

    count: int
    generator: str
    retriever: str | None = None

    def __str__(self) -> str:
        """Return the work in words."""
        text = f"generating about {self.count:,} queries by {self.generator}"
        if self.retriever is not None:
            text += f" and filtering them by {self.retriever}"
        return text


@dataclass(frozen=True)
class Cost:
    """A guess of what an adaptation costs.

    Attributes:
        seconds: step to its seconds.
        disk_bytes: models, checkpoints and embeddings on disk.
        memory_bytes: main memory, or that of the GPU.
        rate: documents of the probe encoded a second.
        uncounted: work whose time cannot be known before, in words.
    """

    seconds: dict[str, float]
    disk_bytes: int
    memory_bytes: int
    rate: float
    uncounted: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the guess in a sentence."""
        times = [f"{name} {describe_seconds(value)}" for name, value in self.seconds.items()]
        steps = ", ".join(times)
        total = describe_seconds(sum(self.seconds.values()))
        disk = describe_size(self.disk_bytes)
        memory = describe_size(self.memory_bytes)
        text = (
            f"this will take about {total} ({steps}), {disk} of disk and {memory} of memory: an "
            f"estimate from a probe, which read {self.rate:,.0f} documents a second"
        )
        if self.uncounted:
            works = ", and ".join(self.uncounted)
            text += f"; more time, which cannot be known before, goes into {works}"
        return text


def estimate(
    trainings: Sequence[PlannedTraining],
    model: COCODR,
    documents: Documents,
    queries: WantedQueries | None = None,
) -> Cost | None:
    """Guess what an adaptation still costs: trainings without a finished model, and judging all.

    Args:
        trainings: all trainings.
        model: the base.
        documents: the target.
        queries: the queries that are generated first.

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
    training_rates = _TrainingRates(model, documents, rate)
    corpus_seconds = len(documents) / rate
    pair_rates: dict[str, float] = {}
    seconds: dict[str, float] = {}
    uncounted = [] if queries is None else [str(queries)]
    for training in left:
        of_training = training_seconds(
            training, training_rates.of(training.options), corpus_seconds
        )
        of_training += merging_seconds(training, rate, len(documents))
        teacher = training.teacher
        if teacher is not None and teacher_kind(teacher) is TEACHERS["cross-encoder"]:
            if teacher not in pair_rates:
                pair_rates[teacher] = probe_teacher(teacher, model, documents)
            of_training += _workload(training).pairs / pair_rates[teacher]
        elif teacher is not None and teacher_kind(teacher) is not TEACHERS["file"]:
            lists = _workload(training).lists
            uncounted.append(
                f"ranking for up to {lists:,} lists by the teacher {teacher} ({training.label})"
            )
        seconds[training.label] = of_training
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
    return Cost(seconds, checkpoints + all_vectors, memory, rate, tuple(uncounted))


class _TrainingRates:
    """How many documents a second are read in training, which is probed once for a precision.

    Training reads documents only as far as the encoder reads at once, also where they are encoded
    in all their pieces.
    """

    def __init__(self, model: COCODR, documents: Documents, rate: float) -> None:
        """Take the rate of encoding whole documents in float32, which may be the same."""
        self.model = model
        self.documents = documents
        self.whole_documents = rate
        self.rates = {"float32": rate} if model.chunk_pooling == FIRST else {}

    def of(self, options: TrainingOptions | FuseOptions) -> float:
        """Return the rate of a training, and for ``fuse`` that of encoding."""
        if not isinstance(options, TrainingOptions):
            return self.whole_documents
        precision = training_precision(self.model.device, options.precision)
        if precision not in self.rates:
            chunk_pooling = self.model.chunk_pooling
            self.model.chunk_pooling = FIRST
            try:
                self.rates[precision] = probe(self.model, self.documents, precision)
            finally:
                self.model.chunk_pooling = chunk_pooling
        return self.rates[precision]


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


def probe_teacher(name: str, model: COCODR, documents: Documents) -> float:
    """Return the pairs of query and document that a cross-encoder scores a second.

    Args:
        name: the cross-encoder.
        model: the encoder, whose text format and device it shares.
        documents: the corpus; the first words of a document stand for its query.
    """
    teacher = CrossEncoderTeacher(name, documents, model.text_format, device=str(model.device))
    lists = []
    for row in spaced_rows(len(documents), PROBE):
        one_row = np.array([row])
        [document] = documents.take(one_row)
        query_words = model.text_format.document(document).split()[:_QUERY_WORDS]
        lists.append(("", " ".join(query_words), one_row))
    teacher.score_lists(lists[:_WARM_UP])
    started = time.perf_counter()
    teacher.score_lists(lists)
    seconds = max(time.perf_counter() - started, 1e-6)
    return len(lists) / seconds


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
    workload = _workload(training)
    texts = workload.steps * options.batch_size * workload.texts
    passes = _TRAINING
    if options.cached_mini_batch() is not None:
        passes += 1
    training_time = passes * texts / rate
    search_time = workload.searches * corpus_seconds
    return training_time + search_time


def merging_seconds(training: PlannedTraining, rate: float, documents: int) -> float:
    """Return the seconds of choosing how weights are merged, 0 if they are not.

    Args:
        training: it encodes the candidates of held-out queries, with the base and every share.
        rate: texts encoded a second.
        documents: documents of the corpus.
    """
    queries = _workload(training).merged_on
    if not queries:
        return 0.0
    return (1 + len(SHARES)) * most_encoded(queries, documents) / rate


def _workload(training: PlannedTraining) -> Workload:
    """Return what a training reads; nothing for ``fuse``, which takes no steps."""
    if not isinstance(training.options, TrainingOptions):
        return Workload(steps=0, texts=0, searches=0)
    return training.options.workload(training.examples)
