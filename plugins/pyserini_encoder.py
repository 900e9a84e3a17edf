"""Encoders of this package as query encoders of Pyserini."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.arrays import Floats
from beir_cocodr.evaluation.store_run import query_encoder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore

from .pyserini import query_vectors
from .pyserini_java import import_pyserini

QueryEncoder: Any = import_pyserini("pyserini.encode").QueryEncoder


class CocoDRQueryEncoder(QueryEncoder):
    """Any encoder of this package, MRL among them, for Pyserini's ``FaissSearcher``.

    Vectors are unit vectors where the model compares by cosine, and what the model gives elsewhere; an index by
    :func:`~beir_cocodr.plugins.pyserini.write_index` answers with the model's own scores.

    Args:
        model: a loaded encoder, or what one is loaded by: a folder, a hub name, ``minilm``.
        batch_size: queries encoded at a time.
        encoder: how the model is loaded where it is loaded here.

    Raises:
        InputError: the model cannot be found, or compares neither by cosine nor by dot product.
    """

    def __init__(
        self, model: COCODR | str | Path, batch_size: int = 64, encoder: EncoderOptions = EncoderOptions()
    ) -> None:
        # Without arguments: encoded queries are ``encoded_query_dir`` in 1.x and ``encoded_queries_dir`` in 2.x, and
        # here there are none.
        super().__init__()
        self.has_model = True
        self.model = model if isinstance(model, COCODR) else load_encoder(model, encoder)
        self.batch_size = batch_size

    @classmethod
    def from_store(
        cls,
        store: EmbeddingStore | str | Path,
        model: str | None = None,
        device: str | None = None,
        batch_size: int = 64,
    ) -> "CocoDRQueryEncoder":
        """The encoder that made a complete store, with the store's own lengths and prompts; an InputError where it
        cannot be found or is another. ``model`` is where it is now, by default where it was then.
        """
        opened = store if isinstance(store, EmbeddingStore) else EmbeddingStore.open(store)
        return cls(query_encoder(opened, model, device), batch_size)

    def encode(self, query: str) -> Floats:
        """A text to its (w,) vector."""
        vector: Floats = self.encode_batch([query])[0]
        return vector

    def encode_batch(self, queries: Sequence[str]) -> Floats:
        """(Q,) texts to (Q, w); ``batch_search`` calls it."""
        return query_vectors(self.model, list(queries), self.batch_size)
