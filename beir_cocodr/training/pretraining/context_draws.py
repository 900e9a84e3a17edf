"""What passages meet in an epoch of query-as-context pre-training: drawn for many rows at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from beir_cocodr.arrays import Doubles, Ints

#: The context of a row: the number of one of its queries, or one of these.
Contexts = npt.NDArray[np.int32]

#: The passage before it in its document, and the one after it.
BEFORE, AFTER = -1, -2
#: Two spans of the passage, which is alone in its document. Only its text tells whether it has two.
SPANS = -3

# Rows that are drawn at a time.
_CHUNK = 65_536

# Numbers of a row: Philox makes four at a time, and can be set to any of its rows.
_NUMBERS = 4


@dataclass(frozen=True)
class ContextDraws:
    """Draws the context of each row by seed, epoch and row.

    Attributes:
        seed: the seed of the training.
        mix: the chance that a passage meets another passage.
        query_counts: (N,) int32, the number of each passage's queries.
        document: (N,) the number of each passage's document; its rows are consecutive.
    """

    seed: int
    mix: float
    query_counts: npt.NDArray[np.int32]
    document: Ints

    def __call__(self, epoch: int, rows: Ints) -> Contexts:
        """Return (n,) contexts of rows."""
        numbers = [self._numbers(epoch, row, 1) for row in rows.tolist()]
        return self._contexts(rows, np.concatenate(numbers))

    def of_epoch(self, epoch: int) -> Contexts:
        """Return (N,) contexts of all rows."""
        count = len(self.document)
        contexts = np.empty(count, np.int32)
        for start in range(0, count, _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, count))
            contexts[rows] = self._contexts(rows, self._numbers(epoch, start, len(rows)))
        return contexts

    def _numbers(self, epoch: int, start: int, count: int) -> Doubles:
        """Return (n, 4) numbers from 0 to below 1 of consecutive rows."""
        seed = np.random.SeedSequence((self.seed, epoch))
        bits = np.random.Philox(seed)
        bits.advance(start)
        return np.random.Generator(bits).random((count, _NUMBERS))

    def _contexts(self, rows: Ints, numbers: Doubles) -> Contexts:
        """Return (n,) contexts of rows by their numbers."""
        is_mixed = numbers[:, 0] < self.mix
        choice = numbers[:, 1]
        queries = np.floor(choice * self.query_counts[rows]).astype(np.int64)
        before, after = self._has_before[rows], self._has_after[rows]
        is_after = after & (~before | (choice < 0.5))
        mixed = np.where(is_after, AFTER, np.where(before, BEFORE, SPANS))
        return np.where(is_mixed, mixed, queries).astype(np.int32)

    @cached_property
    def _has_before(self) -> npt.NDArray[np.bool_]:
        is_same: npt.NDArray[np.bool_] = np.diff(self.document, prepend=-1) == 0
        return is_same

    @cached_property
    def _has_after(self) -> npt.NDArray[np.bool_]:
        is_same: npt.NDArray[np.bool_] = np.diff(self.document, append=-1) == 0
        return is_same
