"""Encoding a corpus to a store that is opened or begun, in one process or several."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from accelerate.utils.memory import clear_device_cache

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.checksums import checked_path, fault
from beir_cocodr.data.collection import Dataset, load_collection, resolve_source
from beir_cocodr.data.defects import Repeats, StrictReport, check_duplicates
from beir_cocodr.data.documents import Documents
from beir_cocodr.distributed import (
    do_each,
    on_main,
    rank,
    world_size,
)
from beir_cocodr.errors import InputError, listed, naming_full_disk
from beir_cocodr.io import CHECKSUMS, is_incidental, output_folder, output_path, sole_writer
from beir_cocodr.models.checkpoints.loading import fingerprint, load_encoder, model_source
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.folding import Folding
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.progress import Bar
from beir_cocodr.records import versions
from beir_cocodr.retrieval.store.encoding_cost import EncodingCost, estimate
from beir_cocodr.retrieval.store.record import (
    SHARD_SIZE,
    EncodedBy,
    EncodeOptions,
    Identity,
    StoreRecord,
)
from beir_cocodr.retrieval.store.refit import check_refit
from beir_cocodr.retrieval.store.store import FOLDING_FILE, TEXTS_FILE, EmbeddingStore
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.vectors.pool import (
    Workers,
    device_list,
    share_out,
    torch_threads,
    warn_if_crowded,
)
from beir_cocodr.retrieval.vectors.sharpening import SharpeningEncoder, corpus_encoder
from beir_cocodr.retrieval.vectors.vector_cache import encoder_identity, hash_texts

#: Queries and documents that the means of a folding are taken from.
FOLDING_SAMPLE = 256

# Queries of the collection that a folding may be made from.
_QUERIES = 16 * FOLDING_SAMPLE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardJob:
    """The data that a process, here or elsewhere, needs to encode shards of a store that was begun.

    The corpus travels as the path of its file, and the encoder as what it is loaded by; its device
    is that of the process.

    Attributes:
        folder: Folder of the store.
        documents: The corpus.
        model: What the encoder is loaded by.
        encoder: How the encoder is loaded.
        options: How the corpus is encoded.
        threads: CPU threads of the process.
    """

    folder: Path
    documents: Documents
    model: str
    encoder: EncoderOptions
    options: EncodeOptions
    threads: int

    def start(self, device: str) -> Callable[[int], int]:
        """Load the encoder on a device.

        Returns:
            A function that encodes and writes a shard by its number, and returns its number of
            documents.

        Raises:
            InputError: The store no longer exists, or was begun with another encoder.
        """
        store = EmbeddingStore.found(self.folder, self.options.verify)
        if store is None:
            raise InputError(
                f"{self.folder}, to which the store was being written, no longer exists; encode "
                "again"
            )
        model = load_encoder(self.model, replace(self.encoder, device=device))
        store.record.check_encoder(
            fingerprint(model),
            self.model,
            self.folder,
        )
        encoder = corpus_encoder(model, self.documents, self.options)

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
    """Encode and write one shard of a store.

    Args:
        store: The store.
        encoder: The encoder of the corpus.
        number: Number of the shard.
        encoded: Called with the number of documents after each batch.

    Returns:
        The number of documents.

    Raises:
        InputError: A document has no finite vector, or one that the precision cannot hold.
    """
    shard = store.shards[number]
    vectors = encoder.encode(np.arange(shard.start, shard.stop), encoded)
    store.write(number, vectors, encoder.documents)
    return len(shard)


@dataclass(frozen=True)
class PreparedStore:
    """A store in which only some shards are not written yet.

    Attributes:
        store: The store.
        missing: Numbers of the missing shards.
        cost: What encoding them is expected to take; None if none is missing.
    """

    store: EmbeddingStore
    missing: list[int]
    cost: EncodingCost | None


def prepare_store(
    encoder: CorpusEncoder,
    name: str | None,
    folder: Path,
    options: EncodeOptions,
    devices: list[str],
    queries: Sequence[str] = (),
) -> PreparedStore:
    """Find the store in a folder or begin one, and write all but the shards.

    What encoding will take is logged.

    Args:
        encoder: The encoder of the corpus.
        name: What the model was loaded by; None if searches have to name it.
        folder: The folder.
        options: How the corpus is encoded.
        devices: A device for each process.
        queries: The mean query of an MRL's folding is taken from these, where its vectors lose
            precision; any are right, and without them documents are used.

    Raises:
        InputError: The folder holds a store with another key, or the disk is too full.
    """
    former = EmbeddingStore.found(folder, options.verify)
    size = options.shard_size or (former.record.shard_size if former else SHARD_SIZE)
    identity = identity_of(encoder, options, size)
    if former is not None:
        former.record.check_identity(identity, folder)
        _keep_where_queries_are(former, _generated(encoder))
        missing, tables = _resume(former, encoder)
        if not missing and not tables:
            log.info("%s is complete, nothing is encoded", folder)
            return PreparedStore(former, [], None)
        store = former
    else:
        _check_free(folder)
        model = encoder.model
        record = StoreRecord(
            identity=identity,
            model=encoded_by(name),
            documents=len(encoder.documents),
            dimensions=int(model.get_embedding_dimension() or 0),
            flattened=isinstance(model, MRL),
            generated=_generated(encoder),
        )
        store = EmbeddingStore(folder, record)
        missing = list(range(len(store.shards)))
        tables = None  # those that are missing or broken
    documents_left = sum(len(store.shards[number]) for number in missing)
    cost = estimate(encoder, store.record, documents_left, devices)
    log.info("%s", cost)
    cost.check_disk_space(folder)
    if former is None:
        store.write_record()
    store.table.write(encoder.documents, tables)
    if former is None:
        write_text_hashes(folder, encoder)
    if store.lacks_folding():
        with checked_path(folder / FOLDING_FILE) as temporary:
            _folding(encoder, queries).save(temporary)
    return PreparedStore(store, missing, cost)


def _keep_where_queries_are(store: EmbeddingStore, generated: str) -> None:
    """Note in the record of a store where the queries that sharpened it are now."""
    if store.record.generated != generated:
        store.record = replace(store.record, generated=generated)
        store.write_record()


def _generated(encoder: CorpusEncoder) -> str:
    """Return the folder of the queries by which an encoder sharpens vectors, "" for none."""
    if isinstance(encoder, SharpeningEncoder):
        return encoder.sharpening.queries.folder
    return ""


def _check_free(folder: Path) -> None:
    """Refuse a folder without a store that contains something else."""
    if not folder.is_dir():
        return
    others = [path for path in folder.iterdir() if not is_incidental(path)]
    names = sorted(path.name for path in others if path.name != CHECKSUMS)
    if names:
        raise InputError(
            f"{folder} contains no embeddings but {listed(names)}; choose another --output"
        )


def _resume(store: EmbeddingStore, encoder: CorpusEncoder) -> tuple[list[int], list[str]]:
    """Return the missing shards of a store, and the broken files of its ids."""
    folder = store.folder
    missing = store.missing(thorough=True)
    total = len(store.shards)
    if len(missing) < total and store.lacks_folding():
        raise InputError(
            f"{folder} has no readable {FOLDING_FILE}, without which its shards cannot be used; "
            "delete the folder and encode again"
        )
    tables = store.table.broken()
    if fault(folder / TEXTS_FILE) is not None:  # the run was killed before
        write_text_hashes(folder, encoder)
    if missing or tables:
        log.info(
            "%s: %d of %d shards exist",
            folder,
            total - len(missing),
            total,
        )
    return missing, tables


def text_hashes(encoder: CorpusEncoder) -> npt.NDArray[np.uint64]:
    """Return the (N, 2) hashes of what the encoder reads of each document."""
    return hash_texts(map(encoder.model.text_format.document, encoder.documents.values()))


def write_text_hashes(folder: Path, encoder: CorpusEncoder) -> None:
    """Write :func:`text_hashes` into a store's folder."""
    with checked_path(folder / TEXTS_FILE) as temporary, temporary.open("wb") as file:
        np.save(file, text_hashes(encoder))


def identity_of(
    encoder: CorpusEncoder,
    options: EncodeOptions,
    shard_size: int,
) -> Identity:
    """Return all that the vectors of a store depend on, except for the last bits."""
    sharpening = encoder.sharpening.identity() if isinstance(encoder, SharpeningEncoder) else {}
    return {
        **encoder_identity(encoder.model, options.backend),
        "corpus": encoder.documents.content_hash,
        "precision": options.precision,
        "shard_size": shard_size,
        **sharpening,
    }


def encoded_by(name: str | None) -> EncodedBy:
    """Return who made a store, for a model by its name."""
    if name is None:
        return EncodedBy(None)
    source = Path(model_source(name))
    return EncodedBy(name, str(source.resolve()) if source.is_dir() else None)


def _folding(encoder: CorpusEncoder, queries: Sequence[str]) -> Folding:
    rows = spaced_rows(len(encoder.documents), FOLDING_SAMPLE)
    if queries:
        texts = [queries[row] for row in spaced_rows(len(queries), FOLDING_SAMPLE)]
    else:
        documents = encoder.documents.take(rows)
        texts = [encoder.model.text_format.document(document) for document in documents]
    query_vectors = encoder.model.query_vectors(texts, batch_size=32)
    return Folding.fit(query_vectors, encoder.encode(rows))


def encode(
    dataset: str,
    model: str,
    output: Path,
    options: EncodeOptions = EncodeOptions(),
    *,
    encoder: EncoderOptions = EncoderOptions(),
    workers: Workers | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Encode the documents of a collection to an :class:`EmbeddingStore`.

    A store in ``output`` that was interrupted and has the same key is completed; a complete one is
    left as it is. A run that dies loses the shards under way, one for each process. Memory holds
    one shard of vectors for each process, and otherwise nothing that grows with the corpus except
    for the order of ids, 30 bytes a document at the start.

    Args:
        dataset: The collection; it needs neither queries nor labels.
        model: The encoder.
        output: Folder of the store.
        options: How the corpus is encoded.
        encoder: How the model is loaded; its device is that of all processes, by default the GPUs,
            and the CPU without one.
        workers: Processes, each with its own copy of the model, which encode whole shards; by
            default this process. The last bits of vectors depend on their threads.
        progress: Show a bar.

    Returns:
        What the store depends on, what was encoded now, how long that took and what had been
        expected.

    Raises:
        InputError: Something has to be corrected in the collection, the model or the options; a
            store in ``output`` has another key; or a document has no finite vector.
    """
    folder = output_path(output)
    workers = workers or Workers()
    started = time.perf_counter()
    devices = device_list(encoder.device, workers.processes)
    documents = _corpus(dataset, options)
    with (
        _naming_safe_shards(folder),
        torch_threads(workers.threads) as threads,
        sole_writer(output_folder(folder, utf8=True)),
    ):
        loaded = load_encoder(model, replace(encoder, device=devices[0]))
        encoder_of_corpus = corpus_encoder(loaded, documents, options)
        warn_if_crowded(devices, threads)
        prepared = prepare_store(
            encoder=encoder_of_corpus,
            name=model,
            folder=folder,
            options=options,
            devices=devices,
            queries=_folding_queries(dataset, loaded, options),
        )
        job = ShardJob(folder, documents, model, encoder, options, threads)
        head = loaded.head if isinstance(loaded, HybridEncoder) else None
        text_format = loaded.text_format
        began = time.perf_counter()
        if _is_alone(workers, devices, prepared):
            encoded = _encode_missing(prepared, encoder_of_corpus, progress)
        else:
            # Each process has a model of its own.
            del loaded, encoder_of_corpus
            clear_device_cache(garbage_collection=True)
            encoded = _share_missing(prepared, job, devices, workers, progress)
        refit = None
        if head is not None:
            refit = check_refit(prepared.store, head, text_format, model, documents)
    ended = time.perf_counter()
    report = {
        **_describe_encoding(prepared, encoded),
        "encoding_seconds": round(ended - began, 3),
        "seconds": round(ended - started, 3),
        "devices": devices,
        "threads": threads,
        "versions": versions(),
    }
    if refit is not None:
        report["refit"] = refit.describe()
    if options.sharpening is not None:
        report["sharpened_documents"] = options.sharpening.queries.documents
    return report


def _corpus(dataset: str, options: EncodeOptions) -> Documents:
    """Load a corpus, and check that the queries that sharpen its vectors belong to it."""
    documents = load_collection(dataset, labels="none").documents
    if options.sharpening is not None:
        options.sharpening.queries.check_corpus(documents)
    return documents


def _folding_queries(dataset: str, model: COCODR, options: EncodeOptions) -> Sequence[str]:
    """Return queries for a folding, which only the vectors of an MRL need that lose precision."""
    loses_precision = isinstance(model, MRL) and options.precision != "fp32"
    return collection_queries(dataset) if loses_precision else []


def _describe_encoding(prepared: PreparedStore, encoded: int) -> dict[str, Any]:
    """Describe a store, what was encoded now, and what had been expected."""
    files = [file for file in prepared.store.folder.iterdir() if file.is_file()]
    return {
        **prepared.store.describe(),
        "documents_encoded": encoded,
        "bytes": sum(file.stat().st_size for file in files),
        "estimate": None if prepared.cost is None else asdict(prepared.cost),
    }


def _is_alone(workers: Workers, devices: list[str], prepared: PreparedStore) -> bool:
    """Return true if this process encodes all that is missing."""
    is_one_task = len(devices) == 1 or len(prepared.missing) < 2
    return workers.share is share_out and is_one_task


def _encode_missing(
    prepared: PreparedStore,
    encoder: CorpusEncoder,
    progress: bool,
) -> int:
    """Encode the missing shards of a store in this process, and return how many documents."""
    encoded = 0
    with _bar(prepared.cost, progress) as bar:
        for number in prepared.missing:
            encoded += encode_shard(
                prepared.store,
                encoder,
                number,
                bar.update,
            )
    return encoded


def _share_missing(
    prepared: PreparedStore,
    job: ShardJob,
    devices: list[str],
    workers: Workers,
    progress: bool,
) -> int:
    """Encode the missing shards of a store in processes, and return how many documents."""
    encoded = 0
    with _bar(prepared.cost, progress) as bar:
        for count in workers.share(prepared.missing, job.start, devices):
            bar.update(count)
            encoded += count
    return encoded


def encode_documents(
    model: COCODR,
    documents: Documents,
    folder: str | Path,
    options: EncodeOptions = EncodeOptions(),
    *,
    name: str | None = None,
    progress: bool = False,
    encoder: CorpusEncoder | None = None,
) -> EmbeddingStore:
    """Encode an open corpus with a loaded model, in this process, as :func:`encode` does.

    Args:
        model: The encoder.
        documents: The corpus.
        folder: Folder of the store.
        options: How the corpus is encoded.
        name: What the model was loaded by; None if searches have to name it.
        progress: Show a bar.
        encoder: Encoder of the model and the corpus, where it is not the usual one.

    Raises:
        InputError: As for :func:`encode`.
    """
    folder = Path(folder)
    with _naming_safe_shards(folder), sole_writer(output_folder(folder, utf8=True)):
        encoder = encoder or corpus_encoder(model, documents, options)
        prepared = prepare_store(
            encoder,
            name,
            folder,
            options,
            [str(model.device)],
        )
        _encode_missing(prepared, encoder, progress)
    return prepared.store


def encode_over_ranks(
    model: COCODR,
    documents: Documents,
    folder: Path,
    encoder: CorpusEncoder,
    progress: bool = False,
) -> EmbeddingStore:
    """Encode an open corpus by all processes of a run that ``torchrun`` started.

    All of them call this. Each has the model on its own device, and encodes its share of the
    shards.

    Args:
        model: The encoder.
        documents: The corpus.
        folder: Folder of the store, which all processes see.
        encoder: Encoder of the model and the corpus.
        progress: Show a bar.
    """
    options = EncodeOptions(backend=encoder.backend)
    if world_size() == 1:
        return encode_documents(
            model,
            documents,
            folder,
            options,
            progress=progress,
            encoder=encoder,
        )
    with ExitStack() as held:

        def prepare() -> list[int]:
            held.enter_context(sole_writer(output_folder(folder, utf8=True)))
            devices = [str(model.device)]
            return prepare_store(encoder, None, folder, options, devices).missing

        missing = on_main(prepare)

        def encode_share() -> None:
            store = EmbeddingStore.found(folder, options.verify)
            if store is None:
                raise InputError(
                    f"{folder} is not seen by all processes: put the output on a disk that they "
                    "share"
                )
            mine = missing[rank() :: world_size()]
            is_hidden = rank() > 0 or not progress
            with (
                _naming_safe_shards(folder),
                Bar(mine, "Encoding", unit=" shards", disable=is_hidden) as bar,
            ):
                for number in bar:
                    encode_shard(store, encoder, number)

        do_each(encode_share)
    return EmbeddingStore.open(folder)


def _naming_safe_shards(folder: Path) -> AbstractContextManager[None]:
    """Say how much of the store in a folder is safe where the disk is full."""

    def describe_safe_shards() -> str:
        store = EmbeddingStore.found(folder, verify=False)
        if store is None:
            return "nothing was encoded"
        total = len(store.shards)
        complete = total - len(store.missing())
        return f"{complete} of {total} shards are complete and not encoded again"

    return naming_full_disk(folder, describe_safe_shards)


def _bar(cost: EncodingCost | None, progress: bool) -> Any:
    total = cost.documents if cost else 0
    return Bar(
        total=total,
        desc="Encoding",
        unit=" documents",
        disable=not (progress and cost),
    )


def collection_queries(dataset: Dataset) -> list[str]:
    """Return the first queries of a collection, from any split; none if it has none.

    Raises:
        InputError: The queries cannot be read, or two have one id.
    """
    source = resolve_source(dataset, "test")
    report = StrictReport(source.name)
    source.missing(report, "optional")
    queries = list(islice(source.queries(report), _QUERIES))
    repeats = Repeats()
    repeats.add(id for _, id, _ in queries)
    duplicates = repeats.find(lambda: ((line, id, id) for line, id, _ in queries))
    check_duplicates(duplicates, source.queries_file or source.name, report)
    texts = [text for _, _, text in queries]
    if not texts and source.queries_file is not None:
        log.warning("%s contains no query", source.queries_file)
    elif not texts and source.splits():
        log.warning("%s has judgements, and no queries", source.name)
    return texts
