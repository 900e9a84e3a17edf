"""What a BEIR script needs of this package, in one import; nothing of BEIR is patched.

BEIR has no registry. Our models go into its classes as they are:
``DenseRetrievalExactSearch(COCODR(...))`` works, as it asks for ``encode_queries`` and
``encode_corpus`` only. `ExactSearch` stands in for that class, `ModelSearch` makes a BEIR retriever
of any model name, and `evaluator` and `load` save the lines around them. Classes that have BEIR's
names are BEIR's, and work where BEIR 2.2 fails: ``EvaluateRetrieval.rerank`` is gone there, and
reranking takes neither ``title: None`` nor what ``HFDataLoader`` gives. Its FAISS searches are in
:mod:`beir_cocodr.plugins.beir_faiss`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from beir.reranking import rerank as reranking
from beir.retrieval import evaluation

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents, dataset_documents, hashed_documents
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.loading import load_cross_encoder, load_encoder
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.exact import Corpus, ExactSearch, query_texts
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.topk import search_chunks

__all__ = [
    "COCODR",
    "MRL",
    "EvaluateRetrieval",
    "ExactSearch",
    "ModelSearch",
    "Rerank",
    "evaluator",
    "load",
    "load_encoder",
    "score_function",
]

Results = dict[str, dict[str, float]]

_SCORE_FUNCTIONS = {"cosine": "cos_sim", "dot": "dot"}


def score_function(model: Any) -> str:
    """BEIR's name for the similarity that a model was trained for; BEIR's default is "cos_sim" for
    any model. An InputError: the model declares none, or one that BEIR does not have.
    """
    declared = getattr(model, "similarity_fn_name", None)
    declared = getattr(declared, "value", declared)
    if declared not in _SCORE_FUNCTIONS:
        raise InputError(
            f"the model declares the similarity {declared!r}, BEIR has cosine and dot: name a score function"
        )
    return _SCORE_FUNCTIONS[declared]


def beir_corpus(corpus: Any) -> Mapping[str, Mapping[str, str]]:
    """A corpus as BEIR reads it: by id, and no text is None."""
    if isinstance(corpus, Documents) or hasattr(corpus, "column_names"):
        return corpus if isinstance(corpus, Documents) else dataset_documents(corpus)
    return {
        id: {name: text or "" for name, text in document.items()} for id, document in corpus.items()
    }


def _best(results: Results, top_k: int) -> dict[str, list[str]]:
    """The ids of the best documents of each query, ties by descending id."""
    ranked = {
        query: sorted(found.items(), key=lambda hit: (hit[1], hit[0]))
        for query, found in results.items()
    }
    return {query: [id for id, _ in reversed(found)][:top_k] for query, found in ranked.items()}


def _given(texts: Mapping[str, Any], ids: Sequence[str], what: str) -> list[Any]:
    missing = next((id for id in ids if id not in texts), None)
    if missing is not None:
        raise InputError(
            f"the results name {what} {missing!r}, which is not here; rerank with what was searched"
        )
    return [texts[id] for id in ids]


class EvaluateRetrieval(evaluation.EvaluateRetrieval):  # type: ignore[misc]
    """BEIR's, with the ``rerank`` that it had before version 2."""

    def rerank(
        self, corpus: Corpus, queries: Mapping[str, str], results: Results, top_k: int
    ) -> Results:
        """The ``top_k`` best documents of each query, and no others, by the dense model of the
        retriever.
        """
        chosen, documents, made = _best(results, top_k), beir_corpus(corpus), self.retriever
        search = ExactSearch(made.model, made.batch_size, made.corpus_chunk_size)
        similarity, size = search.similarity(self.score_function), search.corpus_chunk_size
        pool = sorted({id for found in chosen.values() for id in found})
        rows = {id: row for row, id in enumerate(pool)}
        parts = (
            _given(documents, pool[start : start + size], "document")
            for start in range(0, len(pool), size)
        )
        vectors = torch.cat([search.vectors(part, "documents") for part in parts])
        asked = search.vectors(_given(query_texts(queries), list(chosen), "query"), "queries")
        reranked = {}
        for query, vector in zip(chosen, asked, strict=True):
            found = chosen[query]
            best = search_chunks(
                vector[None], [vectors[[rows[id] for id in found]]], top_k, similarity=similarity
            )
            scores, places = (part[0].tolist() for part in best)
            reranked[query] = {
                found[place]: score for place, score in zip(places, scores, strict=True)
            }
        return reranked


class Rerank(reranking.Rerank):  # type: ignore[misc]
    """BEIR's reranking by a cross-encoder, of any corpus and queries that `ExactSearch` takes, best
    first.

    Args:
        model: ``predict(list of (query, text), batch_size=)``, such as BEIR's ``CrossEncoder``, or
            a name of one.
        batch_size: pairs that it scores at a time.
    """

    def __init__(self, model: Any, batch_size: int = 128, **kwargs: Any) -> None:
        super().__init__(
            load_cross_encoder(model)[0] if isinstance(model, str) else model, batch_size, **kwargs
        )

    def rerank(
        self, corpus: Corpus, queries: Mapping[str, str], results: Results, top_k: int
    ) -> Results:
        chosen, texts, documents = _best(results, top_k), query_texts(queries), beir_corpus(corpus)
        found = {id for ids in chosen.values() for id in ids}
        known = dict(zip(found, _given(documents, list(found), "document"), strict=True))
        _given(texts, list(chosen), "query")
        scored = super().rerank(
            known, texts, {query: dict.fromkeys(ids, 0.0) for query, ids in chosen.items()}, top_k
        )
        for query, scores in scored.items():
            if not np.isfinite(list(scores.values())).all():
                raise InputError(
                    f"query {query!r} has a score that is NaN or infinite; the cross-encoder is broken"
                )
        best = _best(scored, top_k)
        self.rerank_results = {
            query: {id: scored[query][id] for id in ids} for query, ids in best.items()
        }
        return self.rerank_results


class ModelSearch:
    """A BEIR retriever of any model name: ``bm25``, ``hybrid:minilm``, a folder, a hub name.

    Args:
        model: see :class:`~beir_cocodr.models.spec.ModelSpec`.
        options: how encoders are loaded and searched with.

    Example:
        >>> from beir_cocodr.plugins.beir import EvaluateRetrieval, ModelSearch
        >>> corpus = {"sort": {"title": "sort", "text": "Return a sorted copy."}, "bar": {"text": "Draw bars."}}
        >>> EvaluateRetrieval(ModelSearch("bm25"), [1]).retrieve(corpus, {"q": "sorted copy"})["q"].keys()
        dict_keys(['sort'])
    """

    def __init__(self, model: str, options: SearchOptions = SearchOptions()) -> None:
        self.model, self.options = model, options
        self.results: Results = {}

    def search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,
        **kwargs: Any,
    ) -> Results:
        """As BEIR's searches; the score function is the model's own, and the document with the
        query's id is left out.
        """
        with hashed_documents(beir_corpus(corpus)) as documents, TemporaryDirectory() as folder:
            ranking = Resources(documents, Path(folder), self.options).ranker(self.model)
            found = ranking.search(dict(query_texts(queries)), top_k + 1).results(
                documents, True, top_k
            )
        self.results = {query: dict(hits) for query, hits in found.items()}
        return self.results


def evaluator(
    model: Any,
    k_values: Sequence[int] = (1, 3, 5, 10, 100, 1000),
    *,
    store: str | Path | None = None,
    **search: Any,
) -> EvaluateRetrieval:
    """BEIR's ``EvaluateRetrieval`` over `ExactSearch`, with the model's own similarity.

    Args:
        model: an encoder, or the name of one.
        k_values: as BEIR's, with its defaults.
        store: folder that keeps the corpus embeddings; what stands there is not encoded again, and
            an interrupted encoding goes on where it stopped.
        **search: passed on to `ExactSearch` (``batch_size``, ``ignore_identical_ids``, ...).
    """
    encoder = load_encoder(model) if isinstance(model, (str, Path)) else model
    search_with = ExactSearch(encoder, store=store, **search)
    return EvaluateRetrieval(search_with, list(k_values), score_function(encoder))


def load(
    dataset: str | Path, split: str = "test"
) -> tuple[Documents, dict[str, str], dict[str, dict[str, int]]]:
    """The triple of BEIR's ``GenericDataLoader``, of any collection that :func:`load_collection`
    reads.

    The corpus is memory-mapped; it is a mapping from document id to {"title", "text"} as BEIR's is.
    """
    collection = load_collection(dataset, split)
    return collection.documents, collection.queries, collection.qrels
