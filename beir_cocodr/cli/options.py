"""Options that several commands share, each said once.

The option ``--ray [ADDRESS]`` of commands whose work a cluster can share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

Dataset = Annotated[
    str,
    typer.Option(
        help="BEIR folder, corpus file, irds:ID, BEIR short name, or apidocs/DOMAIN.", show_default=False
    ),
]

Output = Annotated[Path, typer.Option(help="Folder for results.", show_default=False)]

Measures = Annotated[str, typer.Option(help="Measures that ir-measures knows, separated by spaces.")]

Device = Annotated[str | None, typer.Option(help="Device of the encoder, such as cpu or cuda:0.")]

Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]

MaxSteps = Annotated[int | None, typer.Option(help="Optimiser steps; without it, whole epochs.")]

Epochs = Annotated[float | None, typer.Option(help="Passes over the data.")]

BatchSize = Annotated[int | None, typer.Option(help="Examples per step.")]

MiniBatchSize = Annotated[
    int | None, typer.Option(help="Texts in memory at a time; larger batches are cached.")
]

LearningRate = Annotated[float | None, typer.Option(help="Peak learning rate.")]

Seed = Annotated[int | None, typer.Option(help="Seed of data order, sampling and dropout.")]

Preset = Annotated[
    str | None, typer.Option(help="base, large, qc or cotmae (the papers' settings), or cpu (small ones).")
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="NAME=VALUE for any setting that --show-config prints; repeat.", metavar="NAME=VALUE"
    ),
]

Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted output; keep a finished one.")
]

ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print the settings in force as JSON and stop.")
]

Policy = Annotated[
    str,
    typer.Option(
        "--identical-ids",
        help="Documents whose id is the query's: keep, drop, or auto (drop on ArguAna and Quora only).",
    ),
]

Analyzer = Annotated[
    str, typer.Option("--bm25-analyzer", help="english (stop words out, stemmed) or none (neither).")
]

QueryLength = Annotated[int | None, typer.Option(help="Tokens a query is cut to; default: the model's own.")]

DocumentLength = Annotated[
    int | None, typer.Option(help="Tokens a document is cut to; default: the model's own.")
]

Separator = Annotated[
    str | None, typer.Option("--title-separator", help="Between title and text; default: the model's own.")
]

EncodeBatch = Annotated[int, typer.Option("--encode-batch-size", min=1, help="Texts encoded at a time.")]

_NAME = "--ray"

# What the option means where it stands alone.
_DEFAULT = "auto"

Address = Annotated[
    str | None,
    typer.Option(
        _NAME,
        metavar="[ADDRESS]",
        help="Do it on a Ray cluster, with the same files to the byte: HOST:PORT of its head, auto (the one "
        "that RAY_ADDRESS names or that runs on this machine; meant where no ADDRESS is given), or local "
        "(one that is started for this and ended).",
    ),
]


class RayCommand(TyperCommand):
    """A command whose ``--ray`` may stand without a value: typer itself has no such options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_address(args))


def _with_address(args: list[str]) -> list[str]:
    following = [*args[1:], "-"]
    return [
        f"{_NAME}={_DEFAULT}" if word == _NAME and following[place].startswith("-") else word
        for place, word in enumerate(args)
    ]
