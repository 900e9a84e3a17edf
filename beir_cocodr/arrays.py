"""Names of array types, and checks and changes of arrays that several rooms need."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]


def spaced_rows(count: int, most: int) -> Ints:
    """At most ``most`` of ``count`` rows, evenly spaced, the first and the last among them."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def unit_rows(vectors: Array) -> Floats:
    """(n, d) vectors to length 1, in float32; a zero vector stays zero."""
    norms = np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.where(norms == 0, 1, norms), np.float32)


def non_finite_rows(vectors: Array) -> Ints:
    """Rows of (n, d) vectors that have a NaN or infinite number."""
    return np.flatnonzero(~np.isfinite(vectors).all(axis=1))
