"""Queries embedded by any dense encoder, and the training queries most similar to test queries."""

import hashlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import rmtree

import numpy as np
import torch
import torch.nn.functional as F

from beir_cocodr.arrays import Array, Floats, Ints, check_finite, unit_rows
from beir_cocodr.errors import InputError
from beir_cocodr.io import Keywords, cache_folder, draft_folder, filling_cache, json_sha256
from beir_cocodr.models.checkpoints.loading import fingerprint, load_encoder, weights_sha256
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.progress import in_place
from beir_cocodr.resampling.manifest import EncoderRecord
from beir_cocodr.retrieval.resolve import Model, resolve_model
from beir_cocodr.retrieval.store.embeddings import Embeddings, MemoryEmbeddings
from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodedBy, Identity, StoreRecord
from beir_cocodr.retrieval.store.shard import pack
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.topk import search_chunks

log = logging.getLogger(__name__)

#: A part of every key: raise it when encoding gives other embeddings.
_FORMAT = "2"


class QueryEncoder:
    """An encoder of queries as unit vectors, whose dot product is the cosine of the embeddings.

    An encoder that compares by dot product is used by the direction of its vectors, and an MRL by
    its means: the directions of its flattened vectors mean nothing.

    Args:
        model: the encoder: a name, a folder or a loaded model.
        options: how it is loaded and encodes.

    Raises:
        InputError: The encoder cannot be loaded.
    """

    def __init__(self, model: Model, options: SearchOptions = SearchOptions()) -> None:
        """Load the encoder."""
        spec = resolve_model(model, argument="model")
        self.name = spec.name
        self.model = load_encoder(spec, options.encoder)
        self.batch_size = options.batch_size
        self.progress = options.shows_progress

    @cached_property
    def dimensions(self) -> int:
        """Return d, from the vector of a text: not every module of an encoder declares it."""
        return int(self._encoded(["query"], show_progress=False).shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of all that an embedding depends on.

        That is weights, modules, tokenizer and text format.
        """
        kind = type(self.model).__name__
        return json_sha256([kind, fingerprint(self.model), self.model.text_format.as_dict()])

    def encode(self, texts: Sequence[str]) -> Floats:
        """Encode (Q,) texts as (Q, d) float32 of length 1; a zero vector stays zero."""
        return self._encoded(list(texts), show_progress=self.progress)

    def describe(self) -> EncoderRecord:
        """Return all that a similarity depends on."""
        text_format = self.model.text_format
        return EncoderRecord(
            name=self.name,
            weights_sha256=weights_sha256(self.model),
            dimensions=self.dimensions,
            similarity="cosine",
            vectors="means" if isinstance(self.model, MRL) else "embeddings",
            query_prompt=text_format.query_prompt,
            query_length=text_format.query_length,
        )

    def _encoded(self, texts: list[str], *, show_progress: bool) -> Floats:
        options: Keywords = {
            "batch_size": self.batch_size,
            "show_progress_bar": show_progress and in_place(),
        }
        if isinstance(self.model, MRL):
            vectors, _ = self.model.encode_distribution(texts, "query", **options)
        else:
            vectors = self.model.encode_queries(texts, convert_to_tensor=True, **options)
        vectors = vectors.detach().to(torch.float32).cpu()
        unit: Floats = F.normalize(vectors, dim=-1).numpy()
        return unit


def query_embeddings(encoder: QueryEncoder, queries: Mapping[str, str]) -> EmbeddingStore:
    """Return the embeddings of queries, in their order, from the cache.

    What the cache lacks, or holds damaged, is encoded shard by shard into it. The key is a hash of
    the encoder (weights, modules, tokenizer, text format) and of the texts.

    Raises:
        InputError: The cached embeddings do not fit, an embedding is NaN or infinite, or the cache
            cannot be written.
    """
    folder = cache_folder("query_embeddings") / _cache_key(encoder, queries)
    store = _sound_store(folder)
    if store is None:
        _encode(encoder, queries, folder)
        store = EmbeddingStore.found(folder)
    assert store is not None
    if (len(store), store.dimensions) != (len(queries), encoder.dimensions):
        raise InputError(
            f"{folder} contains {len(store)} embeddings of {store.dimensions} dimensions, the "
            f"encoder {encoder.name!r} gives {encoder.dimensions} for {len(queries)} queries: "
            "delete that folder"
        )
    return store


def _sound_store(folder: Path) -> EmbeddingStore | None:
    """Return the store in a folder of the cache; None where there is none, or it is damaged."""
    if not folder.exists():
        return None
    try:
        store = EmbeddingStore.found(folder)
        if store is not None and not store.missing(thorough=True):
            return store
    except InputError as error:
        log.warning("%s", str(error).partition("; ")[0])
    log.warning("%s is damaged; its queries are encoded again", folder)
    rmtree(folder, ignore_errors=True)
    return None


def _cache_key(encoder: QueryEncoder, queries: Mapping[str, str]) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\n{encoder.fingerprint}\n".encode())
    for query in queries.values():
        text = query.encode()
        # The length marks where a text ends, so that no two lists of queries give the same bytes.
        digest.update(b"%d\n" % len(text) + text)
    return digest.hexdigest()[:32]


def _encode(encoder: QueryEncoder, queries: Mapping[str, str], folder: Path) -> None:
    ids = list(queries)
    texts = list(queries.values())
    log.info("encoding %d queries with %s", len(ids), encoder.name)
    identity: Identity = {
        "queries": folder.name,
        "similarity": "cosine",
        "precision": "fp32",
        "shard_size": SHARD_SIZE,
    }
    record = StoreRecord(identity, EncodedBy(encoder.name), len(ids), encoder.dimensions)
    try:
        with filling_cache(folder.parent), draft_folder(folder) as draft:
            store = EmbeddingStore(draft, record)
            store.write_record()
            for shard in store.shards:
                vectors = encoder.encode(texts[shard.start : shard.stop])
                check_finite(vectors, ids[shard.start : shard.stop], "queries")
                shard.write(pack(vectors, "fp32"))
    except InputError:
        # Another process may have been faster, and then there is no harm.
        if not folder.exists():
            raise


@dataclass(frozen=True)
class Neighbours:
    """The k training queries nearest to T test queries, best first.

    Attributes:
        scores: (T, k) similarities.
        rows: (T, k) training queries.
    """

    scores: Floats
    rows: Ints


METHODS = ("exact", "faiss")

#: Entries of neighbour lists that are in memory at a time: 64 MiB as the search keeps them.
_ENTRIES = 1 << 23


def nearest(
    train: Embeddings | Array,
    test: Array,
    k: int,
    method: str = "exact",
) -> Neighbours:
    """Find the ``k`` training queries of highest cosine for every test query.

    Training queries are read once in chunks. Memory holds a chunk, the test queries, a tile of
    scores and the lists, and does not grow with the number of training queries.

    Args:
        train: (N, d) embeddings, in an array or wherever they are kept.
        test: (T, d) embeddings.
        k: neighbours of each test query, at most N.
        method: "exact", a matrix product in tiles, in which the earlier row comes first among equal
            cosines; or "faiss", its brute-force search, with an order of its own among them.

    Raises:
        InputError: An embedding is NaN or infinite.

    Source: Zhan et al., 2022, section 4.1.1 (similarity by embeddings rather than by terms).
    """
    vectors: Embeddings
    if isinstance(train, np.ndarray):
        vectors = MemoryEmbeddings(torch.from_numpy(np.float32(train)))
    else:
        vectors = train
    k = min(k, len(vectors))
    if method == "faiss":
        return _nearest_by_faiss(vectors, test, k)
    scores, rows = search_chunks(np.asarray(test), vectors.chunks(), k, similarity="cosine")
    return Neighbours(scores.numpy(), rows.numpy())


def check_method(method: str) -> None:
    """Check that a method of :func:`nearest` exists and that its library is installed.

    Raises:
        InputError: It does not, or is not.
    """
    if method not in METHODS:
        raise InputError(f"unknown search {method!r}; choose {' or '.join(METHODS)}")
    if method == "faiss" and importlib.util.find_spec("faiss") is None:
        raise InputError("--search faiss needs FAISS: pip install 'beir-cocodr[faiss-cpu]'")


def nearest_ranks(
    train: Embeddings | Array,
    test: Array,
    depth: int,
    method: str = "exact",
) -> Ints:
    """Return each training query's best rank for any test query.

    Lists of neighbours are made for as many test queries at a time as fit in 64 MiB, so ``depth``
    may be large.

    Args:
        train: as for :func:`nearest`.
        test: as for :func:`nearest`.
        depth: the length of the lists.
        method: as for :func:`nearest`.

    Returns:
        (N,) ranks from 0; ``depth`` means that rank or a later one.

    Raises:
        InputError: An embedding is NaN or infinite.
    """
    ranks = np.full(len(train), depth, np.int64)
    block = max(1, _ENTRIES // depth)
    for start in range(0, len(test), block):
        neighbours = nearest(train, test[start : start + block], depth, method)
        np.minimum(ranks, best_ranks(neighbours.rows, len(train)), out=ranks)
    return ranks


def _nearest_by_faiss(train: Embeddings, test: Array, k: int) -> Neighbours:
    import faiss

    queries = _unit(test)
    heap = faiss.ResultHeap(len(queries), k, keep_max=True)
    first = 0
    for chunk in train.chunks():
        points = _unit(chunk.numpy())
        count = min(k, len(points))
        scores, rows = faiss.knn(queries, points, count, faiss.METRIC_INNER_PRODUCT)
        heap.add_result(scores, rows + first)
        first += len(points)
    heap.finalize()
    return Neighbours(heap.D, heap.I)


def _unit(vectors: Array) -> Floats:
    if not np.isfinite(vectors).all():
        raise InputError("NaN or infinite embeddings of queries: encode in float32")
    return unit_rows(vectors)


def best_ranks(lists: Ints, queries: int) -> Ints:
    """Return the best rank of each training query in any list.

    Args:
        lists: (T, k) rows of training queries, best first, one list a test query.
        queries: N, the number of training queries.

    Returns:
        (N,) ranks from 0, and k for a query that no list has.
    """
    depth = lists.shape[1]
    ranks = np.full(queries, depth, np.int64)
    # From the last rank to the first, because what is written last is the best.
    for rank in reversed(range(depth)):
        ranks[lists[:, rank]] = rank
    return ranks
