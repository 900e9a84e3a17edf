"""Options that several commands share, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
