"""Exact dense search with the interface of BEIR's ``DenseRetrievalExactSearch``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.topk import NonFiniteScores, Similarity, search_chunks

Corpus = Mapping[str, Mapping[str, str | None]]

logger = logging.getLogger(__name__)

#: BEIR's name of a score function to sentence-transformers' name of the similarity.
_SIMILARITIES: dict[str, Similarity] = {"cos_sim": "cosine", "dot": "dot"}


class ExactSearch:
    """Exact dense search: takes the place of BEIR's ``DenseRetrievalExactSearch`` in ``EvaluateRetrieval``.

    It differs from BEIR's where that fails or misleads: a single query and ``title: None`` work, results come in rank
    order with ties by descending document id (as trec_eval breaks them), NaN or infinite scores raise, a similarity
    that the model does not declare raises, and neither the corpus as text nor its embeddings are held beyond a chunk
    when the corpus is a `Documents`.

    Args:
        model: ``encode_queries(list of str, batch_size=, show_progress_bar=, convert_to_tensor=)`` and
            ``encode_corpus(list of {"title", "text"}, ...)`` likewise, each returning one vector per text. If it has
            ``similarity_fn_name`` ("cosine" or "dot"), searches must agree with it.
        batch_size: texts that the model encodes at a time.
        corpus_chunk_size: documents handed to the model at a time; their embeddings are held in memory.
        ignore_identical_ids: never retrieve the document whose id is the query's, as BEIR's search does; the query then
            gets ``top_k`` others.
        show_progress_bar, convert_to_tensor: passed on to the model; both True by default.
        store: folder of an :class:`~beir_cocodr.retrieval.store.store.EmbeddingStore`. The corpus is encoded to it
            once; later searches with the same model and corpus read it, and an interrupted one goes on where it
            stopped, also in another process. Needs an encoder of this package.
        **kwargs: anything else is ignored with a warning (BEIR's constructor takes anything).

    Attributes:
        results: what the last `search` returned.

    Raises:
        InputError: batch_size or corpus_chunk_size below 1.

    Example:
        >>> from beir_cocodr import ExactSearch, load_encoder
        >>> corpus = {
        ...     "histogram": {"title": "", "text": "Draw a histogram."},
        ...     "sort": {"title": "", "text": "Return a sorted copy of an array."},
        ... }
        >>> search = ExactSearch(load_encoder("minilm"), show_progress_bar=False)  # EvaluateRetrieval(search)
        >>> results = search.search(corpus, {"q": "how do I sort an array?"}, top_k=2)
        >>> list(results["q"])
        ['sort', 'histogram']
    """

    def __init__(
        self,
        model: Any,
        batch_size: int = 128,
        corpus_chunk_size: int = 50_000,
        *,
        ignore_identical_ids: bool = True,
        show_progress_bar: bool = True,
        convert_to_tensor: bool = True,
        store: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        if batch_size < 1 or corpus_chunk_size < 1:
            raise InputError(f"batch_size {batch_size}, corpus_chunk_size {corpus_chunk_size}: both must be 1 or more")
        self.model, self.store, self.ignore_identical_ids = model, store, ignore_identical_ids
        self.batch_size, self.corpus_chunk_size = batch_size, corpus_chunk_size
        self.show_progress_bar, self.convert_to_tensor = show_progress_bar, convert_to_tensor
        self.results: dict[str, dict[str, float]] = {}
        _warn_ignored(kwargs)

    def search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,
        return_sorted: bool = False,
        *,
        ignore_identical_ids: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Encode and search.

        Args:
            corpus: document id to {"title", "text"}: a BEIR corpus or a `Documents`, which is streamed.
            queries: query id to text.
            top_k: documents wanted for each query.
            score_function: "cos_sim" or "dot"; None takes the model's own similarity.
            return_sorted: of no consequence, results are always in rank order.
            ignore_identical_ids: overrides the constructor's for this search.
            **kwargs: ignored with a warning.

        Returns:
            Query id to {document id: float32 score as float}, best first, min(top_k, documents allowed) each.

        Raises:
            InputError: no documents, no queries, top_k below 1, an unknown score function or one that is not what the
                model declares, or embeddings that do not fit their texts.
            NonFiniteScores: a score is NaN or infinite; names documents and queries.
        """
        _warn_ignored(kwargs)
        source, ranking = self._search(corpus, queries, top_k, score_function, ignore_identical_ids)
        found = (ranking.rows >= 0).sum(axis=1).tolist()  # places without a document come last
        lists = zip(ranking.queries, ranking.scores.tolist(), _names(source, ranking.rows), found, strict=True)
        self.results = {query: dict(zip(ids[:k], scores[:k], strict=True)) for query, scores, ids, k in lists}
        return self.results

    def search_arrays(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,
        *,
        ignore_identical_ids: bool | None = None,
    ) -> tuple[list[str], Floats, Ints]:
        """`search` without the dictionaries.

        Returns:
            Query ids (Q,), scores (Q, k) float32 and rows (Q, k) int64, best first; k = min(top_k, N), rows count in
            corpus order. Where a query has fewer documents, its last places are -inf and -1.
        """
        _, found = self._search(corpus, queries, top_k, score_function, ignore_identical_ids)
        return found.queries, found.scores, found.rows

    def _search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None,
        ignore_identical_ids: bool | None,
    ) -> tuple[Documents | _PlainCorpus, Ranking]:
        similarity, query_ids = self._similarity(score_function), list(queries)
        source = corpus if isinstance(corpus, Documents) else _PlainCorpus(corpus)
        if not query_ids:
            raise InputError("there are no queries to search for")
        if not len(source):
            raise InputError("the corpus has no documents")
        if top_k < 1:
            raise InputError(f"top_k is {top_k}: ask for at least one document")
        ignore = self.ignore_identical_ids if ignore_identical_ids is None else ignore_identical_ids
        excluded = source.rows(query_ids) if ignore else None
        if self.store is not None:
            # Imported here because a search of embeddings that are there needs no encoder library.
            from beir_cocodr.retrieval.store.search import search_stored

            return source, search_stored(
                self.model, corpus, queries, top_k, self.store, excluded, self.batch_size, self.show_progress_bar
            )
        try:
            scores, rows = search_chunks(
                self._encode(list(queries.values()), "queries"),
                (self._encode(chunk, "documents") for chunk in source.chunks(self.corpus_chunk_size)),
                top_k,
                source.tie_ranks(),
                similarity=similarity,
                excluded_rows=excluded,
            )
        except NonFiniteScores as error:
            raise error.named(source.ids, query_ids) from None
        return source, Ranking(query_ids, scores.cpu().numpy(), rows.cpu().numpy())

    def _similarity(self, score_function: str | None) -> Similarity:
        declared = getattr(self.model, "similarity_fn_name", None)
        declared = getattr(declared, "value", declared)
        if declared is not None and declared not in get_args(Similarity):
            raise InputError(f"the model declares the similarity {declared!r}; exact search has cosine and dot")
        if score_function not in (None, *_SIMILARITIES):
            raise InputError(f"score function {score_function!r} is neither 'cos_sim' nor 'dot'")
        similarity: Similarity | None = declared if score_function is None else _SIMILARITIES[score_function]
        if similarity is None:
            raise InputError("the model declares no similarity: give score_function 'cos_sim' or 'dot'")
        if declared not in (None, similarity):
            right = next(name for name, similarity in _SIMILARITIES.items() if similarity == declared)
            raise InputError(
                f"score_function is {score_function!r} but the model declares the similarity {declared!r}: "
                f"give score_function={right!r}, or None for the model's own"
            )
        return similarity

    def _encode(self, texts: Sequence[Any], what: Literal["queries", "documents"]) -> Tensor:
        """What the model returns (tensor, array, or list of either) as (n, d)."""
        encode = self.model.encode_queries if what == "queries" else self.model.encode_corpus
        encoded = encode(
            texts,
            batch_size=self.batch_size,
            show_progress_bar=self.show_progress_bar,
            convert_to_tensor=self.convert_to_tensor,
        )
        if isinstance(encoded, (list, tuple)):
            encoded = torch.stack([torch.as_tensor(vector) for vector in encoded])
        matrix = torch.as_tensor(encoded)
        matrix = matrix[None] if matrix.ndim == 1 else matrix
        if matrix.ndim != 2 or len(matrix) != len(texts):
            shape = tuple(matrix.shape)
            raise InputError(f"the model returned embeddings of shape {shape} for {len(texts)} {what}")
        return matrix


class _PlainCorpus:
    """A BEIR corpus dict with the parts of `Documents` that a search needs."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._ids = list(corpus)
        wrong = next((id for id in self._ids if not isinstance(id, str)), None)
        if wrong is not None:
            raise InputError(f"document id {wrong!r} is not a string: ids are compared and sorted as strings")

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, rows: Iterable[int] | None = None) -> list[str]:
        return self._ids if rows is None else [self._ids[row] for row in rows]

    def rows(self, ids: Sequence[str]) -> Ints:
        wanted = self._corpus.keys() & ids
        at = {id: row for row, id in enumerate(self._ids) if id in wanted} if wanted else {}
        return np.array([at.get(id, -1) for id in ids], dtype=np.int64)

    def tie_ranks(self) -> Ints:
        # Python compares strings by code point, which is the order of their UTF-8 bytes.
        return np.argsort(sorted(range(len(self)), key=self._ids.__getitem__, reverse=True))

    def chunks(self, size: int) -> Iterator[list[Mapping[str, str | None]]]:
        documents = (document for _, document in self._corpus.items())
        while chunk := list(islice(documents, size)):
            # None is common for titles in published corpora, and models concatenate strings.
            yield [{f: "" if v is None else v for f, v in d.items()} if None in d.values() else d for d in chunk]


def _names(source: Documents | _PlainCorpus, rows: Ints) -> list[list[str]]:
    """(Q, k) rows to ids; no more ids are in memory at once than there are hits."""
    if len(source) <= rows.size:
        table, at = source.ids(), rows
    else:
        unique, at = np.unique(rows.clip(min=0), return_inverse=True)
        table, at = source.ids(unique), at.reshape(rows.shape)
    names: list[list[str]] = np.array(table, dtype=object)[at].tolist()
    return names


def _warn_ignored(kwargs: Mapping[str, Any]) -> None:
    if kwargs:
        logger.warning("ExactSearch ignores the arguments %s", ", ".join(sorted(kwargs)))
