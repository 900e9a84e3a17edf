"""Feedback of a hybrid encoder: the query moves towards its best documents, by both parts.

Rocchio's feedback in the joint space of the dense part and of the direction of BM25's part. It
needs the vectors of a hybrid encoder and nothing else: no forward index, no text, no training.
"""

import torch

from beir_cocodr.arrays import Floats, Ints, spaced_rows
from beir_cocodr.models.hybrid_encoder import HybridEncoder, divided_by_deviation
from beir_cocodr.models.spec import RM3
from beir_cocodr.records import Json
from beir_cocodr.retrieval.exact import rank
from beir_cocodr.retrieval.hybrid.fusion import Hybrid
from beir_cocodr.retrieval.ranking import Lexical, Parts, Ranking
from beir_cocodr.retrieval.store.embeddings import Embeddings, MappedEmbeddings, MemoryEmbeddings
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.retrieval.vectors.embeddings_property import embeddings_property

# Documents from which the mean and the deviations of similarities are computed.
_SAMPLE = 10_000

# A lexical part this small beside the mean one comes from rounding: the document has no known term.
_NO_TERMS = 0.1


class HybridFeedback:
    """Feedback of a hybrid encoder in the joint space of its two parts.

    With a document's dense part e_d, its lexical part x_d, and w the weight of BM25,

        score = (z(dense) + w z(lexical) + b z(u · z_d)) / (1 + w)      z_d = [e_d, x_d / |x_d|]
        u = mean of the best documents' z_d, less the mean of z_d over the corpus

    where z() is the z-score over the corpus, and the first two terms are the hybrid encoder's own.
    The best documents are those of a first search in the same vectors. The lengths of x_d carry
    BM25's weight of a match, and are kept for it; feedback compares directions.

    This is the linear discriminant of the best documents against the corpus whose covariance is
    a multiple of the identity. A covariance of the corpus was no better on nine collections.

    References:
        Rocchio, 1971.
    """

    #: Its kind in the calibration of verdicts: BM25 and the encoder, expanded by best documents.
    calibration_kind = RM3

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
                hybrid encoder's own first search does.
            weight: Weight b of the feedback, against 1 of the dense part.
            documents: Best documents that are averaged.
        """
        assert isinstance(dense.model, HybridEncoder)
        self.dense = dense
        self.model = dense.model
        self.bm25 = bm25
        self.weight = weight
        self.documents = documents

    def prepare(self) -> None:
        """Encode the corpus, and build BM25's index if there is one."""
        self.dense.prepare()
        if self.bm25 is not None:
            self.bm25.prepare()
        _ = self.embeddings

    @embeddings_property
    def embeddings(self) -> Embeddings:
        """Return the vectors [e_d, x_d, x_d / |x_d|], (N, d + 2m).

        They are held in memory where they fit, and else made from the stored ones in each search.
        """
        stored = self.dense.embeddings
        width = 2 * stored.dimensions - self.model.head.dimension
        widened = MappedEmbeddings(stored, self._widen, width)
        size = 4 * len(stored) * width
        if size <= self.dense.in_memory:
            return MemoryEmbeddings(widened.load())
        return widened

    def _widen(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (n, d + 2m) vectors, with the direction of x_d after the (n, d + m) stored ones.

        What is stored of x_d is centred and scaled; the direction is that of x_d itself.
        """
        head = self.model.head
        mean = head.mean.cpu()
        scale = head.scale.cpu()
        lexical = vectors[:, head.dimension :] / scale + mean
        lengths = lexical.norm(dim=1, keepdim=True)
        has_terms = lengths > _NO_TERMS * mean.norm()
        directions = torch.where(has_terms, lexical / lengths, torch.zeros_like(lexical))
        return torch.cat([vectors, directions], dim=1)

    def _joint(self, widened: torch.Tensor) -> torch.Tensor:
        """Return z_d of (n, d + 2m) vectors, (n, d + m)."""
        width = self.model.head.dimension
        lexical_numbers = self.dense.embeddings.dimensions - width
        dense = widened[:, :width]
        directions = widened[:, width + lexical_numbers :]
        return torch.cat([dense, directions], dim=1)

    @embeddings_property
    def _sample(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean of z_d, (d + m,), and (S, d + m) centred z_d of a sample."""
        rows = spaced_rows(len(self.dense.embeddings), _SAMPLE)
        joint = self._joint(self.embeddings.rows(rows))
        mean = joint.mean(dim=0)
        return mean, joint - mean

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        vectors = self.move(queries)
        return rank(
            self.dense.documents,
            list(queries),
            vectors,
            self.embeddings.chunks(),
            top_k,
        )

    def parts(
        self,
        query: str,
        rows: Ints,
        scores: Floats,
    ) -> Parts:
        """Return what both parts add to (k,) scores; feedback adds to both."""
        [vector] = self.move({"": query})
        width = self.model.head.dimension
        lexical_vectors = self.embeddings.rows(rows)[:, width:]
        lexical = (lexical_vectors @ vector[width:]).numpy()
        return Parts(scores - lexical, lexical)

    def move(self, queries: dict[str, str]) -> torch.Tensor:
        """Return the moved queries, (Q, d + 2m), for :attr:`embeddings`."""
        texts = list(queries.values())
        parts = self.model.encode_query_parts(texts, self.dense.batch_size)
        first = self.model.join(parts)
        best = self._best(queries, parts, first)  # (Q, documents), -1 where there are fewer
        bm25_weight = parts[:, -1:]
        directions = self._directions(best)
        feedback = self.weight * directions / (1 + bm25_weight)
        width = self.model.head.dimension
        moved = [
            first[:, :width] + feedback[:, :width],
            first[:, width:],
            feedback[:, width:],
        ]
        return torch.cat(moved, dim=1)

    def _directions(self, best: Ints) -> torch.Tensor:
        """Return u over the deviation of u · z_d, (Q, d + m), for (Q, k) best rows."""
        mean, sample = self._sample
        rows = best.clip(min=0).ravel()
        joint = self._joint(self.embeddings.rows(rows)) - mean
        of_queries = joint.reshape(*best.shape, -1)  # (Q, k, d + m)
        exists = torch.from_numpy(best >= 0)[..., None]
        sums = (of_queries * exists).sum(dim=1)
        counts = exists.sum(dim=1)
        directions = sums / counts.clamp(min=1)
        similarities = directions @ sample.T  # (Q, S)
        deviation = similarities.std(dim=1, correction=0, keepdim=True)
        longest = sample.norm(dim=1).max()
        return divided_by_deviation(directions, deviation, longest)

    def _best(
        self,
        queries: dict[str, str],
        parts: torch.Tensor,
        first: torch.Tensor,
    ) -> Ints:
        """Return the (Q, documents) rows of the best documents.

        Args:
            queries: Id to text.
            parts: (Q, d + m + 1) parts of the queries.
            first: (Q, d + m) vectors of the first search.
        """
        if self.bm25 is None:
            return self.dense.search_embeddings(list(queries), first, self.documents).rows
        width = self.model.head.dimension
        dense = parts[:, :width].contiguous()
        return self._exact_fusion(self.bm25).rank(queries, dense, self.documents).rows

    def _exact_fusion(self, bm25: Lexical) -> Hybrid:
        """Return the fusion of the dense part of the embeddings with BM25."""
        return Hybrid(self._dense_part, bm25, self.model.head.bm25_weight)

    @embeddings_property
    def _dense_part(self) -> Dense:
        """Return dense search in the dense part of the embeddings."""
        head = self.model.head
        embeddings = MappedEmbeddings(
            self.dense.embeddings,
            lambda vectors: vectors[:, : head.dimension],
            head.dimension,
        )
        return Dense(
            self.model,
            self.dense.documents,
            self.dense.folder,
            given=embeddings,
        )

    def describe(self) -> Json:
        """Describe the feedback for the record of a search."""
        return {
            **self.dense.describe(),
            "model": "feedback of a hybrid encoder, by both parts",
            "weight": self.weight,
            "documents": self.documents,
            "bm25": None if self.bm25 is None else self.bm25.describe(),
        }
