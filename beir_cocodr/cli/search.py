"""The commands that encode a corpus once and search it as often as wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from beir_cocodr import load_plugin
from beir_cocodr.cli import options
from beir_cocodr.cli.options import Address, RayCommand
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.report.terminal import print_json

Processes = Annotated[
    int | None,
    typer.Option(
        help="Processes, on several GPUs in turn; default: 1, and with --ray as many actors as the cluster "
        "has room for. Results are the same to the byte for any number.",
        show_default=False,
    ),
]

Threads = Annotated[
    int | None,
    typer.Option(
        help="CPU threads of each process; default: all cores, whatever --processes is, as the last bits "
        "depend on it. With several processes on one CPU, --threads 1 is faster."
    ),
]


@options.takes("encoder", "query_length", "document_length", "title_separator", "device")
def encode(
    dataset: options.Dataset,
    model: Annotated[str, typer.Option(help="minilm, a folder or a hub name.", show_default=False)],
    output: Annotated[
        Path, typer.Option(help="Folder of the store; an interrupted one is gone on with.", show_default=False)
    ],
    shard_size: Annotated[
        int | None, typer.Option(help="Documents a file, all that is lost when killed; default: 16384.")
    ] = None,
    precision: Annotated[str, typer.Option(help="On disk: fp32, fp16, bf16 (in fp16) or int8.")] = "fp32",
    backend: Annotated[str, typer.Option(help="Of the encoder: fp32 (as it was loaded) or bf16 (autocast).")] = "fp32",
    token_budget: Annotated[
        int | None, typer.Option(help="Tokens a batch, padding included; default: 4096 on a CPU, else 32768.")
    ] = None,
    processes: Processes = None,
    threads: Threads = None,
    ray: Address = None,
    *,
    encoder: EncoderOptions,
    as_json: options.Json = False,
) -> None:
    """Encode a corpus to a folder, in shards: what was written is never encoded again."""
    from beir_cocodr.retrieval.store.encode import encode as run
    from beir_cocodr.retrieval.store.estimate import size
    from beir_cocodr.retrieval.store.record import EncodeOptions

    kinds: dict[str, Any] = {"precision": precision, "backend": backend}
    wanted = EncodeOptions(shard_size, token_budget=token_budget, **kinds)
    settings: dict[str, Any] = {"threads": threads, "progress": True, "encoder": encoder}
    if ray is None:
        report = run(dataset, model, output, wanted, _processes(processes), **settings)
    else:
        report = load_plugin("ray encode")(dataset, model, output, wanted, ray, processes, **settings)
    if as_json:
        print_json(report)
        return
    print(
        f"{output}: {report['documents']} documents of {report['dimensions']} dimensions in "
        f"{report['shards']} shards, {size(report['bytes'])}; {report['documents_encoded']} encoded "
        f"now, in {report['encoding_seconds']:.1f} seconds{_by_ray(report)}"
    )


@options.takes("queries", "batch_size", "device")
def search(
    store: Annotated[Path, typer.Option(help="Folder that encode wrote.", show_default=False)],
    dataset: options.Dataset,
    output: Annotated[Path, typer.Option(help="The TREC run file to write.", show_default=False)],
    top_k: Annotated[int, typer.Option(help="Documents a query.")] = 100,
    split: Annotated[str, typer.Option(help="Split whose queries are searched.")] = "test",
    model: Annotated[
        str | None, typer.Option(help="Where the encoder is now; default: where it was for encode.")
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            help="FAISS index: flat, hnsw, ivfpq or sq8, built in the store the first time. "
            "Default: none, exact search."
        ),
    ] = None,
    identical_ids: options.Policy = "auto",
    processes: Processes = None,
    threads: Threads = None,
    ray: Address = None,
    *,
    queries: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Search the queries of a collection in a store and write a TREC run."""
    from beir_cocodr.evaluation.store_run import search as run

    settings: dict[str, Any] = {
        "split": split,
        "policy": identical_ids,
        "model": model,
        "device": queries.encoder.device,
        "threads": threads,
        "batch_size": queries.batch_size,
    }
    if ray is None:
        given = _processes(processes)
        report = run(store, dataset, output, top_k, processes=given, index=index, **settings)
    elif index is not None:
        raise InputError("an index is searched in one process: give --index or --ray, not both")
    else:
        report = load_plugin("ray search")(store, dataset, output, top_k, ray, processes, **settings)
    if as_json:
        print_json(report)
        return
    print(
        f"{output}: {report['queries']} queries, {top_k} documents each of {report['store']['documents']}; "
        f"searched in {report['search_seconds']:.2f} seconds{_by_ray(report)}"
    )


def add_search(app: typer.Typer) -> None:
    """Add both commands to the command line."""
    for command in (encode, search):
        app.command(cls=RayCommand)(command)


def _processes(given: int | None) -> int:
    return 1 if given is None else given


def _by_ray(report: dict[str, Any]) -> str:
    if "ray" not in report:
        return ""
    used = report["ray"]
    nodes = len(used["tasks_by_node"])
    died = f", {used['died']} of which died and were replaced" if used["died"] else ""
    return f" by {used['actors']} actors on {nodes} node{'' if nodes == 1 else 's'} of Ray{died}"
