"""A cross-encoder that reranks what a system of another encoder ranked first."""

from __future__ import annotations

from typing import Any

from beir_cocodr.data.documents import Documents
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.hosted import Reranking
from beir_cocodr.retrieval.ranking import Ranking
from collecting.searched import Ranked

#: Documents of a query that are reranked.
DEPTH = 10


class Reranker:
    """A cross-encoder, whose search is that of ``rerank:CROSS-ENCODER@M``.

    Args:
        name: Its name in the study.
        model: The folder of the cross-encoder.
        encoder: The encoder whose system is reranked.
        first: The name of this system.
    """

    def __init__(self, name: str, model: str, encoder: str, first: str) -> None:
        """Load the cross-encoder."""
        from beir_cocodr.models.checkpoints.loading import load_cross_encoder

        self.name = name
        self.encoder = encoder
        self.first = first
        self.model: Any
        self.model, _ = load_cross_encoder(model, "cpu")
        self._bf16 = False

    @property
    def system(self) -> str:
        """Return the name of its system."""
        return f"rerank:{self.name}@{self.first}"

    def use_bfloat16(self) -> None:
        """Compute in bfloat16."""
        self._bf16 = True

    def encode(self, texts: list[str], role: str) -> Any:
        """Score texts for an empty query, which shows how fast it is."""
        return self.model.predict([("", text) for text in texts])

    def ranker(self, documents: Documents, ranked: Ranked) -> Reranking:
        """Return the package's reranking of results.

        Args:
            documents: The corpus that was searched.
            ranked: The results of the first stage.
        """
        options = SearchOptions(bf16=self._bf16)
        return _HeldReranking(self.model, documents, options, _Stored(ranked))


class _Stored:
    """A ranker that returns results which exist."""

    def __init__(self, ranked: Ranked) -> None:
        self._ranked = ranked

    def prepare(self) -> None:
        """Do nothing."""

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Return the best results, of all queries in their order."""
        ranked = self._ranked
        return Ranking(list(queries), ranked.scores[:, :top_k], ranked.rows[:, :top_k])


class _HeldReranking(Reranking):
    """Reranking by a cross-encoder that is loaded already."""

    def __init__(
        self,
        model: Any,
        documents: Documents,
        options: SearchOptions,
        first: Any,
    ) -> None:
        self._model = model
        super().__init__("", documents, options, first, DEPTH)

    def load(self, name: str) -> Any:
        """Return the model, which is loaded already."""
        return self._model
