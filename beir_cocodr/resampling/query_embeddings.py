"""Embeddings of queries on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError

Array = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

# What the search multiplies at a time; larger chunks would only take more memory.
CHUNK = 16_384


class Vectors(Protocol):
    """Rows of float32 that are read in chunks, in order."""

    def __len__(self) -> int: ...

    @property
    def dimensions(self) -> int: ...

    def chunks(self, size: int = CHUNK) -> Iterator[Array]: ...


@dataclass(frozen=True)
class QueryEmbeddings:
    """The (Q, d) float32 embeddings of Q queries in an npy file. Only what is asked for is in memory.

    Attributes:
        path: the file.
        count: Q.
        dimensions: d.
    """

    path: Path
    count: int
    dimensions: int

    @classmethod
    def open(cls, path: Path) -> QueryEmbeddings:
        """Read the header of a file.

        Raises:
            InputError: it is no npy file of float32 rows, or its end is missing.
        """
        try:
            stored = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} holds no embeddings ({error}); delete it") from error
        if stored.ndim != 2 or stored.dtype != np.dtype("<f4") or not stored.flags.c_contiguous:
            raise InputError(f"{path} holds {stored.dtype} of shape {stored.shape}, no embeddings; delete it")
        return cls(path, *stored.shape)

    def __len__(self) -> int:
        return self.count

    def chunks(self, size: int = CHUNK) -> Iterator[Array]:
        """Stream the rows in order, at most ``size`` at a time."""
        offset = _opened(self.path).offset
        for start in range(0, self.count, size):
            rows = min(size, self.count - start)
            # Read instead of mapped: mapped pages would count as memory of this process until all are in.
            flat = np.fromfile(
                self.path,
                np.float32,
                rows * self.dimensions,
                offset=offset + 4 * start * self.dimensions,
            )
            yield flat.reshape(rows, self.dimensions)

    def take(self, rows: Rows) -> Array:
        """(n, d) embeddings of the given rows, in their order."""
        return np.ascontiguousarray(_opened(self.path)[rows])

    def select(self, rows: Rows) -> Vectors:
        """The given rows as a stream of their own."""
        return _Selection(self, rows)

    def load(self) -> Array:
        """All (Q, d) of them, in memory."""
        loaded: Array = np.load(self.path, allow_pickle=False)
        return loaded


@dataclass(frozen=True)
class _Selection:
    embeddings: QueryEmbeddings
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dimensions(self) -> int:
        return self.embeddings.dimensions

    def chunks(self, size: int = CHUNK) -> Iterator[Array]:
        for start in range(0, len(self.rows), size):
            yield self.embeddings.take(self.rows[start : start + size])


def _opened(path: Path) -> np.memmap[Any, np.dtype[np.float32]]:
    mapped: np.memmap[Any, np.dtype[np.float32]] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped
