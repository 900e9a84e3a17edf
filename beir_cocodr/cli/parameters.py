"""The options that several commands share, and the identity of a run in its output folder."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

from typer import Context, Option

from beir_cocodr.cli.flags import plain
from beir_cocodr.run_folder import results_folder

Dataset = Annotated[
    str,
    plain(
        "Use this collection: a folder of files, a BEIR folder, a corpus file, hf:NAME, irds:ID, "
        "a BEIR name such as scifact, or apidocs/DOMAIN."
    ),
]

Output = Annotated[Path, plain("Write the results to this folder.")]

Measures = Annotated[
    str, Option(help="Compute these measures, named as in ir-measures and separated by spaces.")
]

Split = Annotated[str, Option(help="Use this split of the qrels.")]

Json = Annotated[bool, Option("--json", help="Print results as JSON.")]

Resume = Annotated[
    bool, Option("--resume", help="Resume an interrupted run; a finished one is kept unchanged.")
]

Overwrite = Annotated[
    bool,
    Option(
        "--overwrite",
        help="Replace the results of another run in the output folder. Results of the same run "
        "are always replaced.",
    ),
]

Policy = Annotated[
    str,
    Option(
        "--identical-ids",
        help="Choose what happens to a document whose id is the query's: keep, drop, or auto, "
        "which drops it on ArguAna and Quora.",
    ),
]

Judgements = Annotated[
    Path | None,
    plain(
        "Read the judgements of some queries from this file: qrels, labels_wanted.tsv with its "
        "column judgement filled in, or a log of judgements."
    ),
]

Picture = Annotated[
    bool | None,
    Option(
        "--picture/--no-picture",
        help="Draw a picture, or none. Default: draw one if matplotlib is installed.",
    ),
]

ResultsFiles = Annotated[
    list[Path] | None,
    Option(
        help="Read this results.json, which evaluate wrote for one of the collections; repeat "
        "for several."
    ),
]

ResultsMeasure = Annotated[str, Option(help="Use this measure of the results.")]

Processes = Annotated[
    int | None,
    plain(
        "Run this many processes; with several GPUs, each process takes the next one. Default: 1, "
        "or with --ray as many as the cluster has room for. The number of processes does not "
        "change a single byte of the results."
    ),
]

Threads = Annotated[
    int | None,
    Option(
        help="Use this many CPU threads in each process. Default: all cores, also with several "
        "--processes, because the last bits of a result depend on this number. With several "
        "processes on one CPU, --threads 1 is faster."
    ),
]

RayAddress = Annotated[
    str | None,
    Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Run on a Ray cluster; the files are identical, byte for byte. ADDRESS is the "
        "HOST:PORT of the cluster's head, auto (the default: the cluster that RAY_ADDRESS names or "
        "that runs on this machine), or local (a cluster that starts and stops with this "
        "command).",
    ),
]

# Parameters that decide where and how a command runs and what it prints, but not its results.
_INCIDENTAL = ("output", "overwrite", "as_json", "picture", "device", "encode_batch_size")


def this_run(context: Context) -> dict[str, object]:
    """Return the running command and its settings, by which an output folder knows the run.

    See :func:`~beir_cocodr.run_folder.results_folder`.
    """
    settings = {name: value for name, value in context.params.items() if name not in _INCIDENTAL}
    return {"command": context.command.name, **settings}


def results(
    context: Context, output: Path | None, overwrite: bool
) -> AbstractContextManager[Path | None]:
    """Return the folder that the running command writes to, None if there is no output.

    See :func:`~beir_cocodr.run_folder.results_folder`.
    """
    if output is None:
        return nullcontext()
    return results_folder(output, this_run(context), overwrite)
