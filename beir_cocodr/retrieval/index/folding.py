"""Folding and centring: flattened MRL vectors made small, so that approximate indexes lose less of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from beir_cocodr.errors import InputError

_BLOCK = 50_000


@dataclass(frozen=True, eq=False)
class Folding:
    """A change of q = [1, r] and d = [γ, e] that leaves every ranking as it is and makes the numbers small.

    Folding: with the mean query m, r' = r − m and γ' = γ + m·e, so r'·e + γ' = r·e + γ, the same score.
    Centring: with the mean document c (of γ' and e), d' = [γ', e] − c, which shifts all scores of a query q'
    by the constant q'·c, and so no ranking. Scores of different queries are no longer comparable: add
    :meth:`query_offsets` where that matters. Any m and c are right; the true means make the remainder, and
    so the error of fp16, int8 or product quantisation, small.

    γ' sums over all dimensions and is far larger than the rest: an index that quantises has to keep it apart,
    as N float32 numbers, and add it to the score of the quantised rest, q'[1:]·d'[1:]. Where an index cannot
    (an inverted file or a graph over whole vectors), let it find candidates, and score them again so.

    Args:
        query_mean: m, (w − 1,) float64.
        document_mean: c, (w,) float64, for vectors of width w.

    Source: ours; the vectors are those of MRL, Eq. 14.
    """

    query_mean: np.ndarray
    document_mean: np.ndarray

    @classmethod
    def fit(cls, queries: Iterable[Any], documents: Iterable[Any]) -> Folding:
        """The means of queries (a sample will do) and documents: (n, w) arrays or chunks of them, read once.

        Raises:
            InputError: there are none, one is NaN or infinite, or the queries do not begin with 1.
        """
        query_mean, document_mean = _mean(queries, "queries"), _mean(documents, "documents")
        if len(query_mean) != len(document_mean):
            raise InputError(f"queries have {len(query_mean)} dimensions and documents {len(document_mean)}")
        if query_mean[0] != 1:
            raise InputError("flattened queries begin with 1; these do not, or they are not MRL's queries")
        rest = query_mean[1:]
        document_mean[0] += rest @ document_mean[1:]  # of γ', as folding is linear
        return cls(rest, document_mean)

    def transform_queries(self, queries: Any, dtype: Any = np.float32) -> np.ndarray:
        """q' of (n, w) queries, computed in float64."""
        folded = self._wide(queries)
        if not (folded[:, 0] == 1).all():
            raise InputError("flattened queries begin with 1; these do not, or they are not MRL's queries")
        folded[:, 1:] -= self.query_mean
        return folded.astype(dtype)

    def transform_documents(self, documents: Any, dtype: Any = np.float32) -> np.ndarray:
        """d' of (n, w) documents, computed in float64; a corpus goes through in chunks."""
        folded = self._wide(documents)
        folded[:, 0] += folded[:, 1:] @ self.query_mean
        folded -= self.document_mean
        return folded.astype(dtype)

    def query_offsets(self, queries: Any) -> np.ndarray:
        """(n,) float64 for (n, w) queries before the change: added to scores after it, gives those before."""
        offsets: np.ndarray = self.transform_queries(queries, np.float64) @ self.document_mean
        return offsets

    def save(self, path: str | Path) -> None:
        """Write to ``path``, in safetensors, in one step."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            temporary = Path(folder) / path.name
            save_file({"query_mean": self.query_mean, "document_mean": self.document_mean}, temporary)
            temporary.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Folding:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: it is not there, or something else.
        """
        try:
            means = load_file(path)
            return cls(means["query_mean"], means["document_mean"])
        except (OSError, KeyError, SafetensorError) as error:
            raise InputError(f"{path} is not a folding that was saved here ({error})") from error

    def _wide(self, vectors: Any) -> np.ndarray:
        """A float64 copy."""
        copy = np.asarray(vectors).astype(np.float64)
        if copy.ndim != 2 or copy.shape[1] != len(self.document_mean):
            raise InputError(f"vectors are {copy.shape}, this folding is for (n, {len(self.document_mean)})")
        return copy


def _blocks(vectors: Any) -> Iterable[Any]:
    if getattr(vectors, "ndim", 0) != 2:
        return vectors  # type: ignore[no-any-return]
    return (vectors[start : start + _BLOCK] for start in range(0, len(vectors), _BLOCK))


def _mean(chunks: Iterable[Any], what: str) -> np.ndarray:
    total: np.ndarray | None = None
    count = 0
    for chunk in _blocks(chunks):
        rows = np.asarray(chunk, dtype=np.float64)
        total = rows.sum(axis=0) + (0.0 if total is None else total)
        count += len(rows)
    if total is None or count == 0:
        raise InputError(f"there are no {what} to take the mean of")
    if not np.isfinite(total).all():
        raise InputError(f"the {what} have values that are NaN or infinite")
    mean: np.ndarray = total / count
    return mean
