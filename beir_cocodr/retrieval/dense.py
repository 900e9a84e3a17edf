"""A corpus encoded once, in memory or a store, and searched exactly; or searched in a store that
``encode`` wrote.
"""

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beir_cocodr.data.documents import Documents
from beir_cocodr.distributed import gather
from beir_cocodr.errors import UNFINISHED, InputError
from beir_cocodr.io import json_sha256
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.models.loading import fingerprint
from beir_cocodr.progress import Bar
from beir_cocodr.records import Json
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder, HybridCorpusEncoder, Watcher
from beir_cocodr.retrieval.exact import rank
from beir_cocodr.retrieval.ranking import Parts, Ranking
from beir_cocodr.retrieval.store.embeddings import Embeddings, MemoryEmbeddings
from beir_cocodr.retrieval.store.encode import encode_documents, encode_over_ranks, identity_of
from beir_cocodr.retrieval.store.record import SHARD_SIZE, Backend, EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore

#: Bytes of embeddings that are held in memory; those of a larger corpus go to a store on disk.
IN_MEMORY = 256 << 20

# No encoder has more dimensions.
_WIDEST = 4_096
_FIRST = np.zeros(1, np.int64)
log = logging.getLogger(__name__)

# Bytes of query vectors that are kept for those who search for the same queries.
_KEPT_QUERIES = 64 << 20

# Scores whose deviation is this share of what they are sums of differ by rounding alone.
_ROUNDING = 1e-8

# Squares of larger numbers are summed in double precision.
_SQUARED_IN_FLOAT32 = 1e15


class EmbeddingPool:
    """Embeddings that the stages of a run share, by what they depend on.

    One encoder encodes one corpus once, whoever asks, also as the dense part of a hybrid encoder.
    The key is a hash of weights, tokenizer, texts, lengths and prompts.

    Args:
        folder: holds embeddings that are too large for memory.
        in_memory: bytes of embeddings that are held in memory; beyond them, those that were used
            longest ago are dropped.
    """

    def __init__(self, folder: Path, in_memory: int = IN_MEMORY) -> None:
        self.folder = folder
        self.in_memory = in_memory
        self._held: dict[str, Embeddings] = {}

    @classmethod
    @contextmanager
    def temporary(cls, folder: Path) -> Iterator["EmbeddingPool"]:
        """Yield a pool whose stores lie in a new folder below ``folder``, removed at the end."""
        with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as place:
            yield cls(Path(place))

    def of(self, model: COCODR, documents: Documents) -> Embeddings:
        """Return the embeddings of a corpus by an encoder."""
        return self.get(Dense(model, documents, self.folder))

    def get(self, dense: "Dense") -> Embeddings:
        """Return the embeddings that a search needs, encoded the first time."""
        encoder = CorpusEncoder(dense.model, dense.documents, watcher=dense.watcher)
        key = json_sha256(identity_of(encoder, EncodeOptions(), SHARD_SIZE))
        embeddings = self._held.pop(key, None)
        if embeddings is None:
            if isinstance(dense.model, HybridEncoder):
                dense_part = self.of(dense.model.dense_part(), dense.documents)
                encoder = HybridCorpusEncoder(dense.model, dense.documents, dense_part)
            embeddings = dense.encode_corpus(self.folder / key, encoder)
        self._held[key] = embeddings
        self._drop_oldest()
        return embeddings

    def _drop_oldest(self) -> None:
        sizes = {
            key: 4 * len(embeddings) * embeddings.dimensions
            for key, embeddings in self._held.items()
            if isinstance(embeddings, MemoryEmbeddings)
        }
        while len(sizes) > 1 and sum(sizes.values()) > self.in_memory:
            oldest = next(iter(sizes))
            del self._held[oldest]
            del sizes[oldest]


# Used by stages of a run that are not handed its resources yet.
_SHARED: ContextVar[EmbeddingPool | None] = ContextVar("shared embeddings", default=None)


@contextmanager
def sharing_embeddings(folder: Path) -> Iterator[None]:
    """Share embeddings among all who search meanwhile."""
    with EmbeddingPool.temporary(folder) as pool:
        token = _SHARED.set(pool)
        try:
            yield
        finally:
            _SHARED.reset(token)


def shared_embeddings(model: COCODR, documents: Documents) -> Embeddings | None:
    """Return the shared embeddings of a corpus, None where nothing is shared."""
    pool = _SHARED.get()
    return None if pool is None else pool.of(model, documents)


#: Documents looked at to tell how many are truncated; a larger corpus is sampled evenly.
TRUNCATION_SAMPLE = 10_000


class Moments:
    """Mean and covariance of the embeddings of a corpus, from which follow those of the scores of
    any query.

    They are summed around a first mean, so that nothing is lost where all embeddings point the same
    way. ``largest`` is that of all numbers without their sign, NaN or infinite where one of them
    is.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        width = embeddings.dimensions
        total, squares, largest = np.zeros(width), np.zeros((width, width)), 0.0
        centre: torch.Tensor | None = None
        for chunk in embeddings.chunks():
            centre = chunk.double().mean(dim=0).float() if centre is None else centre
            moved = chunk - centre
            largest = float(np.maximum(largest, float(chunk.abs().max())))
            moved = moved if largest < _SQUARED_IN_FLOAT32 else moved.double()
            total += moved.sum(dim=0, dtype=torch.float64).numpy()
            squares += (moved.T @ moved).double().numpy()
        moved_mean = total / len(embeddings)
        self.mean = moved_mean + (0 if centre is None else centre.double().numpy())
        self.covariance = squares / len(embeddings) - np.outer(moved_mean, moved_mean)
        self.largest = largest

    def of_scores(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Q,) means and deviations of the scores of all documents for (Q, d) queries; of constant
        ones 0.
        """
        wide = queries.astype(np.float64)
        deviation = np.sqrt(np.maximum(((wide @ self.covariance) * wide).sum(axis=1), 0))
        rounding = _ROUNDING * self.largest * np.abs(wide).sum(axis=1)
        return wide @ self.mean, np.where(deviation > rounding, deviation, 0)


class Dense:
    """Exact search with one encoder over one corpus.

    The corpus is encoded on first use, once for dense search, fusions and feedback, and held in
    memory or, where it is large, in a store on disk; results are the same to the last bit. Cosine
    models are normalised there; after that every score is a float32 dot product.

    Args:
        model: the encoder.
        documents: the corpus.
        folder: of the store, if one is needed; made then, and removed by the caller.
        batch_size: queries encoded at a time; documents are batched by their tokens.
        progress: show a bar on stderr.
        given: existing embeddings, such as a store of this model and corpus that is not folded.
        shared: all processes of a run make the same object and encode a large corpus together, in
            bfloat16 on a GPU.
        pool: embeddings of the run, looked up before the corpus is encoded.

    Attributes:
        in_memory: the most bytes of embeddings that are held in memory, 256 MiB.
        watcher: called with the number of documents after each encoded batch.
        known_queries: text to vector, (d,), of the queries that were encoded last.
    """

    def __init__(
        self,
        model: COCODR,
        documents: Documents,
        folder: Path,
        batch_size: int = 64,
        progress: bool = False,
        given: Embeddings | None = None,
        shared: bool = False,
        pool: EmbeddingPool | None = None,
    ) -> None:
        self.model = model
        self.documents = documents
        self.folder = folder
        self.batch_size = batch_size
        self.progress = progress
        self.given = given
        self.shared = shared
        self.pool = pool
        self.in_memory = IN_MEMORY
        self.watcher: Watcher | None = None
        if model.similarity_fn_name not in ("cosine", "dot"):
            raise ValueError(
                f"exact search needs cosine or dot product, the model has {model.similarity_fn_name}"
            )
        self._truncated_queries = 0.0
        self.known_queries: dict[str, torch.Tensor] = {}
        self._queries_cut = 0

    @cached_property
    def embeddings(self) -> Embeddings:
        """Return the embeddings of the corpus, (N, d)."""
        if self.given is not None:
            return self.given
        pool = self.pool or _SHARED.get()
        return self.encode_corpus(self.folder) if pool is None else pool.get(self)

    @cached_property
    def moments(self) -> Moments:
        """Of the embeddings, read once for them."""
        return Moments(self.embeddings)

    def encode_corpus(self, folder: Path, encoder: CorpusEncoder | None = None) -> Embeddings:
        """Encode the corpus, to ``folder`` if it is too large for memory."""
        before = self.model.texts_cut
        low: Backend = "bf16" if self.shared and self.model.device.type == "cuda" else "fp32"
        found = self._encoded_corpus(
            folder,
            encoder or CorpusEncoder(self.model, self.documents, backend=low, watcher=self.watcher),
        )
        found.texts_cut = self.model.texts_cut - before
        return found

    def encode_together(self, folder: Path) -> None:
        """The same by all processes of a run, which call this together; to a ``folder`` that they
        share.
        """
        before = self.model.texts_cut
        encoder = CorpusEncoder(self.model, self.documents)
        found = encode_over_ranks(self.model, self.documents, folder, encoder, self.progress)
        found.texts_cut = sum(gather(self.model.texts_cut - before))
        self.embeddings = found

    def _encoded_corpus(self, folder: Path, encoder: CorpusEncoder) -> Embeddings:
        size = 4 * len(self.documents)
        # Only of a corpus that may be too large is a document encoded to learn the width.
        cut = self.model.texts_cut
        large = (
            size * _WIDEST > self.in_memory
            and size * encoder.encode(_FIRST).shape[1] > self.in_memory
        )
        self.model.texts_cut = cut  # that one is encoded again
        if large:
            if self.shared:
                return encode_over_ranks(self.model, self.documents, folder, encoder, self.progress)
            return encode_documents(
                self.model, self.documents, folder, progress=self.progress, encoder=encoder
            )
        rows = np.arange(len(self.documents))
        with Bar(
            total=len(rows), desc="Encoding", unit=" documents", disable=not self.progress
        ) as bar:
            # Shard by shard, because the last bits of vectors depend on what they are batched with.
            parts = [
                torch.from_numpy(encoder.encode(rows[start : start + SHARD_SIZE], bar.update))
                for start in range(0, len(rows), SHARD_SIZE)
            ]
        return MemoryEmbeddings(torch.cat(parts))

    def prepare(self) -> None:
        """Encode the corpus; a second call costs nothing."""
        _ = self.embeddings

    def encode_queries(self, texts: list[str]) -> torch.Tensor:
        """(Q,) texts to (Q, d) float32 on the CPU; what was encoded lately is not encoded again."""
        self._truncated_queries = self.model.truncated_share(texts, "query")
        self._queries_cut = sum(lost for _, lost in self.model.cut(texts))
        found = {text: self.known_queries[text] for text in texts if text in self.known_queries}
        if new := [text for text in dict.fromkeys(texts) if text not in found]:
            vectors = self.model.query_vectors(new, self.batch_size)
            if zero := (~vectors.any(dim=1)).nonzero().flatten().tolist():
                log.warning(
                    "%d of %d queries have a zero embedding, such as %.60r",
                    len(zero),
                    len(new),
                    new[zero[0]],
                )
            found.update(zip(new, vectors, strict=True))
            most = _KEPT_QUERIES // (4 * vectors.shape[1])
            if len(self.known_queries) + len(found) > most:
                self.known_queries.clear()
            self.known_queries.update(islice(found.items(), most))
        return torch.stack([found[text] for text in texts])

    def search_embeddings(self, ids: list[str], queries: torch.Tensor, top_k: int) -> Ranking:
        """Rank for query vectors that are already there, (Q, d), on their device."""
        return rank(self.documents, ids, queries, self.embeddings.chunks(), top_k)

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        return self.search_embeddings(
            list(queries), self.encode_queries(list(queries.values())), top_k
        )

    def parts(
        self, query: str, rows: np.ndarray, scores: np.ndarray, vectors: torch.Tensor | None = None
    ) -> Parts:
        """All of a score is dense, but for a hybrid encoder, whose vectors have BM25's part behind.

        ``rows`` and ``scores``, (k,), are documents and their scores for the text of a query;
        ``vectors``, (1, d), are the query's where it was moved.
        """
        head: Any = getattr(self.model, "head", None)
        if not hasattr(head, "document_part"):
            return Parts(dense=scores)
        [vector], width = (
            self.encode_queries([query]) if vectors is None else vectors,
            head.dimension,
        )
        lexical = (self.embeddings.rows(rows)[:, width:] @ vector[width:]).numpy()
        return Parts(scores - lexical, lexical)

    @cached_property
    def _truncated_documents(self) -> tuple[float, int]:
        """The share of documents that are truncated, and of how many."""
        step = max(1, len(self.documents) // TRUNCATION_SAMPLE)
        sample = self.documents.take(np.arange(0, len(self.documents), step))
        texts = [self.model.text_format.document(document) for document in sample]
        return self.model.truncated_share(texts, "document"), len(texts)

    def describe(self) -> Json:
        truncated, sample = self._truncated_documents
        described: Json = {
            "model": "dense",
            "similarity": self.model.similarity_fn_name,
            "dimensions": self.embeddings.dimensions,
            "text_format": self.model.text_format.as_dict(),
            "truncated_documents": truncated,
            "truncation_sample": sample,
            "truncated_queries": self._truncated_queries,
            "texts_cut": self.embeddings.texts_cut + self._queries_cut,
        }
        if isinstance(self.given, EmbeddingStore):
            record = self.given.record
            described["store"] = {
                "key": record.key,
                "precision": record.precision,
                "backend": record.backend,
            }
        return described


class StoreChoice:
    """Stores of one corpus, each for the encoder that wrote it, whatever that is called now. An
    InputError: one is not complete, or of folded vectors.
    """

    def __init__(
        self, folders: Iterable[str | Path], documents: Documents, verify: bool = True
    ) -> None:
        self.documents = documents
        self.stores = [EmbeddingStore.open(folder, verify) for folder in folders]
        self._used: set[Path] = set()
        for store in self.stores:
            if store.record.prior:
                raise InputError(
                    f"{store.folder} holds the vectors of an MRL in {store.record.precision}, folded for "
                    "search alone: encode them in fp32, or leave this store out"
                )

    def of(self, model: COCODR) -> EmbeddingStore | None:
        """The store that an encoder wrote, or None; InputError: of another corpus, or other lengths
        or prompts.
        """
        encoder = fingerprint(model)
        for store in self.stores:
            record = store.record
            if all(record.identity[part] == value for part, value in encoder.items()):
                options = EncodeOptions(precision=record.precision, backend=record.backend)
                wanted = CorpusEncoder(model, self.documents, backend=options.backend)
                record.check_identity(identity_of(wanted, options, record.shard_size), store.folder)
                self._used.add(store.folder)
                return store
        return None

    def check_used(self) -> None:
        """Raise an InputError where a store was asked for in vain; names it and the model that
        wrote it.
        """
        for store in self.stores:
            if store.folder not in self._used:
                raise InputError(
                    f"{store.folder} was encoded by {store.record.model.name!r}, and no model here needs "
                    "it: name that model too, or leave this store out"
                )
