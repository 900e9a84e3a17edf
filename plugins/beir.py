"""BEIR: searches, reranking and evaluators with BEIR's names; nothing of BEIR is patched.

BEIR has no registry. Our models go into its classes as they are:
``DenseRetrievalExactSearch(COCODR(...))`` works, as it asks for ``encode_queries`` and
``encode_corpus`` only. `ExactSearch` replaces that class, `ModelSearch` makes a BEIR retriever of
any model, and `evaluator` and `load` save the lines around them. Classes that have BEIR's names are
BEIR's, and work where BEIR 2.2 fails: ``EvaluateRetrieval.rerank`` is missing there, and reranking
takes neither ``title: None`` nor the datasets of ``HFDataLoader``. Its FAISS searches are in
:mod:`beir_cocodr.plugins.beir_faiss`, and its training is in
:mod:`beir_cocodr.plugins.beir_training`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beir.reranking import rerank as reranking
from beir.retrieval import evaluation

from beir_cocodr.data.collection import Dataset, load_collection
from beir_cocodr.data.documents import Documents, dataset_documents, hashed_documents
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import load_cross_encoder, load_encoder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.exact import Corpus, ExactSearch, query_texts
from beir_cocodr.retrieval.resolve import Model, resolve_model
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.vectors.topk import search_chunks

from .beir_training import TrainRetriever

__all__ = [
    "COCODR",
    "MRL",
    "EvaluateRetrieval",
    "ExactSearch",
    "ModelSearch",
    "Rerank",
    "TrainRetriever",
    "evaluator",
    "load",
    "load_encoder",
    "score_function",
]

#: Query id to {document id: score}.
Results = dict[str, dict[str, float]]

#: Query id to document ids, best first.
Rankings = dict[str, list[str]]

_SCORE_FUNCTIONS = {"cosine": "cos_sim", "dot": "dot"}


def score_function(model: Any) -> str:
    """Return BEIR's name for the similarity that a model was trained for.

    BEIR's own default is "cos_sim" for any model.

    Raises:
        InputError: The model declares no similarity, or one that BEIR does not have.
    """
    declared = getattr(model, "similarity_fn_name", None)
    declared = getattr(declared, "value", declared)
    if declared not in _SCORE_FUNCTIONS:
        raise InputError(
            f"the model declares the similarity {declared!r}, but BEIR has cosine and dot: name a "
            "score function"
        )
    return _SCORE_FUNCTIONS[declared]


def beir_corpus(corpus: Any) -> Mapping[str, Mapping[str, str]]:
    """Return a corpus as BEIR reads it: by id, without None."""
    if isinstance(corpus, Documents):
        return corpus
    if hasattr(corpus, "column_names"):
        return dataset_documents(corpus)
    return {id: _plain(document) for id, document in corpus.items()}


def _plain(document: Mapping[str, str | None] | str) -> Mapping[str, str]:
    if isinstance(document, str):
        return {"title": "", "text": document}
    return {name: text or "" for name, text in document.items()}


def _best(results: Results, top_k: int) -> Rankings:
    """Return the ids of the best documents of each query, ties by descending id."""
    rankings = {}
    for query, scores in results.items():
        ascending = sorted(scores.items(), key=lambda hit: (hit[1], hit[0]))
        best_first = [id for id, _ in reversed(ascending)]
        rankings[query] = best_first[:top_k]
    return rankings


def _texts_of(
    texts: Mapping[str, object],
    ids: Sequence[str],
    kind: str,
) -> list[object]:
    """Return the texts of ids.

    Raises:
        InputError: An id is unknown; ``kind`` says what it is the id of.
    """
    for id in ids:
        if id not in texts:
            raise InputError(
                f"the results name {kind} {id!r}, which is not here; rerank with the corpus and "
                "queries that were searched"
            )
    return [texts[id] for id in ids]


class EvaluateRetrieval(evaluation.EvaluateRetrieval):  # type: ignore[misc]
    """BEIR's class, with the ``rerank`` that it had before version 2."""

    def rerank(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        results: Results,
        top_k: int,
    ) -> Results:
        """Rank the ``top_k`` best documents of each query by the retriever's dense model.

        Args:
            corpus: A corpus that `ExactSearch` takes.
            queries: Query id to text.
            results: Results of a first search.
            top_k: Documents of each query.

        Returns:
            Query id to {document id: score}, best first.
        """
        retriever = self.retriever
        search = ExactSearch(retriever.model, retriever.batch_size, retriever.corpus_chunk_size)
        rankings = _best(results, top_k)
        candidates = sorted({id for ids in rankings.values() for id in ids})
        vectors = self._document_vectors(search, beir_corpus(corpus), candidates)
        texts = _texts_of(query_texts(queries), list(rankings), "query")
        query_vectors = search.vectors(texts, "queries")
        row_of = {id: row for row, id in enumerate(candidates)}
        similarity = search.similarity(self.score_function)
        reranked = {}
        for (query, ids), vector in zip(rankings.items(), query_vectors, strict=True):
            chunk = vectors[[row_of[id] for id in ids]]
            best = search_chunks(vector[None], [chunk], top_k, similarity=similarity)
            scores, rows = (part[0].tolist() for part in best)
            reranked[query] = {ids[row]: score for row, score in zip(rows, scores, strict=True)}
        return reranked

    def _document_vectors(
        self,
        search: ExactSearch,
        documents: Mapping[str, object],
        ids: Sequence[str],
    ) -> torch.Tensor:
        """Encode documents to (n, d), a chunk at a time."""
        size = search.corpus_chunk_size
        parts = []
        for start in range(0, len(ids), size):
            texts = _texts_of(documents, ids[start : start + size], "document")
            parts.append(search.vectors(texts, "documents"))
        return torch.cat(parts)


class Rerank(reranking.Rerank):  # type: ignore[misc]
    """BEIR's reranking by a cross-encoder, for any corpus and queries that `ExactSearch` takes.

    Args:
        model: An object with ``predict(list of (query, text), batch_size=)``, such as BEIR's
            ``CrossEncoder``, or the name of a cross-encoder.
        batch_size: Pairs that it scores at a time.
        **kwargs: Passed on to BEIR's class.
    """

    def __init__(
        self,
        model: Any,
        batch_size: int = 128,
        **kwargs: object,
    ) -> None:
        """Load the cross-encoder if it is a name."""
        if isinstance(model, str):
            model, _ = load_cross_encoder(model)
        super().__init__(model, batch_size, **kwargs)

    def rerank(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        results: Results,
        top_k: int,
    ) -> Results:
        """Rank the ``top_k`` best documents of each query by the cross-encoder.

        Args:
            corpus: A corpus that `ExactSearch` takes.
            queries: Query id to text.
            results: Results of a first search.
            top_k: Documents of each query.

        Returns:
            Query id to {document id: score}, best first.

        Raises:
            InputError: A document or query of the results is unknown, or a score is not finite.
        """
        rankings = _best(results, top_k)
        texts = query_texts(queries)
        candidates = list({id for ids in rankings.values() for id in ids})
        documents = _texts_of(beir_corpus(corpus), candidates, "document")
        _texts_of(texts, list(rankings), "query")
        pairs = {query: dict.fromkeys(ids, 0.0) for query, ids in rankings.items()}
        known = dict(zip(candidates, documents, strict=True))
        scored = super().rerank(known, texts, pairs, top_k)
        for query, scores in scored.items():
            if not np.isfinite(list(scores.values())).all():
                raise InputError(
                    f"query {query!r} has a score that is NaN or infinite; "
                    "the cross-encoder is broken"
                )
        self.rerank_results = {
            query: {id: scored[query][id] for id in ids}
            for query, ids in _best(scored, top_k).items()
        }
        return self.rerank_results


class ModelSearch:
    """A BEIR retriever of any model: ``bm25``, ``hybrid:minilm``, a folder, a loaded encoder.

    Args:
        model: A name (see :class:`~beir_cocodr.models.spec.ModelSpec`), or an object that
            :func:`~beir_cocodr.evaluation.evaluate.evaluate` takes.
        options: How encoders are loaded and searched with.

    Example:
        >>> from beir_cocodr.plugins.beir import EvaluateRetrieval, ModelSearch
        >>> corpus = {"sort": {"text": "Return a sorted copy."}, "bar": {"text": "Draw bars."}}
        >>> bm25 = EvaluateRetrieval(ModelSearch("bm25"), [1])
        >>> bm25.retrieve(corpus, {"q": "sorted copy"})["q"].keys()
        dict_keys(['sort'])
    """

    def __init__(self, model: Model, options: SearchOptions = SearchOptions()) -> None:
        """Resolve the model; it is loaded when a corpus is searched."""
        self.model = resolve_model(model, argument="model")
        self.options = options
        self.results: Results = {}

    def search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,
        **kwargs: object,
    ) -> Results:
        """Search as BEIR's searches do; the document with the query's id is left out.

        Args:
            corpus: A corpus that `ExactSearch` takes.
            queries: Query id to text.
            top_k: Documents of each query.
            score_function: Ignored: the model's own similarity is used.
            **kwargs: Further arguments of BEIR, ignored.

        Returns:
            Query id to {document id: score}, best first.
        """
        with (
            hashed_documents(beir_corpus(corpus)) as documents,
            Resources.temporary(documents, self.options) as resources,
        ):
            texts = dict(query_texts(queries))
            ranking = resources.ranker(self.model).search(texts, top_k + 1)
            results = ranking.results(documents, drop_identical_ids=True, depth=top_k)
        self.results = {query: dict(hits) for query, hits in results.items()}
        return self.results


def evaluator(
    model: Any,
    k_values: Sequence[int] = (1, 3, 5, 10, 100, 1000),
    *,
    store: str | Path | None = None,
    **search: Any,
) -> EvaluateRetrieval:
    """Return BEIR's ``EvaluateRetrieval`` over `ExactSearch`, with the model's own similarity.

    Args:
        model: An encoder, or the name of one.
        k_values: The cutoffs, as in BEIR.
        store: Folder that keeps the corpus embeddings; those that it holds are not encoded again,
            and an interrupted encoding is completed.
        **search: Passed on to `ExactSearch` (``batch_size``, ``ignore_identical_ids``, ...).
    """
    search_with = ExactSearch(model, store=store, **search)
    return EvaluateRetrieval(search_with, list(k_values), score_function(search_with.model))


def load(
    dataset: Dataset, split: str = "test"
) -> tuple[Documents, dict[str, str], dict[str, dict[str, int]]]:
    """Return the triple of BEIR's ``GenericDataLoader`` for any collection.

    The corpus is memory-mapped; it is a mapping from document id to {"title", "text"} as BEIR's is.

    Args:
        dataset: What :func:`~beir_cocodr.data.collection.load_collection` takes.
        split: The split of the labels.
    """
    collection = load_collection(dataset, split)
    return collection.documents, collection.queries, collection.qrels
