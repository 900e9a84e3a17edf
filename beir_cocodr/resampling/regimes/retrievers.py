"""From a trained or given model to something that ranks a corpus.

Exact search by late interaction and by a learned sparse encoder, a first stage reranked by a cross-encoder, and
everything that `evaluate` takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import Json
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architectures import BM25_FILE, BM25Parameters
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Ranking, Retriever, best_rows
from beir_cocodr.retrieval.retrievers import Retrievers

_CONFIG = "config_sentence_transformers.json"

#: What stands before a hub name that is no dense encoder, and the host's class for it.
KINDS = {"splade": SparseEncoder, "late-interaction": MultiVectorEncoder, "cross-encoder": CrossEncoder}

#: Joins titles and texts.
_TEXT_FORMAT = TextFormat()


def load_retriever(model: str, documents: Documents, work: Path, recipe: Recipe, progress: bool = False) -> Retriever:
    """A retriever over one corpus, of the kind that its folder has.

    Args:
        model: a folder that an architecture saved; any folder of sentence-transformers; ``splade:``,
            ``late-interaction:`` or ``cross-encoder:`` and a hub name; or what `evaluate` takes for a model.
        documents: the corpus.
        work: folder for embeddings; the caller removes it.
        recipe: lengths of dense encoders, first stage and depth of reranking, batch size and device.
        progress: show bars on stderr.

    Raises:
        InputError: the model cannot be loaded.
    """
    options = SearchOptions(recipe.encoder, batch_size=recipe.encode_batch_size, progress=progress)
    retrievers = Retrievers(documents, work, options)
    tuned = Path(model) / BM25_FILE
    if tuned.is_file():
        found = BM25Parameters.read(tuned)
        return BM25(documents, k1=found.k1, b=found.b)
    prefix, _, name = model.partition(":")
    kind = KINDS.get(prefix) if name else _kind(model)
    if kind is None:
        return retrievers.get(model)
    return _host(kind, name if prefix in KINDS else model, retrievers, recipe, progress)


def _kind(model: str) -> type | None:
    """The host's class for what is not dense; None for everything else."""
    file = Path(model) / _CONFIG
    if not file.is_file():
        return None
    name = json.loads(file.read_text()).get("model_type")
    return next((kind for kind in KINDS.values() if kind.__name__ == name), None)


def _host(kind: Any, name: str, retrievers: Retrievers, recipe: Recipe, progress: bool) -> Retriever:
    try:
        model = kind(name, device=recipe.device)
    except (OSError, ValueError) as error:
        raise InputError(f"model {name!r} cannot be loaded as a {kind.__name__}: {error}") from error
    corpus = (retrievers.documents, recipe.encode_batch_size, progress)
    if kind is SparseEncoder:
        return SparseRetriever(model, *corpus)
    if kind is MultiVectorEncoder:
        return LateInteractionRetriever(model, *corpus)
    first = retrievers.get(recipe.first_stage)
    return RerankRetriever(model, first, recipe.rerank, *corpus)


class TopDocuments:
    """Keeps the ``top_k`` best of what it has been shown.

    Args:
        queries: (Q,) query ids.
        top_k: documents a query.
        ties: (N,) tie ranks of the corpus; among equal scores the smaller comes first.
    """

    def __init__(self, queries: list[str], top_k: int, ties: npt.NDArray[np.int64]) -> None:
        self.queries, self.top_k, self.ties = queries, min(top_k, len(ties)), ties
        self._rows = [np.zeros(0, np.int64) for _ in queries]
        self._scores = [np.zeros(0, np.float32) for _ in queries]

    def add(self, query: int, rows: npt.NDArray[np.int64], scores: npt.NDArray[np.float32]) -> None:
        """Show (n,) further corpus rows with their scores for the query of that number.

        Raises:
            InputError: a score is NaN or infinite.
        """
        if not np.isfinite(scores).all():
            raise InputError(
                f"query {self.queries[query]!r} has a score that is NaN or infinite; the model is broken, "
                "as after training with too high a learning rate"
            )
        rows = np.concatenate([self._rows[query], rows])
        scores = np.concatenate([self._scores[query], scores.astype(np.float32, copy=False)])
        best = best_rows(scores, self.ties[rows], self.top_k)
        self._rows[query], self._scores[query] = rows[best], scores[best]

    def ranking(self) -> Ranking:
        """What is kept; queries that were shown fewer documents have fewer."""
        rows = np.full((len(self.queries), self.top_k), -1, np.int64)
        scores = np.zeros((len(self.queries), self.top_k), np.float32)
        for i, (found, values) in enumerate(zip(self._rows, self._scores, strict=True)):
            rows[i, : len(found)], scores[i, : len(found)] = found, values
        return Ranking(self.queries, scores, rows)


class _HostRetriever:
    """A model of sentence-transformers over a corpus.

    Args:
        model: the host's.
        documents: the corpus.
        batch_size: texts, or pairs of a query and a document, encoded at a time.
        progress: show a bar on stderr.
    """

    def __init__(self, model: Any, documents: Documents, batch_size: int, progress: bool) -> None:
        self.model, self.documents = model, documents
        self.batch_size, self.progress = batch_size, progress

    def prepare(self) -> None:
        """Nothing to do beforehand."""

    def texts(self, documents: Iterable[dict[str, str]]) -> list[str]:
        """What the model reads of documents."""
        return [_TEXT_FORMAT.document(document) for document in documents]

    def described(self, **own: object) -> Json:
        return {**own, "text_format": {"title_separator": _TEXT_FORMAT.title_separator}}


#: Documents that are encoded and scored at a time.
_LATE_CHUNK = 256


class LateInteractionRetriever(_HostRetriever):
    """The host's MaxSim of every query with every document.

    The vectors of all tokens would not fit into memory for long, so documents are encoded as they are scored and
    nothing is kept: every search encodes the corpus.
    """

    model: MultiVectorEncoder

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        top = TopDocuments(list(queries), top_k, self.documents.tie_ranks())
        options: dict[str, Any] = {"batch_size": self.batch_size, "show_progress_bar": self.progress}
        encoded = self.model.encode_query(list(queries.values()), **options)
        start = 0
        for chunk in self.documents.chunks(_LATE_CHUNK):
            scores = self.model.similarity(encoded, self.model.encode_document(self.texts(chunk), **options))
            rows = np.arange(start, start + len(chunk))
            for i, found in enumerate(scores.float().cpu().numpy()):
                top.add(i, rows, found)
            start += len(chunk)
        return top.ranking()

    def describe(self) -> Json:
        return self.described(
            model="late interaction",
            similarity=self.model.similarity_fn_name,
            dimensions=self.model.get_embedding_dimension(),
        )


class RerankRetriever(_HostRetriever):
    """The first stage's best documents in the order of a cross-encoder's raw scores.

    Args:
        model: the cross-encoder, with one score a pair.
        first: what retrieves.
        depth: documents of the first stage that are reranked; no others are retrieved.

    Raises:
        InputError: the cross-encoder has several scores a pair.
    """

    model: CrossEncoder

    def __init__(self, model: CrossEncoder, first: Retriever, depth: int, *corpus: Any) -> None:
        super().__init__(model, *corpus)
        if model.num_labels != 1:
            raise InputError(f"the cross-encoder gives {model.num_labels} scores a pair; one is needed")
        self.first, self.depth = first, depth

    def prepare(self) -> None:
        self.first.prepare()

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        found = self.first.search(queries, self.depth)
        top = TopDocuments(list(queries), min(top_k, self.depth), self.documents.tie_ranks())
        for i, text in enumerate(queries.values()):
            rows = found.rows[i][found.rows[i] >= 0]
            if not len(rows):
                continue
            raw: Any = self.model.predict(
                [(text, document) for document in self.texts(self.documents.take(rows))],
                batch_size=self.batch_size,
                activation_fn=torch.nn.Identity(),
                show_progress_bar=False,
            )
            top.add(i, rows, np.asarray(raw, np.float32))
        return top.ranking()

    def describe(self) -> Json:
        return self.described(
            model="cross-encoder",
            reranked=self.depth,
            max_length=self.model.max_seq_length,
            first_stage=self.first.describe(),
        )


#: Documents that are encoded at a time.
_SPARSE_CHUNK = 1_024


class SparseRetriever(_HostRetriever):
    """Dot products of sparse vectors; what shares no dimension with the query is not retrieved.

    The corpus is encoded once and held in memory as a sparse matrix.

    Raises:
        InputError: the encoder compares by something else.
    """

    model: SparseEncoder

    def __init__(self, model: SparseEncoder, *corpus: Any) -> None:
        super().__init__(model, *corpus)
        if model.similarity_fn_name not in (None, "dot"):
            raise InputError(
                f'the sparse encoder compares by {model.similarity_fn_name}; save it with similarity_fn_name "dot"'
            )
        self._matrix: Any = None

    def prepare(self) -> None:
        if self._matrix is None:
            parts = [
                self._encode(self.model.encode_document, self.texts(chunk))
                for chunk in self.documents.chunks(_SPARSE_CHUNK)
            ]
            self._matrix = sparse.vstack(parts, format="csr")

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        self.prepare()
        encoded = self._encode(self.model.encode_query, list(queries.values()))
        top = TopDocuments(list(queries), top_k, self.documents.tie_ranks())
        for i in range(len(queries)):
            scores = self._matrix @ encoded[i].toarray()[0]
            matching = np.flatnonzero(scores > 0)
            top.add(i, matching, scores[matching])
        return top.ranking()

    def describe(self) -> Json:
        self.prepare()
        return self.described(
            model="sparse",
            similarity="dot",
            active_dimensions_of_a_document=float(self._matrix.nnz / self._matrix.shape[0]),
        )

    def _encode(self, encode: Any, texts: list[str]) -> Any:
        """(n,) texts to an (n, V) float32 matrix in CSR format."""
        found = encode(
            texts, batch_size=self.batch_size, show_progress_bar=self.progress, convert_to_sparse_tensor=True
        )
        found = found.cpu().coalesce()
        rows, columns = found.indices().numpy()
        values = found.values().float().numpy()
        return sparse.csr_matrix((values, (rows, columns)), shape=tuple(found.shape))
