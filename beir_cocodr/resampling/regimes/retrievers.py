"""From a trained or given model to something that ranks a corpus: late interaction, a learned sparse encoder, a first
stage reranked by a cross-encoder, and everything that `evaluate` takes.
"""

import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.util import load_file_path

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat, readable
from beir_cocodr.errors import InputError
from beir_cocodr.models.integrity import LATE_INTERACTION, SPARSE, check_loaded, loading
from beir_cocodr.models.loading import load_cross_encoder
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.progress import in_place
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
    """A retriever over one corpus, of the kind that its folder has; an InputError where it cannot be loaded.

    Args:
        model: a folder that an architecture saved; any folder of sentence-transformers; ``splade:``,
            ``late-interaction:`` or ``cross-encoder:`` and a hub name; or what `evaluate` takes for a model.
        documents: the corpus.
        work: folder for embeddings; the caller removes it.
        recipe: lengths of dense encoders, first stage and depth of reranking, batch size and device.
        progress: show bars on stderr.
    """
    options = SearchOptions(recipe.encoder, batch_size=recipe.encode_batch_size, progress=progress)
    retrievers = Retrievers(documents, work, options)
    if (tuned := Path(model) / BM25_FILE).is_file():
        found = BM25Parameters.read(tuned)
        return BM25(documents, k1=found.k1, b=found.b)
    prefix, _, name = model.partition(":")
    kind = KINDS.get(prefix) if name else None
    if kind is None:
        name, file = model, Path(model) / _CONFIG
        with loading(name) if file.is_file() else nullcontext():
            recorded = json.loads(file.read_text(encoding="utf-8")).get("model_type") if file.is_file() else None
        kind = next((kind for kind in KINDS.values() if kind.__name__ == recorded), None)
    if kind is None:
        return retrievers.get(model)
    corpus = (documents, recipe.encode_batch_size, progress)
    if kind is CrossEncoder:
        reranker, _ = load_cross_encoder(name, recipe.device)
        return RerankRetriever(reranker, retrievers.get(recipe.first_stage), recipe.rerank, *corpus)
    sparse = kind is SparseEncoder
    with loading(name, SPARSE if sparse else LATE_INTERACTION):
        _check_kind(name, kind.__name__, ("ForMaskedLM",) if sparse else ("HF_ColBERT", "ForRetrieval"))
        host: Any = kind(name, device=recipe.device)
        check_loaded(host, host.tokenizer, name)
    return SparseRetriever(host, *corpus) if sparse else LateInteractionRetriever(host, *corpus)


def _check_kind(name: str, kind: str, bare: tuple[str, ...]) -> None:
    """The hosts turn an encoder of another kind into theirs, by layers with random weights."""

    def settings(file: str) -> Json:
        path = load_file_path(name, file)
        return {} if path is None else dict(json.loads(Path(path).read_text(encoding="utf-8")))

    saved = settings(_CONFIG).get("model_type")
    made: Any = settings("config.json").get("architectures") or []
    is_saved = load_file_path(name, "modules.json") is not None
    if saved not in (kind, "ColBERT") if is_saved else not str(made[0] if made else "").endswith(bare):
        raise InputError(
            f"model {name!r} is no {kind}, but {saved or 'a bare transformer'}: it would be given layers with "
            "random weights; name a model that was trained as one"
        )


class TopDocuments:
    """Keeps for each query the ``top_k`` best documents that it has been shown, ties by the order of the corpus."""

    def __init__(self, queries: Iterable[str], top_k: int, documents: Documents) -> None:
        self.queries, self.ties = list(queries), documents.tie_ranks()
        self.top_k = min(top_k, len(self.ties))
        self._rows = [np.zeros(0, np.int64) for _ in self.queries]
        self._scores = [np.zeros(0, np.float32) for _ in self.queries]

    def add(self, query: int, rows: Ints, scores: Floats) -> None:
        """Show (n,) further corpus rows with scores for the query of that number; InputError: NaN or infinite."""
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
        return Ranking.of_best(self.queries, zip(self._rows, self._scores, strict=True), self.ties, self.top_k)


class _HostRetriever:
    """A model of the host over a corpus; ``batch_size``: texts or pairs at a time, ``progress``: bars on stderr."""

    def __init__(self, model: Any, documents: Documents, batch_size: int, progress: bool) -> None:
        self.model, self.documents = model, documents
        self.read = readable(model.tokenizer, model.prompts.values())
        self.options: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": progress and in_place()}

    def prepare(self) -> None:
        """Nothing to do beforehand."""

    def texts(self, documents: Iterable[dict[str, str]]) -> list[str]:
        """What the model reads of documents."""
        return [self.read(_TEXT_FORMAT.document(document)) for document in documents]

    def described(self, **own: object) -> Json:
        return {**own, "text_format": {"title_separator": _TEXT_FORMAT.title_separator}}


#: Documents that are encoded and scored at a time.
_LATE_CHUNK = 256


class LateInteractionRetriever(_HostRetriever):
    """The host's MaxSim of every query with every document. The vectors of all tokens would not fit into memory for
    long: documents are encoded as they are scored, in every search anew.
    """

    model: MultiVectorEncoder

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        top, start = TopDocuments(queries, top_k, self.documents), 0
        encoded: Any = self.model.encode_query(list(map(self.read, queries.values())), **self.options)
        for chunk in self.documents.chunks(_LATE_CHUNK):
            vectors: Any = self.model.encode_document(self.texts(chunk), **self.options)
            scores = self.model.similarity(encoded, vectors)
            rows = np.arange(start, start + len(chunk))
            for i, found in enumerate(scores.float().cpu().numpy()):
                top.add(i, rows, found)
            start += len(chunk)
        return top.ranking()

    def describe(self) -> Json:
        model = self.model
        similarity, size = model.similarity_fn_name, model.get_embedding_dimension()
        return self.described(model="late interaction", similarity=similarity, dimensions=size)


class RerankRetriever(_HostRetriever):
    """The ``depth`` best documents of a first stage, and no others, in the order of a cross-encoder's raw scores."""

    model: CrossEncoder

    def __init__(self, model: CrossEncoder, first: Retriever, depth: int, *corpus: Any) -> None:
        super().__init__(model, *corpus)
        self.first, self.depth = first, depth

    def prepare(self) -> None:
        self.first.prepare()

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        found = self.first.search(queries, self.depth)
        top = TopDocuments(queries, min(top_k, self.depth), self.documents)
        for i, text in enumerate(map(self.read, queries.values())):
            rows = found.rows[i][found.rows[i] >= 0]
            if not len(rows):
                continue
            raw = self.model.predict(
                [(text, document) for document in self.texts(self.documents.take(rows))],
                **self.options | {"show_progress_bar": False},
                activation_fn=torch.nn.Identity(),
            )
            top.add(i, rows, np.asarray(raw, np.float32))
        return top.ranking()

    def describe(self) -> Json:
        longest, first = self.model.max_seq_length, self.first.describe()
        return self.described(model="cross-encoder", reranked=self.depth, max_length=longest, first_stage=first)


#: Documents that are encoded at a time.
_SPARSE_CHUNK = 1_024


class SparseRetriever(_HostRetriever):
    """Dot products of sparse vectors, else an InputError; what shares no dimension with the query is not retrieved. The
    corpus is encoded once and held in memory as a sparse matrix.
    """

    model: SparseEncoder

    def __init__(self, model: SparseEncoder, *corpus: Any) -> None:
        super().__init__(model, *corpus)
        if model.similarity_fn_name not in (None, "dot"):
            raise InputError(f"the sparse encoder compares by {model.similarity_fn_name}; save it with dot")
        self._matrix: Any = None

    def prepare(self) -> None:
        if self._matrix is None:
            chunks = map(self.texts, self.documents.chunks(_SPARSE_CHUNK))
            parts = [self._encode(self.model.encode_document, texts) for texts in chunks]
            self._matrix = sparse.vstack(parts, format="csr")

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        self.prepare()
        encoded = self._encode(self.model.encode_query, list(map(self.read, queries.values())))
        top = TopDocuments(queries, top_k, self.documents)
        for i in range(len(queries)):
            scores = self._matrix @ encoded[i].toarray()[0]
            matching = np.flatnonzero(scores > 0)
            top.add(i, matching, scores[matching])
        return top.ranking()

    def describe(self) -> Json:
        self.prepare()
        active = float(self._matrix.nnz / self._matrix.shape[0])
        return self.described(model="sparse", similarity="dot", active_dimensions_of_a_document=active)

    def _encode(self, encode: Any, texts: list[str]) -> Any:
        """(n,) texts to an (n, V) float32 matrix in CSR format."""
        found = encode(texts, **self.options, convert_to_sparse_tensor=True).cpu().coalesce()
        return sparse.csr_matrix((found.values().float().numpy(), found.indices().numpy()), shape=tuple(found.shape))
