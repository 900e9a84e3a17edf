"""Negative KL divergence between diagonal normal distributions, as a dot product, and a change that
makes it small.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from beir_cocodr.errors import InputError, explained
from beir_cocodr.io import atomic_path

#: "exact": the divergence. "paper": Eq. 10 as printed, a ratio of products where a sum of ratios
#: belongs.
Formula = Literal["exact", "paper"]

# Products of the paper's formula saturate at e^±30 each: their ratio and its gradient still fit
# into float32.
_MAX_EXPONENT = 30.0


def flatten_query(
    mean: Tensor, variance: Tensor, formula: Formula = "exact", log_reference: float = 0.0
) -> Tensor:
    """q = [1, σ_q² + μ_q², μ_q], so that −2·KL(Q‖D) = q·d + Σ_i log σ_qi² + k.

    The last two terms are the same for all documents; d is that of :func:`flatten_document`. Built
    in float64, because q·d is a small difference of large sums: (..., 2k + 1), or (..., 2k + 2) for
    "paper", in float64 or else float32 as given.

    Args:
        mean, variance: μ_q and σ_q² > 0, (..., k).
        formula: "paper" gives q = [1, Π σ_qi², μ_q², μ_q] of Eq. 14, with q·d twice Eq. 10.
        log_reference: for "paper" only, subtracted from Σ log σ_i² of queries and documents alike,
            so that products of hundreds of variances keep within the range of float32 (beyond e^±30
            they saturate).

    Source: MRL, Eq. 13 and 14, with the trace of Eq. 9.
    """
    m, v = _wide(mean), _wide(variance)
    one = torch.ones_like(m[..., :1])
    parts = [one, v + m**2, m] if formula == "exact" else [one, _product(v, log_reference), m**2, m]
    return torch.cat(parts, dim=-1).to(torch.promote_types(mean.dtype, torch.float32))


def flatten_document(
    mean: Tensor, variance: Tensor, formula: Formula = "exact", log_reference: float = 0.0
) -> Tensor:
    """d = [γ_d, −1/σ_d², 2μ_d/σ_d²] with the document's prior γ_d = −Σ_i (log σ_di² + μ_di²/σ_di²).

    Args:
        mean, variance: μ_d and σ_d² > 0, (..., k).
        formula: "paper" gives d = [γ_d, −1/Π σ_di², −1/σ_d², 2μ_d/σ_d²] of Eq. 14.
        log_reference: and the shape and type returned: as for :func:`flatten_query`.

    Source: MRL, Eq. 13 and 14.
    """
    m, v = _wide(mean), _wide(variance)
    prior = -(v.log() + m**2 / v).sum(dim=-1, keepdim=True)
    parts = [prior, -1 / v, 2 * m / v]
    if formula == "paper":
        parts.insert(1, -1 / _product(v, log_reference))
    return torch.cat(parts, dim=-1).to(torch.promote_types(mean.dtype, torch.float32))


def _product(variance: Tensor, log_reference: float) -> Tensor:
    """(..., 1): Π σ_i² over e^``log_reference``."""
    volume = variance.log().sum(dim=-1, keepdim=True) - log_reference
    return volume.clamp(-_MAX_EXPONENT, _MAX_EXPONENT).exp()


def _wide(tensor: Tensor) -> Tensor:
    """Float64, or float32 on Apple's GPUs, which have nothing wider."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


@dataclass(frozen=True, eq=False)
class Centring:
    """d' = d − c for the mean document c, (w,) float64: q·d' = q·d − q·c, so no ranking changes; c
    = 0: nothing.

    The arrays are saved by name in safetensors.
    """

    document_mean: np.ndarray

    def transform_queries(self, queries: Any, dtype: Any = np.float32) -> np.ndarray:
        """q' of (n, w) queries, computed in float64."""
        return self._wide(queries).astype(dtype)

    def transform_documents(self, documents: Any, dtype: Any = np.float32) -> np.ndarray:
        """d' of (n, w) documents, computed in float64; a corpus goes through in chunks."""
        centred: np.ndarray = self._wide(documents) - self.document_mean
        return centred.astype(dtype)

    def save(self, path: str | Path) -> None:
        """Write to ``path``, in one step."""
        with atomic_path(Path(path)) as temporary:
            save_file(vars(self), temporary)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote; an InputError where it is not there, or something else."""
        other = f"{path} is not a {cls.__name__.lower()} that was saved here"
        with explained(other, "make it again", OSError, TypeError, SafetensorError):
            return cls(**load_file(path))

    def _wide(self, vectors: Any) -> np.ndarray:
        """A float64 copy."""
        copy = np.asarray(vectors).astype(np.float64)
        if copy.ndim != 2 or copy.shape[1] != len(self.document_mean):
            raise InputError(
                f"vectors are {copy.shape}, this index has (n, {len(self.document_mean)})"
            )
        return copy


@dataclass(frozen=True, eq=False)
class Folding(Centring):
    """A change of q = [1, r] and d = [γ, e] that leaves every ranking as it is and makes the
    numbers small.

    Folding: with the mean query m, r' = r − m and γ' = γ + m·e, so r'·e + γ' = r·e + γ, the same
    score. Centring: with the mean document c (of γ' and e), d' = [γ', e] − c, which shifts all
    scores of a query q' by the constant q'·c, and so no ranking. Scores of different queries are no
    longer comparable: add :meth:`query_offsets` where that matters. Any m and c are right; the true
    means make the rest, and so errors of fp16, int8 or product quantisation, small.

    γ' sums over all dimensions and is far larger than the rest: an index that quantises has to keep
    it apart, as N float32 numbers, and add it to the score of the quantised rest, q'[1:]·d'[1:].
    Where an index cannot (an inverted file or a graph over whole vectors), let it find candidates,
    and score them again so.

    Args:
        document_mean: c, (w,) float64, for vectors of width w.
        query_mean: m, (w − 1,) float64.

    Source: ours; the vectors are those of MRL, Eq. 14.
    """

    query_mean: np.ndarray

    @classmethod
    def fit(cls, queries: Any, documents: Any) -> "Folding":
        """By the means of (n, w) queries (a sample will do) and documents; an InputError where
        there are none, one is NaN or infinite, or the queries do not begin with 1.
        """
        query_mean, document_mean = _mean(queries, "queries"), _mean(documents, "documents")
        if len(query_mean) != len(document_mean):
            raise InputError(
                f"queries have {len(query_mean)} dimensions and documents {len(document_mean)}"
            )
        _check_ones(query_mean[:1])
        rest = query_mean[1:]
        document_mean[0] += rest @ document_mean[1:]  # of γ', as folding is linear
        return cls(document_mean, rest)

    def transform_queries(self, queries: Any, dtype: Any = np.float32) -> np.ndarray:
        folded = self._wide(queries)
        _check_ones(folded[:, 0])
        folded[:, 1:] -= self.query_mean
        return folded.astype(dtype)

    def transform_documents(self, documents: Any, dtype: Any = np.float32) -> np.ndarray:
        folded = self._wide(documents)
        folded[:, 0] += folded[:, 1:] @ self.query_mean
        folded -= self.document_mean
        return folded.astype(dtype)

    def query_offsets(self, queries: Any) -> np.ndarray:
        """(n,) float64 for (n, w) queries before the change: added to scores after it, gives those
        before.
        """
        offsets: np.ndarray = self.transform_queries(queries, np.float64) @ self.document_mean
        return offsets


def _check_ones(first: np.ndarray) -> None:
    if not (first == 1).all():
        raise InputError(
            "flattened queries begin with 1; these do not, or they are not MRL's queries"
        )


def _mean(vectors: Any, what: str) -> np.ndarray:
    """(n, w) to (w,) float64."""
    rows = np.asarray(vectors)
    if not len(rows):
        raise InputError(f"there are no {what} to take the mean of")
    mean: np.ndarray = rows.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        raise InputError(f"the {what} have values that are NaN or infinite")
    return mean
