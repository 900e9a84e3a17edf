"""The command that writes a page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from beir_cocodr import cli_options as options
from beir_cocodr.report.terminal import print_json


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Output of evaluate, compare, adapt, quickstart or a training command.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="The page; default: report.html in the folder.", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="The collection, for titles and texts, if the one on record is not at hand.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of its qrels; default: the one on record.")] = None,
    queries: Annotated[int, typer.Option(help="Queries shown one by one, at most.", min=0)] = 50,
    published: Annotated[
        list[Path] | None,
        typer.Option(help="File of published figures, instead of the packaged ones; repeat."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write one HTML page about a run: the verdict, tables, single queries, pictures. It needs no network."""
    from beir_cocodr.report.html.write_report import write_report

    told = write_report(folder, output, dataset, split, queries, published or ())
    if as_json:
        print_json(told)
    else:
        print(told["sentence"])
        print(told["path"])
