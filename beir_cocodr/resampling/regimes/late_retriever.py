"""Exact search by late interaction."""

from __future__ import annotations

from typing import Any

import numpy as np
from sentence_transformers import MultiVectorEncoder

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.resampling.regimes.top_documents import TopDocuments
from beir_cocodr.retrieval.ranking import Ranking

_CHUNK = 256


class LateInteractionRetriever:
    """The host's MaxSim of every query with every document.

    The vectors of all tokens would not fit into memory for long, so documents are encoded as they are scored
    and nothing is kept: every search encodes the corpus.

    Args:
        model: the encoder.
        documents: the corpus.
        text_format: joins titles and texts.
        batch_size: texts encoded at a time.
        progress: show a bar on stderr.
    """

    def __init__(
        self,
        model: MultiVectorEncoder,
        documents: Documents,
        text_format: TextFormat,
        batch_size: int = 64,
        progress: bool = False,
    ) -> None:
        self.model, self.documents, self.text_format = model, documents, text_format
        self.batch_size, self.progress = batch_size, progress

    def prepare(self) -> None:
        """Nothing to do beforehand."""

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        top = TopDocuments(list(queries), top_k, self.documents.tie_ranks())
        options: dict[str, Any] = {"batch_size": self.batch_size, "show_progress_bar": self.progress}
        encoded = self.model.encode_query(list(queries.values()), **options)
        start = 0
        for chunk in self.documents.chunks(_CHUNK):
            texts = [self.text_format.document(document) for document in chunk]
            scores = self.model.similarity(encoded, self.model.encode_document(texts, **options))
            rows = np.arange(start, start + len(chunk))
            for i, found in enumerate(scores.float().cpu().numpy()):
                top.add(i, rows, found)
            start += len(chunk)
        return top.ranking()

    def describe(self) -> dict[str, Any]:
        return {
            "model": "late interaction",
            "similarity": self.model.similarity_fn_name,
            "dimensions": self.model.get_embedding_dimension(),
            "text_format": {"title_separator": self.text_format.title_separator},
        }
