"""Exact search by a learned sparse encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sentence_transformers import SparseEncoder

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes.top_documents import TopDocuments
from beir_cocodr.retrieval.ranking import Ranking

_CHUNK = 1_024


class SparseRetriever:
    """Dot products of sparse vectors; what shares no dimension with the query is not retrieved.

    The corpus is encoded once and held in memory as a sparse matrix.

    Args:
        model: the encoder, comparing by dot product.
        documents: the corpus.
        text_format: joins titles and texts.
        batch_size: texts encoded at a time.
        progress: show a bar on stderr.

    Raises:
        InputError: the encoder compares by something else.
    """

    def __init__(
        self,
        model: SparseEncoder,
        documents: Documents,
        text_format: TextFormat,
        batch_size: int = 64,
        progress: bool = False,
    ) -> None:
        if model.similarity_fn_name not in (None, "dot"):
            raise InputError(
                f"the sparse encoder compares by {model.similarity_fn_name}; save it with "
                'similarity_fn_name "dot"'
            )
        self.model, self.documents, self.text_format = model, documents, text_format
        self.batch_size, self.progress = batch_size, progress
        self._matrix: Any = None

    def prepare(self) -> None:
        if self._matrix is None:
            parts = [
                self._encode(self.model.encode_document, [self.text_format.document(d) for d in chunk])
                for chunk in self.documents.chunks(_CHUNK)
            ]
            self._matrix = sparse.vstack(parts, format="csr")

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        self.prepare()
        encoded = self._encode(self.model.encode_query, list(queries.values()))
        top = TopDocuments(list(queries), top_k, self.documents.tie_ranks())
        for i in range(len(queries)):
            scores = self._matrix @ encoded[i].toarray()[0]
            matching = np.flatnonzero(scores > 0)
            top.add(i, matching, scores[matching])
        return top.ranking()

    def describe(self) -> dict[str, Any]:
        self.prepare()
        return {
            "model": "sparse",
            "similarity": "dot",
            "text_format": {"title_separator": self.text_format.title_separator},
            "active_dimensions_of_a_document": float(self._matrix.nnz / self._matrix.shape[0]),
        }

    def _encode(self, encode: Any, texts: list[str]) -> Any:
        """(n,) texts to an (n, V) float32 matrix in CSR format."""
        found = encode(
            texts, batch_size=self.batch_size, show_progress_bar=self.progress, convert_to_sparse_tensor=True
        )
        found = found.cpu().coalesce()
        rows, columns = found.indices().numpy()
        values = found.values().float().numpy()
        return sparse.csr_matrix((values, (rows, columns)), shape=tuple(found.shape))
