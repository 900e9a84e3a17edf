"""Embeddings of queries by any dense encoder, compared by cosine: encoded once, kept in stores below the cache root."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from beir_cocodr.arrays import Floats, check_finite
from beir_cocodr.errors import InputError
from beir_cocodr.io import cache_folder, draft_folder, filling_cache, json_sha256
from beir_cocodr.models.loading import load_encoder, weights_sha256
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.progress import in_place
from beir_cocodr.records import Json
from beir_cocodr.resampling.manifest import EncoderRecord
from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodedBy, Identity, StoreRecord
from beir_cocodr.retrieval.store.shard import pack
from beir_cocodr.retrieval.store.store import EmbeddingStore

log = logging.getLogger(__name__)

# Part of every key: raise it when encoding changes what comes out.
_FORMAT = "1"


class QueryEncoder:
    """Encodes queries as unit vectors: their dot product is the cosine of the encoder's embeddings.

    An encoder that compares by dot product is taken at the direction of its vectors, an MRL at its means: the
    directions of its flattened vectors mean nothing.

    Args:
        name: the encoder: an alias, a hub name or a folder; an InputError where there is none.
        options: how it is loaded, texts encoded at a time, and whether bars are shown.
    """

    def __init__(self, name: str, options: SearchOptions = SearchOptions()) -> None:
        self.name = name
        self.model = load_encoder(name, options.encoder)
        self.batch_size, self.progress = options.batch_size, options.progress

    @cached_property
    def dimensions(self) -> int:
        """d, as a text shows it: not every module of an encoder declares it."""
        return int(self._encoded(["query"], progress=False).shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that an embedding depends on: weights, modules, tokenizer and text format."""
        tokenizer: Any = self.model.tokenizer
        content: Json = {
            "class": type(self.model).__name__,
            "weights": self._weights,
            "modules": [[type(module).__name__, getattr(module, "get_config_dict", dict)()] for module in self.model],
            "vocabulary": sorted(tokenizer.get_vocab().items()),
            "lower_case": getattr(tokenizer, "do_lower_case", None),
            "text_format": self.model.text_format.as_dict(),
        }
        return json_sha256(content)

    def encode(self, texts: Sequence[str]) -> Floats:
        """(Q,) texts to (Q, d) float32 of length 1; a zero vector stays zero."""
        return self._encoded(list(texts), self.progress)

    def describe(self) -> EncoderRecord:
        """What a similarity depends on."""
        return EncoderRecord(
            name=self.name,
            weights_sha256=self._weights,
            dimensions=self.dimensions,
            similarity="cosine",
            vectors="means" if isinstance(self.model, MRL) else "embeddings",
            query_prompt=self.model.text_format.query_prompt,
            query_length=self.model.text_format.query_length,
        )

    @cached_property
    def _weights(self) -> str:
        return weights_sha256(self.model)

    def _encoded(self, texts: list[str], progress: bool) -> Floats:
        options: dict[str, Any] = {"batch_size": self.batch_size, "show_progress_bar": progress and in_place()}
        if isinstance(self.model, MRL):
            vectors, _ = self.model.encode_distribution(texts, "query", **options)
        else:
            vectors = self.model.encode_queries(texts, convert_to_tensor=True, **options)
        unit: Floats = F.normalize(vectors.detach().to(torch.float32).cpu(), dim=-1).numpy()
        return unit


def query_embeddings(encoder: QueryEncoder, queries: Mapping[str, str]) -> EmbeddingStore:
    """The embeddings of queries, in their order: from the cache, or encoded shard by shard into it.

    The key is a hash of the encoder (weights, modules, tokenizer, text format) and of the texts. An InputError where
    what is cached does not fit or lacks a shard, an embedding is NaN or infinite, or the cache cannot be written.
    """
    digest = hashlib.sha256(f"{_FORMAT}\n{encoder.fingerprint}\n".encode())
    for text in map(str.encode, queries.values()):
        # The length marks where a text ends: no two lists of queries give the same bytes.
        digest.update(b"%d\n" % len(text) + text)
    folder = cache_folder("query_embeddings") / digest.hexdigest()[:32]
    if not folder.exists():
        _encode(encoder, queries, folder)
    found = EmbeddingStore.found(folder)
    if found is None or found.missing(thorough=True):
        raise InputError(f"{folder} holds no embeddings, or shards are missing: delete that folder")
    if found.dimensions != encoder.dimensions:
        raise InputError(
            f"{folder} holds embeddings of {found.dimensions} dimensions, the encoder {encoder.name!r} gives "
            f"{encoder.dimensions}: delete that folder"
        )
    if len(found) != len(queries):
        raise InputError(f"{folder} holds {len(found)} embeddings for {len(queries)} queries: delete that folder")
    return found


def _encode(encoder: QueryEncoder, queries: Mapping[str, str], folder: Path) -> None:
    ids, texts = list(queries), list(queries.values())
    log.info("encoding %d queries with %s", len(ids), encoder.name)
    key: Identity = {"queries": folder.name, "similarity": "cosine", "precision": "fp32", "shard_size": SHARD_SIZE}
    record = StoreRecord(key, EncodedBy(encoder.name), len(ids), encoder.dimensions)
    try:
        with filling_cache(folder.parent), draft_folder(folder) as draft:
            store = EmbeddingStore(draft, record)
            store.write_record()
            for shard in store.shards:
                vectors = encoder.encode(texts[shard.start : shard.stop])
                check_finite(vectors, ids[shard.start : shard.stop], "queries")
                shard.write(pack(vectors, "fp32"))
    except InputError:
        if not folder.exists():  # else another process was faster
            raise
