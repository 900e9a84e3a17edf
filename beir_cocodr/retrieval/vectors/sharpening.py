"""Document vectors that are moved towards generated queries, without training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from beir_cocodr.arrays import Floats, Ints, unit_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.models.mrl import MRL
from beir_cocodr.retrieval.store.record import EncodeOptions, Sharpening
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder

# Documents whose queries are encoded at a time.
_BLOCK = 1_024


def sharpened(vectors: Floats, numbers: Ints, queries: Floats, weight: float) -> Floats:
    """Move document vectors towards the mean of their queries.

    With v̂ and q̂ for vectors of length 1, the moved vector has the direction of v̂ + w mean(q̂),
    and keeps its length. A document without a query keeps its vector.

    Args:
        vectors: (N, d) vectors of documents.
        numbers: (S,) number of the document of each query, from 0 to N - 1.
        queries: (S, d) vectors of the queries.
        weight: w.

    Returns:
        (N, d) float32.

    References:
        Representation Sharpening for Zero Shot Dense Retrieval, 2025.
    """
    totals = np.zeros_like(vectors)
    np.add.at(totals, numbers, unit_rows(queries))
    counts = np.bincount(numbers, minlength=len(vectors))[:, None]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    moved = lengths * unit_rows(unit_rows(vectors) + weight * totals / np.maximum(counts, 1))
    return np.asarray(np.where(counts > 0, moved, vectors), np.float32)


class SharpeningEncoder(CorpusEncoder):
    """Encodes a corpus to sharpened vectors: documents, then the queries of each.

    Args:
        model: The encoder, neither an MRL nor a hybrid encoder.
        documents: The corpus.
        sharpening: The queries and the weight.
        options: Of the documents; queries are encoded in the model's own type.

    Raises:
        InputError: The queries are of another corpus, or the model is an MRL or a hybrid encoder,
            whose queries and documents have different vectors.
    """

    def __init__(
        self,
        model: Any,
        documents: Documents,
        sharpening: Sharpening,
        options: EncodeOptions,
    ) -> None:
        """Check that model, corpus and queries belong together."""
        super().__init__(model, documents, options.token_budget, options.backend)
        if isinstance(model, MRL | HybridEncoder):
            kind = "an MRL" if isinstance(model, MRL) else "a hybrid encoder"
            raise InputError(
                f"the vectors of {kind} cannot be sharpened, because its queries are no points "
                "among its documents; sharpen those of a dense encoder"
            )
        sharpening.queries.check_corpus(documents)
        self.sharpening = sharpening

    def encode(self, rows: Ints, encoded: Callable[[int], Any] = lambda count: None) -> Floats:
        """Encode (n,) corpus rows to (n, w) float32 sharpened vectors.

        Args:
            rows: Rows of the corpus.
            encoded: Called with the number of documents after each batch.

        Raises:
            InputError: As for :meth:`CorpusEncoder.encode`.
        """
        vectors = super().encode(rows, encoded)
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            vectors[block] = self._sharpened(rows[block], vectors[block])
        return vectors

    def _sharpened(self, rows: Ints, vectors: Floats) -> Floats:
        """Return (b, w) vectors of some documents, moved towards their queries."""
        queries = self.sharpening.queries.of(rows)
        texts = [text for of_document in queries for text in of_document]
        if not texts:
            return vectors
        counts = [len(of_document) for of_document in queries]
        numbers = np.repeat(np.arange(len(rows)), counts)
        query_vectors = self.model.query_vectors(texts, self._batch_size).numpy()
        return sharpened(vectors, numbers, query_vectors, self.sharpening.weight)

    @property
    def _batch_size(self) -> int:
        """Return how many queries are encoded at a time, by the budget of documents' batches."""
        longest = self.model.text_format.query_length or 64
        return max(1, self.token_budget // longest)


def corpus_encoder(model: COCODR, documents: Documents, options: EncodeOptions) -> CorpusEncoder:
    """Return what encodes a corpus, to sharpened vectors where the options ask for them."""
    if options.sharpening is None:
        return CorpusEncoder(model, documents, options.token_budget, options.backend)
    return SharpeningEncoder(model, documents, options.sharpening, options)
