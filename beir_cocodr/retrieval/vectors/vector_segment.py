"""A growing file of vectors: the texts of one corpus that one encoder has encoded, by content.

A folder holds two files that are only appended to, one row for each text: ``vectors`` has the
float32 vectors, ``texts`` the hash of each text and the checksum of its vector. A text counts once
its row of ``texts`` is complete, and its vector once the checksum agrees, so a process that dies
while it appends loses what it appends and nothing else. A sorted index of the hashes is mapped into
memory; texts that came later are looked up in a small table of this process.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from beir_cocodr import checksums
from beir_cocodr.arrays import Bools, Floats, Ints
from beir_cocodr.errors import InputError
from beir_cocodr.io import filling_cache, locked
from beir_cocodr.records import Record

#: Hashes of texts, (n, 2) uint64.
Hashes = npt.NDArray[np.uint64]

#: The record of a segment, in its folder.
RECORD_FILE = "segment.json"

_VECTORS = "vectors"
_TEXTS = "texts"
_INDEX = "index.npy"

# A row of ``texts``: the two halves of a hash, and the checksum of the vector.
_ROW = np.dtype(
    [
        ("high", "<u8"),
        ("low", "<u8"),
        ("checksum", "<u8"),
    ]
)

# Texts outside the index at which it is written anew, and their share of those in it.
_MOST_OUTSIDE = 65_536
_SHARE_OUTSIDE = 0.25

# Rows whose checksums are compared at a time.
_BLOCK = 16_384

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SegmentRecord(Record):
    """What a segment holds.

    Attributes:
        corpus: the name of the corpus.
        encoder: the name of the encoder.
        dimensions: numbers of a vector.
    """

    corpus: str
    encoder: str
    dimensions: int


@dataclass(frozen=True)
class _Table:
    """Hashes in ascending order of their first halves, with the slots of their texts.

    Attributes:
        highs: (m,) the first halves.
        slots: (m,) the slots.
        first: the first slot that the table covers.
    """

    highs: npt.NDArray[np.uint64]
    slots: npt.NDArray[np.uint64]
    first: int

    @classmethod
    def of(cls, texts: npt.NDArray[np.void], first: int) -> _Table:
        """Sort rows of ``texts`` whose first slot is given; of equal texts the last one stays."""
        order = np.lexsort((texts["low"], texts["high"]))
        highs = texts["high"][order]
        lows = texts["low"][order]
        is_last = np.ones(len(texts), bool)
        is_last[:-1] = highs[1:] != highs[:-1]
        is_last[:-1] |= lows[1:] != lows[:-1]
        slots = order[is_last] + first
        return cls(
            highs=highs[is_last],
            slots=slots.astype(np.uint64),
            first=first,
        )

    def find(self, hashes: Hashes, lows: npt.NDArray[np.uint64]) -> Ints:
        """Return the (n,) slots of hashes, -1 for an unknown one.

        Args:
            hashes: (n, 2) hashes.
            lows: the second halves of all hashes, by slot.
        """
        slots = np.full(len(hashes), -1, np.int64)
        if not len(self.highs):
            return slots
        wanted_highs = np.ascontiguousarray(hashes[:, 0])
        wanted_lows = hashes[:, 1]
        places = np.searchsorted(self.highs, wanted_highs)
        waiting = np.arange(len(hashes))
        # Several hashes may share their first half: the next places are looked at as well.
        while len(waiting):
            is_inside = places[waiting] < len(self.highs)
            waiting = waiting[is_inside]
            highs = self.highs[places[waiting]]
            has_same_high = highs == wanted_highs[waiting]
            waiting = waiting[has_same_high]
            slots_here = self.slots[places[waiting]]
            proposed = slots_here.astype(np.int64)
            is_equal = lows[proposed] == wanted_lows[waiting]
            answered = waiting[is_equal]
            slots[answered] = proposed[is_equal]
            waiting = waiting[~is_equal]
            places[waiting] += 1
        return slots


class Segment:
    """The vectors of one corpus by one encoder.

    Args:
        folder: the folder; it need not exist.
        verify: compare vectors with their checksums when they are first looked up.
    """

    def __init__(self, folder: Path, verify: bool = True) -> None:
        """Open the folder, if it exists."""
        self.folder = folder
        self.verify = verify
        self._forget()
        self.refresh()

    def _forget(self) -> None:
        """Begin without texts."""
        self._file_number = 0
        self._dimensions = 0
        self._texts: npt.NDArray[np.void] = np.empty(0, _ROW)
        self._lows = np.empty(0, np.uint64)
        self._tables: list[_Table] = []
        self._indexed = 0
        self._is_verified: Bools = np.zeros(0, bool)
        self._is_damaged: Bools = np.zeros(0, bool)
        self.vectors: Floats = np.empty((0, 0), np.float32)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._texts)

    def refresh(self) -> None:
        """Take in what other processes have appended, or removed, since."""
        try:
            texts = (self.folder / _TEXTS).stat()
            vectors = (self.folder / _VECTORS).stat()
            is_other_file = texts.st_ino != self._file_number
            size_known = len(self) * _ROW.itemsize
            if is_other_file or texts.st_size < size_known:
                self._forget()
                record = SegmentRecord.read(self.folder / RECORD_FILE)
                self._dimensions = record.dimensions
                self._file_number = texts.st_ino
        except (OSError, InputError):  # not there yet, or being removed
            self._forget()
            return
        complete_texts = texts.st_size // _ROW.itemsize
        complete_vectors = vectors.st_size // (4 * self._dimensions)
        count = min(complete_texts, complete_vectors)
        if count > len(self):
            self._map(count)

    def _map(self, count: int) -> None:
        """Map the first rows of both files."""
        before = len(self)
        self._texts = np.memmap(
            self.folder / _TEXTS,
            _ROW,
            mode="r",
            shape=(count,),
        )
        self._lows = self._texts["low"]
        self.vectors = np.memmap(
            self.folder / _VECTORS,
            "<f4",
            mode="r",
            shape=(count, self._dimensions),
        )
        if count > len(self._is_verified):
            room = np.zeros(count, bool)  # twice what is needed now, for what is appended
            self._is_verified = np.append(self._is_verified, room)
            self._is_damaged = np.append(self._is_damaged, room)
        if not before:
            before = self._open_index(count)
        if count > before:
            self._add_table(before)

    def _open_index(self, count: int) -> int:
        """Map the sorted index, and return how many texts it covers."""
        file = self.folder / _INDEX
        if not checksums.is_kept(file):
            return 0
        highs, slots = np.load(file, mmap_mode="r")
        covered = int(slots.max(initial=0)) + 1
        if covered > count:  # of a segment that was here before
            return 0
        self._tables = [_Table(highs, slots, 0)]
        self._indexed = covered
        return covered

    def _add_table(self, first: int) -> None:
        """Sort the texts from a slot on; tables of similar sizes become one."""
        new_texts = np.asarray(self._texts[first:])
        table = _Table.of(new_texts, first)
        tables_of_index = 1 if self._indexed else 0
        while len(self._tables) > tables_of_index:
            former = self._tables[-1]
            if len(former.highs) >= 2 * len(table.highs):
                break
            self._tables.pop()
            texts = np.asarray(self._texts[former.first :])
            table = _Table.of(texts, former.first)
        self._tables.append(table)

    def find(self, hashes: Hashes) -> Ints:
        """Return the (n,) slots of (n, 2) hashes, -1 for a text that is missing or damaged."""
        slots = np.full(len(hashes), -1, np.int64)
        for table in self._tables:  # a text that was encoded again is in a later one
            of_table = table.find(hashes, self._lows)
            slots = np.where(of_table >= 0, of_table, slots)
        if self.verify and len(self):
            is_known = slots >= 0
            self._verify(np.unique(slots[is_known]))
            is_damaged = is_known & self._is_damaged[slots]
            slots[is_damaged] = -1
        return slots

    def _verify(self, slots: Ints) -> None:
        """Compare the vectors of slots with their checksums, each once in this process."""
        slots = slots[~self._is_verified[slots]]
        for start in range(0, len(slots), _BLOCK):
            block = slots[start : start + _BLOCK]
            actual = _checksums(self.vectors[block])
            recorded = self._texts["checksum"][block]
            self._is_damaged[block] = actual != recorded
        self._is_verified[slots] = True
        damaged = int(self._is_damaged[slots].sum())
        if damaged:
            log.warning(
                "%s: %d vectors were changed since they were written, according to their "
                "checksums; the texts are encoded again",
                self.folder,
                damaged,
            )

    def append(self, hashes: Hashes, vectors: Floats, record: SegmentRecord) -> None:
        """Append texts that the segment lacks.

        Args:
            hashes: (n, 2) hashes of the texts.
            vectors: (n, d) their vectors.
            record: describes the segment, if this is its first text.
        """
        with filling_cache(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder):
                self.refresh()
                if not self._dimensions:
                    record.write(self.folder / RECORD_FILE)
                    self.refresh()
                new = self._new(hashes)
                if not len(new):
                    return
                new_vectors = np.ascontiguousarray(vectors[new], "<f4")
                self._write(hashes[new], new_vectors)
                self.refresh()
                outside = len(self) - self._indexed
                most_outside = max(_MOST_OUTSIDE, _SHARE_OUTSIDE * self._indexed)
                if outside > most_outside:
                    self._write_index()

    def _new(self, hashes: Hashes) -> Ints:
        """Return the rows of hashes that the segment lacks, in order, each hash once."""
        _, first = np.unique(hashes, axis=0, return_index=True)
        rows = np.sort(first)
        slots = self.find(hashes[rows])
        is_missing = slots < 0
        new: Ints = rows[is_missing]
        return new

    def _write(self, hashes: Hashes, vectors: Floats) -> None:
        rows = np.empty(len(hashes), _ROW)
        rows["high"] = hashes[:, 0]
        rows["low"] = hashes[:, 1]
        rows["checksum"] = _checksums(vectors)
        bytes_of_vector = 4 * vectors.shape[1]
        end_of_vectors = len(self) * bytes_of_vector
        end_of_texts = len(self) * _ROW.itemsize
        # What a process that was killed left behind these places is overwritten.
        _write_at(self.folder / _VECTORS, end_of_vectors, vectors.tobytes())
        _write_at(self.folder / _TEXTS, end_of_texts, rows.tobytes())

    def _write_index(self) -> None:
        table = _Table.of(np.asarray(self._texts), 0)
        index = np.stack([table.highs, table.slots])
        checksums.save_array(self.folder / _INDEX, index)
        self._open_index(len(self))


def _write_at(path: Path, offset: int, content: bytes) -> None:
    """Write to the end of a file, which begins at an offset; what lies behind it is cut off."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.ftruncate(descriptor, offset)
        written = 0
        while written < len(content):
            left = content[written:]
            written += os.pwrite(descriptor, left, offset + written)
    finally:
        os.close(descriptor)


def _checksums(vectors: Floats) -> npt.NDArray[np.uint64]:
    """Return the (n,) checksums of (n, d) float32 vectors."""
    width = 4 * vectors.shape[1]
    content = np.ascontiguousarray(vectors).data.cast("B")
    starts = range(0, width * len(vectors), width)
    digests = (xxhash.xxh3_64_intdigest(content[start : start + width]) for start in starts)
    return np.fromiter(digests, np.uint64, len(vectors))
