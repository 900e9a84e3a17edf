"""The command line: one thin command per function, results on stdout, progress on stderr."""

import errno
import io
import logging
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Context, Option

from beir_cocodr import load_plugin
from beir_cocodr.cli import guide, parameters
from beir_cocodr.cli.analysis import overlap, qpp, representation, resample, shift, source_clusters
from beir_cocodr.cli.search import encode, search, serve, try_folder
from beir_cocodr.cli.training import (
    adapt,
    distill,
    export,
    finetune,
    fuse,
    generate_queries,
    pretrain,
)
from beir_cocodr.errors import InputError, describe_full_disk, no_room
from beir_cocodr.models.spec import ALIASES, BM25, FORMS, SearchOptions
from beir_cocodr.progress import LineHandler
from beir_cocodr.report.terminal import print_json, print_record, print_tables

app = typer.Typer(
    help="Adapt a dense retriever to a corpus without labels, and learn honestly whether it got better.",
    cls=guide.Group,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@cache
def _program() -> typer.core.TyperGroup:
    """All commands with their options, which many calls in one process share."""
    return typer.main.get_group(app)


def main(arguments: list[str] | None = None) -> None:
    """Run a command: exit status 0 on success, 2 with one line on stderr on bad input."""
    handler = LineHandler(sys.stderr)
    handler.addFilter(guide.Noise())
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    guide.hush()
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # what a terminal's encoding lacks is printed as an escape
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _program().main(
            args=arguments or ["--help"], prog_name="beir-cocodr", standalone_mode=False
        )
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
    except InputError as error:
        status = _fail(str(error))
    except KeyboardInterrupt:
        status = 130
    except (Exception, SystemExit) as error:
        status = _status(error)
    sys.exit(status if isinstance(status, int) else 0)


_LONGEST = 1_000


def _fail(message: str) -> int:
    line = " ".join(message.split())
    if (
        len(line) > _LONGEST
    ):  # an id can be a megabyte; what is at fault stands first, the way out last
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    with suppress(OSError):  # nobody listens
        print("error: " + line, file=sys.stderr)
    return 2


def _status(error: Exception | SystemExit) -> int:
    """0 where the reader of a pipe has left, as ``head`` does; 2 where nothing can be written, a
    name is too long, or the host describes a usage error; all else is raised.
    """
    cause = (
        error.__context__ if isinstance(error, SystemExit) else error
    )  # the host makes a SystemExit of it
    if (
        isinstance(cause, OSError)
        and cause.errno in (errno.EPIPE, errno.ENOSPC)
        and cause.filename is None
    ):
        with suppress(OSError):  # what is left would be written once more as Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(cause, BrokenPipeError):
        return 0
    if not isinstance(error, SystemExit):
        if no_room(error) is not None:
            return _fail(describe_full_disk(error))
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return _fail(f"{str(error.filename)[:80]}...: {error.strerror}; choose another name")
        if hasattr(error, "format_message"):  # a usage error of the host
            return _fail(error.format_message())
    raise error


def validate(
    dataset: parameters.Dataset,
    split: Annotated[
        str | None,
        parameters.plain(
            "Split of the qrels, which then has to be there; default: test, if there are qrels."
        ),
    ] = None,
    as_json: parameters.Json = False,
    most: Annotated[int, Option(help="Defects of a kind that are listed; all are counted.")] = 20,
) -> None:
    """List all defects of a collection at once, with file, line and id. That it has no labels is
    none.
    """
    from beir_cocodr.data.collection import has_labels
    from beir_cocodr.data.validation import summarize
    from beir_cocodr.data.validation import validate as find_defects

    defects = find_defects(dataset, split)
    stopping = [defect for defect in defects if defect.severity == "error"]
    errors = len(stopping)
    if as_json:
        print_json([asdict(defect) for defect in defects])
    else:
        from beir_cocodr.report.evaluation_tables import defect_lines

        for line in defect_lines(defects, most):
            print(line)
        counts = ", ".join(f"{kind}: {count}" for kind, count in summarize(defects).items())
        print(
            f"{dataset}: {errors} errors, {len(defects) - errors} warnings"
            + (f" ({counts})" if counts else "")
        )
        if not errors and not has_labels(dataset):
            print(
                f"no labels, which is fine: compare judges models on {dataset} without, and search shows what they find"
            )
    if errors:
        raise InputError(
            f"{dataset} has {errors} errors, and would be refused when loading, first for {stopping[0]}"
        )


@parameters.takes("search", *parameters.SEARCHING, "stores", "verify")
def evaluate(
    dataset: parameters.Dataset,
    model: Annotated[
        list[str],
        Option(
            help=f"{', '.join([*ALIASES, BM25, f'lucene-{BM25}', *FORMS])}, a folder or a hub name; repeat."
        ),
    ],
    output: parameters.Output,
    measures: parameters.Measures = "nDCG@10 R@100",
    split: parameters.Split = "test",
    top_k: Annotated[
        int | None, Option(help="Documents a query in the run; default: what the measures need.")
    ] = None,
    identical_ids: parameters.Policy = "auto",
    judgements: parameters.Judgements = None,
    *,
    search: SearchOptions,
    overwrite: parameters.Overwrite = False,
    as_json: parameters.Json = False,
) -> None:
    """Search a labelled collection with one or more models, measure, and test their differences."""
    from beir_cocodr.evaluation.evaluate import evaluate as run
    from beir_cocodr.report.evaluation_tables import evaluation_tables

    asked = (dataset, model, output, measures, split, identical_ids, top_k)
    record = run(*asked, search=search, overwrite=overwrite, judgements=judgements)
    print_record(record, as_json, evaluation_tables)


@parameters.takes("search", *parameters.SEARCHING)
def compare(
    context: Context,
    dataset: parameters.Dataset,
    models: Annotated[
        list[str] | None,
        Argument(
            help="Models to compare, named as for evaluate; with --judgements a single encoder, for all its uses.",
            show_default=False,
        ),
    ] = None,
    parity: Annotated[
        Path | None,
        Option(
            metavar="RUN",
            help="A TREC run to score by BEIR, ir-measures and pytrec_eval, instead of models.",
        ),
    ] = None,
    output: Annotated[Path | None, Option(help="Folder for results.")] = None,
    measures: Annotated[
        str | None,
        Option(
            help="Separated by spaces; default: nDCG@10 R@100, or nDCG@10 AP@100 R@100 R_cap@100 RR@10 with --parity."
        ),
    ] = None,
    split: parameters.Split = "test",
    labels: Annotated[
        bool | None,
        Option(
            "--labels/--no-labels",
            help="Judge models with labels; default: where the split has some.",
        ),
    ] = None,
    identical_ids: parameters.Policy = "auto",
    samples: Annotated[int, Option(help="Crops and generated queries, without labels.")] = 300,
    seed: Annotated[int, Option(help="Seed of the samples.")] = 42,
    wanted: Annotated[int, Option(help="Query-document pairs proposed for labelling.")] = 50,
    judgements: parameters.Judgements = None,
    overwrite: parameters.Overwrite = False,
    *,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Compare models on a collection, or with --parity what three evaluation tools say of one
    run.
    """
    if (parity is not None) == bool(models):
        raise InputError("name models to compare, or a run with --parity, and not both")
    if parity is not None:
        with parameters.results(context, output, overwrite) as folder:
            _parity(parity, dataset, folder, split, measures, as_json)
        return
    from beir_cocodr.evaluation.compare import compare_models
    from beir_cocodr.evaluation.measures import DEFAULT_MEASURES
    from beir_cocodr.report.evaluation_tables import verdict_tables

    measured = DEFAULT_MEASURES if measures is None else measures
    asked = (models or [], dataset, output, split, measured, labels, identical_ids)
    record = compare_models(
        *asked,
        samples=samples,
        seed=seed,
        wanted=wanted,
        search=search,
        overwrite=overwrite,
        judgements=judgements,
    )
    print_record(record, as_json, verdict_tables)


def _parity(
    run: Path, dataset: str, output: Path | None, split: str, measures: str | None, as_json: bool
) -> None:
    from beir_cocodr.evaluation.parity import PARITY_MEASURES, parity
    from beir_cocodr.report.evaluation_tables import parity_tables

    record = parity(run, dataset, split, PARITY_MEASURES if measures is None else measures)
    if output is not None:
        record.write(output / "parity.json")
    print_record(record, as_json, parity_tables)


def report(
    context: Context,
    folder: Annotated[
        Path,
        Argument(
            help="Output of evaluate, compare, adapt, quickstart or a training command.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, parameters.plain("The page; default: report.html in the folder.")
    ] = None,
    dataset: Annotated[
        str | None,
        parameters.plain(
            "The collection, for titles and texts, if the one on record is not at hand."
        ),
    ] = None,
    split: Annotated[
        str | None, Option(help="Split of its qrels; default: the one on record.")
    ] = None,
    queries: Annotated[int, Option(help="Queries shown one by one, at most.", min=0)] = 50,
    published: Annotated[
        list[Path] | None,
        Option(help="File of published figures, instead of the packaged ones; repeat."),
    ] = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace the page of another run.")
    ] = False,
    as_json: parameters.Json = False,
) -> None:
    """Write one HTML page about a run: the verdict, tables, single queries, pictures. It needs no
    network.
    """
    from beir_cocodr.report.html.page import write_report

    page = write_report(folder, output, dataset, split, queries, published or (), overwrite)
    context.params["output"] = page.path
    if as_json:
        print_json(asdict(page))
    else:
        print(page.sentence)
        print(page.path)


_DAY = 86_400


def doctor(
    hub_timeout: Annotated[float, Option(help="Seconds to wait for the hub.", min=0.1)] = 3.0,
    as_json: parameters.Json = False,
) -> None:
    """Say what is installed and within reach, what each part enables, and how to get it."""
    from beir_cocodr.doctor import doctor as run
    from beir_cocodr.report.terminal import doctor_table

    if not hub_timeout < _DAY:
        raise InputError(f"--hub-timeout has to be below {_DAY} seconds, not {hub_timeout}")
    found = run(hub_timeout)
    if as_json:
        print_json(asdict(found))
    else:
        print_tables(doctor_table(found))


def quickstart(
    context: Context,
    output: Annotated[
        Path | None, Option(help="Folder for models and results; default: runs/quickstart[-fast].")
    ] = None,
    fast: Annotated[bool, Option("--fast", help="A smaller run, under two minutes.")] = False,
    seed: Annotated[int, Option(help="Seed of the whole run.")] = 42,
    resume: parameters.Resume = False,
    as_json: parameters.Json = False,
) -> None:
    """The main job on an embedded default: adapt MiniLM to the documentation of scipy and
    scikit-learn.
    """
    from beir_cocodr.report.evaluation_tables import print_adaptation
    from beir_cocodr.training.adapt import quickstart as run

    context.params["output"] = output = output or Path(
        "runs/quickstart-fast" if fast else "runs/quickstart"
    )
    print_adaptation(run(output, fast, seed, resume), as_json)


#: Everything behind the first word is the other tool's.
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(context_settings=_PASSED_ON)
def irds(
    arguments: Annotated[
        list[str],
        Argument(
            help="register FOLDER ID, register OUTPUT [ID], forget ID, or list, export ID docs and so on."
        ),
    ],
) -> None:
    """Run a command of ir_datasets with the ids of this machine: those kept by register, and
    resampled ones.
    """
    load_plugin("irds commands")(arguments)


@app.command(context_settings=_PASSED_ON)
def pyserini(
    arguments: Annotated[
        list[str],
        Argument(
            help="A module and its options, such as search.faiss --index STORE --topics T --output RUN."
        ),
    ],
) -> None:
    """Run a module of Pyserini with a Java that fits, stores as indexes, and --encoder
    beir-cocodr:MODEL.
    """
    load_plugin("pyserini commands")(arguments)


_COMMANDS = (
    *(quickstart, validate, doctor, search, serve, encode, evaluate, compare, report),
    *(adapt, pretrain, finetune, distill, fuse, generate_queries, export),
    *(qpp, shift, representation, source_clusters, overlap),
)

app.command("try")(try_folder)
for _command in _COMMANDS:
    app.command()(_command)

for _registered in (*app.registered_commands, *resample.registered_commands):
    if _registered.callback is not None:
        _registered.callback, _registered.cls = (
            parameters.reads(_registered.callback),
            guide.Command,
        )

app.callback()(guide.root)
app.add_typer(resample, name="resample")


if __name__ == "__main__":
    main()
