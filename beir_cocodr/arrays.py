"""Names of array types, and checks and changes of arrays that several rooms need."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError, listed

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
#: What the modules of an encoder hand on.
Features = dict[str, Any]


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


def check_finite(vectors: Array, ids: Sequence[object], what: str) -> None:
    """An InputError names those of (n, d) embeddings of texts that have a NaN or infinite
    number.
    """
    if wrong := [repr(ids[row]) for row in non_finite_rows(vectors)]:
        raise InputError(
            f"NaN or infinite embeddings of {len(wrong)} {what}: {listed(wrong)}; look at their texts, and encode in "
            "float32 if the model runs in half precision"
        )


def singular_axes(weights: Any, count: int, seed: int) -> Floats:
    """(T, r) first right singular vectors of (n, T) sparse weights, by randomised power iterations.

    In a thread of its own: where Java runs, it leaves the main thread too little stack for
    OpenBLAS's LU decomposition.
    """
    from sklearn.utils.extmath import (
        randomized_svd,
    )  # most of what imports this module does not pay for it

    with ThreadPoolExecutor(1) as alone:
        axes = alone.submit(randomized_svd, weights, count, n_iter=4, random_state=seed).result()[2]
    return np.ascontiguousarray(axes.T, dtype=np.float32)
