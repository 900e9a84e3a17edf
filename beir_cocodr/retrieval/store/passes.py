"""Passes over a finished store that write another, without encoding what is encoded already.

One adds BM25's part of a hybrid encoder to the store of its dense part; the other brings a store to
what its corpus is now.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr import checksums
from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.io import draft_folder, output_folder
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.progress import Bar
from beir_cocodr.retrieval.store import encode
from beir_cocodr.retrieval.store.encoding_cost import check_update
from beir_cocodr.retrieval.store.record import EncodeOptions, Identity, StoreRecord
from beir_cocodr.retrieval.store.refit import check_refit
from beir_cocodr.retrieval.store.store import TEXTS_FILE, EmbeddingStore
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder, HybridCorpusEncoder, Watcher
from beir_cocodr.retrieval.vectors.vector_cache import encoder_identity

_OTHER_FOLDER = "encode into another folder"

log = logging.getLogger(__name__)


def add_lexical(
    store: str | Path,
    model: HybridEncoder,
    name: str,
    documents: Documents,
    output: Path,
) -> EmbeddingStore:
    """Write a hybrid encoder's store from that of its dense part; only terms are looked at.

    Args:
        store: Folder of the dense part's store.
        model: The hybrid encoder.
        name: What it was loaded by.
        documents: The corpus.
        output: Folder of the new store.

    Raises:
        InputError: The store is of another encoder than the one that was fused, of one that reads
            documents otherwise, or of other documents, or ``output`` is taken.
    """
    dense = EmbeddingStore.open(store)
    if dense.record.sharpening:
        raise InputError(
            f"{dense.folder} was sharpened by generated queries, and a hybrid encoder was fused "
            "from vectors as they are; name a store without --sharpen"
        )
    _check_dense_part(dense, model, name, documents)
    options = EncodeOptions(
        precision=dense.record.precision,
        backend=dense.record.backend,
    )
    encoder = HybridCorpusEncoder(model, documents, dense)
    record = StoreRecord(
        identity=encode.identity_of(
            encoder,
            options,
            dense.record.shard_size,
        ),
        model=encode.encoded_by(name),
        documents=len(documents),
        dimensions=int(model.get_embedding_dimension() or 0),
    )
    with draft_folder(output) as draft:
        written = EmbeddingStore(draft, record)
        written.write_record()
        dense.table.copy_to(draft)
        for number, shard in enumerate(dense.shards):
            written.write(
                number,
                encoder.encode(np.arange(shard.start, shard.stop)),
            )
    return EmbeddingStore.open(output)


def _check_dense_part(
    dense: EmbeddingStore,
    model: HybridEncoder,
    name: str,
    documents: Documents,
) -> None:
    """Raise an InputError if a store does not hold what a model's dense part makes of a corpus."""
    record = dense.record
    needed = encoder_identity(model.dense_part(), record.backend)
    if record.identity["weights"] != needed["weights"]:
        raise InputError(
            f"{dense.folder} was encoded by {record.model.name!r}, but {name} was fused from "
            "another encoder; name the store of that encoder"
        )
    if record.identity["corpus"] != documents.content_hash:
        raise InputError(
            f"{dense.folder} contains another corpus; encode this one with the dense encoder first"
        )
    differences = record.encoding_differences(needed)
    if differences:
        raise InputError(
            f"{dense.folder} was encoded with other settings than {name} has: {differences}; "
            "encode with the dense encoder and these settings first, or leave --dense out"
        )


@dataclass(frozen=True)
class Update:
    """A store that was brought to what its corpus is now.

    Attributes:
        store: The store.
        kept: Documents whose vectors it took over.
        encoded: Documents that were encoded.
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
    """Bring a store to what its corpus is now.

    Texts that it holds are not encoded again. Texts that the corpus no longer has leave it, and
    with them every index of it. The store is replaced in one step; a killed run leaves the former
    one. Without a store, one is encoded.

    Args:
        model: The encoder.
        documents: The corpus as it is now.
        folder: Folder of the store.
        options: How the corpus is encoded. A store that exists keeps its precision and the size of
            its shards.
        name: What the encoder was loaded by.
        progress: Show a bar.
        watcher: Called with the number of documents after each encoded batch.

    Raises:
        InputError: The store is of another model, made with other settings, folded, or lacks the
            hashes of its texts; or the disk is too full.
    """
    options = options or EncodeOptions()
    former = EmbeddingStore.found(folder, options.verify)
    if former is not None:
        options = replace(
            options,
            shard_size=former.record.shard_size,
            precision=former.record.precision,
            backend=former.record.backend,
        )
    encoder = CorpusEncoder(
        model=model,
        documents=documents,
        token_budget=options.token_budget,
        backend=options.backend,
        watcher=watcher,
    )
    if former is not None:
        identity = encode.identity_of(
            encoder,
            options,
            former.record.shard_size,
        )
        _check_updatable(former, identity)
        if identity != former.record.identity:
            record = replace(
                former.record,
                identity=identity,
                model=encode.encoded_by(name) if name else former.record.model,
                documents=len(documents),
            )
            return _replaced(former, record, encoder, progress)
    missing = len(documents)
    if former is not None:
        missing = sum(len(former.shards[number]) for number in former.missing())
    store = encode.encode_documents(
        model,
        documents,
        folder,
        options,
        name=name,
        progress=progress,
        encoder=encoder,
    )
    return Update(store, len(documents) - missing, missing)


def _check_updatable(former: EmbeddingStore, identity: Identity) -> None:
    """Raise an InputError if more than the corpus of a store has changed, or it is folded."""
    folder = former.folder
    record = former.record
    if record.prior:
        raise InputError(f"{folder} is folded, and depends on all its texts at once; encode again")
    if record.sharpening:
        raise InputError(
            f"{folder} was sharpened by queries that were generated for its documents, and new "
            f"documents have none; generate queries again, and {_OTHER_FOLDER} with --sharpen"
        )
    record.check_identity(
        identity | {"corpus": record.identity["corpus"]},
        folder,
    )
    if identity == record.identity:
        return
    texts = folder / TEXTS_FILE
    if not texts.is_file():
        raise InputError(
            f"{folder} has no {TEXTS_FILE}, which identifies its texts; {_OTHER_FOLDER}"
        )
    if former.verify:
        checksums.verify(texts, _OTHER_FOLDER)


def _replaced(
    former: EmbeddingStore,
    record: StoreRecord,
    encoder: CorpusEncoder,
    progress: bool,
) -> Update:
    """Replace a store by one of another corpus, which takes over the vectors of equal texts."""
    folder = former.folder
    known = np.load(folder / TEXTS_FILE)
    rows = _former_rows(former, known, encode.text_hashes(encoder))
    kept = int((rows >= 0).sum())
    log.info(
        "%s contains %d of %d documents; the others are encoded",
        folder,
        kept,
        len(rows),
    )
    check_update(encoder, record, np.flatnonzero(rows < 0), folder)
    with draft_folder(folder, replace=True) as draft:
        store = EmbeddingStore(draft, record, former.verify)
        store.write_record()
        store.table.write(encoder.documents)
        encode.write_text_hashes(draft, encoder)
        bar = Bar(
            total=len(rows) - kept,
            desc="Encoding",
            unit=" documents",
            disable=not progress,
        )
        with bar:
            for number, shard in enumerate(store.shards):
                of_shard = rows[shard.start : shard.stop]
                vectors = _shard_vectors(
                    former=former,
                    encoder=encoder,
                    rows=of_shard,
                    start=shard.start,
                    bar=bar,
                )
                store.write(number, vectors, encoder.documents)
    return Update(EmbeddingStore.open(folder), kept, len(rows) - kept)


def _shard_vectors(
    former: EmbeddingStore,
    encoder: CorpusEncoder,
    rows: Ints,
    start: int,
    bar: Any,
) -> Floats:
    """Return the (n, w) vectors of a shard.

    Args:
        former: The former store.
        encoder: Encodes texts that it does not hold.
        rows: (n,) rows of the former store, -1 for a text that it does not hold.
        start: First row of the shard in the corpus.
        bar: Counts encoded documents.
    """
    is_held = rows >= 0
    vectors = np.empty((len(rows), former.dimensions), np.float32)
    if is_held.any():
        vectors[is_held] = former.rows(rows[is_held]).numpy()
    if not is_held.all():
        vectors[~is_held] = encoder.encode(
            start + np.flatnonzero(~is_held),
            bar.update,
        )
    return vectors


def _former_rows(
    former: EmbeddingStore,
    known: npt.NDArray[np.uint64],
    wanted: npt.NDArray[np.uint64],
) -> Ints:
    """Return the rows of a store, complete or not, that hold the texts of hashes.

    Args:
        former: The store.
        known: (N, 2) hashes of its texts.
        wanted: (M, 2) hashes of texts.

    Returns:
        (M,) rows, -1 for a text that the store does not hold.
    """
    by_hash = {tuple(pair): row for row, pair in enumerate(known.tolist())}
    rows = np.array(
        [by_hash.get(tuple(pair), -1) for pair in wanted.tolist()],
        np.int64,
    )
    is_lost = np.isin(
        rows // former.record.shard_size,
        former.missing(thorough=True),
    )
    return np.where(is_lost, -1, rows)


def _keep_reading(
    former: EmbeddingStore,
    asked: Mapping[str, object],
    encoder: EncoderOptions,
) -> EncoderOptions:
    """Return how an encoder is loaded to update a store, which keeps how documents were read.

    Args:
        former: The store.
        asked: Option to value, of the options that the user set and a store keeps.
        encoder: How the encoder is loaded otherwise.

    Raises:
        InputError: The store has another value of an option that the user set.
    """
    kept = {**former.record.identity, "chunk_pooling": former.record.chunk_pooling}
    if encoder.chunk_pooling is not None:
        asked = {**asked, "chunk_pooling": encoder.chunk_pooling}
    for option, value in asked.items():
        before = kept[option]
        if before != value:
            flag = f"--{option.replace('_', '-')}"
            raise InputError(
                f"{former.folder} was encoded with {flag} {before}, which --update keeps; leave "
                f"{flag} {value} out, or {_OTHER_FOLDER}"
            )
    return replace(encoder, chunk_pooling=former.record.chunk_pooling)


def pass_over(
    dataset: str,
    name: str,
    output: Path,
    dense: Path | None,
    encoder: EncoderOptions,
    updated: EncodeOptions | None = None,
    asked: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Do what ``encode --dense`` and ``--update`` do.

    Args:
        dataset: The corpus.
        name: The encoder.
        output: Folder of the store.
        dense: Folder of the store of the encoder's dense part, for ``--dense``.
        encoder: How the encoder is loaded; a store that exists keeps its chunk pooling.
        updated: How the corpus is encoded, for ``--update``.
        asked: Those of its options that the user set, which a store that exists has to have.

    Returns:
        What :func:`~beir_cocodr.retrieval.store.encode.encode` returns.

    Raises:
        InputError: As for :func:`add_lexical` and :func:`update`, the model is no hybrid encoder,
            or a store that exists was made with other options than the user set.
    """
    began = time.perf_counter()
    former = None if updated is None else EmbeddingStore.found(output, updated.verify)
    if former is not None:
        encoder = _keep_reading(former, asked or {}, encoder)
    model = load_encoder(name, encoder)
    encoded = 0
    if updated is not None:
        documents = load_collection(dataset, labels="none").documents
        folder = output_folder(output, utf8=True)
        result = update(model, documents, folder, updated, name)
        store = result.store
        encoded = result.encoded
    else:
        if not isinstance(model, HybridEncoder) or dense is None:
            raise InputError(
                f"model {name!r} was not made by beir-cocodr fuse, and has no terms to add to a "
                "store; leave --dense out, or name a model that was"
            )
        documents = load_collection(dataset, labels="none").documents
        store = add_lexical(dense, model, name, documents, output)
    report: dict[str, object] = {"documents_encoded": encoded}
    if isinstance(model, HybridEncoder):
        refit = check_refit(
            store=store,
            head=model.head,
            text_format=model.text_format,
            name=name,
            documents=documents,
        )
        report["refit"] = refit.describe()
    seconds = round(time.perf_counter() - began, 3)
    return {
        **store.describe(),
        **report,
        "bytes": sum(file.stat().st_size for file in output.iterdir() if file.is_file()),
        "encoding_seconds": seconds,
        "seconds": seconds,
    }
