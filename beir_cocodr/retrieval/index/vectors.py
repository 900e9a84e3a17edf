"""A corpus of vectors, read from the beginning as often as an index needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.topk import NonFiniteScores

#: An (N, w) array, memory-mapped or not, or a function that returns (n, w) chunks of one anew at each call.
Vectors = npt.NDArray[Any] | Callable[[], Iterable[Any]]
# Vectors handled at a time: 50 MiB in float64 where there are 768 dimensions.
_BLOCK = 8_192


@dataclass(frozen=True, eq=False)
class Survey:
    """What one reading finds: N, w, and the mean (w,) float64."""

    count: int
    width: int
    mean: npt.NDArray[np.float64]


def blocks(vectors: Vectors) -> Iterator[npt.NDArray[Any]]:
    """The corpus in blocks of one size, whatever the chunks: what is built from it depends only on its rows.

    Raises:
        InputError: something that is not two-dimensional, or vectors of different widths.
    """
    if not callable(vectors):
        yield from (_matrix(vectors[start : start + _BLOCK]) for start in range(0, len(vectors), _BLOCK))
        return
    held: list[npt.NDArray[Any]] = []
    room, count, width = _BLOCK, 0, None
    for given in vectors():
        chunk = _matrix(given)
        width = width or chunk.shape[1]
        if chunk.shape[1] != width:
            raise InputError(f"vectors have {width} dimensions, and from row {count} on {chunk.shape[1]}")
        count += len(chunk)
        while len(chunk):
            held.append(chunk[:room])
            chunk, room = chunk[room:], room - len(held[-1])
            if not room:
                yield np.concatenate(held)
                held, room = [], _BLOCK
    if held:
        yield np.concatenate(held)


def survey(vectors: Vectors) -> Survey:
    """Read everything once.

    Raises:
        InputError: no vectors, or those of `blocks`.
        NonFiniteScores: NaN or infinite values; names the rows.
    """
    total: npt.NDArray[np.float64] | None = None
    count = 0
    for block in blocks(vectors):
        wide = block.astype(np.float64)
        if total is None:
            total = np.zeros(wide.shape[1])
        if len(wrong := np.flatnonzero(~np.isfinite(wide).all(axis=1))):
            raise NonFiniteScores((count + wrong).tolist(), [])
        total += wide.sum(axis=0)
        count += len(wide)
    if total is None or not len(total):
        raise InputError("there are no vectors to index")
    return Survey(count, len(total), total / count)


def take(vectors: Vectors, rows: npt.NDArray[np.int64], count: int) -> npt.NDArray[Any]:
    """The vectors of ascending ``rows`` of ``count``, (n, w); in one reading.

    Raises:
        InputError: there are fewer or more of them than at the first reading.
    """
    if not callable(vectors):
        return _matrix(vectors[rows])
    found, start = [], 0
    for block in blocks(vectors):
        first, last = np.searchsorted(rows, [start, start + len(block)])
        found.append(block[rows[first:last] - start])
        start += len(block)
    if start != count:
        raise changed(start, count)
    return np.concatenate(found)


def changed(now: int, before: int) -> InputError:
    """To be raised where a function does not give the same vectors at every call."""
    return InputError(
        f"there were {before} vectors at the first reading and {now} at a later one: give a function that "
        "returns the same chunks at every call"
    )


def sample_rows(count: int, most: int, seed: int) -> npt.NDArray[np.int64]:
    """Ascending rows, drawn without replacement; all of them where there are no more than ``most``."""
    if count <= most:
        return np.arange(count)
    rows: npt.NDArray[np.int64] = np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
    return rows


def _matrix(chunk: Any) -> npt.NDArray[Any]:
    matrix = np.asarray(chunk)
    if matrix.ndim != 2:
        raise InputError(f"vectors come in two dimensions, not in shape {matrix.shape}")
    return matrix
