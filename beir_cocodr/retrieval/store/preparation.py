"""Opening the store that is wanted, or beginning it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.errors import InputError
from beir_cocodr.models.fingerprint import fingerprint
from beir_cocodr.models.loading import model_source
from beir_cocodr.models.mrl import MRL
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.embedding_store import EmbeddingStore
from beir_cocodr.retrieval.index.folding import Folding
from beir_cocodr.retrieval.store.estimate import Estimate, estimate, spaced_rows, timed_sample
from beir_cocodr.retrieval.store.options import SHARD_SIZE, EncodeOptions
from beir_cocodr.retrieval.store.record import StoreRecord

#: Queries and documents that the means of a folding are taken from.
FOLDING_SAMPLE = 256

log = logging.getLogger(__name__)


def prepare_store(
    encoder: CorpusEncoder,
    name: str | None,
    folder: Path,
    options: EncodeOptions,
    devices: list[str],
    queries: Sequence[str] = (),
) -> tuple[EmbeddingStore, list[int], Estimate | None]:
    """Find the store in a folder or begin one, say what encoding will take, and write all but the shards.

    Args:
        encoder: model and corpus.
        name: what the model was loaded by; None where it has no name, and searches have to name it.
        folder: exists, and nobody else writes to it.
        options: of the store.
        devices: that encoding will be shared out to.
        queries: what an MRL's folding takes its mean query from, where its vectors lose precision; any
            queries are right, documents stand in where there are none.

    Returns:
        the store, the numbers of shards that are missing, and the estimate; None where nothing is missing.

    Raises:
        InputError: the folder holds a store with another key, or the disk is too full.
    """
    model, documents = encoder.model, encoder.documents
    found = EmbeddingStore.found(folder)
    size = options.shard_size or (found.record.shard_size if found else SHARD_SIZE)
    identity = identity_of(encoder, options, size)
    missing = None
    if found is not None:
        found.record.refuse_other(identity, folder)
        missing = found.missing()
        if _folding_lost(found, missing):
            raise InputError(
                f"{folder} has lost its folding.safetensors, without which its shards mean nothing; delete "
                "it and encode again"
            )
        if not missing and found.table.complete():
            log.info("%s is complete, nothing is encoded", folder)
            return found, [], None
        log.info("%s: %d of %d shards are there", folder, len(found.shards) - len(missing), len(found.shards))
    sample = timed_sample(encoder)
    record = StoreRecord(
        identity, _named(name), len(documents), sample.dimensions, flattened=isinstance(model, MRL)
    )
    store = found or EmbeddingStore(folder, record)
    missing = list(range(len(store.shards))) if missing is None else missing
    left = sum(len(store.shards[number]) for number in missing)
    taken = estimate(sample, encoder, left, size, options.precision, record.prior, devices)
    log.info("%s", taken)
    taken.refuse_full_disk(folder)
    if found is None:
        record.write(folder)
    store.table.write(documents)
    if record.prior and not store.has_folding():
        store.save_folding(_folding(encoder, queries))
    return store, missing, taken


def _folding_lost(store: EmbeddingStore, missing: Sequence[int]) -> bool:
    """Whether there are shards of folded vectors, and what they were folded by is gone."""
    return store.record.prior and not store.has_folding() and len(missing) < len(store.shards)


def identity_of(encoder: CorpusEncoder, options: EncodeOptions, shard_size: int) -> dict[str, Any]:
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


def _named(name: str | None) -> dict[str, str | None]:
    if name is None:
        return {"name": None, "path": None}
    source = Path(model_source(name))
    return {"name": name, "path": str(source.resolve()) if source.is_dir() else None}


def _folding(encoder: CorpusEncoder, queries: Sequence[str]) -> Folding:
    rows = spaced_rows(len(encoder.documents), FOLDING_SAMPLE)
    texts = [queries[row] for row in spaced_rows(len(queries), FOLDING_SAMPLE)] if queries else []
    if not texts:
        texts = [encoder.model.text_format.document(d) for d in encoder.documents.take(rows)]
    vectors = encoder.model.encode_queries(
        texts, batch_size=32, convert_to_tensor=True, show_progress_bar=False
    )
    return Folding.fit([np.asarray(vectors.float().cpu())], [encoder.encode(rows)])
