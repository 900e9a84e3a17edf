"""Retrievers of sentence-transformers' classes: cross-encoders, learned sparse encoders, late interaction."""

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from beir_cocodr.models.cocodr import set_lengths
from beir_cocodr.models.integrity import LATE_INTERACTION, SPARSE, check_loaded, loading
from beir_cocodr.models.loading import load_cross_encoder
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.progress import in_place
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranking, Retriever
from beir_cocodr.retrieval.topk import NonFiniteScores, merge_keys, ranks_of, scores_of, to_keys

#: What a folder of sentence-transformers says of the class that it is for.
CONFIG = "config_sentence_transformers.json"

#: Documents of the first stage that a cross-encoder reads, and that late interaction scores.
RERANKED, CANDIDATES = 100, 1_000

# Documents that are encoded at a time.
_CHUNK = 256


class HostRetriever:
    """A model of sentence-transformers over a corpus.

    Args:
        name: folder or hub name.
        documents: the corpus.
        options: ``batch_size`` texts, or pairs of a query and a document, go through the model at a time, with ``bf16``
            in bfloat16 (PyTorch's autocast). Lengths and prompts of ``encoder`` are those of encoders; a cross-encoder
            has its own length.
        first: whose ``depth`` best documents are candidates.

    Raises:
        InputError: the model cannot be loaded whole, or is of another kind, whose layers would be drawn at random.
    """

    depth = RERANKED

    def __init__(
        self,
        name: str,
        documents: Documents,
        options: SearchOptions = SearchOptions(),
        first: Retriever | None = None,
        depth: int | None = None,
    ) -> None:
        self.documents, self.options, self.first, self.depth = documents, options, first, depth or self.depth
        self.model: Any = self.load(name)
        self.read = readable(self.model.tokenizer, self.model.prompts.values())

    def load(self, name: str) -> Any:
        raise NotImplementedError

    def prepare(self) -> None:
        if self.first is not None:
            self.first.prepare()

    @property
    def text_format(self) -> TextFormat:
        return self.options.encoder.text_format

    def texts(self, documents: Iterable[dict[str, str]]) -> list[str]:
        """What the model reads of documents."""
        return [self.read(self.text_format.document(document)) for document in documents]

    def precision(self) -> AbstractContextManager[Any]:
        """In which the model runs."""
        bf16 = torch.autocast(torch.device(self.model.device).type, torch.bfloat16)
        return bf16 if self.options.bf16 else nullcontext()

    def encode(self, encode: Any, texts: Sequence[object], **settings: Any) -> Any:
        """What one of the model's methods makes of texts or pairs of them."""
        shown = {"batch_size": self.options.batch_size, "show_progress_bar": self.options.progress and in_place()}
        with self.precision():
            return encode(texts, **shown | settings)

    def described(self, **own: object) -> Json:
        first = {} if self.first is None else {"first_stage": self.first.describe(), "reranked": self.depth}
        bf16 = {"bf16": True} if self.options.bf16 else {}
        return {**own, **first, **bf16, "text_format": {"title_separator": self.text_format.title_separator}}

    def check_finite(self, scores: Floats, rows: Ints, queries: list[str]) -> None:
        """Raise :class:`NonFiniteScores` for (Q, n) scores of documents."""
        if not np.isfinite(scores).all():
            at, column = np.argwhere(~np.isfinite(scores))[0]
            raise NonFiniteScores(self.documents.ids(rows[[column]]), [queries[at]])


def load_host(kind: Any, name: str, options: SearchOptions) -> Any:
    """A sparse or multi-vector encoder, of weights that were trained as one."""
    task, bare = (
        (SPARSE, ("ForMaskedLM",)) if kind is SparseEncoder else (LATE_INTERACTION, ("HF_ColBERT", "ForRetrieval"))
    )
    with loading(name, task):
        _check_kind(name, kind.__name__, bare)
        model = kind(name, device=options.encoder.device)
        check_loaded(model, model.tokenizer, name)
    given = {"query": options.encoder.query_prompt, "document": options.encoder.document_prompt}
    model.prompts = model.prompts | {task: prompt for task, prompt in given.items() if prompt is not None}
    set_lengths(model[0], options.encoder.query_length, options.encoder.document_length)
    return model


def _check_kind(name: str, kind: str, bare: tuple[str, ...]) -> None:
    """The hosts turn an encoder of another kind into theirs, by layers with random weights."""

    def settings(file: str) -> Json:
        path = load_file_path(name, file)
        return {} if path is None else dict(json.loads(Path(path).read_text(encoding="utf-8")))

    saved = settings(CONFIG).get("model_type")
    made: Any = settings("config.json").get("architectures") or []
    is_saved = load_file_path(name, "modules.json") is not None
    if saved not in (kind, "ColBERT") if is_saved else not str(made[0] if made else "").endswith(bare):
        raise InputError(
            f"model {name!r} is no {kind}, but {saved or 'a bare transformer'}: it would be given layers with "
            "random weights; name a model that was trained as one"
        )


class Reranking(HostRetriever):
    """The ``depth`` best documents of a first stage, and no others, in the order of a cross-encoder's raw scores."""

    def load(self, name: str) -> CrossEncoder:
        model: CrossEncoder = load_cross_encoder(name, self.options.encoder.device)[0]
        return model

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        assert self.first is not None
        found = self.first.search(queries, self.depth)
        scored = []
        for (query, text), row in zip(queries.items(), found.rows, strict=True):
            rows = row[row >= 0]
            pairs = [(self.read(text), document) for document in self.texts(self.documents.take(rows))]
            raw = (
                self.encode(self.model.predict, pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
                if pairs
                else []
            )
            scores = np.asarray(raw, np.float32)
            self.check_finite(scores[None], rows, [query])
            scored.append((rows, scores))
        return Ranking.of_best(queries, scored, self.documents.tie_ranks(), min(top_k, self.depth))

    def describe(self) -> Json:
        return self.described(model="cross-encoder", max_length=self.model.max_seq_length)


class LateInteraction(HostRetriever):
    """The host's exact MaxSim of every query with its ``depth`` best documents of a first stage, or with all documents.

    The vectors of all tokens would not fit into memory for long, so documents are encoded as they are scored, each once
    a search, and nothing is kept.
    """

    depth = CANDIDATES

    def load(self, name: str) -> MultiVectorEncoder:
        model: MultiVectorEncoder = load_host(MultiVectorEncoder, name, self.options)
        return model

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        chosen = None if self.first is None else self.first.search(queries, self.depth).rows  # (Q, depth)
        wanted = np.arange(len(self.documents)) if chosen is None else np.unique(chosen[chosen >= 0])
        encoded = self.encode(self.model.encode_query, list(map(self.read, queries.values())))
        ties, kept = self.documents.tie_ranks(), torch.empty(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(wanted), _CHUNK):
            rows = wanted[start : start + _CHUNK]
            vectors = self.encode(self.model.encode_document, self.texts(self.documents.take(rows)))
            with self.precision():
                scores = self.model.similarity(encoded, vectors).float().cpu().numpy()
            self.check_finite(scores, rows, list(queries))
            if chosen is not None:
                scores[~np.stack([np.isin(rows, row) for row in chosen])] = -np.inf
            ranks = torch.from_numpy(ties[rows]).expand(scores.shape)
            kept = merge_keys([kept, to_keys(torch.from_numpy(scores), ranks)], top_k)
        found, there = np.argsort(ties)[ranks_of(kept).numpy()], np.isfinite(values := scores_of(kept).numpy())
        return Ranking(list(queries), np.where(there, values, 0), np.where(there, found, -1))

    def describe(self) -> Json:
        width = self.model.get_embedding_dimension()
        return self.described(model="late interaction", similarity=self.model.similarity_fn_name, dimensions=width)


class Sparse(HostRetriever):
    """Dot products of sparse vectors; what shares no dimension with the query is not retrieved.

    The corpus is encoded once and held in memory as a sparse matrix.

    Raises:
        InputError: the encoder compares by something else.
    """

    _matrix: Any = None

    def load(self, name: str) -> SparseEncoder:
        model: SparseEncoder = load_host(SparseEncoder, name, self.options)
        if model.similarity_fn_name not in (None, "dot"):
            raise InputError(
                f'the sparse encoder compares by {model.similarity_fn_name}; save it with similarity_fn_name "dot"'
            )
        return model

    def prepare(self) -> None:
        if self._matrix is None:
            chunks = map(self.texts, self.documents.chunks(4 * _CHUNK))
            parts = [self._vectors(self.model.encode_document, texts) for texts in chunks]
            self._matrix = sparse.vstack(parts, format="csr")

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        self.prepare()
        encoded = self._vectors(self.model.encode_query, list(map(self.read, queries.values())))
        scored = []
        for row, query in enumerate(queries):
            scores = self._matrix @ encoded[row].toarray()[0]
            self.check_finite(scores[None], np.arange(len(scores)), [query])
            matching = np.flatnonzero(scores > 0)
            scored.append((matching, scores[matching]))
        return Ranking.of_best(queries, scored, self.documents.tie_ranks(), top_k)

    def describe(self) -> Json:
        self.prepare()
        active = float(self._matrix.nnz / self._matrix.shape[0])
        return self.described(model="sparse", similarity="dot", active_dimensions_of_a_document=active)

    def _vectors(self, encode: Any, texts: list[str]) -> Any:
        """(n,) texts to an (n, V) float32 matrix in CSR format."""
        found = self.encode(encode, texts, convert_to_sparse_tensor=True).cpu().coalesce()
        return sparse.csr_matrix((found.values().float().numpy(), found.indices().numpy()), shape=tuple(found.shape))
