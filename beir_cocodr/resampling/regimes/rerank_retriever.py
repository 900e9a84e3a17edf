"""A first stage, reranked by a cross-encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes.top_documents import TopDocuments
from beir_cocodr.retrieval.ranking import Ranking, Retriever


class RerankRetriever:
    """The first stage's best documents in the order of a cross-encoder's raw scores.

    Args:
        model: the cross-encoder, with one score a pair.
        first: what retrieves.
        depth: documents of the first stage that are reranked; no others are retrieved.
        documents: the corpus.
        text_format: joins titles and texts.
        batch_size: pairs scored at a time.
        progress: show a bar on stderr.

    Raises:
        InputError: the cross-encoder has several scores a pair.
    """

    def __init__(
        self,
        model: CrossEncoder,
        first: Retriever,
        depth: int,
        documents: Documents,
        text_format: TextFormat,
        batch_size: int = 64,
        progress: bool = False,
    ) -> None:
        if model.num_labels != 1:
            raise InputError(f"the cross-encoder gives {model.num_labels} scores a pair; one is needed")
        self.model, self.first, self.depth = model, first, depth
        self.documents, self.text_format = documents, text_format
        self.batch_size, self.progress = batch_size, progress

    def prepare(self) -> None:
        self.first.prepare()

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        found = self.first.search(queries, self.depth)
        top = TopDocuments(list(queries), min(top_k, self.depth), self.documents.tie_ranks())
        for i, text in enumerate(queries.values()):
            rows = found.rows[i][found.rows[i] >= 0]
            if not len(rows):
                continue
            texts = [self.text_format.document(document) for document in self.documents.take(rows)]
            raw: Any = self.model.predict(
                [(text, document) for document in texts],
                batch_size=self.batch_size,
                activation_fn=torch.nn.Identity(),
                show_progress_bar=False,
            )
            top.add(i, rows, np.asarray(raw, np.float32))
        return top.ranking()

    def describe(self) -> dict[str, Any]:
        return {
            "model": "cross-encoder",
            "reranked": self.depth,
            "max_length": self.model.max_seq_length,
            "first_stage": self.first.describe(),
            "text_format": {"title_separator": self.text_format.title_separator},
        }
