"""Exact search with one encoder: a corpus is encoded once, in memory or in a store."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beir_cocodr.arrays import Floats
from beir_cocodr.data.documents import Documents
from beir_cocodr.distributed import gather
from beir_cocodr.io import json_sha256
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.progress import Bar
from beir_cocodr.records import Json
from beir_cocodr.retrieval.exact import rank
from beir_cocodr.retrieval.ranking import Parts, Ranking
from beir_cocodr.retrieval.store.embeddings import Embeddings, MemoryEmbeddings
from beir_cocodr.retrieval.store.encode import encode_documents, encode_over_ranks, identity_of
from beir_cocodr.retrieval.store.record import SHARD_SIZE, Backend, EncodeOptions, Identity
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.corpus_encoder import (
    CorpusEncoder,
    EncodingClock,
    HybridCorpusEncoder,
    Watcher,
)
from beir_cocodr.retrieval.vectors.embeddings_property import embeddings_property
from beir_cocodr.retrieval.vectors.moments import Moments
from beir_cocodr.retrieval.vectors.vector_cache import VectorCache
from beir_cocodr.temporary import TemporaryFolder

#: Bytes of embeddings that are held in memory; those of a larger corpus go to a store on disk.
IN_MEMORY = 256 << 20

#: Documents that show how many are truncated; a larger corpus is sampled evenly.
TRUNCATION_SAMPLE = 10_000

# No encoder has more dimensions.
_WIDEST = 4_096
_FIRST_ROW = np.zeros(1, np.int64)

# Bytes of query vectors that are kept for later searches for the same queries.
_KEPT_QUERIES = 64 << 20

log = logging.getLogger(__name__)


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
        """Begin with no embeddings."""
        self.folder = folder
        self.in_memory = in_memory
        self._held: dict[str, Embeddings] = {}

    @classmethod
    @contextmanager
    def temporary(cls, folder: Path) -> Iterator["EmbeddingPool"]:
        """Yield a pool whose stores lie in a new folder below ``folder``, removed at the end."""
        with TemporaryFolder(folder) as work:
            yield cls(work)

    def of(self, model: COCODR, documents: Documents, bf16: bool = False) -> Embeddings:
        """Return the embeddings of a corpus by an encoder, in bfloat16 if ``bf16``."""
        dense = Dense(model, documents, self.folder)
        dense.bf16 = bf16
        dense.cache = VectorCache.of(model, documents, backend=dense.backend)
        return self.get(dense)

    def get(self, dense: "Dense") -> Embeddings:
        """Return the embeddings that a search needs, encoded the first time."""
        encoder = CorpusEncoder(dense.model, dense.documents)
        options = EncodeOptions(backend=dense.backend)
        key = json_sha256(identity_of(encoder, options, SHARD_SIZE))
        embeddings = self._held.pop(key, None)
        if embeddings is None:
            hybrid = None
            if isinstance(dense.model, HybridEncoder):
                dense_part = self.of(dense.model.dense_part(), dense.documents, dense.bf16)
                hybrid = HybridCorpusEncoder(dense.model, dense.documents, dense_part)
            embeddings = dense.encode_corpus(self.folder / key, hybrid)
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


class Dense:
    """Exact search with one encoder over one corpus.

    The corpus is encoded on first use, once for dense search, fusions and feedback, and held in
    memory or, where it is large, in a store on disk; results are the same to the last bit. Vectors
    of cosine models are normalised there; after that every score is a float32 dot product.

    Args:
        model: the encoder.
        documents: the corpus.
        folder: folder of the store, if one is needed; the caller removes it.
        batch_size: queries that are encoded at a time; documents are batched by their tokens.
        progress: show a bar on stderr.
        given: existing embeddings, such as a store of this model and corpus that is not folded.
        shared: all processes of a run make the same object and encode a large corpus together, in
            bfloat16 on a GPU.

    Attributes:
        bf16: whether documents are encoded in bfloat16 on any device, False by default; the cache
            must be that of the same backend.
        pool: embeddings of the run, looked up before the corpus is encoded; None encodes it here.
        cache: vectors of earlier runs, to which those of this corpus are added; None keeps nothing.
        clock: the work of encoding the corpus; None before it begins.
        in_memory: the most bytes of embeddings that are held in memory, 256 MiB.
        watcher: called with the number of documents after each encoded batch.
        known_queries: text to vector, (d,), for the queries that were encoded last.

    Raises:
        ValueError: If the model compares by another similarity than cosine or dot product.
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
    ) -> None:
        """Check the model's similarity; nothing is encoded yet."""
        self.model = model
        self.documents = documents
        self.folder = folder
        self.batch_size = batch_size
        self.progress = progress
        self.given = given
        self.shared = shared
        self.bf16 = False
        self.pool: EmbeddingPool | None = None
        self.cache: VectorCache | None = None
        self.clock: EncodingClock | None = None
        self.in_memory = IN_MEMORY
        self.watcher: Watcher | None = None
        if model.similarity_fn_name not in ("cosine", "dot"):
            raise ValueError(
                "exact search needs cosine or dot product, but the model has "
                f"{model.similarity_fn_name}"
            )
        self._truncated_queries = 0.0
        self.known_queries: dict[str, torch.Tensor] = {}
        self._queries_cut = 0

    @cached_property
    def embeddings(self) -> Embeddings:
        """Return the embeddings of the corpus, (N, d)."""
        if self.given is not None:
            return self.given
        return self.encode_corpus(self.folder) if self.pool is None else self.pool.get(self)

    @embeddings_property
    def moments(self) -> Moments:
        """Return mean and covariance of the embeddings, which are read once for them."""
        return Moments(self.embeddings)

    def encode_corpus(self, folder: Path, encoder: CorpusEncoder | None = None) -> Embeddings:
        """Encode the corpus.

        Args:
            folder: receives a store if the embeddings are too large for memory.
            encoder: another encoder of the same model and corpus than the usual one.
        """
        encoder = encoder or self.encoder_of(self.documents)
        texts_cut = self.model.texts_cut
        embeddings = self._encoded_corpus(folder, encoder)
        embeddings.texts_cut = self.model.texts_cut - texts_cut
        return embeddings

    def encoder_of(self, documents: Documents) -> CorpusEncoder:
        """Return what encodes a corpus with the model, by the cache if there is one."""
        if isinstance(self.model, HybridEncoder) and self.cache is not None:
            part = CorpusEncoder(
                self.cache.model,
                documents,
                backend=self.backend,
                watcher=self.watcher,
                cache=self.cache,
            )
            return HybridCorpusEncoder(self.model, documents, part)
        return CorpusEncoder(
            self.model,
            documents,
            backend=self.backend,
            watcher=self.watcher,
            cache=self.cache,
        )

    @property
    def backend(self) -> Backend:
        """Return the precision in which documents are encoded."""
        shared_on_gpu = self.shared and self.model.device.type == "cuda"
        return "bf16" if self.bf16 or shared_on_gpu else "fp32"

    def encode_together(self, folder: Path) -> None:
        """Encode the corpus by all processes of a run, which call this together.

        Args:
            folder: receives the store; all processes see it.
        """
        texts_cut = self.model.texts_cut
        encoder = CorpusEncoder(self.model, self.documents)
        store = encode_over_ranks(
            model=self.model,
            documents=self.documents,
            folder=folder,
            encoder=encoder,
            progress=self.progress,
        )
        store.texts_cut = sum(gather(self.model.texts_cut - texts_cut))
        self.embeddings = store

    def _encoded_corpus(self, folder: Path, encoder: CorpusEncoder) -> Embeddings:
        if self._is_large(encoder):
            if encoder.cache is not None:
                return self._encode_to_cache(encoder, encoder.cache)
            if self.shared:
                return encode_over_ranks(
                    model=self.model,
                    documents=self.documents,
                    folder=folder,
                    encoder=encoder,
                    progress=self.progress,
                )
            return encode_documents(
                self.model, self.documents, folder, progress=self.progress, encoder=encoder
            )
        parts = [torch.from_numpy(vectors) for vectors in self._shards(encoder)]
        return MemoryEmbeddings(torch.cat(parts))

    def _encode_to_cache(self, encoder: CorpusEncoder, cache: VectorCache) -> Embeddings:
        """Encode a large corpus, whose vectors are read from the cache as they are needed."""
        for _ in self._shards(encoder):
            pass  # the cache has them
        return cache.embeddings(self.documents)

    def _shards(self, encoder: CorpusEncoder) -> Iterator[Floats]:
        """Yield the vectors of the corpus, (n, d) float32.

        They are encoded shard by shard, because the last bits of vectors depend on their batches.
        """
        count = len(self.documents)
        missing = count if self.cache is None else self.cache.count_missing(self.documents)
        encoder.clock.documents = missing
        self.clock = encoder.clock
        bar = Bar(
            total=missing,
            desc="Encoding",
            unit=" documents",
            disable=not (self.progress and missing),
        )
        bar.clock = encoder.clock
        with bar:
            for start in range(0, count, SHARD_SIZE):
                yield encoder.encode(np.arange(start, min(start + SHARD_SIZE, count)), bar.update)

    def _is_large(self, encoder: CorpusEncoder) -> bool:
        """Return true if the embeddings do not fit into ``in_memory`` bytes."""
        column = 4 * len(self.documents)
        if column * _WIDEST <= self.in_memory:
            return False
        # The width is known once a document is encoded, which is encoded again with the others.
        texts_cut = self.model.texts_cut
        width = encoder.encode(_FIRST_ROW).shape[1]
        self.model.texts_cut = texts_cut
        return bool(column * width > self.in_memory)

    def prepare(self) -> None:
        """Encode the corpus; a second call costs nothing."""
        _ = self.embeddings

    def encode_queries(self, texts: list[str]) -> torch.Tensor:
        """Encode (Q,) texts to (Q, d) float32 on the CPU; recent ones are not encoded again."""
        self._truncated_queries = self.model.truncated_share(texts, "query")
        self._queries_cut = sum(lost for _, lost in self.model.cut(texts))
        vectors = {text: self.known_queries[text] for text in texts if text in self.known_queries}
        new = [text for text in dict.fromkeys(texts) if text not in vectors]
        if new:
            encoded = self.model.query_vectors(new, self.batch_size)
            _warn_of_zeros(new, encoded)
            vectors.update(zip(new, encoded, strict=True))
            most = _KEPT_QUERIES // (4 * encoded.shape[1])
            if len(self.known_queries) + len(vectors) > most:
                self.known_queries.clear()
            self.known_queries.update(islice(vectors.items(), most))
        return torch.stack([vectors[text] for text in texts])

    def search_embeddings(
        self,
        ids: list[str],
        queries: torch.Tensor,
        top_k: int,
    ) -> Ranking:
        """Rank the corpus for query vectors, (Q, d), on their device."""
        return rank(self.documents, ids, queries, self.embeddings.chunks(), top_k)

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for query id to text, on the model's device, or the CPU beside Metal."""
        vectors = self.encode_queries(list(queries.values()))
        if self.model.device.type != "mps":
            vectors = vectors.to(self.model.device)
        return self.search_embeddings(list(queries), vectors, top_k)

    def parts(
        self,
        query: str,
        rows: np.ndarray,
        scores: np.ndarray,
        vectors: torch.Tensor | None = None,
    ) -> Parts:
        """Return the parts of scores: all is dense, except for a hybrid encoder.

        Args:
            query: the text of a query.
            rows: (k,) documents.
            scores: (k,) their scores for the query.
            vectors: (1, d) vector of the query, where it was moved.
        """
        head: Any = getattr(self.model, "head", None)
        if not hasattr(head, "document_part"):
            return Parts(dense=scores)
        [vector] = self.encode_queries([query]) if vectors is None else vectors
        # In the vectors of a hybrid encoder, BM25's part follows the dense part.
        width = head.dimension
        lexical = (self.embeddings.rows(rows)[:, width:] @ vector[width:]).numpy()
        return Parts(scores - lexical, lexical)

    @cached_property
    def _truncated_documents(self) -> tuple[float, int]:
        """Return the share of documents that are truncated, and the number that were sampled."""
        step = max(1, len(self.documents) // TRUNCATION_SAMPLE)
        sample = self.documents.take(np.arange(0, len(self.documents), step))
        texts = [self.model.text_format.document(document) for document in sample]
        return self.model.truncated_share(texts, "document"), len(texts)

    @property
    def sharpened(self) -> str:
        """Return the folder of the queries by which its store was sharpened, "" for none."""
        return self.given.record.generated if isinstance(self.given, EmbeddingStore) else ""

    @property
    def sharpening(self) -> Identity:
        """Return what is recorded of how its store was sharpened, nothing for others."""
        return self.given.record.sharpening if isinstance(self.given, EmbeddingStore) else {}

    def describe(self) -> Json:
        """Return what the results depend on."""
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
                **record.sharpening,
            }
        return described


def _warn_of_zeros(texts: list[str], vectors: torch.Tensor) -> None:
    """Log how many of (Q,) queries have a zero embedding, (Q, d)."""
    zero = (~vectors.any(dim=1)).nonzero().flatten().tolist()
    if zero:
        log.warning(
            "%d of %d queries have a zero embedding, such as %.60r",
            len(zero),
            len(texts),
            texts[zero[0]],
        )
