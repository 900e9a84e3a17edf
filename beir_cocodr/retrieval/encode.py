"""Encoding a corpus to a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from accelerate.utils.memory import clear_device_cache
from tqdm import tqdm

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.defects import ignore
from beir_cocodr.data.resolve import resolve_source
from beir_cocodr.files import output_folder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.mrl import MRL
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.cpu_cores import warn_if_crowded
from beir_cocodr.retrieval.device_list import device_list
from beir_cocodr.retrieval.embedding_store import EmbeddingStore
from beir_cocodr.retrieval.process_pool import ShareOut, share_out
from beir_cocodr.retrieval.store.estimate import Estimate
from beir_cocodr.retrieval.store.files import sole_writer
from beir_cocodr.retrieval.store.options import EncodeOptions
from beir_cocodr.retrieval.store.preparation import FOLDING_SAMPLE, prepare_store
from beir_cocodr.retrieval.store.shard_job import ShardJob, encode_shard
from beir_cocodr.retrieval.torch_threads import torch_threads
from beir_cocodr.versions import versions

# Queries of the collection that a folding may be made from.
_QUERIES = 16 * FOLDING_SAMPLE


def encode(
    dataset: str,
    model: str,
    output: Path,
    options: EncodeOptions | None = None,
    processes: int = 1,
    device: str | None = None,
    threads: int | None = None,
    progress: bool = False,
    share: ShareOut | None = None,
    **encoder: Any,
) -> dict[str, Any]:
    """Encode the documents of a collection to an :class:`EmbeddingStore`.

    A store in ``output`` that was interrupted and has the same key is gone on with; one that is complete is
    left as it is. What has been written is never written again: a run that dies loses the shards under way,
    one for each process.

    Memory holds one shard of vectors for each process, and beside that nothing that grows with the corpus but
    the order of its ids, some 30 bytes a document while the store is begun.

    Args:
        dataset: the collection; needs neither queries nor labels.
        model: of the encoder.
        output: folder of the store.
        options: see :class:`EncodeOptions`.
        processes: each has its own copy of the model and encodes whole shards; a dead one's are done again.
        device: of all processes; by default GPUs in turn, else the CPU.
        threads: CPU threads of each process; PyTorch's own number by default, whatever the number of
            processes, because the last bits of vectors depend on it.
        progress: show a bar on stderr.
        share: how shards are shared out; to processes here by default.
        **encoder: overrides for the encoder (``query_length``, ``document_length``, ``title_separator``).

    Returns:
        what the store depends on, what was encoded now, how long that took and what had been expected.

    Raises:
        InputError: what has to be corrected in the collection, the model or the options; a store in
            ``output`` with another key; a document with NaN in its vector.
    """
    options, folder, started = options or EncodeOptions(), Path(output), time.perf_counter()
    devices = device_list(device, processes)
    documents = load_collection(dataset, labels="none").documents
    overrides = {name: value for name, value in encoder.items() if value is not None}
    with torch_threads(threads) as count, sole_writer(output_folder(folder)):
        loaded = load_encoder(model, device=devices[0], **overrides)
        corpus_encoder = CorpusEncoder(loaded, documents, options.token_budget, options.backend)
        warn_if_crowded(devices, count)
        folded = isinstance(loaded, MRL) and options.precision != "fp32"
        queries = _queries(dataset) if folded else []
        store, missing, expected = prepare_store(corpus_encoder, model, folder, options, devices, queries)
        job = ShardJob(folder, documents, model, overrides, options, count)
        encoding = time.perf_counter()
        with _bar(expected, progress) as bar:
            if share is None and (len(devices) == 1 or len(missing) < 2):
                done = sum(encode_shard(store, corpus_encoder, number, bar.update) for number in missing)
            else:
                del loaded, corpus_encoder  # each process has its own
                clear_device_cache(garbage_collection=True)
                done = 0
                for encoded in (share or share_out)(missing, job.start, devices):
                    bar.update(encoded)
                    done += encoded
    ended = time.perf_counter()
    return {
        **store.describe(),
        "documents_encoded": done,
        "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        "encoding_seconds": round(ended - encoding, 3),
        "seconds": round(ended - started, 3),
        "estimate": None if expected is None else expected.as_dict(),
        "devices": devices,
        "threads": count,
        "versions": versions(),
    }


def encode_documents(
    model: COCODR,
    documents: Documents,
    folder: str | Path,
    options: EncodeOptions | None = None,
    queries: Sequence[str] = (),
    name: str | None = None,
    progress: bool = False,
) -> EmbeddingStore:
    """:func:`encode` in this process, for a model that is loaded and a corpus that is open.

    Args:
        model: the encoder, on its device.
        documents: the corpus.
        folder: of the store, complete or interrupted with the same key, or of none yet.
        options: see :class:`EncodeOptions`.
        queries: what the folding of an MRL whose vectors lose precision is made from.
        name: what ``load_encoder`` would find the model by; recorded, so that ``search`` can load it.
        progress: show a bar on stderr.

    Returns:
        the store, complete.

    Raises:
        InputError: as :func:`encode`.
    """
    options, folder = options or EncodeOptions(), Path(folder)
    with sole_writer(output_folder(folder)):
        encoder = CorpusEncoder(model, documents, options.token_budget, options.backend)
        device = str(model.device)
        store, missing, expected = prepare_store(encoder, name, folder, options, [device], queries)
        with _bar(expected, progress) as bar:
            for number in missing:
                encode_shard(store, encoder, number, bar.update)
    return store


def _bar(expected: Estimate | None, progress: bool) -> Any:
    return tqdm(
        total=expected.documents if expected else 0,
        desc="Encoding",
        unit=" documents",
        disable=not progress or expected is None,
    )


def _queries(dataset: str) -> list[str]:
    """The first queries of a collection, whatever their split; none where it has none."""
    source = resolve_source(dataset, "test")
    return [text for _, _, text in islice(source.queries(ignore), _QUERIES)]
