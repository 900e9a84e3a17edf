"""A run file from a store: queries of a collection, searched in its encoded corpus."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from beir_cocodr.data.collection import Dataset, load_queries
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names, identical_ids, write_run
from beir_cocodr.io import atomic_output, output_folder, output_path, parse_json, write_text
from beir_cocodr.models.checkpoints.known_checkpoints import POOLINGS
from beir_cocodr.models.checkpoints.loading import fingerprint, load_encoder
from beir_cocodr.models.chunk_pooling import FIRST
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import EncoderOptions, Options, option
from beir_cocodr.records import Json, versions
from beir_cocodr.retrieval.faiss.transform import Kind
from beir_cocodr.retrieval.ranking import Hits, Ranking
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.store.store_search import search_index, search_store
from beir_cocodr.retrieval.vectors.pool import (
    ShareOut,
    Workers,
    device_list,
    share_out,
    torch_threads,
    warn_if_crowded,
)
from beir_cocodr.same_run import check_same_run

if TYPE_CHECKING:
    from torch import Tensor

# The parts of a text format that an encoder may be loaded with.
_FORMAT = ("query_length", "document_length", "query_prompt", "document_prompt", "title_separator")
_POOLING = "chunk_pooling"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreRun:
    """The record of a search in a store.

    Attributes:
        store: description of the store.
        dataset, split, queries: the queries that were searched for.
        truncated_queries: share of the queries that were truncated.
        run: the run file.
        devices, threads: what searched.
        search_seconds, seconds: time of the search alone, and with encoding and writing.
        ray: the cluster, None where none searched.
        texts_cut: number of queries that were cut before they were tokenised, and may lose words.
    """

    store: Json
    dataset: str
    split: str
    queries: int
    truncated_queries: float
    top_k: int
    identical_ids: str
    index: str | None
    run: str
    devices: list[str]
    threads: int
    search_seconds: float
    seconds: float
    versions: dict[str, str]
    ray: Json | None = None
    texts_cut: int = 0

    def to_json(self) -> Json:
        """Return the fields, without ``ray`` if there was no cluster."""
        content = asdict(self)
        if self.ray is None:
            del content["ray"]
        return content


@dataclass(frozen=True)
class StoreSearchOptions(Options):
    """Options of a search of a store.

    Args:
        top_k: documents of a query.
        split: the split of the queries; without any judgements all queries are taken.
        identical_ids: see :func:`~beir_cocodr.evaluation.runs.identical_ids`.
        model: folder or name of the encoder now; by default the one that the store recorded.
        processes: processes that search, see
            :func:`~beir_cocodr.retrieval.store.store_search.search_store`.
        device: the device that searches; by default the GPUs.
        threads: threads of a process.
        batch_size: queries that are encoded at a time.
        index: a kind of FAISS index, which searches in this process, see
            :func:`~beir_cocodr.retrieval.store.store_search.search_index`; None searches exactly.
        verify: compare each file of the store with its checksum before it is read.
        overwrite: replace the run of another search.
    """

    top_k: int = option(100, min=1)
    split: str = "test"
    identical_ids: str = "auto"
    model: str | None = None
    processes: int = 1
    device: str | None = None
    threads: int | None = None
    batch_size: int = 64
    index: str | None = None
    verify: bool = True
    overwrite: bool = False


def _depth(top_k: int, policy: str) -> int:
    """Return how deep to search, one more where the query's own document may be dropped."""
    return top_k + 1 if policy == "drop" else top_k


def search(
    store: str | Path,
    dataset: Dataset,
    output: str | Path,
    options: StoreSearchOptions = StoreSearchOptions(),
    share: ShareOut = share_out,
) -> StoreRun:
    """Search a store and write a TREC run, and beside it RUN.json with what was searched.

    Args:
        store: folder that ``encode`` wrote.
        dataset: the collection whose queries are searched for; its corpus must be the store's.
        output: the run file; one of the same search is replaced.
        options: depth, queries, devices and index.
        share: shares the search among processes.

    Returns:
        The record of the search.

    Raises:
        InputError: If the store is incomplete, the corpus or the model is not the store's, there
            are no queries, or ``output`` exists and is not a run of this search.
    """
    started = time.perf_counter()
    output = output_path(output)
    devices = device_list(options.device, options.processes)
    _check(output, options.index)
    opened = EmbeddingStore.open(store, options.verify)
    collection = load_queries(dataset, options.split)
    policy = identical_ids(collection.name, options.identical_ids)
    settings: Json = {
        "store": opened.describe(),
        "dataset": collection.name,
        "split": options.split,
        "top_k": options.top_k,
        "identical_ids": policy,
        "index": options.index,
    }
    _check_run(output, settings, options.overwrite)
    _check_corpus(opened, collection.documents.content_hash, collection.name)
    texts = list(collection.queries.values())
    depth = _depth(options.top_k, policy)
    with torch_threads(options.threads) as threads:
        warn_if_crowded(devices, threads)
        encoder = query_encoder(opened, options.model, devices[0])
        vectors = encoder.encode_queries(
            texts, batch_size=options.batch_size, convert_to_tensor=True, show_progress_bar=False
        )
        searching = time.perf_counter()
        ids = list(collection.queries)
        workers = Workers(len(devices), threads, share)
        ranking = _ranking(opened, ids, vectors, depth, options, devices, workers)
        searched = time.perf_counter()
    hits = ranking.hits(opened.ids, policy == "drop", options.top_k)
    _write_run(output, hits, opened.record.model.name or options.model or "store")
    record = StoreRun(
        store=opened.describe(),
        dataset=collection.name,
        split=options.split,
        queries=len(ids),
        truncated_queries=encoder.truncated_share(texts, "query"),
        texts_cut=encoder.texts_cut,
        top_k=options.top_k,
        identical_ids=policy,
        index=options.index,
        run=str(output),
        devices=devices,
        threads=threads,
        search_seconds=round(searched - searching, 3),
        seconds=round(time.perf_counter() - started, 3),
        versions=versions(),
    )
    text = json.dumps(record.to_json(), indent=2, ensure_ascii=False)
    with atomic_output(_record_file(output)) as temporary:
        write_text(temporary, f"{text}\n")
    return record


def _ranking(
    store: EmbeddingStore,
    ids: list[str],
    vectors: "Tensor",
    depth: int,
    options: StoreSearchOptions,
    devices: list[str],
    workers: Workers,
) -> Ranking:
    """Search a store exactly, or by one of its indexes."""
    if options.index is None:
        return search_store(store, ids, vectors, depth, devices, workers)
    kind = cast(Kind, options.index)
    return search_index(store, kind, ids, vectors, depth, options.device)


def _write_run(output: Path, hits: Iterator[tuple[str, Hits]], name: str) -> None:
    """Write a run under the name of its model."""
    _record_file(output).unlink(missing_ok=True)  # it belongs to the run that is replaced
    with atomic_output(output) as temporary:
        write_run(temporary, hits, file_names([name])[name])


def _record_file(run: Path) -> Path:
    return run.with_name(f"{run.name}.json")


def _check_run(
    output: Path,
    settings: Json,
    overwrite: bool,
) -> None:
    """Check that the output does not exist, is a run of the same search, or may be replaced."""
    if not output.exists():
        return
    try:
        before = parse_json(_record_file(output).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    if not overwrite:
        way_out = "choose another --output, or replace the run with --overwrite"
        if not isinstance(before, dict):
            raise InputError(
                f"{output} already exists, and no search is on record that wrote it; {way_out}"
            )
        recorded = {name: before.get(name) for name in settings}
        check_same_run(output, recorded, settings, way_out)
        return
    with output.open("rb") as file:
        columns = file.readline(10_000).split()
    if len(columns) not in (0, 6):
        raise InputError(
            f"{output} is not a TREC run and is left unchanged; choose another --output"
        )


def _check(output: Path, index: str | None) -> None:
    if index is not None and index not in get_args(Kind):
        raise InputError(f"unknown index {index!r}; choose one of {', '.join(get_args(Kind))}")
    output_folder(output.parent)
    if output.is_dir():
        raise InputError(
            f"{output} is a folder; name the run file to write, as {output / 'my.run'}"
        )


def _check_corpus(
    store: EmbeddingStore,
    content_hash: str,
    dataset: str,
) -> None:
    """Check that a store holds the corpus of a collection."""
    stored = str(store.record.identity["corpus"])
    if content_hash != stored:
        raise InputError(
            f"{store.folder} does not contain the corpus of {dataset}: its content hash is "
            f"{stored[:16]} instead of {content_hash[:16]}; encode {dataset}"
        )


def query_encoder(
    store: EmbeddingStore,
    model: str | None,
    device: str | None,
) -> COCODR:
    """Load the encoder that made a store, with the store's own text format.

    Args:
        store: the store.
        model: folder or name of the encoder now; None is the one that the store recorded.
        device: runs the encoder.

    Raises:
        InputError: If the encoder cannot be loaded, or is another one.
    """
    name = store.record.model.name
    path = store.record.model.path
    if name is None and model is None:
        raise InputError(f"{store.folder} does not say which model encoded it; give --model")
    source = str(name)
    if model is not None:
        source = model
    elif path is not None and Path(path).is_dir():
        source = path
    encoder = load_encoder(source, EncoderOptions(device=device))
    stored = store.record.identity
    text_format = encoder.text_format.as_dict()
    differing: dict[str, Any] = {
        part: stored[part] for part in _FORMAT if stored[part] != text_format[part]
    }
    chunk_pooling = stored.get(_POOLING, FIRST)
    if chunk_pooling != text_format.get(_POOLING, FIRST):
        differing[_POOLING] = chunk_pooling
    if differing:
        encoder = load_encoder(source, EncoderOptions(device=device, **differing))
    hashes = fingerprint(encoder)
    if store.record.differs_in_modules(hashes):
        options = EncoderOptions(device=device, **differing)
        return _pooled_as_stored(store, source, options)
    store.record.check_encoder(hashes, source, store.folder)
    return encoder


def _pooled_as_stored(store: EmbeddingStore, source: str, options: EncoderOptions) -> COCODR:
    """Load the encoder of a store with the pooling that only the command of ``encode`` named.

    A store does not record the pooling; the hash of its encoder's modules tells it.

    Raises:
        InputError: It is the store's encoder with no pooling.
    """
    for pooling in POOLINGS:
        # A model that says itself how it pools takes no pooling.
        with suppress(InputError):
            encoder = load_encoder(source, replace(options, pooling=pooling))
            store.record.check_encoder(fingerprint(encoder), source, store.folder)
            log.info("%s was encoded with the pooling %s, which is used", store.folder, pooling)
            return encoder
    encoder = load_encoder(source, options)
    store.record.check_encoder(fingerprint(encoder), source, store.folder)
    return encoder
