"""Keys of passages and generated queries, by which equal texts stay out of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from datasets import Dataset
from numpy.lib.format import open_memmap

from beir_cocodr.checksums import checked_path, is_kept
from beir_cocodr.distributed import on_main
from beir_cocodr.io import filling_cache
from beir_cocodr.training.batches import EpochClock, text_key
from beir_cocodr.training.pretraining.context_draws import (
    AFTER,
    BEFORE,
    SPANS,
    ContextDraws,
    Contexts,
)

#: The keys of texts, see :func:`~beir_cocodr.training.batches.text_key`.
Keys = npt.NDArray[np.uint64]

# Passages that are read at a time.
_CHUNK = 10_000


def query_counts(table: Dataset) -> npt.NDArray[np.int32]:
    """Return (N,) the number of each passage's queries."""
    counts = pc.list_value_length(table.data.column("queries"))
    in_numpy: npt.NDArray[np.int32] = counts.to_numpy().astype(np.int32)
    return in_numpy


def load_keys(table: Dataset) -> Keys:
    """Return the keys of the texts of a table of passages: of each passage, then of its queries.

    The first time the first process reads all texts, and writes the keys beside the table, 8 bytes
    a text. They are mapped into memory, which all processes of a machine share. All processes call
    this.

    Args:
        table: what :func:`~beir_cocodr.generation.query_context.load_query_context` returns.
    """
    [cached] = table.cache_files
    file = Path(cached["filename"]).with_suffix(".keys.npy")

    def write() -> None:
        if not is_kept(file):
            _write_keys(table, file)

    on_main(write)
    write()  # on a process with a disk of its own
    return np.asarray(np.load(file, mmap_mode="r"))  # an element of it is read faster


def _write_keys(table: Dataset, file: Path) -> None:
    texts = len(table) + int(query_counts(table).sum(dtype=np.int64))
    with filling_cache(file.parent), checked_path(file) as draft:
        keys = open_memmap(draft, mode="w+", dtype=np.uint64, shape=(texts,))
        start = 0
        for part in _keys_of_parts(table):
            keys[start : start + len(part)] = part
            start += len(part)
        keys.flush()


def _keys_of_parts(table: Dataset) -> Iterator[Keys]:
    """Yield the keys of some passages and their queries at a time."""
    columns = table.data.select(["text", "queries"])
    for batch in columns.to_batches(max_chunksize=_CHUNK):
        passages = batch.column("text").to_pylist()
        queries = batch.column("queries").to_pylist()
        keys: list[int] = []
        for passage, of_passage in zip(passages, queries, strict=True):
            keys.append(text_key(passage))
            keys += map(text_key, of_passage)
        yield np.array(keys, np.uint64)


@dataclass
class ContextKeys:
    """What a row must not share with others of its batch: its document, passage and context.

    A text is known by its key, so that none is read, except of passages that are divided into
    spans. The contexts of all rows are drawn when the first row of an epoch is asked for, and take
    4 bytes a row. The keys of texts take 8 bytes each: mapped into memory, or in it where there are
    several tables. Their places take 8 bytes a passage.

    Attributes:
        tables: the passages, whose rows are numbered one after another.
        draws: draws the contexts of rows.
        clock: the running epoch.
        read: returns what this epoch sees of a row.
    """

    tables: Sequence[Dataset]
    draws: ContextDraws
    clock: EpochClock
    read: Callable[[int], tuple[str, ...]]

    def __post_init__(self) -> None:
        """Load the keys; all processes do so together."""
        parts = [load_keys(table) for table in self.tables]
        self._keys = parts[0] if len(parts) == 1 else np.concatenate(parts)
        # (N + 1,) the place of each passage's key; those of its queries follow.
        counts = self.draws.query_counts.astype(np.int64) + 1
        self._places = np.concatenate([[0], np.cumsum(counts)])
        self._drawn: tuple[int, Contexts] | None = None

    def of(self, row: int) -> list[int]:
        """Return the keys of a row; that of its document is negative, as no text's is."""
        document = -1 - self.draws.document.item(row)
        context = self._contexts().item(row)
        if context == SPANS:
            return [document, *map(text_key, self.read(row))]
        passage = self._places.item(row)
        if context == BEFORE:
            other = self._places.item(row - 1)
        elif context == AFTER:
            other = self._places.item(row + 1)
        else:
            other = passage + 1 + context
        return [document, self._keys.item(passage), self._keys.item(other)]

    def _contexts(self) -> Contexts:
        """Return the contexts of this epoch."""
        epoch = self.clock.epoch
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = (epoch, self.draws.of_epoch(epoch))
        return self._drawn[1]
