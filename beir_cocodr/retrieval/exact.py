"""Exact dense search with the interface of BEIR's ``DenseRetrievalExactSearch``, its files of
embeddings included.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents, dataset_documents, hashed_documents
from beir_cocodr.errors import InputError
from beir_cocodr.io import atomic_path, json_sha256
from beir_cocodr.progress import in_place
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.topk import NonFiniteScores, Similarity, search_chunks

Corpus = Mapping[str, Mapping[str, str | None]]
logger = logging.getLogger(__name__)

#: BEIR's name of a score function to sentence-transformers' name of the similarity.
_SIMILARITIES: dict[str, Similarity] = {"cos_sim": "cosine", "dot": "dot"}


_What = Literal["queries", "documents"]


class ExactSearch:
    """Exact dense search: takes the place of BEIR's ``DenseRetrievalExactSearch`` in
    ``EvaluateRetrieval``.

    It differs from BEIR's where that fails or misleads: a single query and ``title: None`` work,
    results come in rank order with ties by descending document id (as trec_eval breaks them), NaN
    or infinite scores raise, a score function other than the model's own is warned of, and neither
    the corpus as text nor its embeddings are held beyond a chunk when the corpus is a `Documents`
    or a dataset of Hugging Face ``datasets``.

    Args:
        model: ``encode_queries(list of str, batch_size=, show_progress_bar=, convert_to_tensor=)``
            and ``encode_corpus(list of {"title", "text"}, ...)`` likewise, each returning one
            vector per text. Its ``similarity_fn_name`` ("cosine" or "dot"), if it has one, is what
            searches compare by by default.
        batch_size: texts that the model encodes at a time.
        corpus_chunk_size: documents handed to the model at a time; their embeddings are held in
            memory.
        ignore_identical_ids: never retrieve the document whose id is the query's, as BEIR's search
            does; the query then gets ``top_k`` others.
        show_progress_bar, convert_to_tensor: passed on to the model; both True by default.
        store: folder of an :class:`~beir_cocodr.retrieval.store.store.EmbeddingStore`. The corpus
            is encoded to it once; later searches with the same model and corpus read it, and an
            interrupted one goes on where it stopped, also in another process. Needs an encoder of
            this package.
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
            raise InputError(
                f"batch_size {batch_size}, corpus_chunk_size {corpus_chunk_size}: both must be 1 or more"
            )
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
            corpus: document id to {"title", "text"}: a BEIR corpus, or what is streamed: a
                `Documents`, or a dataset of columns id, title and text, as BEIR's ``HFDataLoader``
                gives it.
            queries: query id to text, or a dataset of columns id and text.
            top_k: documents wanted for each query.
            score_function: "cos_sim" or "dot"; None is the model's own similarity, and another than
                that is warned of.
            return_sorted: of no consequence, results are always in rank order.
            ignore_identical_ids: overrides the constructor's for this search.
            **kwargs: ignored with a warning.

        Returns:
            Query id to {document id: float32 score as float}, best first, min(top_k, documents
            allowed) each.

        Raises:
            InputError: no documents, no queries, top_k below 1, an unknown score function, none
                where the model declares none, another than the model's with a store, or embeddings
                that do not fit their texts.
            NonFiniteScores: a score is NaN or infinite; names documents and queries.
        """
        _warn_ignored(kwargs)
        return self._named(
            *self._search(corpus, queries, top_k, score_function, ignore_identical_ids)
        )

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
        """`search` without the dictionaries.

        Returns:
            Query ids (Q,), scores (Q, k) float32 and rows (Q, k) int64, best first; k = min(top_k,
            N), rows count in corpus order. Where a query has fewer documents, its last places are
            -inf and -1.
        """
        _, found = self._search(corpus, queries, top_k, score_function, ignore_identical_ids)
        return found.queries, found.scores, found.rows

    def _search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None,
        ignore: bool | None,
    ) -> tuple[Documents | _PlainCorpus, Ranking]:
        similarity, source, texts = (
            self.similarity(score_function),
            _source(corpus),
            query_texts(queries),
        )
        _check_search(len(texts), len(source), top_k)
        excluded = self._excluded(source, list(texts), ignore)
        if self.store is None:
            vectors = self.vectors(list(texts.values()), "queries")
            chunks = (
                self.vectors(chunk, "documents") for chunk in source.chunks(self.corpus_chunk_size)
            )
            return source, rank(source, list(texts), vectors, chunks, top_k, similarity, excluded)
        if similarity != (own := self.similarity(None)):
            raise InputError(
                f"score_function is {score_function!r}, a store is searched by {own}: leave one out"
            )
        documents = source if isinstance(source, Documents) else corpus
        return source, self._search_stored(documents, texts, top_k, self.store, excluded)

    def _search_stored(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        folder: str | Path,
        excluded: Ints | None,
    ) -> Ranking:
        """Encode what the store in ``folder`` has not got, and search it."""
        # Imported here because a search of embeddings that are there needs no encoder library.
        from beir_cocodr.models.cocodr import COCODR
        from beir_cocodr.retrieval.store.encode import encode_documents
        from beir_cocodr.retrieval.store.store_search import search_store

        if not isinstance(self.model, COCODR):
            raise InputError(
                f"a store is keyed by the weights of its encoder, and {type(self.model).__name__} is none of this "
                "package's: load it with load_encoder, or search without store"
            )
        with hashed_documents(corpus) as documents:
            store = encode_documents(
                self.model,
                documents,
                folder,
                queries=list(queries.values()),
                progress=self.show_progress_bar,
            )
        vectors = self.model.encode_queries(
            list(queries.values()),
            batch_size=self.batch_size,
            convert_to_tensor=True,
            show_progress_bar=self.show_progress_bar and in_place(),
        )
        return search_store(
            store, list(queries), vectors, top_k, [str(self.model.device)], excluded_rows=excluded
        )

    def encode(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        encode_output_path: str | Path = "./embeddings/",
        overwrite: bool = False,
        query_filename: str = "queries.pkl",
        corpus_filename: str = "corpus.*.pkl",
        **kwargs: Any,
    ) -> None:
        """Encode to files that :meth:`search_from_files` reads: what BEIR's ``encode_and_retrieve``
        calls.

        The files have BEIR's names, and are no pickles: they hold arrays of numpy, and what these
        depend on. Files of the same encoder and texts are kept, so that an encoding that was
        interrupted goes on.

        Args:
            overwrite: write over files that hold something else.
            query_filename, corpus_filename: names; * is the number of a file, each of
                ``corpus_chunk_size`` documents.

        Raises:
            InputError: a file holds something else, or it cannot be known because the model is no
                encoder of this package; else as for :meth:`search`.
        """
        _warn_ignored({name: value for name, value in kwargs.items() if name != "score_function"})
        source, texts, size = _source(corpus), query_texts(queries), self.corpus_chunk_size
        _check_search(len(texts), len(source), top_k=1)
        if (count := -(-len(source) // size)) > 1 and "*" not in corpus_filename:
            raise InputError(
                f"corpus_filename {corpus_filename!r} is one file, of {count} that it takes: put a * in"
            )
        folder, encoder = Path(encode_output_path), self._encoder()
        chunks: Iterator[Sequence[Any]] = source.chunks(size)
        asked = _Embeddings(folder / query_filename, list(texts), "", encoder, 0, count)
        self._write(asked, list(texts.values()), "queries", overwrite)
        for number, chunk in enumerate(chunks):
            file, ids = (
                corpus_filename.replace("*", str(number)),
                source.ids(range(len(source))[number * size :][:size]),
            )
            self._write(
                _Embeddings(folder / file, ids, "", encoder, number, count),
                chunk,
                "documents",
                overwrite,
            )

    def search_from_files(
        self,
        query_embeddings_file: str | Path,
        corpus_embeddings_files: Sequence[str | Path],
        top_k: int,
        score_function: str | None = None,
        *,
        ignore_identical_ids: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Search the files of :meth:`encode`, in any order; all else is as for :meth:`search`, but
        where the model declares no similarity, the score function is "dot", as in BEIR.

        Raises:
            InputError: a file is missing, damaged or of another encoding, or a pickle, which can
            run code.
        """
        _warn_ignored(kwargs)
        declared = getattr(self.model, "similarity_fn_name", None)
        similarity = self.similarity(
            "dot" if score_function is None and declared is None else score_function
        )
        queries = _Embeddings.read(Path(query_embeddings_file))
        parts = sorted(
            (_Embeddings.read(Path(file)) for file in corpus_embeddings_files),
            key=lambda part: part.number,
        )
        for part in parts:
            if (part.encoder, part.parts) != (queries.encoder, queries.parts):
                raise InputError(
                    f"{part.path} is of another encoding than {queries.path}: move it, or encode again"
                )
        if [part.number for part in parts] != list(range(queries.parts)):
            raise InputError(
                f"{queries.path} is of {queries.parts} files of documents, here are {len(parts)}"
            )
        source = _PlainCorpus({id: {} for part in parts for id in part.ids})
        _check_search(len(queries.ids), len(source), top_k)
        excluded = self._excluded(source, queries.ids, ignore_identical_ids)
        vectors, chunks = torch.from_numpy(queries.vectors()), (part.vectors() for part in parts)
        vectors = vectors.to(getattr(self.model, "device", "cpu"))
        return self._named(
            source, rank(source, queries.ids, vectors, chunks, top_k, similarity, excluded)
        )

    def _write(self, part: _Embeddings, texts: Sequence[Any], what: _What, overwrite: bool) -> None:
        path, ids, _, encoder, *place = part
        key = json_sha256([encoder, what, ids, texts, place])
        if path.exists() and not overwrite:
            if not encoder or _Embeddings.read(path).key != key:
                why = (
                    f"holds other embeddings than this encoder's of these {what}"
                    if encoder
                    else "is there already"
                )
                raise InputError(
                    f"{path} {why}; give overwrite=True, or another encode_output_path"
                )
            logger.info("%s holds these %s already", path, what)
            return
        vectors = self.vectors(texts, what).float().cpu().numpy()
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                vectors=vectors,
                ids=np.array(ids),
                about=np.array([key, encoder, *map(str, place)]),
            )

    def _encoder(self) -> str:
        """A hash of all that vectors depend on beside the texts; empty where the model does not
        show it.
        """
        from beir_cocodr.models.loading import fingerprint

        try:
            return json_sha256([fingerprint(self.model), vars(self.model.text_format)])
        except (AttributeError, InputError):
            return ""

    def _excluded(
        self, source: Documents | _PlainCorpus, queries: list[str], ignore: bool | None
    ) -> Ints | None:
        return (
            source.rows(queries)
            if (self.ignore_identical_ids if ignore is None else ignore)
            else None
        )

    def similarity(self, score_function: str | None) -> Similarity:
        """What a score function stands for; None for the model's own, and another than that is
        warned of.
        """
        declared = getattr(self.model, "similarity_fn_name", None)
        declared = getattr(declared, "value", declared)
        if score_function not in (None, *_SIMILARITIES):
            raise InputError(f"score function {score_function!r} is neither 'cos_sim' nor 'dot'")
        asked: Any = declared if score_function is None else _SIMILARITIES[score_function]
        if asked not in get_args(Similarity):
            has = (
                f"the similarity {declared!r}, which exact search has not"
                if declared
                else "no similarity"
            )
            raise InputError(f"the model declares {has}: give score_function 'cos_sim' or 'dot'")
        if declared not in (None, asked):
            own = next(
                (name for name, similarity in _SIMILARITIES.items() if similarity == declared), None
            )
            logger.warning(
                "the model was trained for the similarity %r, and score_function=%r is what is searched by%s",
                declared, score_function, f"; its own is score_function={own!r}" if own else "",
            )  # fmt: skip
        similarity: Similarity = asked
        return similarity

    def vectors(self, texts: Sequence[Any], what: _What) -> Tensor:
        """What the model returns (tensor, array, or list of either) as (n, d)."""
        encode = self.model.encode_queries if what == "queries" else self.model.encode_corpus
        options = {
            "show_progress_bar": self.show_progress_bar,
            "convert_to_tensor": self.convert_to_tensor,
        }
        encoded = encode(texts, batch_size=self.batch_size, **options)
        if isinstance(encoded, (list, tuple)):
            encoded = torch.stack([torch.as_tensor(vector) for vector in encoded])
        matrix = torch.as_tensor(encoded)
        matrix = matrix[None] if matrix.ndim == 1 else matrix
        if matrix.ndim != 2 or len(matrix) != len(texts):
            shape = tuple(matrix.shape)
            raise InputError(
                f"the model returned embeddings of shape {shape} for {len(texts)} {what}"
            )
        return matrix


class _Embeddings(NamedTuple):
    """A file that `ExactSearch.encode` wrote, one of ``parts`` of a corpus, and hashes of what was
    encoded by what.
    """

    path: Path
    ids: list[str]
    key: str
    encoder: str
    number: int
    parts: int

    @classmethod
    def read(cls, path: Path) -> _Embeddings:
        try:
            with np.load(path, allow_pickle=False) as file:
                key, encoder, number, parts = file["about"].tolist()
                return cls(path, file["ids"].tolist(), key, encoder, int(number), int(parts))
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            zipfile.BadZipFile,
        ) as error:
            raise InputError(
                f"{path} is no file of embeddings that encode of ExactSearch wrote; encode again (BEIR's own files are "
                "pickles, which can run code, and are not read)"
            ) from error

    def vectors(self) -> Floats:
        """(n, d) float32."""
        try:
            with np.load(self.path, allow_pickle=False) as file:
                vectors: Floats = file["vectors"]
                return vectors
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.path} is damaged; encode again with overwrite=True") from error


class _PlainCorpus:
    """A BEIR corpus dict with the parts of `Documents` that a search needs."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._ids = list(corpus)
        wrong = next((id for id in self._ids if not isinstance(id, str)), None)
        if wrong is not None:
            raise InputError(
                f"document id {wrong!r} is not a string: ids are compared and sorted as strings"
            )

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
            yield [
                {f: "" if v is None else v for f, v in d.items()} if None in d.values() else d
                for d in chunk
            ]


def _source(corpus: Any) -> Documents | _PlainCorpus:
    if hasattr(corpus, "column_names"):
        return dataset_documents(corpus)
    return corpus if isinstance(corpus, Documents) else _PlainCorpus(corpus)


def query_texts(queries: Any) -> Mapping[str, str]:
    """Queries by id, as they are or of a dataset."""
    texts: Mapping[str, str] = queries
    if hasattr(queries, "column_names"):
        texts = {id: document["text"] for id, document in dataset_documents(queries).items()}
    return texts


def _check_search(queries: int, documents: int, top_k: int) -> None:
    if not queries:
        raise InputError("there are no queries to search for")
    if not documents:
        raise InputError("the corpus has no documents")
    if top_k < 1:
        raise InputError(f"top_k is {top_k}: ask for at least one document")


def rank(
    source: Documents | _PlainCorpus,
    queries: list[str],
    vectors: Tensor,
    chunks: Iterable[Any],
    top_k: int,
    similarity: Similarity = "dot",
    excluded: Ints | None = None,
) -> Ranking:
    """The ``top_k`` best of each query, by ids and (Q, d) vectors, among a corpus's (n, d) chunks;
    for the rest see :func:`~beir_cocodr.retrieval.topk.search_chunks`, whose errors name ids here.
    """
    try:
        ties = source.tie_ranks()
        scores, rows = search_chunks(
            vectors, chunks, top_k, ties, similarity=similarity, excluded_rows=excluded
        )
    except NonFiniteScores as error:
        raise error.named(source.ids, queries) from None
    return Ranking(queries, scores.cpu().numpy(), rows.cpu().numpy())


def _warn_ignored(kwargs: Mapping[str, Any]) -> None:
    if kwargs:
        logger.warning("ExactSearch ignores the arguments %s", ", ".join(sorted(kwargs)))
