"""The documents, vectors and BM25 weights that a search engine is given, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from beir_cocodr.arrays import Doubles, Floats, spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.progress import Bar
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import Hybrid
from beir_cocodr.retrieval.ranking import Ranker
from beir_cocodr.retrieval.vectors.dense import Dense

#: Documents from which covariances of terms are taken.
SAMPLE = 20_000


@dataclass(frozen=True)
class PointBlock:
    """Consecutive documents with their vectors.

    Attributes:
        first: The row of the first document.
        documents: (n,) documents, each with ``_id``, ``title`` and ``text``.
        vectors: (n, d) vectors whose dot product with a query's vector is the score.
        lexical: (n, T) BM25 weights of their terms; None for vectors alone.
    """

    first: int
    documents: list[dict[str, str]]
    vectors: Floats
    lexical: sp.csr_matrix | None


class Points:
    """All documents of a corpus with the vectors of one encoder, and BM25 beside it in a fusion.

    Attributes:
        dense: Search with the encoder.
        bm25: BM25 in the fusion; None for the encoder alone.
        bm25_weight: Weight of BM25, against 1 of the encoder; None for the encoder alone.
    """

    def __init__(self, ranker: Ranker, name: str) -> None:
        """Take the ranker of a model.

        Args:
            ranker: The ranker.
            name: The model's name, for messages.

        Raises:
            InputError: The model is neither an encoder nor a weighted fusion with our own BM25.
        """
        self.bm25: BM25 | None = None
        self.bm25_weight: float | None = None
        if type(ranker) is Hybrid and isinstance(ranker.bm25, BM25):
            self.bm25 = ranker.bm25
            self.bm25_weight = ranker.bm25_weight
            ranker = ranker.dense
        if not isinstance(ranker, Dense):
            raise InputError(
                f"model {name!r} is neither an encoder nor hybrid:M, so it has no vectors to hand "
                "over; name an encoder M, hybrid:M, or the folder of a model that fuse wrote"
            )
        self.dense = ranker

    @property
    def documents(self) -> Documents:
        """Return the corpus."""
        return self.dense.documents

    @property
    def dimensions(self) -> int:
        """Return the width of the vectors."""
        return int(self.dense.model.get_embedding_dimension() or 0) or (
            self.dense.embeddings.dimensions
        )

    def blocks(self, size: int) -> Iterator[PointBlock]:
        """Yield all documents in corpus order, ``size`` of them at a time."""
        first = 0
        with Bar(total=len(self.documents), desc="Writing", unit=" documents") as bar:
            for chunk in self.dense.embeddings.chunks():
                for start in range(0, len(chunk), size):
                    vectors = chunk[start : start + size].numpy()
                    yield self._block(first, vectors)
                    first += len(vectors)
                    bar.update(len(vectors))

    def _block(self, first: int, vectors: Floats) -> PointBlock:
        last = first + len(vectors)
        lexical = None if self.bm25 is None else self._term_weights[first:last]
        documents = self.documents.take(np.arange(first, last))
        return PointBlock(first, documents, vectors, lexical)

    @cached_property
    def _term_weights(self) -> sp.csr_matrix:
        """Return BM25's (N, T) weights, about 8 bytes for each distinct term of a document."""
        assert self.bm25 is not None
        return self.bm25.weights()

    def terms(self) -> list[str]:
        """Return the (T,) terms of BM25 in the order of their numbers."""
        assert self.bm25 is not None
        vocabulary = self.bm25.postings.vocabulary
        return sorted(vocabulary, key=vocabulary.__getitem__)

    def term_deviations(self) -> Doubles:
        """Return the (T,) deviations of the terms' weights over all documents."""
        weights = self._term_weights
        documents, terms = weights.shape
        sums = np.bincount(weights.indices, weights.data, minlength=terms)
        squares = np.bincount(weights.indices, np.square(weights.data), minlength=terms)
        variances = squares / documents - (sums / documents) ** 2
        deviations: Doubles = np.sqrt(np.maximum(variances, 0))
        return deviations

    def sampled_term_weights(self) -> sp.csc_matrix:
        """Return BM25's (S, T) weights in at most 20,000 documents, evenly spaced."""
        rows = spaced_rows(len(self.documents), SAMPLE)
        return self._term_weights[rows].tocsc()
