"""Objects of a user's own as rankers of a corpus: encoders by their methods, and retrievers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError, kind_of, quoted
from beir_cocodr.models.encoding_methods import EncodingMethods
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import Json
from beir_cocodr.retrieval.exact import ExactSearch, rank
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.resolve import Retriever

# Documents that are handed to an encoder at a time.
_CHUNK = 50_000


class EncoderRanker:
    """Exact search with an encoder that is known by its methods alone.

    Args:
        model: has sentence-transformers' ``encode`` or BEIR's methods.
        documents: the corpus; its embeddings are held in memory.
        options: batch size, progress and what joins title and text.
    """

    def __init__(
        self,
        model: Any,
        documents: Documents,
        options: SearchOptions,
    ) -> None:
        """Take the model; the corpus is encoded when it is searched first."""
        self.model = model
        self.documents = documents
        encoder = model
        if hasattr(model, "encode"):
            encoder = EncodingMethods(model, options.encoder.text_format)
        self._search = ExactSearch(
            encoder, batch_size=options.batch_size, show_progress_bar=options.shows_progress
        )
        # BEIR's own models declare no similarity, and BEIR compares them by dot product.
        declared = getattr(encoder, "similarity_fn_name", None)
        self._similarity = self._search.similarity(None if declared else "dot")
        self._embeddings: list[object] = []

    def prepare(self) -> None:
        """Encode the corpus; a second call costs nothing."""
        if not self._embeddings:
            chunks = self.documents.chunks(_CHUNK)
            self._embeddings = [self._search.vectors(chunk, "documents") for chunk in chunks]

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for query id to text."""
        self.prepare()
        vectors = self._search.vectors(list(queries.values()), "queries")
        return rank(
            self.documents, list(queries), vectors, self._embeddings, top_k, self._similarity
        )

    def describe(self) -> Json:
        """Return the class and the similarity of the model."""
        return {"model": type(self.model).__name__, "similarity": self._similarity}


class RetrieverRanker:
    """A user's own :class:`~beir_cocodr.retrieval.resolve.Retriever` over a corpus.

    Args:
        retriever: searches; it holds the corpus itself.
        documents: the corpus, which must have all documents that are returned.
    """

    def __init__(self, retriever: Retriever, documents: Documents) -> None:
        """Take the retriever."""
        self.retriever = retriever
        self.documents = documents

    def prepare(self) -> None:
        """Do nothing: the retriever has its own index."""

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for query id to text.

        Raises:
            InputError: If the retriever does not return query id to {document id: score}, returns
                an unknown document, or a score that is not a finite number.
        """
        candidates = self._rows(self.answers(queries, top_k))
        return Ranking.of_best(queries, candidates, self.documents.tie_ranks(), top_k)

    def answers(self, queries: dict[str, str], top_k: int) -> dict[str, dict[str, float]]:
        """Return what the retriever answers to query id to text, unknown documents included.

        Raises:
            InputError: If the retriever does not return query id to {document id: score}, or a
                score is not a finite number.
        """
        run = self.retriever.search(dict(queries), top_k)
        if not isinstance(run, dict):
            raise InputError(
                f"{self._name}.search returned {kind_of(run)}; return {{query id: "
                "{document id: score}}"
            )
        answers = {}
        for query in queries:
            hits = run.get(query, {})
            if not isinstance(hits, dict):
                raise InputError(
                    f"{self._name}.search returned {kind_of(hits)} for query {query!r}; "
                    "return {document id: score}"
                )
            scores = {}
            for document, score in hits.items():
                number = _finite_number(score)
                if number is None:
                    raise self._wrong(document, query, f"the score {quoted(score)}")
                scores[document] = number
            answers[query] = scores
        return answers

    def _rows(self, answers: dict[str, dict[str, float]]) -> Iterator[tuple[Ints, Floats]]:
        """Stream the (n,) rows and float32 scores of each query."""
        for query, hits in answers.items():
            rows = self.documents.rows(list(hits))
            for document, row in zip(hits, rows.tolist(), strict=True):
                if row < 0:
                    raise self._wrong(document, query, "which is not in the corpus")
            yield rows, np.array(list(hits.values()), np.float32)

    def _wrong(self, document: str, query: str, problem: str) -> InputError:
        return InputError(
            f"{self._name}.search returned document {document!r} for query {query!r}, {problem}; "
            "return documents of the corpus with finite scores"
        )

    @property
    def _name(self) -> str:
        return type(self.retriever).__name__

    def describe(self) -> Json:
        """Return the class of the retriever."""
        return {"model": self._name}


def _finite_number(score: object) -> float | None:
    """Return a score in the precision of float32; None if it is not a finite number."""
    try:
        with np.errstate(over="ignore"):
            number = np.array(score, np.float32)
    except (TypeError, ValueError, OverflowError):
        return None
    if number.shape != () or not np.isfinite(number):
        return None
    return float(number)
