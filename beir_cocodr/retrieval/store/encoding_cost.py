"""What encoding a corpus will take of disk, memory and time, before it starts."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.errors import InputError
from beir_cocodr.progress import describe_seconds
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.pool import available_cores
from beir_cocodr.retrieval.store.record import StoreRecord
from beir_cocodr.retrieval.store.shard import bytes_per_vector

#: Documents of the timed sample, and those that are encoded before it to warm up.
SAMPLE, _WARM_UP = 64, 4

# Ids and the two tie orders.
_BYTES_PER_ID = 24
_GIB = 1 << 30


@dataclass(frozen=True)
class EncodingCost:
    """Of what is still to be encoded: documents, bytes of disk for their shards and the ids, and of
    main memory of all processes, and seconds by a sample of so many documents, of which a share is
    truncated.
    """

    documents: int
    disk_bytes: int
    memory_bytes: int
    seconds: float
    sample_documents: int
    truncated_share: float

    def __str__(self) -> str:
        return (
            f"{self.documents:,} documents to encode: about {size(self.disk_bytes)} of disk, "
            f"{size(self.memory_bytes)} of memory and {describe_seconds(self.seconds)} (by a sample of "
            f"{self.sample_documents}, of which {self.truncated_share:.0%} are cut to the document length)"
        )

    def check_disk_space(self, folder: Path) -> None:
        """InputError: the disk has less room."""
        free = shutil.disk_usage(folder).free
        if free < self.disk_bytes:
            raise InputError(
                f"{folder}: the embeddings take {size(self.disk_bytes)} and {size(free)} are free; choose "
                "another disk, or a smaller precision (fp16, int8)"
            )


def estimate(
    encoder: CorpusEncoder, record: StoreRecord, count: int, devices: list[str]
) -> EncodingCost:
    """Encode a few documents of the corpus, evenly spaced, look at the clock, and put that on the
    scale of the ``count`` documents to be encoded, by one process a device.
    """
    rows = spaced_rows(len(encoder.documents), SAMPLE)
    cut = encoder.model.texts_cut
    encoder.encode(rows[:_WARM_UP])
    started = time.perf_counter()
    encoder.encode(rows)
    seconds = (time.perf_counter() - started) / len(rows)
    encoder.model.texts_cut = cut  # these are encoded again
    texts = [
        encoder.model.text_format.document(document) for document in encoder.documents.take(rows)
    ]
    packed = bytes_per_vector(record.dimensions, record.precision, record.prior)
    # The vectors, their packed form, and where they are folded a copy in float64.
    vector = 4 * record.dimensions + packed + (8 * record.dimensions if record.prior else 0)
    shard = min(record.shard_size, max(1, count)) * vector
    parent = resident_bytes(encoder.model)
    gpus = len({device for device in devices if device != "cpu"})
    at_once = gpus or max(1, min(len(devices), available_cores() // torch.get_num_threads()))
    return EncodingCost(
        count,
        count * packed + len(encoder.documents) * _BYTES_PER_ID,
        parent + shard if len(devices) == 1 else parent + len(devices) * (parent + shard),
        round(count * seconds / at_once, 1),
        len(rows),
        float(encoder.model.truncated_share(texts, "document")),
    )


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / (1 << 20):.1f} MiB"


def resident_bytes(model: Any) -> int:
    """Bytes of main memory that this process holds; where the system does not say, a guess by the
    model.
    """
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return _GIB // 2 + int(sum(weight.nbytes for weight in model.parameters()))
