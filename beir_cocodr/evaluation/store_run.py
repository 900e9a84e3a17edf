"""A run file from a store: the queries of a collection searched in its corpus, which was encoded
before.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast, get_args

from beir_cocodr.data.collection import load_queries
from beir_cocodr.errors import InputError, check_count
from beir_cocodr.evaluation.runs import file_names, identical_ids, write_run
from beir_cocodr.io import atomic_output, output_folder, parse_json, write_text
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.loading import fingerprint, load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.records import Json, versions
from beir_cocodr.retrieval.faiss.transform import Kind
from beir_cocodr.retrieval.pool import (
    ShareOut,
    device_list,
    share_out,
    torch_threads,
    warn_if_crowded,
)
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.store.store_search import search_index, search_store
from beir_cocodr.same_run import check_same_run

_FORMAT = ("query_length", "document_length", "query_prompt", "document_prompt", "title_separator")


@dataclass(frozen=True)
class StoreRun:
    """What was searched with what, counts, and seconds; ``ray`` where a cluster searched.

    ``texts_cut`` are queries of which words may be lost, as they were cut before they were
    tokenised.
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
        """The fields, without ``ray`` if there was no cluster."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "ray" or value is not None
        }


def search(
    store: str | Path,
    dataset: str,
    output: Path,
    top_k: int = 100,
    split: str = "test",
    policy: str = "auto",
    model: str | None = None,
    processes: int = 1,
    device: str | None = None,
    threads: int | None = None,
    batch_size: int = 64,
    index: str | None = None,
    verify: bool = True,
    share: ShareOut = share_out,
    overwrite: bool = False,
) -> StoreRun:
    """Search a store and write a TREC run, exactly unless an index is asked for; beside it, as
    RUN.json, what was searched with what. An InputError: no complete store, a corpus or a model
    that is not the store's, no queries, ``top_k`` below 1, or something else than a run of this
    search stands at ``output``.

    Args:
        store: folder that ``encode`` wrote.
        dataset, split: the collection whose queries are searched; its corpus has to be the store's.
            Without any judgements all its queries are taken.
        output: the run file; that of the same search is replaced.
        top_k: documents a query.
        policy: see :func:`~beir_cocodr.evaluation.runs.identical_ids`.
        model: where the encoder is now; by default where it was when it made the store.
        processes, device, threads, share: see
            :func:`~beir_cocodr.retrieval.store.store_search.search_store`; default: GPUs.
        batch_size: queries encoded at a time.
        index: a kind of FAISS index, see :func:`~beir_cocodr.retrieval.store.store_search.search_index`;
            searched in this process. None searches exactly.
        verify: compare each file of the store with its checksum before it is read.
        overwrite: replace the run of another search.
    """
    started = time.perf_counter()
    devices, policy = device_list(device, processes), identical_ids(dataset, policy)
    _check(output, top_k, index)
    opened = EmbeddingStore.open(store, verify)
    settings: Json = {
        "store": opened.describe(),
        "dataset": dataset,
        "split": split,
        "top_k": top_k,
    }
    settings |= {"identical_ids": policy, "index": index}
    _check_run(output, settings, overwrite)
    queries, drop = _queries(opened, dataset, split), policy == "drop"
    ids, texts = list(queries), list(queries.values())
    with torch_threads(threads) as count:
        warn_if_crowded(devices, count)
        encoder = query_encoder(opened, model, devices[0])
        vectors = encoder.encode_queries(
            texts, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False
        )
        searching = time.perf_counter()
        if index is None:
            ranking = search_store(opened, ids, vectors, top_k + drop, devices, count, share=share)
        else:
            ranking = search_index(opened, cast(Kind, index), ids, vectors, top_k + drop)
        searched = time.perf_counter()
    name = opened.record.model.name or model or "store"
    _record_of(output).unlink(missing_ok=True)  # it belongs to the run that is replaced
    with atomic_output(output) as temporary:
        write_run(temporary, ranking.hits(opened.ids, drop, top_k), file_names([name])[name])
    report = StoreRun(
        store=opened.describe(),
        dataset=dataset,
        split=split,
        queries=len(ids),
        truncated_queries=encoder.truncated_share(texts, "query"),
        texts_cut=encoder.texts_cut,
        top_k=top_k,
        identical_ids=policy,
        index=index,
        run=str(output),
        devices=devices,
        threads=count,
        search_seconds=round(searched - searching, 3),
        seconds=round(time.perf_counter() - started, 3),
        versions=versions(),
    )
    with atomic_output(_record_of(output)) as temporary:
        write_text(temporary, json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
    return report


def _record_of(run: Path) -> Path:
    return run.with_name(f"{run.name}.json")


def _check_run(output: Path, settings: Json, overwrite: bool) -> None:
    """Check that what stands at the output, if anything, is the run of the same search, or one to
    be replaced.
    """
    if not output.exists():
        return
    try:
        before = parse_json(_record_of(output).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    if not overwrite:
        way_out = "choose another --output, or replace the run with --overwrite"
        if not isinstance(before, dict):
            raise InputError(f"{output} is there, and not the run of a search on record; {way_out}")
        check_same_run(output, {name: before.get(name) for name in settings}, settings, way_out)
        return
    with output.open("rb") as file:
        columns = file.readline(10_000).split()
    if len(columns) not in (0, 6):
        raise InputError(f"{output} is no TREC run and is left as it is; choose another --output")


def _check(output: Path, top_k: int, index: str | None) -> None:
    check_count("top_k", top_k)
    if index is not None and index not in get_args(Kind):
        raise InputError(f"unknown index {index!r}; there are {', '.join(get_args(Kind))}")
    output_folder(output.parent)
    if output.is_dir():
        raise InputError(
            f"{output} is a folder; name the run file to write, as {output / 'my.run'}"
        )


def _queries(store: EmbeddingStore, dataset: str, split: str) -> dict[str, str]:
    """Of a collection that has the store's corpus."""
    wanted, stored = load_queries(dataset, split), str(store.record.identity["corpus"])
    if (corpus := wanted.documents.content_hash) != stored:
        raise InputError(
            f"{store.folder} holds another corpus than that of {dataset}: its content hash is "
            f"{stored[:16]}, and {corpus[:16]} is wanted; encode {dataset}"
        )
    return wanted.queries


def query_encoder(store: EmbeddingStore, model: str | None, device: str | None) -> COCODR:
    """The encoder that made a store, with the store's own text format, where it is now, by default
    where it was then; an InputError where it cannot be found, or is another one.
    """
    name, path = store.record.model.name, store.record.model.path
    if name is None and model is None:
        raise InputError(f"{store.folder} does not say which model encoded it; give --model")
    source = model or (path if path is not None and Path(path).is_dir() else str(name))
    encoder = load_encoder(source, EncoderOptions(device=device))
    own, stored = encoder.text_format.as_dict(), store.record.identity
    if differing := {part: stored[part] for part in _FORMAT if stored[part] != own[part]}:
        encoder = load_encoder(source, EncoderOptions(device=device, **differing))  # type: ignore[arg-type]
    store.record.check_encoder(fingerprint(encoder), source, store.folder)
    return encoder
