"""Queries embedded by any dense encoder, and the most similar training queries of every test query,
by cosine.
"""

import hashlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from beir_cocodr.arrays import Array, Floats, Ints, check_finite, unit_rows
from beir_cocodr.errors import InputError
from beir_cocodr.io import cache_folder, draft_folder, filling_cache, json_sha256
from beir_cocodr.models.loading import fingerprint, load_encoder, weights_sha256
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.progress import in_place
from beir_cocodr.resampling.manifest import EncoderRecord
from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodedBy, Identity, StoreRecord
from beir_cocodr.retrieval.store.shard import pack
from beir_cocodr.retrieval.store.store import Embeddings, EmbeddingStore, MemoryEmbeddings
from beir_cocodr.retrieval.topk import search_chunks

log = logging.getLogger(__name__)

# Part of every key: raise it when encoding changes what comes out.
_FORMAT = "2"


class QueryEncoder:
    """Encodes queries as unit vectors: their dot product is the cosine of the encoder's embeddings.

    An encoder that compares by dot product is taken at the direction of its vectors, an MRL at its
    means: the directions of its flattened vectors mean nothing.

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
        """A hash of everything that an embedding depends on: weights, modules, tokenizer and text
        format.
        """
        return json_sha256(
            [type(self.model).__name__, fingerprint(self.model), self.model.text_format.as_dict()]
        )

    def encode(self, texts: Sequence[str]) -> Floats:
        """(Q,) texts to (Q, d) float32 of length 1; a zero vector stays zero."""
        return self._encoded(list(texts), self.progress)

    def describe(self) -> EncoderRecord:
        """What a similarity depends on."""
        return EncoderRecord(
            name=self.name,
            weights_sha256=weights_sha256(self.model),
            dimensions=self.dimensions,
            similarity="cosine",
            vectors="means" if isinstance(self.model, MRL) else "embeddings",
            query_prompt=self.model.text_format.query_prompt,
            query_length=self.model.text_format.query_length,
        )

    def _encoded(self, texts: list[str], progress: bool) -> Floats:
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "show_progress_bar": progress and in_place(),
        }
        if isinstance(self.model, MRL):
            vectors, _ = self.model.encode_distribution(texts, "query", **options)
        else:
            vectors = self.model.encode_queries(texts, convert_to_tensor=True, **options)
        unit: Floats = F.normalize(vectors.detach().to(torch.float32).cpu(), dim=-1).numpy()
        return unit


def query_embeddings(encoder: QueryEncoder, queries: Mapping[str, str]) -> EmbeddingStore:
    """The embeddings of queries, in their order: from the cache, or encoded shard by shard into it.

    The key is a hash of the encoder (weights, modules, tokenizer, text format) and of the texts. An
    InputError where what is cached does not fit or lacks a shard, an embedding is NaN or infinite,
    or the cache cannot be written.
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
    if (len(found), found.dimensions) != (len(queries), encoder.dimensions):
        raise InputError(
            f"{folder} holds {len(found)} embeddings of {found.dimensions} dimensions, the encoder {encoder.name!r} "
            f"gives {encoder.dimensions} for {len(queries)} queries: delete that folder"
        )
    return found


def _encode(encoder: QueryEncoder, queries: Mapping[str, str], folder: Path) -> None:
    ids, texts = list(queries), list(queries.values())
    log.info("encoding %d queries with %s", len(ids), encoder.name)
    key: Identity = {
        "queries": folder.name,
        "similarity": "cosine",
        "precision": "fp32",
        "shard_size": SHARD_SIZE,
    }
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


class Neighbours(NamedTuple):
    """The k training queries nearest to T test queries, best first: (T, k) float32 similarities and
    int64 rows.
    """

    scores: Floats
    rows: Ints


METHODS = ("exact", "faiss")

# Entries of neighbour lists that are held at a time: 64 MiB as the search keeps them.
_ENTRIES = 1 << 23


def nearest(train: Embeddings | Array, test: Array, k: int, method: str = "exact") -> Neighbours:
    """The ``k`` training queries of highest cosine for every test query. An InputError: NaN or
    infinite embeddings.

    Training queries are read once in chunks; memory holds a chunk, the test queries, a tile of
    scores and the lists, and does not grow with the number of training queries.

    Args:
        train, test: (N, d) and (T, d) embeddings; those of training queries in an array, or
            wherever they are kept.
        k: neighbours of each test query, at most N.
        method: "exact", a matrix product in tiles, where among equal cosines the earlier row comes
            first; or "faiss", its brute-force search, where their order is faiss's.

    Source: Zhan et al., 2022, section 4.1.1 (similarity by embeddings rather than by terms).
    """
    vectors = (
        MemoryEmbeddings(torch.from_numpy(np.float32(train)))
        if isinstance(train, np.ndarray)
        else train
    )
    k = min(k, len(vectors))
    if method == "faiss":
        return _by_faiss(vectors, test, k)
    scores, rows = search_chunks(np.asarray(test), vectors.chunks(), k, similarity="cosine")
    return Neighbours(scores.numpy(), rows.numpy())


def check_method(method: str) -> None:
    """Check that there is such a search and what it needs is installed; else an InputError."""
    if method not in METHODS:
        raise InputError(f"unknown search {method!r}; there are {' and '.join(METHODS)}")
    if method == "faiss" and importlib.util.find_spec("faiss") is None:
        raise InputError("searching with faiss needs it: pip install 'beir-cocodr[faiss-cpu]'")


def nearest_ranks(
    train: Embeddings | Array, test: Array, depth: int, method: str = "exact"
) -> Ints:
    """(N,) int64: each training query's best rank for any test query, from 0; ``depth`` for all
    ranks from there on.

    Lists of neighbours are made for as many test queries at a time as fit in 64 MiB, so ``depth``
    may be large. Arguments and errors are those of `nearest`.
    """
    ranks = np.full(len(train), depth, np.int64)
    block = max(1, _ENTRIES // depth)
    for start in range(0, len(test), block):
        lists = nearest(train, test[start : start + block], depth, method).rows
        np.minimum(ranks, best_ranks(lists, len(train)), out=ranks)
    return ranks


def _by_faiss(train: Embeddings, test: Array, k: int) -> Neighbours:
    import faiss

    queries = _unit(test)
    heap, first = faiss.ResultHeap(len(queries), k, keep_max=True), 0
    for chunk in train.chunks():
        points = _unit(chunk.numpy())
        scores, rows = faiss.knn(queries, points, min(k, len(points)), faiss.METRIC_INNER_PRODUCT)
        heap.add_result(scores, rows + first)
        first += len(points)
    heap.finalize()
    return Neighbours(heap.D, heap.I)


def _unit(vectors: Array) -> Floats:
    if not np.isfinite(vectors).all():
        raise InputError("NaN or infinite embeddings of queries: encode in float32")
    return unit_rows(vectors)


def best_ranks(lists: Ints, queries: int) -> Ints:
    """The best rank of each training query in any list, (N,) int64 from 0; k where it is in none.

    Args:
        lists: (T, k) rows of training queries, best first, one list a test query.
        queries: N, how many training queries there are.
    """
    ranks = np.full(queries, lists.shape[1], np.int64)
    # From the last place to the first: what is written last is the best.
    for place in reversed(range(lists.shape[1])):
        ranks[lists[:, place]] = place
    return ranks
