"""Changes of queries and documents that leave every ranking as it is and make the numbers small.

Vectors with small numbers lose less in fp16, int8 and product quantisation.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from beir_cocodr.arrays import Array, Doubles
from beir_cocodr.errors import InputError, explained
from beir_cocodr.io import atomic_path


@dataclass(frozen=True, eq=False)
class Centring:
    """Subtraction of the mean document: q·d' = q·d − q·c, so no ranking changes.

    Args:
        document_mean: c, (w,) float64; zeros change nothing.
    """

    document_mean: Doubles

    def transform_queries(self, queries: Any, dtype: Any = np.float32) -> Array:
        """Return q' of (n, w) queries, computed in float64."""
        return self._wide(queries).astype(dtype)

    def transform_documents(self, documents: Any, dtype: Any = np.float32) -> Array:
        """Return d' of (n, w) documents, computed in float64; pass a corpus in chunks."""
        centred: Doubles = self._wide(documents) - self.document_mean
        return centred.astype(dtype)

    def save(self, path: str | Path) -> None:
        """Write the arrays to a safetensors file, which appears when it is complete."""
        with atomic_path(Path(path)) as draft:
            save_file(vars(self), draft)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: The file does not exist, or was not written by :meth:`save`.
        """
        problem = f"{path} is not a {cls.__name__.lower()} that was saved here"
        with explained(problem, "make it again", OSError, TypeError, SafetensorError):
            return cls(**load_file(path))

    def _wide(self, vectors: Any) -> Doubles:
        """Return a float64 copy."""
        copy = np.asarray(vectors).astype(np.float64)
        width = len(self.document_mean)
        if copy.ndim != 2 or copy.shape[1] != width:
            raise InputError(
                f"vectors are {copy.shape}, and this index has (n, {width}); search it with the "
                "encoder that made it"
            )
        return copy


@dataclass(frozen=True, eq=False)
class Folding(Centring):
    """A change of q = [1, r] and d = [γ, e] that makes MRL's vectors small.

    Folding: with the mean query m, r' = r − m and γ' = γ + m·e, so r'·e + γ' = r·e + γ, the same
    score. Centring: with the mean document c (of γ' and e), d' = [γ', e] − c, which shifts all
    scores of a query q' by the constant q'·c, and so changes no ranking. Scores of different
    queries are no longer comparable: add :meth:`query_offsets` where that matters. Any m and c are
    correct; the true means make the numbers, and so the errors of quantisation, small.

    γ' sums over all dimensions and is far larger than the other numbers. An index that quantises
    should store it separately, as N float32 numbers, and add it to the score of the quantised rest,
    q'[1:]·d'[1:]. Where an index cannot (an inverted file or a graph over complete vectors), let it
    find candidates, and score them again in this way.

    Args:
        document_mean: c, (w,) float64, for vectors of width w.
        query_mean: m, (w − 1,) float64.

    References:
        Ours; the vectors are those of MRL, Eq. 14.
    """

    query_mean: Doubles

    @classmethod
    def fit(cls, queries: Any, documents: Any) -> "Folding":
        """Return the folding by the means of queries and documents.

        Args:
            queries: (n, w); a sample is enough.
            documents: (n, w).

        Raises:
            InputError: There are no vectors, a number is NaN or infinite, or the queries do not
                begin with 1.
        """
        query_mean = _mean(queries, "queries")
        document_mean = _mean(documents, "documents")
        if len(query_mean) != len(document_mean):
            raise InputError(
                f"queries have {len(query_mean)} dimensions and documents {len(document_mean)}; "
                "encode both with one encoder"
            )
        _check_ones(query_mean[:1])
        mean_rest = query_mean[1:]
        document_mean[0] += mean_rest @ document_mean[1:]  # the mean of γ', as folding is linear
        return cls(document_mean, mean_rest)

    def transform_queries(self, queries: Any, dtype: Any = np.float32) -> Array:
        """Return q' of (n, w) queries, computed in float64."""
        folded = self._wide(queries)
        _check_ones(folded[:, 0])
        folded[:, 1:] -= self.query_mean
        return folded.astype(dtype)

    def transform_documents(self, documents: Any, dtype: Any = np.float32) -> Array:
        """Return d' of (n, w) documents, computed in float64; pass a corpus in chunks."""
        folded = self._wide(documents)
        folded[:, 0] += folded[:, 1:] @ self.query_mean
        folded -= self.document_mean
        return folded.astype(dtype)

    def query_offsets(self, queries: Any) -> Doubles:
        """Return (n,) numbers that make scores of (n, w) queries what they were before the change.

        Add them to the scores of the transformed vectors.
        """
        offsets: Doubles = self.transform_queries(queries, np.float64) @ self.document_mean
        return offsets


def _check_ones(first: Doubles) -> None:
    if not (first == 1).all():
        raise InputError(
            "the queries do not begin with 1 as flattened queries of MRL do; encode them with MRL's"
            " encode_query"
        )


def _mean(vectors: Any, name: str) -> Doubles:
    """Return the (w,) float64 mean of (n, w) vectors, whose name is for messages."""
    rows = np.asarray(vectors)
    if not len(rows):
        raise InputError(f"there are no {name} to compute the mean of; pass at least one")
    mean: Doubles = rows.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        raise InputError(f"the {name} have numbers that are NaN or infinite; encode them again")
    return mean
