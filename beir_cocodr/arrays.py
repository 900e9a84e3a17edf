"""Types of arrays, and checks and changes of arrays that several rooms need."""

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
#: What one module of an encoder hands to the next.
Features = dict[str, Any]


def spaced_rows(count: int, most: int) -> Ints:
    """Return at most ``most`` of ``count`` rows, evenly spaced, with the first and the last."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def unit_rows(vectors: Array) -> Floats:
    """Scale (n, d) vectors to length 1, in float32; a zero vector stays zero."""
    norms = np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True)
    return np.ascontiguousarray(
        vectors / np.where(norms == 0, 1, norms),
        np.float32,
    )


def non_finite_rows(vectors: Array) -> Ints:
    """Return the rows of (n, d) vectors that hold a NaN or infinite number."""
    return np.flatnonzero(~np.isfinite(vectors).all(axis=1))


def check_finite(
    vectors: Array,
    ids: Sequence[object],
    noun: str,
) -> None:
    """Check that all (n, d) embeddings of texts are finite.

    Args:
        vectors: the embeddings.
        ids: n names of the texts.
        noun: what the texts are, in the plural.

    Raises:
        InputError: some are NaN or infinite; their texts are named.
    """
    rows = non_finite_rows(vectors)
    if len(rows):
        names = [repr(ids[row]) for row in rows]
        raise InputError(
            f"NaN or infinite embeddings of {len(rows)} {noun}: {listed(names)}; "
            "look at their texts, and encode in float32 if the model runs in half precision"
        )


def singular_axes(
    weights: Any,
    count: int,
    seed: int,
) -> Floats:
    """Return the (T, r) first right singular vectors of (n, T) sparse weights.

    They are computed by randomised power iterations, in a thread of its own: where Java runs, it
    leaves the main thread too little stack for OpenBLAS's LU decomposition.
    """
    # Most users of this module need no scikit-learn.
    from sklearn.utils.extmath import randomized_svd

    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(
            randomized_svd,
            weights,
            count,
            n_iter=4,
            random_state=seed,
        )
        _, _, axes = work.result()
    return np.ascontiguousarray(axes.T, dtype=np.float32)
