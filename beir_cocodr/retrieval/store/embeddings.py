"""The embeddings of a corpus by row, in memory, in a store, or derived from others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
import torch

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.retrieval.store.record import SHARD_SIZE


class Embeddings(ABC):
    """(N, d) float32 vectors that are read in chunks, in row order, or by row.

    Attributes:
        texts_cut: How many documents lost words as they were cut before they were tokenised, where
            this process encoded them.
    """

    texts_cut = 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of vectors, N."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """Return the width of the vectors, d."""

    @abstractmethod
    def rows(self, rows: Ints) -> torch.Tensor:
        """Return the (M, d) float32 vectors of (M,) rows, in their order."""

    def blocks(self, size: int) -> Iterator[torch.Tensor]:
        """Yield all rows in order, ``size`` of them at a time, (n, d) float32 on the CPU."""
        for start in range(0, len(self), size):
            yield self.rows(np.arange(start, min(start + size, len(self))))

    def chunks(self) -> Iterator[torch.Tensor]:
        """Yield all rows in order, (n, d) float32 on the CPU, in chunks of the best size."""
        return self.blocks(SHARD_SIZE)

    def load(self) -> torch.Tensor:
        """Return all vectors in memory, (N, d)."""
        return torch.cat(list(self.chunks()))

    def select(self, rows: Ints) -> Embeddings:
        """Return some rows as embeddings; nothing is read before it is needed."""
        return _Selection(self, rows)


class MemoryEmbeddings(Embeddings):
    """(N, d) float32 embeddings in memory, on the CPU, in chunks as long as a store's shards."""

    def __init__(self, vectors: torch.Tensor) -> None:
        """Take the vectors."""
        self.vectors = vectors

    def __len__(self) -> int:
        """Return the number of vectors."""
        return len(self.vectors)

    @property
    def dimensions(self) -> int:
        """Return the width of the vectors."""
        return self.vectors.shape[1]

    def blocks(self, size: int) -> Iterator[torch.Tensor]:
        """Yield all rows in order, without a copy."""
        return iter(torch.split(self.vectors, size))

    def rows(self, rows: Ints) -> torch.Tensor:
        """Return the vectors of rows."""
        return self.vectors[torch.from_numpy(rows)]


class DerivedEmbeddings(Embeddings):
    """Embeddings whose rows are made from others; a subclass says how."""

    def __init__(self, embeddings: Embeddings) -> None:
        """Take the embeddings that others are made from."""
        self._embeddings = embeddings

    def __len__(self) -> int:
        """Return the number of vectors."""
        return len(self._embeddings)

    @property
    def dimensions(self) -> int:
        """Return the width of the vectors."""
        return self._embeddings.dimensions


class ChangedEmbeddings(DerivedEmbeddings):
    """(N, d) embeddings in which some rows are replaced."""

    def __init__(
        self,
        embeddings: Embeddings,
        changed: Ints,
        vectors: Floats,
    ) -> None:
        """Replace rows.

        Args:
            embeddings: The embeddings.
            changed: (S,) rows, all different, S > 0.
            vectors: (S, d) their vectors.
        """
        super().__init__(embeddings)
        order = np.argsort(changed)
        self._changed = changed[order]
        self._vectors = torch.from_numpy(vectors[order])

    @property
    def unchanged(self) -> Embeddings:
        """Return the embeddings without the replaced rows."""
        return self._embeddings

    def rows(self, rows: Ints) -> torch.Tensor:
        """Return the vectors of rows."""
        vectors = self._embeddings.rows(rows)
        places = np.searchsorted(self._changed, rows).clip(max=len(self._changed) - 1)
        is_changed = torch.from_numpy(self._changed[places] == rows)
        vectors[is_changed] = self._vectors[torch.from_numpy(places)[is_changed]]
        return vectors


class MappedEmbeddings(DerivedEmbeddings):
    """Embeddings to which a function is applied, row by row, as they are read."""

    def __init__(
        self,
        embeddings: Embeddings,
        change: Callable[[torch.Tensor], torch.Tensor],
        dimensions: int | None = None,
    ) -> None:
        """Take a function.

        Args:
            embeddings: The embeddings.
            change: A function from (n, d) vectors to (n, ``dimensions``) vectors.
            dimensions: By default d.
        """
        super().__init__(embeddings)
        self._change = change
        self._dimensions = dimensions or embeddings.dimensions

    @property
    def dimensions(self) -> int:
        """Return the width of the vectors."""
        return self._dimensions

    def rows(self, rows: Ints) -> torch.Tensor:
        """Return the vectors of rows."""
        return self._change(self._embeddings.rows(rows))

    def chunks(self) -> Iterator[torch.Tensor]:
        """Yield the chunks of the embeddings, changed."""
        return map(self._change, self._embeddings.chunks())


class _Selection(DerivedEmbeddings):
    """Some rows of embeddings."""

    def __init__(self, embeddings: Embeddings, rows: Ints) -> None:
        super().__init__(embeddings)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, rows: Ints) -> torch.Tensor:
        return self._embeddings.rows(self._rows[rows])
