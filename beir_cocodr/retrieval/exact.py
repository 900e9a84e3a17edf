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
from beir_cocodr.data.documents import Documents, dataset_documents, hashed_documents
from beir_cocodr.errors import (
    InputError,
    Limits,
    check_characters,
    check_flag,
    check_integer,
    check_name,
    check_type,
)
from beir_cocodr.io import json_sha256, output_folder, output_path
from beir_cocodr.models.encoding_methods import with_beir_methods
from beir_cocodr.progress import in_place
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.vectors.embedding_files import EmbeddingFile, read_corpus
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores, Similarity, search_chunks

logger = logging.getLogger(__name__)

#: Document id to {"title", "text"}, or to the text.
Corpus = Mapping[str, Mapping[str, str | None] | str]

#: The texts that are encoded.
Kind = Literal["queries", "documents"]

#: BEIR's name of a score function to sentence-transformers' name of the similarity.
_SIMILARITIES: dict[str, Similarity] = {"cos_sim": "cosine", "dot": "dot"}


class ExactSearch:
    """Exact dense search, in place of BEIR's ``DenseRetrievalExactSearch``.

    It goes into BEIR's ``EvaluateRetrieval`` and differs from BEIR's search where that fails or
    misleads. A single query and ``title: None`` work. Results come in rank order with ties by
    descending document id, as trec_eval breaks them. NaN or infinite scores raise. A score function
    other than the model's own is warned of. Neither the corpus as text nor its embeddings are held
    beyond a chunk when the corpus is a `Documents` or a dataset of Hugging Face ``datasets``.

    Args:
        model: a name or folder (see :func:`~beir_cocodr.models.checkpoints.loading.load_encoder`),
            a ``SentenceTransformer`` or any object with ``encode``, or a model of BEIR with
            ``encode_queries`` and ``encode_corpus``. Its ``similarity_fn_name`` ("cosine" or
            "dot"), if it has one, is the default similarity.
        batch_size: texts that the model encodes at a time.
        corpus_chunk_size: documents that the model is given at a time; their embeddings are held in
            memory.
        ignore_identical_ids: never retrieve the document whose id is the query's, as BEIR's search
            does; the query then gets ``top_k`` others.
        show_progress_bar: passed on to the model.
        convert_to_tensor: passed on to the model.
        store: folder of an :class:`~beir_cocodr.retrieval.store.store.EmbeddingStore`. The corpus
            is encoded to it once. Later searches with the same model and corpus read it, and
            complete it if it was interrupted, also in another process. It needs an encoder of this
            package.
        **kwargs: ignored with a warning, as BEIR's constructor takes anything.

    Attributes:
        results: the results of the last `search`.

    Raises:
        InputError: If batch_size or corpus_chunk_size is below 1, the store cannot be a folder, or
            the model cannot encode.

    Example:
        >>> from beir_cocodr import ExactSearch
        >>> corpus = {
        ...     "histogram": {"title": "", "text": "Draw a histogram."},
        ...     "sort": {"title": "", "text": "Return a sorted copy of an array."},
        ... }
        >>> search = ExactSearch("minilm", show_progress_bar=False)  # for EvaluateRetrieval(search)
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
        **kwargs: object,
    ) -> None:
        """Load the model if it is a name."""
        check_integer("batch_size", batch_size)
        check_integer("corpus_chunk_size", corpus_chunk_size)
        if store == "":
            raise InputError("store is an empty string; name a folder, or leave it out")
        if store is not None:
            check_type("store", store, (str, Path), "the path of a folder")
            check_name("store", store)
        self.model = _loaded(model)
        self.store = store
        self.ignore_identical_ids = ignore_identical_ids
        self.batch_size = batch_size
        self.corpus_chunk_size = corpus_chunk_size
        self.show_progress_bar = show_progress_bar
        self.convert_to_tensor = convert_to_tensor
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
        **kwargs: object,
    ) -> dict[str, dict[str, float]]:
        """Encode and search.

        Args:
            corpus: document id to {"title", "text"} or to the text: a BEIR corpus, or one that is
                streamed: a `Documents`, or a dataset of columns id, title and text, as BEIR's
                ``HFDataLoader`` loads it.
            queries: query id to text, or a dataset of columns id and text.
            top_k: documents of each query.
            score_function: "cos_sim" or "dot"; None is the model's own similarity, and a warning
                names another.
            return_sorted: of no consequence, results are always in rank order.
            ignore_identical_ids: overrides the constructor's for this search.
            **kwargs: ignored with a warning.

        Returns:
            Query id to {document id: float32 score as float}, best first, min(top_k, documents
            allowed) each.

        Raises:
            InputError: If there are no documents or queries, top_k is below 1, the score function
                is unknown, missing where the model declares none, or another than the model's with
                a store, or if embeddings do not fit their texts.
            NonFiniteScores: If a score is NaN or infinite; names documents and queries.
        """
        _warn_ignored(kwargs)
        source, ranking = self._search(corpus, queries, top_k, score_function, ignore_identical_ids)
        return self._named(source, ranking)

    def _named(
        self, source: Documents | _PlainCorpus, ranking: Ranking
    ) -> dict[str, dict[str, float]]:
        self.results = {query: dict(hits) for query, hits in ranking.hits(source.ids)}
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
        """Search as `search` does, without making dictionaries.

        Args:
            corpus: as for `search`.
            queries: as for `search`.
            top_k: documents of each query.
            score_function: as for `search`.
            ignore_identical_ids: as for `search`.

        Returns:
            Query ids (Q,), scores (Q, k) float32 and rows (Q, k) int64, best first; k = min(top_k,
            N), rows count in corpus order. Where a query has fewer documents, its last places are
            -inf and -1.
        """
        _, ranking = self._search(corpus, queries, top_k, score_function, ignore_identical_ids)
        return ranking.queries, ranking.scores, ranking.rows

    def _search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None,
        ignore: bool | None,
    ) -> tuple[Documents | _PlainCorpus, Ranking]:
        similarity = self.similarity(score_function)
        source = _source(corpus)
        texts = query_texts(queries)
        _check_search(len(texts), len(source), top_k)
        excluded = self._excluded(source, list(texts), ignore)
        if self.store is not None:
            declared = self.similarity(None)
            if similarity != declared:
                raise InputError(
                    f"score_function is {score_function!r}, but a store is searched by "
                    f"{declared}: leave one of them out"
                )
            documents = source if isinstance(source, Documents) else corpus
            return source, self._search_stored(
                corpus=documents,
                queries=texts,
                top_k=top_k,
                folder=self.store,
                excluded=excluded,
            )
        vectors = self.vectors(list(texts.values()), "queries")
        chunks = (
            self.vectors(chunk, "documents") for chunk in source.chunks(self.corpus_chunk_size)
        )
        return source, rank(source, list(texts), vectors, chunks, top_k, similarity, excluded)

    def _search_stored(
        self,
        corpus: Any,
        queries: Mapping[str, str],
        top_k: int,
        folder: str | Path,
        excluded: Ints | None,
    ) -> Ranking:
        """Encode the documents that the store lacks, and search it."""
        # Imported here because a search of existing embeddings needs no encoder library.
        from beir_cocodr.models.cocodr import COCODR
        from beir_cocodr.retrieval.store.encode import encode_documents
        from beir_cocodr.retrieval.store.store_search import search_store

        if not isinstance(self.model, COCODR):
            raise InputError(
                f"a store is keyed by the weights of its encoder, and {type(self.model).__name__} "
                "is not an encoder of this package: load it with load_encoder, or search without "
                "store"
            )
        texts = list(queries.values())
        with hashed_documents(corpus) as documents:
            store = encode_documents(
                self.model,
                documents,
                folder,
                progress=self.show_progress_bar,
            )
        vectors = self.model.encode_queries(
            texts,
            batch_size=self.batch_size,
            convert_to_tensor=True,
            show_progress_bar=self.show_progress_bar and in_place(),
        )
        devices = [str(self.model.device)]
        return search_store(store, list(queries), vectors, top_k, devices, excluded_rows=excluded)

    def encode(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        encode_output_path: str | Path = "./embeddings/",
        overwrite: bool = False,
        query_filename: str = "queries.pkl",
        corpus_filename: str = "corpus.*.pkl",
        **kwargs: object,
    ) -> None:
        """Encode to files that :meth:`search_from_files` reads, as BEIR's ``encode_and_retrieve``.

        The files have BEIR's names, and are no pickles: they hold arrays of numpy, and hashes of
        what these depend on. Files of the same encoder and texts are kept, so that an interrupted
        encoding is completed.

        Args:
            corpus: as for :meth:`search`.
            queries: as for :meth:`search`.
            encode_output_path: folder of the files.
            overwrite: replace files that hold something else.
            query_filename: name of the file of the queries.
            corpus_filename: name of the files of documents; * is the number of a file, each of
                ``corpus_chunk_size`` documents.
            **kwargs: ignored with a warning.

        Raises:
            InputError: If a file holds something else, or that cannot be known because the model is
                no encoder of this package; else as for :meth:`search`.
        """
        _warn_ignored({name: value for name, value in kwargs.items() if name != "score_function"})
        check_flag("overwrite", overwrite)
        source = _source(corpus)
        texts = query_texts(queries)
        size = self.corpus_chunk_size
        _check_search(len(texts), len(source), top_k=1)
        parts = -(-len(source) // size)
        if parts > 1 and "*" not in corpus_filename:
            raise InputError(
                f"corpus_filename {corpus_filename!r} names one file, and the documents need "
                f"{parts}: put a * into it"
            )
        folder = output_folder(output_path(encode_output_path))
        encoder = self._encoder()
        query_file = EmbeddingFile(
            path=folder / query_filename,
            ids=list(texts),
            encoder=encoder,
            number=0,
            parts=parts,
        )
        self._write(query_file, list(texts.values()), "queries", overwrite)
        chunks: Iterator[Sequence[object]] = source.chunks(size)
        for number, chunk in enumerate(chunks):
            path = folder / corpus_filename.replace("*", str(number))
            rows = range(len(source))[number * size :][:size]
            file = EmbeddingFile(path, source.ids(rows), encoder, number, parts)
            self._write(file, chunk, "documents", overwrite)

    def search_from_files(
        self,
        query_embeddings_file: str | Path,
        corpus_embeddings_files: Sequence[str | Path],
        top_k: int,
        score_function: str | None = None,
        *,
        ignore_identical_ids: bool | None = None,
        **kwargs: object,
    ) -> dict[str, dict[str, float]]:
        """Search the files of :meth:`encode`.

        Args:
            query_embeddings_file: the file of the queries.
            corpus_embeddings_files: the files of the documents, in any order.
            top_k: documents of each query.
            score_function: as for :meth:`search`, but "dot" if the model declares no similarity, as
                in BEIR.
            ignore_identical_ids: as for :meth:`search`.
            **kwargs: ignored with a warning.

        Returns:
            As for :meth:`search`.

        Raises:
            InputError: If a file is missing, damaged or of another encoding, or a pickle, which can
                run code.
        """
        _warn_ignored(kwargs)
        declared = getattr(self.model, "similarity_fn_name", None)
        if score_function is None and declared is None:
            score_function = "dot"
        similarity = self.similarity(score_function)
        queries = EmbeddingFile.read(Path(query_embeddings_file))
        parts = read_corpus(corpus_embeddings_files, queries)
        source = _PlainCorpus({id: {} for part in parts for id in part.ids})
        _check_search(len(queries.ids), len(source), top_k)
        excluded = self._excluded(source, queries.ids, ignore_identical_ids)
        vectors = torch.from_numpy(queries.vectors()).to(getattr(self.model, "device", "cpu"))
        chunks = (part.vectors() for part in parts)
        ranking = rank(source, queries.ids, vectors, chunks, top_k, similarity, excluded)
        return self._named(source, ranking)

    def _write(
        self,
        file: EmbeddingFile,
        texts: Sequence[object],
        kind: Kind,
        overwrite: bool,
    ) -> None:
        key = file.key_of(texts, kind)
        if not overwrite and file.holds(key, kind):
            logger.info("%s already contains these %s", file.path, kind)
            return
        file.write(self.vectors(texts, kind).float().cpu().numpy(), key)

    def _encoder(self) -> str:
        """Return a hash of all that vectors depend on besides the texts; "" if it is not known."""
        from beir_cocodr.models.checkpoints.loading import fingerprint

        try:
            return json_sha256([fingerprint(self.model), vars(self.model.text_format)])
        except (AttributeError, InputError):
            return ""

    def _excluded(
        self,
        source: Documents | _PlainCorpus,
        queries: list[str],
        ignore: bool | None,
    ) -> Ints | None:
        """Return the rows of the documents with the ids of queries, (Q,), if they are ignored."""
        if ignore is None:
            ignore = self.ignore_identical_ids
        return source.rows(queries) if ignore else None

    def similarity(self, score_function: str | None) -> Similarity:
        """Return the similarity of a score function; None is the model's own.

        A warning names a score function other than the model's own.

        Raises:
            InputError: If the score function is unknown, or missing where the model declares no
                similarity that exact search has.
        """
        declared = getattr(self.model, "similarity_fn_name", None)
        declared = getattr(declared, "value", declared)
        if score_function is not None:
            check_type("score_function", score_function, str, "'cos_sim' or 'dot'")
            Limits(choices=_SIMILARITIES).check("score function", score_function)
        asked: Any = declared if score_function is None else _SIMILARITIES[score_function]
        if asked not in get_args(Similarity):
            has = "no similarity"
            if declared:
                has = f"the similarity {declared!r}, which exact search does not have"
            raise InputError(f"the model declares {has}: give score_function 'cos_sim' or 'dot'")
        if declared not in (None, asked):
            names = [name for name, similarity in _SIMILARITIES.items() if similarity == declared]
            way_out = (
                f"; to search by the model's own, give score_function={names[0]!r}" if names else ""
            )
            logger.warning(
                "the model was trained for the similarity %r and is searched by "
                "score_function=%r%s",
                declared,
                score_function,
                way_out,
            )
        similarity: Similarity = asked
        return similarity

    def vectors(self, texts: Sequence[object], kind: Kind) -> Tensor:
        """Encode texts to (n, d), whether the model returns a tensor, an array or a list."""
        encode = self.model.encode_queries if kind == "queries" else self.model.encode_corpus
        encoded = encode(
            texts,
            batch_size=self.batch_size,
            show_progress_bar=self.show_progress_bar,
            convert_to_tensor=self.convert_to_tensor,
        )
        if isinstance(encoded, (list, tuple)):
            encoded = torch.stack([torch.as_tensor(vector) for vector in encoded])
        matrix = torch.as_tensor(encoded)
        if matrix.ndim == 1:
            matrix = matrix[None]
        if matrix.ndim != 2 or len(matrix) != len(texts):
            shape = tuple(matrix.shape)
            raise InputError(
                f"the model returned embeddings of shape {shape} for {len(texts)} {kind}"
            )
        return matrix


def _loaded(model: Any) -> Any:
    """Return a model with BEIR's methods; a name is loaded."""
    if isinstance(model, str | Path):
        from beir_cocodr.models.checkpoints.loading import load_encoder

        return load_encoder(model)
    return with_beir_methods(model)


class _PlainCorpus:
    """A BEIR corpus dict with those methods of `Documents` that a search needs."""

    def __init__(self, corpus: Corpus) -> None:
        """Check the ids."""
        self._corpus = corpus
        self._ids = list(corpus)
        for id in self._ids:
            if not isinstance(id, str):
                raise InputError(
                    f"document id {id!r} is not a string: ids are compared and sorted as strings"
                )
            check_characters(f"document id {id!r}", id)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._ids)

    def ids(self, rows: Iterable[int] | None = None) -> list[str]:
        """Return the ids of rows, by default of all."""
        return self._ids if rows is None else [self._ids[row] for row in rows]

    def rows(self, ids: Sequence[str]) -> Ints:
        """Return the rows of ids, -1 where one is unknown."""
        known = self._corpus.keys() & ids
        row_of = {}
        if known:
            row_of = {id: row for row, id in enumerate(self._ids) if id in known}
        return np.array([row_of.get(id, -1) for id in ids], dtype=np.int64)

    def tie_ranks(self) -> Ints:
        """Return the position of every row when ids are sorted descending, (N,)."""
        # Python compares strings by code point, which is the order of their UTF-8 bytes.
        return np.argsort(sorted(range(len(self)), key=self._ids.__getitem__, reverse=True))

    def chunks(self, size: int) -> Iterator[list[Mapping[str, str | None]]]:
        """Stream the documents as lists of at most ``size``."""
        documents = iter(self._corpus.values())
        while chunk := list(islice(documents, size)):
            yield [_plain_document(document) for document in chunk]


def _plain_document(document: Mapping[str, str | None] | str) -> Mapping[str, str | None]:
    if isinstance(document, str):
        return {"title": "", "text": document}
    check_type("a document of the corpus", document, Mapping, "a mapping with title and text")
    # None is common for titles in published corpora, and models concatenate strings.
    if None in document.values():
        return {name: "" if value is None else value for name, value in document.items()}
    return document


def _source(corpus: Any) -> Documents | _PlainCorpus:
    if hasattr(corpus, "column_names"):
        return dataset_documents(corpus)
    check_type("corpus", corpus, (Documents, Mapping), "a mapping of ids to documents")
    return corpus if isinstance(corpus, Documents) else _PlainCorpus(corpus)


def query_texts(queries: Any) -> Mapping[str, str]:
    """Return query id to text; queries may be a dataset of columns id and text.

    Raises:
        InputError: If queries are no mapping, or an id or a text contains an unpaired surrogate.
    """
    if hasattr(queries, "column_names"):
        return {id: document["text"] for id, document in dataset_documents(queries).items()}
    check_type("queries", queries, Mapping, "a mapping of ids to texts")
    texts: Mapping[str, str] = queries
    for id, text in texts.items():
        if isinstance(id, str):
            check_characters(f"query id {id!r}", id)
        if isinstance(text, str):
            check_characters(f"query {id!r}", text)
    return texts


def _check_search(
    queries: int,
    documents: int,
    top_k: int,
) -> None:
    if not queries:
        raise InputError("there are no queries to search for")
    if not documents:
        raise InputError("the corpus has no documents")
    check_integer("top_k", top_k)


def rank(
    source: Documents | _PlainCorpus,
    queries: list[str],
    vectors: Tensor,
    chunks: Iterable[Any],
    top_k: int,
    similarity: Similarity = "dot",
    excluded: Ints | None = None,
) -> Ranking:
    """Rank a corpus for query vectors.

    Args:
        source: the corpus.
        queries: (Q,) query ids.
        vectors: (Q, d) query vectors.
        chunks: (n, d) embeddings of the documents, in corpus order.
        top_k: documents of each query.
        similarity: compares vectors.
        excluded: (Q,) row that a query must not get; -1 excludes none.

    Returns:
        The ``top_k`` best documents of each query.

    Raises:
        NonFiniteScores: If a score is NaN or infinite; names ids.
    """
    try:
        scores, rows = search_chunks(
            vectors,
            chunks,
            top_k,
            source.tie_ranks(),
            similarity=similarity,
            excluded_rows=excluded,
        )
    except NonFiniteScores as error:
        raise error.named(source.ids, queries) from None
    return Ranking(queries, scores.cpu().numpy(), rows.cpu().numpy())


def _warn_ignored(kwargs: Mapping[str, object]) -> None:
    if kwargs:
        logger.warning("ExactSearch ignores the arguments %s", ", ".join(sorted(kwargs)))
