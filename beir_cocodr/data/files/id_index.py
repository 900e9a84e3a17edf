"""Looking up ids by hash, in 16 bytes an id instead of a Python object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def hashes_of(values: Iterable[str], hash_of: Callable[[str], int] = hash) -> npt.NDArray[np.int64]:
    """64-bit hashes, int64 (N,); those of ``hash`` hold within this process only."""
    return np.fromiter(map(hash_of, values), dtype=np.int64)


def gather(column: pa.ChunkedArray, rows: npt.NDArray[np.int64]) -> list[str]:
    """The values at the given rows, in that order, touching only those.

    ``ChunkedArray.take`` may join all chunks first, which would pull a memory-mapped corpus into memory.
    """
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    chunk_of = np.searchsorted(ends, rows, side="right")
    order = np.argsort(chunk_of, kind="stable")
    values: list[str] = [""] * len(rows)
    for positions in np.split(order, np.flatnonzero(np.diff(chunk_of[order])) + 1):
        if len(positions):
            number = int(chunk_of[positions[0]])
            chunk = column.chunk(number)
            taken = chunk.take(pa.array(rows[positions] - (ends[number] - len(chunk))))
            for position, value in zip(positions.tolist(), taken.to_pylist(), strict=True):
                values[position] = value
    return values


class IdIndex:
    """Rows of ids, exact: a hash only proposes a row, and the id that stands there decides.

    Args:
        ids: the id column, every id once.
        hash_of: any function from a string to a 64-bit integer; the fewer strings share one, the faster.
    """

    def __init__(self, ids: pa.ChunkedArray, hash_of: Callable[[str], int] = hash) -> None:
        self._ids = ids
        self._hash_of = hash_of
        parts = [hashes_of(chunk.to_pylist(), hash_of) for chunk in ids.chunks]
        hashes = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        self._order = np.argsort(hashes, kind="stable")  # (N,)
        self._sorted = hashes[self._order]  # (N,)

    def row(self, id: str) -> int:
        """The row of one id, -1 where it is unknown."""
        wanted = np.int64(self._hash_of(id))
        position = int(self._sorted.searchsorted(wanted))
        while position < len(self._sorted) and self._sorted[position] == wanted:
            row = int(self._order[position])
            if self._ids[row].as_py() == id:
                return row
            position += 1
        return -1

    def rows(self, ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """The rows of many ids, int64 (M,), -1 where an id is unknown."""
        found = np.full(len(ids), -1, dtype=np.int64)
        if not len(self._sorted) or not len(ids):
            return found
        wanted = hashes_of(ids, self._hash_of)
        positions = self._sorted.searchsorted(wanted)
        open_ = np.arange(len(ids))
        while len(open_):
            inside = positions[open_] < len(self._sorted)
            open_ = open_[inside]
            open_ = open_[self._sorted[positions[open_]] == wanted[open_]]
            rows = self._order[positions[open_]]
            values = gather(self._ids, rows)
            hit = np.array(
                [ids[i] == value for i, value in zip(open_.tolist(), values, strict=True)], dtype=bool
            )
            found[open_[hit]] = rows[hit]
            # Two ids that share a hash stand side by side: try the neighbour.
            open_ = open_[~hit]
            positions[open_] += 1
        return found
