"""Which store is whose: embeddings that are there are found by the encoder that made them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.fingerprint import fingerprint
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.embedding_store import EmbeddingStore
from beir_cocodr.retrieval.store.options import EncodeOptions
from beir_cocodr.retrieval.store.preparation import identity_of


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
                store.record.refuse_other(identity_of(wanted, options, stored["shard_size"]), store.folder)
                self._used.add(store.folder)
                return store
        return None

    def refuse_unused(self) -> None:
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
