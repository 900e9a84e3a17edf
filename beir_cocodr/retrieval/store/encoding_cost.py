"""Estimates of the disk, memory and time that encoding a corpus will take."""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from beir_cocodr.arrays import Ints, spaced_rows
from beir_cocodr.data.text import cut_text
from beir_cocodr.errors import InputError
from beir_cocodr.models.chunk_pooling import FIRST
from beir_cocodr.progress import describe_seconds, describe_size
from beir_cocodr.retrieval.store.record import StoreRecord
from beir_cocodr.retrieval.store.shard import bytes_per_vector
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.vectors.pool import available_cores

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

#: Documents of the timed sample.
SAMPLE = 64

# An update times one in so many of its documents, as it may encode only a few.
_UPDATED_PER_TIMED = 8

# Documents that are encoded before the clock starts.
_WARM_UP = 4

# With more pieces of a document on average, reading documents whole is proposed. This is a choice
# on the evidence of benchmarks/chunk_pooling.py: of the collections that had no part in it, the one
# that gained has 28 pieces of a document, and those with fewer than five gained nothing, even if
# most of their documents are cut.
_MANY_PIECES = 10

# Bytes on the disk for an id and its two tie orders.
_BYTES_PER_ID = 24

_GIB = 1 << 30

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodingCost:
    """The expected cost of an encoding.

    Attributes:
        documents: Documents that are still to be encoded.
        disk_bytes: Disk for the shards that are written, and the ids.
        memory_bytes: Main memory of all processes.
        seconds: Time, by a sample.
        sample_documents: Documents of the sample.
        truncated_share: Share of these that are truncated.
        pieces_per_document: Pieces in which one of these is read as a whole, or would be, on
            average; None where the encoder cannot do that or cuts nothing.
        pieces: Pieces in which all are read, where long documents are read whole.
    """

    documents: int
    disk_bytes: int
    memory_bytes: int
    seconds: float
    sample_documents: int
    truncated_share: float
    pieces_per_document: float | None = None
    pieces: int | None = None

    def __str__(self) -> str:
        """Return one line for people."""
        disk = describe_size(self.disk_bytes)
        return (
            f"{self.documents:,} documents to encode: about {disk} of disk, "
            f"{describe_size(self.memory_bytes)} of memory and "
            f"{describe_seconds(self.seconds)} (by a "
            f"sample of {self.sample_documents}, and {self._reading()})"
        )

    def _reading(self) -> str:
        """Return how much of the documents is read."""
        if self.pieces is not None:
            return f"long documents are read whole, in about {self.pieces:,} pieces altogether"
        cut = f"{self.truncated_share:.0%} of these are cut to the document length"
        if self.pieces_per_document is not None and self.pieces_per_document > _MANY_PIECES:
            cut += (
                f"; a document has {self.pieces_per_document:.0f} pieces of that length on "
                "average, and --chunk-pooling first+mean reads all of them"
            )
        return cut

    def check_disk_space(self, folder: Path) -> None:
        """Raise an InputError if the disk of a folder has too little room."""
        _check_disk_space(
            folder, self.disk_bytes, "choose another disk, or a smaller precision (fp16, int8)"
        )


def _check_disk_space(folder: Path, needed: int, way_out: str) -> None:
    """Raise an InputError if the disk of a folder has less room than the bytes that are needed."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"{folder}: the embeddings take {describe_size(needed)}, but only "
            f"{describe_size(free)} is free; {way_out}"
        )


def estimate(
    encoder: CorpusEncoder,
    record: StoreRecord,
    count: int,
    devices: list[str],
    sample: Ints | None = None,
    written: int | None = None,
) -> EncodingCost:
    """Encode a few documents, and scale the time to all that are to be encoded.

    Args:
        encoder: The encoder of the corpus.
        record: Record of the store.
        count: Documents to encode.
        devices: A device for each process.
        sample: Rows of the corpus that are timed. Default: 64 evenly spaced ones.
        written: Documents whose vectors are written. Default: those that are encoded.
    """
    rows = spaced_rows(len(encoder.documents), SAMPLE) if sample is None else sample
    written = count if written is None else written
    seconds = _seconds_a_document(encoder, rows)
    documents = encoder.documents.take(rows)
    texts = [encoder.model.text_format.document(document) for document in documents]
    pieces_per_document = _pieces_per_document(encoder.model, texts)
    pieces = None
    if encoder.model.chunk_pooling != FIRST and pieces_per_document is not None:
        pieces = round(count * pieces_per_document)
    return EncodingCost(
        documents=count,
        disk_bytes=_bytes_of_store(record, written),
        memory_bytes=_memory(
            encoder,
            record,
            min(record.shard_size, max(1, written)),
            len(devices),
        ),
        seconds=round(count * seconds / _processes_at_once(devices), 3),
        sample_documents=len(rows),
        truncated_share=float(encoder.model.truncated_share(texts, "document")),
        pieces_per_document=pieces_per_document,
        pieces=pieces,
    )


def check_update(
    encoder: CorpusEncoder,
    record: StoreRecord,
    rows: Ints,
    folder: Path,
) -> None:
    """Check the disk for an update of a store, and log what encoding is expected to take.

    The updated store is written as a whole beside the former one.

    Args:
        encoder: The encoder of the corpus.
        record: Record of the updated store.
        rows: (n,) rows of the corpus that are to be encoded.
        folder: Folder of the store.

    Raises:
        InputError: The disk has too little room.
    """
    _check_disk_space(
        folder,
        _bytes_of_store(record, record.documents),
        "make room, as an update writes them beside the former ones, or encode into a folder on "
        "another disk",
    )
    if not len(rows):
        return
    size = min(SAMPLE, math.ceil(len(rows) / _UPDATED_PER_TIMED))
    cost = estimate(
        encoder,
        record,
        len(rows),
        [str(encoder.model.device)],
        sample=rows[spaced_rows(len(rows), size)],
        written=record.documents,
    )
    log.info("%s", cost)


def _bytes_of_store(record: StoreRecord, vectors: int) -> int:
    """Return the bytes on the disk of so many vectors, and of the ids of all documents."""
    packed = bytes_per_vector(record.dimensions, record.precision, record.prior)
    return vectors * packed + record.documents * _BYTES_PER_ID


def _pieces_per_document(model: COCODR, texts: list[str]) -> float | None:
    """Return in how many pieces a document is read as a whole, or would be, on average.

    Where only beginnings are read, no more is tokenised: further pieces are expected at the rate of
    the beginning. None is returned where the encoder cannot read whole documents or cuts nothing.
    """
    if model.chunk_pooling != FIRST:
        counts = model.pieces(texts).counts
        return sum(counts) / len(counts)
    limit = model.text_format.document_length
    if limit is None or not model.pools_chunks:
        return None
    beginnings = [cut_text(text, limit)[0] for text in texts]
    try:
        counts = model.pieces(beginnings).counts
    except InputError:
        return None
    expected = 0.0
    for text, beginning, pieces in zip(texts, beginnings, counts, strict=True):
        expected += pieces * len(text) / max(1, len(beginning))
    return expected / len(texts)


def _seconds_a_document(encoder: CorpusEncoder, rows: Any) -> float:
    cut = encoder.model.texts_cut
    encoder.encode(rows[:_WARM_UP])
    started = time.perf_counter()
    encoder.encode(rows)
    seconds = (time.perf_counter() - started) / len(rows)
    # These documents are encoded again.
    encoder.model.texts_cut = cut
    return seconds


def _memory(
    encoder: CorpusEncoder,
    record: StoreRecord,
    documents: int,
    processes: int,
) -> int:
    """Return the main memory of all processes; each holds a shard of documents."""
    packed = bytes_per_vector(
        record.dimensions,
        record.precision,
        record.prior,
    )
    # The vectors, their packed form, and a copy in float64 where they are folded.
    vector = 4 * record.dimensions + packed
    if record.prior:
        vector += 8 * record.dimensions
    parent = resident_bytes(encoder.model)
    of_process = parent + documents * vector
    return of_process if processes == 1 else parent + processes * of_process


def _processes_at_once(devices: list[str]) -> int:
    gpus = len({device for device in devices if device != "cpu"})
    on_cpu = min(len(devices), available_cores() // torch.get_num_threads())
    return gpus or max(1, on_cpu)


def resident_bytes(model: COCODR) -> int:
    """Return the bytes of main memory that this process holds.

    Where the system does not say, they are guessed from the model.
    """
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return _GIB // 2 + int(sum(weight.nbytes for weight in model.parameters()))
