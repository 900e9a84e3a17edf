"""The stores that a search may read, each for the encoder that wrote it."""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import fingerprint
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.retrieval.store.embeddings import Embeddings
from beir_cocodr.retrieval.store.encode import identity_of
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder

# The least cosine of a document's vector in a store and now: precisions and batches change less.
_SAME = 0.99

_FIRST_ROW = np.zeros(1, np.int64)


def check_still_same(
    encoder: CorpusEncoder,
    stored: Embeddings,
    folder: Path,
    way_out: str,
    sharpen_weight: float = 0.0,
) -> None:
    """Check that a model on a server is still the one that wrote the vectors of a corpus.

    A model that is loaded is known by its weights. Behind a URL another one may have the same name,
    so the first document is encoded again.

    Args:
        encoder: the encoder of the corpus.
        stored: vectors; the first is that of the first document.
        folder: where they are stored.
        way_out: the end of the message.
        sharpen_weight: w of stored vectors that were sharpened, whose cosine with the encoder's is
            at least the root of 1 - w².

    Raises:
        InputError: The vector of the first document is another one.
    """
    if not getattr(encoder.model, "is_remote", False):
        return
    now = torch.from_numpy(encoder.encode(_FIRST_ROW))
    cosine = float(torch.cosine_similarity(now, stored.rows(_FIRST_ROW)))
    if cosine < _SAME * math.sqrt(1 - sharpen_weight**2):
        raise InputError(
            f"{folder}: the model behind the endpoint has changed since: the vector of the first "
            f"document has a cosine of {cosine:.3f} with the stored one; {way_out}"
        )


def check_not_sharpened(stores: Iterable[EmbeddingStore]) -> None:
    """Raise an InputError if a store from which a hybrid encoder would be fused was sharpened."""
    for store in stores:
        if store.record.sharpening:
            raise InputError(
                f"{store.folder} was sharpened by generated queries, and the fused encoder would "
                "encode documents as they are; name a store without --sharpen, or none"
            )


def model_of_store(folder: Path, verify: bool = True) -> str:
    """Return the name of the model that wrote a store, or its folder where that still exists.

    Raises:
        InputError: The store does not say it.
    """
    model = EmbeddingStore.open(folder, verify).record.model
    if model.name is None:
        raise InputError(f"{folder} does not say which model encoded it; give --model")
    if model.path is not None and Path(model.path).is_dir():
        return model.path
    return model.name


class StoreChoice:
    """Stores of one corpus, each for the encoder that wrote it, whatever its name is now.

    Args:
        folders: the stores.
        documents: the corpus.
        verify: compare the files of a store with their checksums.

    Raises:
        InputError: If a store is not complete, or holds folded vectors.
    """

    def __init__(
        self,
        folders: Iterable[str | Path],
        documents: Documents,
        verify: bool = True,
    ) -> None:
        """Open the stores."""
        self.documents = documents
        self.stores = [EmbeddingStore.open(folder, verify) for folder in folders]
        self._used: set[Path] = set()
        self._other_modules: set[Path] = set()
        for store in self.stores:
            if store.record.prior:
                raise InputError(
                    f"{store.folder} contains the vectors of an MRL in {store.record.precision}, "
                    "folded for search only: encode them in fp32, or leave this store out"
                )

    def of(self, model: COCODR) -> EmbeddingStore | None:
        """Return the store that an encoder wrote, or None.

        Raises:
            InputError: If the store is of another corpus, or of other lengths or prompts.
        """
        encoder = fingerprint(model)
        for store in self.stores:
            record = store.record
            if any(record.identity[part] != value for part, value in encoder.items()):
                if record.differs_in_modules(encoder):
                    self._other_modules.add(store.folder)
                continue
            options = EncodeOptions(
                precision=record.precision,
                backend=record.backend,
            )
            corpus_encoder = CorpusEncoder(
                model,
                self.documents,
                backend=options.backend,
            )
            identity = identity_of(corpus_encoder, options, record.shard_size)
            record.check_identity(identity | record.sharpening, store.folder)
            check_still_same(
                corpus_encoder,
                store,
                store.folder,
                "encode again into another folder",
                float(record.sharpening.get("sharpen_weight") or 0),
            )
            self._used.add(store.folder)
            return store
        return None

    def check_used(self) -> None:
        """Check that each store was used.

        Raises:
            InputError: If one was not; names it and the model that wrote it.
        """
        for store in self.stores:
            if store.folder in self._used:
                continue
            if store.folder in self._other_modules:
                raise InputError(
                    f"{store.folder} was encoded by {store.record.model.name!r}, and the model "
                    "here has its weights and other modules: give --pooling as it was encoded; a "
                    "command without this option needs a model that was saved with its pooling"
                )
            raise InputError(
                f"{store.folder} was encoded by {store.record.model.name!r}, and no model here "
                "needs it: name that model too, or leave this store out"
            )
