"""A corpus encoded once, to a file, and searched exactly.

Dense search over a corpus that was encoded to a store before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.loading import fingerprint
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.store.encode import identity_of
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.topk import NonFiniteScores, search_chunks

_ENCODE_CHUNK = 20_000

_SEARCH_CHUNK = 50_000

#: Documents looked at to tell how many are truncated; a larger corpus is sampled evenly.
TRUNCATION_SAMPLE = 10_000


class Dense:
    """Exact search with one encoder over one corpus.

    The embeddings are written to a memory-mapped file on first use, so that a corpus may be larger than
    memory and dense search, fusion and feedback encode it only once. Cosine models are normalised there;
    after that every score is a float32 dot product.

    Args:
        model: the encoder.
        documents: the corpus.
        file: where the embeddings go, (N, d) float32 in npy format.
        batch_size: texts encoded at a time.
        progress: show a bar on stderr.
    """

    def __init__(
        self, model: COCODR, documents: Documents, file: Path, batch_size: int = 64, progress: bool = False
    ) -> None:
        self.model, self.documents, self.file = model, documents, file
        self.batch_size, self.progress = batch_size, progress
        if model.similarity_fn_name not in ("cosine", "dot"):
            raise ValueError(
                f"exact search needs cosine or dot product, the model has {model.similarity_fn_name}"
            )
        self.normalize = model.similarity_fn_name == "cosine"
        self._embeddings: np.ndarray | None = None
        self._truncated_queries = 0.0

    @property
    def embeddings(self) -> np.ndarray:
        """(N, d) float32, memory-mapped."""
        if self._embeddings is None:
            self._embeddings = self._encode_corpus()
        return self._embeddings

    def prepare(self) -> None:
        """Encode the corpus; a second call costs nothing."""
        _ = self.embeddings

    def encode_queries(self, texts: list[str]) -> torch.Tensor:
        """(Q,) texts to (Q, d) float32 on the CPU."""
        encoded = self.model.encode_queries(
            texts, batch_size=self.batch_size, convert_to_tensor=True, show_progress_bar=False
        )
        self._truncated_queries = self.model.truncated_share(texts, "query")
        return self._finish(encoded)

    def chunks(self) -> Iterator[torch.Tensor]:
        """The corpus as (n, d) tensors in row order."""
        for start in range(0, len(self.embeddings), _SEARCH_CHUNK):
            yield torch.from_numpy(np.array(self.embeddings[start : start + _SEARCH_CHUNK]))

    def search_embeddings(self, ids: list[str], queries: torch.Tensor, top_k: int) -> Ranking:
        """Rank for query vectors that are already there, (Q, d)."""
        try:
            scores, rows = search_chunks(queries, self.chunks(), top_k, self.documents.tie_ranks())
        except NonFiniteScores as error:
            raise error.named(self.documents.ids, lambda rows: [ids[row] for row in rows]) from None
        return Ranking(ids, scores.numpy(), rows.numpy())

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        return self.search_embeddings(list(queries), self.encode_queries(list(queries.values())), top_k)

    def describe(self) -> dict[str, Any]:
        step = max(1, len(self.documents) // TRUNCATION_SAMPLE)
        sample = self.documents.take(np.arange(0, len(self.documents), step))
        texts = [self.model.text_format.document(document) for document in sample]
        return {
            "model": "dense",
            "similarity": self.model.similarity_fn_name,
            "dimensions": int(self.embeddings.shape[1]),
            "text_format": self.model.text_format.as_dict(),
            "truncated_documents": self.model.truncated_share(texts, "document"),
            "truncation_sample": len(texts),
            "truncated_queries": self._truncated_queries,
        }

    def _encode_corpus(self) -> np.ndarray:
        target: np.memmap[Any, np.dtype[np.float32]] | None = None
        row = 0
        for encoded in self._encoded():
            if target is None:
                shape = (len(self.documents), encoded.shape[1])
                target = np.lib.format.open_memmap(self.file, mode="w+", dtype=np.float32, shape=shape)
            target[row : row + len(encoded)] = encoded.numpy()
            row += len(encoded)
        assert target is not None  # a corpus is never empty
        target.flush()
        return target

    def _encoded(self) -> Iterator[torch.Tensor]:
        """The corpus as (n, d) float32 tensors on the CPU, in row order, from the model."""
        for chunk in self.documents.chunks(_ENCODE_CHUNK):
            yield self._finish(
                self.model.encode_corpus(
                    chunk, batch_size=self.batch_size, convert_to_tensor=True, show_progress_bar=self.progress
                )
            )

    def _finish(self, encoded: torch.Tensor) -> torch.Tensor:
        vectors = encoded.detach().float().cpu()
        return F.normalize(vectors, dim=-1) if self.normalize else vectors


class StoredDense(Dense):
    """:class:`Dense` whose vectors are those of a store, copied to its file shard by shard, as fusion and
    feedback want rows in any order.

    Args:
        store: complete, of this model and corpus, not folded.
        model, documents, file, batch_size, progress: as for :class:`Dense`.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        model: COCODR,
        documents: Documents,
        file: Path,
        batch_size: int = 64,
        progress: bool = False,
    ) -> None:
        super().__init__(model, documents, file, batch_size, progress)
        self.store = store

    def _encoded(self) -> Iterator[torch.Tensor]:
        return self.store.chunks()

    def describe(self) -> dict[str, Any]:
        names = ("precision", "backend")
        kept = {name: self.store.record.identity[name] for name in names}
        return {**super().describe(), "store": {"key": self.store.record.key, **kept}}


class StoreChoice:
    """Stores of one corpus, each for the encoder that wrote it, whatever that is called now.

    Args:
        folders: of complete stores.
        documents: the corpus.

    Raises:
        InputError: a folder without a complete store, or a store of folded vectors.
    """

    def __init__(self, folders: Iterable[str | Path], documents: Documents) -> None:
        self.documents = documents
        self.stores = [EmbeddingStore.open(folder) for folder in folders]
        self._used: set[Path] = set()
        for store in self.stores:
            if store.record.prior:
                precision = store.record.identity["precision"]
                raise InputError(
                    f"{store.folder} holds the vectors of an MRL in {precision}, folded for search alone: "
                    "encode them in fp32, or leave this store out"
                )

    def of(self, model: COCODR) -> EmbeddingStore | None:
        """The store that an encoder wrote; None where none is its own.

        Raises:
            InputError: its store holds another corpus, or was encoded with other lengths or prompts.
        """
        encoder = fingerprint(model)
        for store in self.stores:
            stored = store.record.identity
            if all(stored[part] == value for part, value in encoder.items()):
                options = EncodeOptions(precision=stored["precision"], backend=stored["backend"])
                wanted = CorpusEncoder(model, self.documents, backend=options.backend)
                store.record.check_identity(identity_of(wanted, options, stored["shard_size"]), store.folder)
                self._used.add(store.folder)
                return store
        return None

    def check_used(self) -> None:
        """Raise where a store was asked for in vain.

        Raises:
            InputError: names it and the model that wrote it.
        """
        for store in self.stores:
            if store.folder not in self._used:
                raise InputError(
                    f"{store.folder} was encoded by {store.record.model['name']!r}, and no model here needs "
                    "it: name that model too, or leave this store out"
                )
