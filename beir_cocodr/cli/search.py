"""The commands that encode a corpus once and search it as often as wanted."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from beir_cocodr import load_plugin
from beir_cocodr.cli import options
from beir_cocodr.cli.options import plain
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import EncoderOptions, SearchOptions, SmoothOptions
from beir_cocodr.records import Json
from beir_cocodr.report.terminal import print_json
from beir_cocodr.retrieval.store.record import EncodeOptions

_Processes = Annotated[
    int | None,
    plain(
        "Processes, on several GPUs in turn; default: 1, and with --ray as many actors as the cluster has room for. "
        "Results are the same to the byte for any number."
    ),
]

_Threads = Annotated[
    int | None,
    Option(
        help="CPU threads of each process; default: all cores, whatever --processes is, as the last bits "
        "depend on it. With several processes on one CPU, --threads 1 is faster."
    ),
]


@options.takes("settings", "shard_size", "precision", "backend", "token_budget", "verify")
@options.takes("encoder", "query_length", "document_length", "title_separator", "device")
@options.takes("smoothing", "neighbours", "weight")
def encode(
    dataset: options.Dataset,
    model: Annotated[str, plain("minilm, a folder or a hub name.")],
    output: Annotated[Path, plain("Folder of the store; an interrupted one is resumed.")],
    *,
    settings: EncodeOptions,
    processes: _Processes = None,
    threads: _Threads = None,
    ray: options.Address = None,
    dense: Annotated[
        Path | None, plain("Store of the encoder that a hybrid encoder was fused from: only terms are looked at.")
    ] = None,
    smooth: Annotated[
        Path | None, plain("Store of this model: draws its vectors towards their neighbours, instead of encoding.")
    ] = None,
    smoothing: SmoothOptions,
    encoder: EncoderOptions,
    as_json: options.Json = False,
) -> None:
    """Encode a corpus to a folder, in shards: what was written is never encoded again."""
    from beir_cocodr.retrieval.store.encode import encode as run
    from beir_cocodr.retrieval.store.estimate import size

    if dense is not None or smooth is not None:
        if ray is not None or (dense and smooth):
            raise InputError("--dense and --smooth are passes of this process over one store: give one of them alone")
        from beir_cocodr.retrieval.store.passes import pass_over

        report = pass_over(dataset, model, output, dense, smooth, smoothing, encoder)
    elif ray is None:
        count = 1 if processes is None else processes
        report = run(dataset, model, output, settings, count, threads, progress=True, encoder=encoder)
    else:
        work = load_plugin("ray encode")
        report = work(dataset, model, output, settings, ray, processes, threads, progress=True, encoder=encoder)
    if as_json:
        print_json(report)
        return
    print(
        f"{output}: {report['documents']} documents of {report['dimensions']} dimensions in "
        f"{report['shards']} shards, {size(report['bytes'])}; {report['documents_encoded']} encoded "
        f"now, in {report['encoding_seconds']:.1f} seconds{_describe_ray(report.get('ray'))}"
    )


@options.takes("queries", "batch_size", "verify", "device")
def search(
    store: Annotated[Path, plain("Folder that encode wrote.")],
    dataset: options.Dataset,
    output: Annotated[Path, plain("The TREC run file to write.")],
    top_k: Annotated[int, Option(help="Documents a query.")] = 100,
    split: Annotated[str, Option(help="Split whose queries are searched.")] = "test",
    model: Annotated[str | None, Option(help="Where the encoder is now; default: where it was for encode.")] = None,
    index: Annotated[
        str | None,
        Option(help="FAISS index: flat, hnsw, ivfpq or sq8, built in the store at first. Default: none, exact search."),
    ] = None,
    identical_ids: options.Policy = "auto",
    processes: _Processes = None,
    threads: _Threads = None,
    ray: options.Address = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the run of another search.")] = False,
    *,
    queries: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Search the queries of a collection in a store and write a TREC run."""
    from beir_cocodr.evaluation.store_run import search as run

    batch_size, verify, device = queries.batch_size, queries.verify, queries.encoder.device
    if ray is None:
        count = 1 if processes is None else processes
        searching = partial(run, processes=count, device=device, threads=threads, batch_size=batch_size, index=index)
        given = (store, dataset, output, top_k, split, identical_ids, model)
        report = searching(*given, verify=verify, overwrite=overwrite)
    elif index is not None:
        raise InputError("an index is searched in one process: give --index or --ray, not both")
    else:
        own: Json = {"split": split, "policy": identical_ids, "model": model, "batch_size": batch_size}
        own |= {"overwrite": overwrite, "verify": verify}
        work = load_plugin("ray search")
        report = work(store, dataset, output, top_k, ray, processes, device, threads, **own)
    if as_json:
        print_json(report.to_json())
        return
    print(
        f"{output}: {report.queries} queries, {top_k} documents each of {report.store['documents']}; "
        f"searched in {report.search_seconds:.2f} seconds{_describe_ray(report.ray)}"
    )


def _describe_ray(used: object) -> str:
    if not isinstance(used, dict):
        return ""
    nodes = len(used["tasks_by_node"])
    died = f", {used['died']} of which died and were replaced" if used["died"] else ""
    return f" by {used['actors']} actors on {nodes} node{'' if nodes == 1 else 's'} of Ray{died}"
