"""What is done to vectors before an index sees them, and undone in its scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.index.folding import Folding
from beir_cocodr.retrieval.index.options import Transform


class VectorTransform(Protocol):
    """`Folding`, or `Centring`: d' is centred by c, so that the scores q'·d' lack the constant q'·c."""

    @property
    def document_mean(self) -> np.ndarray: ...

    def transform_queries(self, queries: Any, dtype: Any = np.float32) -> np.ndarray: ...

    def transform_documents(self, documents: Any, dtype: Any = np.float32) -> np.ndarray: ...

    def save(self, path: str | Path) -> None: ...


@dataclass(frozen=True, eq=False)
class Centring:
    """d' = d − c for the mean document c: q·d' = q·d − q·c, so no ranking changes. c = 0 changes nothing.

    Args:
        document_mean: c, (w,) float64.
    """

    document_mean: np.ndarray

    def transform_queries(self, queries: Any, dtype: Any = np.float32) -> np.ndarray:
        """(n, w) queries as they are."""
        same: np.ndarray = self._fitting(queries).astype(dtype)
        return same

    def transform_documents(self, documents: Any, dtype: Any = np.float32) -> np.ndarray:
        """(n, w) documents less their mean, computed in float64."""
        centred: np.ndarray = self._fitting(documents).astype(np.float64) - self.document_mean
        return centred.astype(dtype)

    def save(self, path: str | Path) -> None:
        """Write to ``path``, in safetensors."""
        save_file({"document_mean": self.document_mean}, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Centring:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: it is not there, or something else.
        """
        try:
            return cls(load_file(path)["document_mean"])
        except (OSError, KeyError, SafetensorError) as error:
            raise InputError(f"{path} is not a mean that was saved here ({error})") from error

    def _fitting(self, vectors: Any) -> np.ndarray:
        array = np.asarray(vectors)
        if array.ndim != 2 or array.shape[1] != len(self.document_mean):
            raise InputError(f"vectors are {array.shape}, this index has (n, {len(self.document_mean)})")
        return array


def fit_transform(
    name: Transform, document_mean: npt.NDArray[np.float64], queries: npt.NDArray[Any]
) -> VectorTransform:
    """The transform of that name.

    Args:
        name: "none", "centring" or "folding".
        document_mean: (w,).
        queries: (n, w) queries for the mean of a folding, a sample of them or stand-ins.
    """
    if name == "folding":
        return Folding.fit(queries, document_mean[None])  # folding is linear: of the mean, it gives the mean
    return Centring(document_mean if name == "centring" else np.zeros_like(document_mean))


def load_transform(name: Transform, path: Path) -> VectorTransform:
    """What the `save` of a transform of that name wrote."""
    return Folding.load(path) if name == "folding" else Centring.load(path)


def documents_as_queries(documents: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The queries that have the distributions of the given MRL documents: (n, w) to (n, w).

    A document's variances and means can be read from its vector, and queries are made of the same. They stand
    in for queries where there are none: one encoder with shared projections places both.

    Raises:
        InputError: these are no documents of MRL.

    Source: MRL, Eq. 13 and 14; widths 2k + 1 are of the exact divergence, 2k + 2 of the paper's formula.
    """
    wide = documents.astype(np.float64)
    k = (wide.shape[1] - 1) // 2
    if not k or not (wide[:, -2 * k : -k] < 0).all():
        raise InputError("these vectors are no documents of MRL, whose variances make negative numbers")
    variance = -1 / wide[:, -2 * k : -k]
    mean = wide[:, -k:] * variance / 2
    one = np.ones((len(wide), 1))
    if wide.shape[1] % 2:
        return np.concatenate([one, variance + mean**2, mean], axis=1)
    return np.concatenate([one, -1 / wide[:, 1:2], mean**2, mean], axis=1)
