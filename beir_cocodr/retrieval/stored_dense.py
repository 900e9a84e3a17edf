"""Dense search over a corpus that was encoded to a store before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from beir_cocodr.data.documents import Documents
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.retrieval.embedding_store import EmbeddingStore


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
