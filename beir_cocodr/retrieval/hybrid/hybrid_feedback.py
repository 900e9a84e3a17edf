"""Feedback of a hybrid encoder: its dense part moves towards the best documents."""

import torch

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.records import Json
from beir_cocodr.retrieval.hybrid.fusion import Hybrid
from beir_cocodr.retrieval.ranking import Lexical, Parts, Ranking
from beir_cocodr.retrieval.store.embeddings import MappedEmbeddings
from beir_cocodr.retrieval.vectors.dense import Dense


class HybridFeedback:
    """Feedback of a hybrid encoder: its dense part moves towards the best documents.

    Both searches use the same index. BM25's part of the query stays as it is.
    """

    def __init__(
        self,
        dense: Dense,
        bm25: Lexical | None = None,
        weight: float = 0.5,
        documents: int = 3,
    ) -> None:
        """Take the search of a hybrid encoder.

        Args:
            dense: Dense search with a hybrid encoder.
            bm25: BM25 of the exact fusion, which then finds the best documents; without it, the
                first search of the hybrid encoder does.
            weight: Weight of the documents' mean, against 1 of the query.
            documents: Best documents that are averaged.
        """
        assert isinstance(dense.model, HybridEncoder)
        self.dense = dense
        self.model = dense.model
        self.bm25 = bm25
        self.weight = weight
        self.documents = documents
        self._exact: Hybrid | None = None

    def prepare(self) -> None:
        """Encode the corpus, and build BM25's index if there is one."""
        self.dense.prepare()
        if self.bm25 is not None:
            self.bm25.prepare()

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        return self.dense.search_embeddings(
            list(queries),
            self.move(queries),
            top_k,
        )

    def parts(
        self,
        query: str,
        rows: Ints,
        scores: Floats,
    ) -> Parts:
        """Return what both parts of the moved query add to (k,) scores."""
        return self.dense.parts(query, rows, scores, self.move({"": query}))

    def move(self, queries: dict[str, str]) -> torch.Tensor:
        """Return the moved queries, (Q, w), for the embeddings that are searched."""
        width = self.model.head.dimension
        texts = list(queries.values())
        parts = self.model.encode_query_parts(texts, self.dense.batch_size)
        best = self._best(queries, parts)  # (Q, documents), -1 where there are fewer
        rows = best.clip(min=0).ravel()
        vectors = self.dense.embeddings.rows(rows)
        documents = vectors[:, :width].reshape(*best.shape, width)
        exists = torch.from_numpy(best >= 0)[..., None]
        count = exists.sum(dim=1).clamp(min=1)
        mean = (documents * exists).sum(dim=1) / count
        dense = parts[:, :width] + self.weight * mean
        moved = torch.nn.functional.normalize(dense, dim=-1)
        lexical = parts[:, width:]
        return self.model.join(torch.cat([moved, lexical], dim=-1))

    def _best(self, queries: dict[str, str], parts: torch.Tensor) -> Ints:
        """Return the (Q, documents) rows of the best documents."""
        if self.bm25 is None:
            vectors = self.model.join(parts)
            return self.dense.search_embeddings(list(queries), vectors, self.documents).rows
        width = self.model.head.dimension
        dense = parts[:, :width].contiguous()
        return self._exact_fusion(self.bm25).rank(queries, dense, self.documents).rows

    def _exact_fusion(self, bm25: Lexical) -> Hybrid:
        """Return the fusion of the dense part of the embeddings with BM25."""
        if self._exact is None:
            head = self.model.head
            dense_part = MappedEmbeddings(
                self.dense.embeddings,
                lambda vectors: vectors[:, : head.dimension],
                head.dimension,
            )
            dense = Dense(
                self.model,
                self.dense.documents,
                self.dense.folder,
                given=dense_part,
            )
            self._exact = Hybrid(dense, bm25, head.bm25_weight)
        return self._exact

    def describe(self) -> Json:
        """Describe the feedback for the record of a search."""
        return {
            **self.dense.describe(),
            "model": "feedback of a hybrid encoder",
            "weight": self.weight,
            "documents": self.documents,
            "bm25": None if self.bm25 is None else self.bm25.describe(),
        }
