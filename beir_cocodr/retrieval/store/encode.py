"""Encoding a corpus to a store, opened or begun: its missing shards, from texts to files, in one
process or several.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.checksums import checked_path, fault
from beir_cocodr.data.collection import load_collection, resolve_source
from beir_cocodr.data.defects import StrictReport
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import do_each, on_main, rank, world_size
from beir_cocodr.errors import InputError, naming_full_disk
from beir_cocodr.io import output_folder, sole_writer
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.folding import Folding
from beir_cocodr.models.hybrid_encoder import HybridEncoder, HybridHead
from beir_cocodr.models.loading import fingerprint, load_encoder, model_source
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.progress import Bar
from beir_cocodr.provenance import read_record
from beir_cocodr.records import versions
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.pool import (
    ShareOut,
    device_list,
    share_out,
    torch_threads,
    warn_if_crowded,
)
from beir_cocodr.retrieval.store import record as records
from beir_cocodr.retrieval.store.encoding_cost import EncodingCost, estimate
from beir_cocodr.retrieval.store.store import FOLDING_FILE, TEXTS_FILE, EmbeddingStore

#: Queries and documents that the means of a folding are taken from.
FOLDING_SAMPLE = 256

# Documents that a refit is judged by, and those of them that stand for queries.
_REFIT_DOCUMENTS, _REFIT_PROBES = 16_384, 256

# Queries of the collection that a folding may be made from.
_QUERIES = 16 * FOLDING_SAMPLE
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardJob:
    """What a process, here or elsewhere, needs in order to encode shards of a store that was begun.

    The corpus travels as the path of its file, the encoder as what it is loaded by; its device is
    that of the process.
    """

    folder: Path
    documents: Documents
    model: str
    encoder: EncoderOptions
    options: records.EncodeOptions
    threads: int

    def start(self, device: str) -> Callable[[int], int]:
        """Load the encoder on a device, an InputError where it is not the one that the store was
        begun with; gives a function that encodes and writes a shard by its number, and returns its
        number of documents.
        """
        store = EmbeddingStore.found(self.folder, self.options.verify)
        if store is None:
            raise InputError(f"{self.folder} is gone: it held the store that was being written")
        model = load_encoder(self.model, replace(self.encoder, device=device))
        store.record.check_encoder(fingerprint(model), self.model, self.folder)
        encoder = CorpusEncoder(
            model, self.documents, self.options.token_budget, self.options.backend
        )

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
    """Encode and write one shard of a store; gives its number of documents, and calls ``encoded``
    with it after each batch. An InputError where a document has no finite vector, or one that the
    precision cannot hold.
    """
    shard = store.shards[number]
    store.write(
        number, encoder.encode(np.arange(shard.start, shard.stop), encoded), encoder.documents
    )
    return len(shard)


def prepare_store(
    encoder: CorpusEncoder,
    name: str | None,
    folder: Path,
    options: records.EncodeOptions,
    devices: list[str],
    queries: Sequence[str] = (),
) -> tuple[EmbeddingStore, list[int], EncodingCost | None]:
    """Find the store in a folder or begin one, log what encoding will take, and write all but the
    shards; gives the store, the numbers of shards that are missing, and the estimate, None where
    nothing is missing. An InputError: the folder holds a store with another key, or the disk is too
    full.

    ``name`` is what the model was loaded by, None where searches have to name it. An MRL's folding
    takes its mean query from ``queries``, where its vectors lose precision: any are right, and
    documents stand in where there are none.
    """
    model, documents = encoder.model, encoder.documents
    found = EmbeddingStore.found(folder, options.verify)
    size = options.shard_size or (found.record.shard_size if found else records.SHARD_SIZE)
    identity = identity_of(encoder, options, size)
    missing: list[int] | None = None
    tables: Sequence[str] | None = None  # all of ids and order that is broken
    if found is not None:
        found.record.check_identity(identity, folder)
        missing, total = found.missing(thorough=True), len(found.shards)
        if len(missing) < total and found.lacks_folding():
            raise InputError(
                f"{folder} has lost its {FOLDING_FILE}, or it is broken, and without it its shards mean nothing; "
                "delete the folder and encode again"
            )
        tables = found.table.broken()
        if fault(folder / TEXTS_FILE) is not None:  # a kill came first
            write_text_hashes(folder, encoder)
        if not missing and not tables:
            log.info("%s is complete, nothing is encoded", folder)
            return found, [], None
        log.info("%s: %d of %d shards are there", folder, total - len(missing), total)
    width = int(model.get_embedding_dimension() or 0)
    record = records.StoreRecord(
        identity, encoded_by(name), len(documents), width, isinstance(model, MRL)
    )
    store = found or EmbeddingStore(folder, record)
    missing = list(range(len(store.shards))) if missing is None else missing
    left = sum(len(store.shards[number]) for number in missing)
    expected = estimate(encoder, record, left, devices)
    log.info("%s", expected)
    expected.check_disk_space(folder)
    if found is None:
        store.write_record()
    store.table.write(documents, tables)
    if found is None:
        write_text_hashes(folder, encoder)
    if store.lacks_folding():
        with checked_path(folder / FOLDING_FILE) as temporary:
            _folding(encoder, queries).save(temporary)
    return store, missing, expected


def text_hashes(encoder: CorpusEncoder) -> np.ndarray:
    """Hashes of what the encoder reads of each document, uint64 (N, 2)."""
    texts = map(encoder.model.text_format.document, encoder.documents.values())
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def write_text_hashes(folder: Path, encoder: CorpusEncoder) -> None:
    """Write :func:`text_hashes` into a store's folder."""
    with checked_path(folder / TEXTS_FILE) as temporary, temporary.open("wb") as file:
        np.save(file, text_hashes(encoder))


def identity_of(
    encoder: CorpusEncoder, options: records.EncodeOptions, shard_size: int
) -> records.Identity:
    """All that the vectors of a store depend on, but for the last bits."""
    model = encoder.model
    return {
        **fingerprint(model),
        "similarity": str(model.similarity_fn_name),
        **model.text_format.as_dict(),
        "corpus": encoder.documents.content_hash,
        "precision": options.precision,
        "backend": options.backend,
        "shard_size": shard_size,
    }


def encoded_by(name: str | None) -> records.EncodedBy:
    source = None if name is None else Path(model_source(name))
    return records.EncodedBy(
        name, str(source.resolve()) if source is not None and source.is_dir() else None
    )


def _folding(encoder: CorpusEncoder, queries: Sequence[str]) -> Folding:
    rows = spaced_rows(len(encoder.documents), FOLDING_SAMPLE)
    texts = [queries[row] for row in spaced_rows(len(queries), FOLDING_SAMPLE)] if queries else []
    if not texts:
        texts = [encoder.model.text_format.document(d) for d in encoder.documents.take(rows)]
    return Folding.fit(encoder.model.query_vectors(texts, batch_size=32), encoder.encode(rows))


def encode(
    dataset: str,
    model: str,
    output: Path,
    options: records.EncodeOptions = records.EncodeOptions(),
    processes: int = 1,
    threads: int | None = None,
    progress: bool = False,
    share: ShareOut = share_out,
    encoder: EncoderOptions = EncoderOptions(),
) -> dict[str, Any]:
    """Encode the documents of a collection to an :class:`EmbeddingStore`. An InputError names what
    has to be corrected in the collection, the model or the options; a store in ``output`` with
    another key; a document with NaN.

    A store in ``output`` that was interrupted and has the same key is completed; one that is
    complete is left as it is. A run that dies loses the shards under way, one for each process.
    Memory holds one shard of vectors for each process, and beside that nothing that grows with the
    corpus but the order of ids, 30 bytes a document at the start.

    Args:
        dataset: the collection; needs neither queries nor labels.
        model: of the encoder.
        output: folder of the store.
        options: see :class:`EncodeOptions`.
        processes: each has its own copy of the model and encodes whole shards; a dead one's are
            done again.
        threads: CPU threads of each process; PyTorch's own number by default, whatever the number
            of processes, because the last bits of vectors depend on it.
        progress: show a bar on stderr.
        share: how shards are shared out; to processes here by default, where there are several.
        encoder: how the model is loaded; its device is that of all processes, by default GPUs in
            turn, else the CPU.

    Returns:
        what the store depends on, what was encoded now, how long that took and what had been
        expected.
    """
    folder, started = Path(output), time.perf_counter()
    devices = device_list(encoder.device, processes)
    documents = load_collection(dataset, labels="none").documents
    with (
        _written_to(folder),
        torch_threads(threads) as count,
        sole_writer(output_folder(folder, utf8=True)),
    ):
        loaded = load_encoder(model, replace(encoder, device=devices[0]))
        corpus_encoder = CorpusEncoder(loaded, documents, options.token_budget, options.backend)
        warn_if_crowded(devices, count)
        queries = (
            collection_queries(dataset)
            if isinstance(loaded, MRL) and options.precision != "fp32"
            else []
        )
        store, missing, expected = prepare_store(
            corpus_encoder, model, folder, options, devices, queries
        )
        job = ShardJob(folder, documents, model, encoder, options, count)
        hybrid = (loaded.head, loaded.text_format) if isinstance(loaded, HybridEncoder) else None
        encoding, done = time.perf_counter(), 0
        with _bar(expected, progress) as bar:
            if share is share_out and (len(devices) == 1 or len(missing) < 2):
                done = sum(
                    encode_shard(store, corpus_encoder, number, bar.update) for number in missing
                )
            else:
                del loaded, corpus_encoder  # each process has its own
                clear_device_cache(garbage_collection=True)
                for encoded in share(missing, job.start, devices):
                    bar.update(encoded)
                    done += encoded
        refit = None if hybrid is None else check_refit(store, *hybrid, model, documents)
    ended = time.perf_counter()
    return {
        **store.describe(),
        "documents_encoded": done,
        "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        "encoding_seconds": round(ended - encoding, 3),
        "seconds": round(ended - started, 3),
        "estimate": expected and asdict(expected),
        "devices": devices,
        "threads": count,
        "versions": versions(),
        **({} if refit is None else {"refit": refit.describe()}),
    }


def check_refit(
    store: EmbeddingStore, head: HybridHead, form: TextFormat, name: str, documents: Documents
) -> records.Refit:
    """Measure how far a complete store of a hybrid encoder (``head``, ``form``), not smoothed, is
    from its fit, and write that beside the store; ``name`` is what it was loaded by, whose
    training.json says what was unknown then.
    """
    rows = spaced_rows(len(documents), _REFIT_DOCUMENTS)
    texts = (form.document(document) for document in documents.take(rows))
    terms = Counter(term for text in texts for term in head.analyze(text))
    unknown = sum(count for term, count in terms.items() if term not in head.vocabulary)
    vectors, scale = store.rows(rows), head.scale.cpu()
    probes = torch.from_numpy(spaced_rows(len(rows), _REFIT_PROBES))
    drifts = []
    for part, root in (
        (vectors[:, : head.dimension], head.dense_spread),
        (vectors[:, head.dimension :] / scale, head.lexical_spread),
    ):
        fitted = (part[probes] @ root.cpu()).norm(dim=1)
        now = (part[probes] @ part.T).std(dim=1, correction=0)
        changes = (now / fitted - 1).abs()[fitted > 0]
        drifts.append(round(float(changes.median()), 4) if len(changes) else 0.0)
    record = read_record(model_source(name))
    before = None if record is None else record.details.get("unknown_share")
    share = round(unknown / max(1, terms.total()), 4)
    found = records.Refit(
        len(rows), share, None if before is None else round(float(str(before)), 4), *drifts
    )
    with checked_path(store.folder / records.REFIT_FILE) as temporary:
        found.write(temporary)
    return found


def encode_documents(
    model: COCODR,
    documents: Documents,
    folder: str | Path,
    options: records.EncodeOptions = records.EncodeOptions(),
    queries: Sequence[str] = (),
    name: str | None = None,
    progress: bool = False,
    encoder: CorpusEncoder | None = None,
) -> EmbeddingStore:
    """:func:`encode` in this process, for a loaded model and an open corpus; its errors; gives the
    store. ``queries`` and ``name`` are as for :func:`prepare_store`; ``encoder`` is of model and
    documents, where not the usual one.
    """
    with _written_to(Path(folder)), sole_writer(output_folder(Path(folder), utf8=True)):
        encoder = encoder or CorpusEncoder(model, documents, options.token_budget, options.backend)
        store, missing, expected = prepare_store(
            encoder, name, Path(folder), options, [str(model.device)], queries
        )
        with _bar(expected, progress) as bar:
            for number in missing:
                encode_shard(store, encoder, number, bar.update)
    return store


def encode_over_ranks(
    model: COCODR,
    documents: Documents,
    folder: Path,
    encoder: CorpusEncoder,
    progress: bool = False,
) -> EmbeddingStore:
    """:func:`encode_documents` by all processes of a run that ``torchrun`` started, which call this
    together: each has the model on its own device, and encodes its share of the shards.
    """
    options = records.EncodeOptions(backend=encoder.backend)
    if world_size() == 1:
        return encode_documents(
            model, documents, folder, options, progress=progress, encoder=encoder
        )
    with ExitStack() as held:

        def prepare() -> list[int]:
            held.enter_context(sole_writer(output_folder(folder, utf8=True)))
            return prepare_store(encoder, None, folder, options, [str(model.device)])[1]

        missing = on_main(prepare)

        def encode() -> None:
            store = EmbeddingStore.found(folder, options.verify)
            if store is None:
                raise InputError(
                    f"{folder} is not seen by all processes: let the output be on a disk that they share"
                )
            mine = missing[rank() :: world_size()]
            with (
                _written_to(folder),
                Bar(mine, "Encoding", unit=" shards", disable=rank() > 0 or not progress) as bar,
            ):
                for number in bar:
                    encode_shard(store, encoder, number)

        do_each(encode)
    return EmbeddingStore.open(folder)


def _written_to(folder: Path) -> AbstractContextManager[None]:
    """Where the disk is full, the error says how much of the store in ``folder`` is safe."""

    def safe() -> str:
        store = EmbeddingStore.found(folder, verify=False)
        if store is None:
            return "nothing was encoded"
        total = len(store.shards)
        return (
            f"{total - len(store.missing())} of {total} shards are complete and not encoded again"
        )

    return naming_full_disk(folder, safe)


def _bar(expected: EncodingCost | None, progress: bool) -> Any:
    total = expected.documents if expected else 0
    return Bar(total=total, desc="Encoding", unit=" documents", disable=not (progress and expected))


def collection_queries(dataset: str) -> list[str]:
    """The first queries of a collection, of any split, or none; an InputError where they cannot be
    read.
    """
    source = resolve_source(dataset, "test")
    report = StrictReport(source.name)
    source.missing(report, "optional")
    return [text for _, _, text in islice(source.queries(report), _QUERIES)]
