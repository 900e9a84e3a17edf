"""Passes over a finished store that write another: BM25's part of a hybrid encoder is added, or the
store is brought to what its corpus is now.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from beir_cocodr import checksums
from beir_cocodr.arrays import Ints
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.io import draft_folder, output_folder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.models.loading import load_encoder, model_source
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.progress import Bar
from beir_cocodr.provenance import TrainingRecord, read_record
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder, HybridCorpusEncoder, Watcher
from beir_cocodr.retrieval.store import encode
from beir_cocodr.retrieval.store.record import EncodeOptions, StoreRecord
from beir_cocodr.retrieval.store.store import TEXTS_FILE, EmbeddingStore

log = logging.getLogger(__name__)


def add_lexical(
    store: str | Path,
    model: HybridEncoder,
    trained: TrainingRecord,
    name: str,
    documents: Documents,
    output: Path,
) -> EmbeddingStore:
    """Write a hybrid encoder's store from that of its dense part: nothing is encoded but terms.
    ``trained`` is the model's training.json, and ``name`` what it was loaded by. An InputError: the
    store is of another encoder than that which was fused, or of other documents, or ``output`` is
    taken.
    """
    given = EmbeddingStore.open(store)
    if given.record.identity["weights"] != trained.base_sha256:
        raise InputError(
            f"{given.folder} was encoded by {given.record.model.name!r}, from which {name} was not fused"
        )
    if given.record.identity["corpus"] != documents.content_hash:
        raise InputError(
            f"{given.folder} holds another corpus; encode this one by the dense encoder first"
        )
    options = EncodeOptions(precision=given.record.precision, backend=given.record.backend)
    encoder = HybridCorpusEncoder(model, documents, given)
    identity = encode.identity_of(encoder, options, given.record.shard_size)
    wanted = StoreRecord(
        identity, encode.encoded_by(name), len(documents), int(model.get_embedding_dimension() or 0)
    )

    def extended(number: int) -> torch.Tensor:
        shard = given.shards[number]
        return torch.from_numpy(encoder.encode(np.arange(shard.start, shard.stop)))

    return _write(given, wanted, output, extended)


class Update(NamedTuple):
    """A store of what its corpus is now, the documents whose vectors it took over, and those that
    were encoded.
    """

    store: EmbeddingStore
    kept: int
    encoded: int


def update(
    model: COCODR,
    documents: Documents,
    folder: Path,
    options: EncodeOptions | None = None,
    name: str | None = None,
    progress: bool = True,
    watcher: Watcher | None = None,
) -> Update:
    """Bring a store to what its corpus is now: texts that it holds are not encoded again, those
    that are gone leave it, and with them every index of it. An InputError: a store of another
    model, or made with other settings; one that is folded or lacks the hashes of its
    texts.

    The store is replaced in one step; a run that is killed leaves the former one. Where there is
    none, one is encoded. A store that is there keeps its precision and the size of its shards,
    whatever the ``options``.
    """
    options = options or EncodeOptions()
    former = EmbeddingStore.found(folder, options.verify)
    if former is None:
        encoder = CorpusEncoder(model, documents, options.token_budget, options.backend, watcher)
        store = encode.encode_documents(
            model, documents, folder, options, name=name, progress=progress, encoder=encoder
        )
        return Update(store, 0, len(documents))
    record = former.record
    options = replace(
        options, shard_size=record.shard_size, precision=record.precision, backend=record.backend
    )
    encoder = CorpusEncoder(model, documents, options.token_budget, options.backend, watcher)
    identity = encode.identity_of(encoder, options, record.shard_size)
    if record.prior:
        raise InputError(f"{folder} is folded, and depends on all its texts at once; encode again")
    record.check_identity(identity | {"corpus": record.identity["corpus"]}, folder)
    if identity == record.identity:
        left = sum(len(former.shards[number]) for number in former.missing())
        store = encode.encode_documents(
            model, documents, folder, options, name=name, progress=progress, encoder=encoder
        )
        return Update(store, len(documents) - left, left)
    if not (folder / TEXTS_FILE).is_file():
        raise InputError(
            f"{folder} has no {TEXTS_FILE}, by which texts are known; encode into another folder"
        )
    if former.verify:
        checksums.verify(folder / TEXTS_FILE, "encode into another folder")
    rows = _rows_there(former, np.load(folder / TEXTS_FILE), encode.text_hashes(encoder))
    kept, made_by = int((rows >= 0).sum()), encode.encoded_by(name) if name else record.model
    log.info("%s: of %d documents %d are there, the others are encoded", folder, len(rows), kept)
    with draft_folder(folder, replace=True) as draft:
        record = replace(record, identity=identity, model=made_by, documents=len(documents))
        store = EmbeddingStore(draft, record, former.verify)
        store.write_record()
        store.table.write(documents)
        encode.write_text_hashes(draft, encoder)
        with Bar(
            total=len(rows) - kept, desc="Encoding", unit=" documents", disable=not progress
        ) as bar:
            for number, shard in enumerate(store.shards):
                wanted = rows[shard.start : shard.stop]
                there, vectors = wanted >= 0, np.empty((len(shard), former.dimensions), np.float32)
                if there.any():
                    vectors[there] = former.rows(wanted[there]).numpy()
                if not there.all():
                    vectors[~there] = encoder.encode(
                        shard.start + np.flatnonzero(~there), bar.update
                    )
                store.write(number, vectors, documents)
    return Update(EmbeddingStore.open(folder), kept, len(rows) - kept)


def _rows_there(
    former: EmbeddingStore, known: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]
) -> Ints:
    """The rows of a store, complete or not, that hold the texts of these hashes; -1 where there is
    none.
    """
    rows = {tuple(pair): row for row, pair in enumerate(known.tolist())}
    found = np.array([rows.get(tuple(pair), -1) for pair in wanted.tolist()], np.int64)
    lost = np.isin(found // former.record.shard_size, former.missing(thorough=True))
    return np.where(lost, -1, found)


def pass_over(
    dataset: str,
    name: str,
    output: Path,
    dense: Path | None,
    encoder: EncoderOptions,
    updated: EncodeOptions | None = None,
) -> dict[str, Any]:
    """What ``encode --dense`` and ``--update`` do, by names, with the errors of
    :func:`add_lexical`, and where a model is not the store's or no hybrid
    encoder; gives what ``encode`` gives.
    """
    began, model = time.perf_counter(), load_encoder(name, encoder)
    found: dict[str, Any] = {"documents_encoded": 0}
    if updated is not None:
        documents = load_collection(dataset, labels="none").documents
        store, _, found["documents_encoded"] = update(
            model, documents, output_folder(output, utf8=True), updated, name
        )
        if isinstance(model, HybridEncoder):
            found["refit"] = encode.check_refit(
                store, model.head, model.text_format, name, documents
            ).describe()
    else:
        trained = read_record(model_source(name))
        if not isinstance(model, HybridEncoder) or trained is None or dense is None:
            raise InputError(
                f"model {name!r} was not made by beir-cocodr fuse, and has no terms to add to a store; leave --dense "
                "out, or name one that was"
            )
        documents = load_collection(dataset, labels="none").documents
        store = add_lexical(dense, model, trained, name, documents, output)
        found["refit"] = encode.check_refit(
            store, model.head, model.text_format, name, documents
        ).describe()
    size = sum(file.stat().st_size for file in output.iterdir() if file.is_file())
    seconds = round(time.perf_counter() - began, 3)
    found |= {"bytes": size, "encoding_seconds": seconds, "seconds": seconds}
    return {**store.describe(), **found}


def _write(
    given: EmbeddingStore,
    record: StoreRecord,
    output: Path,
    vectors: Callable[[int], torch.Tensor],
) -> EmbeddingStore:
    """A store with the documents of another and other vectors, a shard at a time."""
    with draft_folder(output) as draft:
        written = EmbeddingStore(draft, record)
        written.write_record()
        given.table.copy_to(draft)
        for number in range(len(given.shards)):
            written.write(number, vectors(number).numpy())
    return EmbeddingStore.open(output)
