"""The unit of work of encoding: one shard, from texts to a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.models.fingerprint import fingerprint
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.embedding_store import EmbeddingStore
from beir_cocodr.retrieval.store.options import EncodeOptions
from beir_cocodr.retrieval.torch_threads import torch_threads


@dataclass(frozen=True)
class ShardJob:
    """What a process, here or elsewhere, needs in order to encode shards of a store that was begun.

    Args:
        folder: of the store.
        documents: the corpus; travels as the path of its file.
        model: what the encoder is loaded by.
        encoder: overrides for it (lengths, separator).
        options: of the store.
        threads: CPU threads of each process.
    """

    folder: Path
    documents: Documents
    model: str
    encoder: Mapping[str, Any]
    options: EncodeOptions
    threads: int

    def start(self, device: str) -> Callable[[int], int]:
        """Load the encoder on a device.

        Returns:
            a function from the number of a shard to how many documents it has, which encodes and writes it.

        Raises:
            InputError: the model is no longer the one that the store was begun with.
        """
        store = EmbeddingStore.found(self.folder)
        if store is None:
            raise InputError(f"{self.folder} is gone: it held the store that was being written")
        model = load_encoder(self.model, device=device, **self.encoder)
        store.record.refuse_other_encoder(fingerprint(model), self.model, self.folder)
        encoder = CorpusEncoder(model, self.documents, self.options.token_budget, self.options.backend)

        def work(number: int) -> int:
            with torch_threads(self.threads):
                return encode_shard(store, encoder, number)

        return work


def encode_shard(
    store: EmbeddingStore,
    encoder: CorpusEncoder,
    number: int,
    encoded: Callable[[int], Any] = lambda count: None,
) -> int:
    """Encode and write one shard.

    Args:
        store: that it belongs to.
        encoder: of the store's corpus.
        number: of the shard.
        encoded: called with the number of documents after each batch.

    Returns:
        the documents of the shard.

    Raises:
        InputError: a document has no finite vector, or one that the precision cannot hold.
    """
    shard = store.shards[number]
    store.write(number, encoder.encode(np.arange(shard.start, shard.stop), encoded), encoder.documents)
    return len(shard)
