"""Where the dimensions of a vector go in an index of each kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from beir_cocodr.retrieval.index.options import FaissOptions

Matrix = npt.NDArray[np.float32]

# Numbers that a vector unit takes at a time.
_LANES = 8


@dataclass(frozen=True)
class Layout:
    """The vectors of an index: those of the corpus, made wider where its kind needs it.

    A graph finds neighbours by distance, and the inner product is none: a document that is long is near to
    everything. One more dimension √(M² − |d|²), M the longest document's length, and 0 for queries, makes
    |q − d|² = |q|² + M² − 2 q·d, so that the nearest documents are the best ones.

    Product quantisation needs a width that its codes divide: zeros fill it up. So they do in a flat index, up
    to a multiple of 8: MRL's odd width 2k + 1 takes 7% longer to multiply than the even one above it.

    Args:
        dimensions: w, of the vectors given.
        width: of the index.
        longest: M², where the last column is to make distances of inner products.

    Source: Bachrach et al., Speeding Up the Xbox Recommender System Using a Euclidean Transformation for
        Inner-Product Spaces (2014), section 3 for the additional dimension.
    """

    dimensions: int
    width: int
    longest: float | None = None

    @classmethod
    def of(cls, options: FaissOptions, dimensions: int, longest: float | None) -> Layout:
        """For fitted options; ``longest`` where there is to be one more dimension."""
        if longest is not None:
            return cls(dimensions, dimensions + 1, longest=longest)
        if options.kind == "ivfpq" and options.pq_m is not None:
            return cls(dimensions, -(-dimensions // options.pq_m) * options.pq_m)
        if options.kind == "flat":
            return cls(dimensions, -(-dimensions // _LANES) * _LANES)
        return cls(dimensions, dimensions)

    def documents(self, vectors: npt.NDArray[np.float64]) -> Matrix:
        """(n, w) to (n, width) float32."""
        placed = self._place(vectors)
        if self.longest is not None:
            rest = self.longest - (vectors**2).sum(axis=1)
            placed[:, -1] = np.sqrt(rest.clip(min=0))
        return placed

    def queries(self, vectors: npt.NDArray[np.float64]) -> Matrix:
        """(n, w) to (n, width) float32."""
        return self._place(vectors)

    def _place(self, vectors: npt.NDArray[np.float64]) -> Matrix:
        if self.width == self.dimensions:
            return np.ascontiguousarray(vectors, dtype=np.float32)
        placed = np.zeros((len(vectors), self.width), dtype=np.float32)
        placed[:, : self.dimensions] = vectors
        return placed
