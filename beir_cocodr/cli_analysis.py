"""The commands that look at results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from beir_cocodr import cli_options as options
from beir_cocodr.report.terminal import print_json, print_tables


def qpp(
    dataset: options.Dataset,
    model: Annotated[
        str, typer.Option(help="Whose quality is predicted; names as for evaluate.", show_default=False)
    ],
    output: options.Output,
    per_query: Annotated[
        Path | None, typer.Option(help="A NAME.per_query.tsv of evaluate, instead of searching.")
    ] = None,
    measure: Annotated[str, typer.Option(help="One measure that ir-measures knows.")] = "nDCG@10",
    split: Annotated[str, typer.Option(help="Split of the qrels.")] = "test",
    picture: Annotated[
        bool | None,
        typer.Option("--picture/--no-picture", help="Scatter picture; default: where matplotlib is there."),
    ] = None,
    identical_ids: options.Policy = "auto",
    bm25_analyzer: options.Analyzer = "english",
    query_length: options.QueryLength = None,
    document_length: options.DocumentLength = None,
    title_separator: options.Separator = None,
    encode_batch_size: options.EncodeBatch = 64,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Correlate predictors of query performance, an MRL's variance among them, with per-query quality."""
    from beir_cocodr.analysis.qpp import qpp as run
    from beir_cocodr.analysis.variance import variance_predictors
    from beir_cocodr.report.qpp_table import qpp_table

    encoder: dict[str, Any] = {
        "query_length": query_length,
        "document_length": document_length,
        "title_separator": title_separator,
        "device": device,
    }
    report = run(
        dataset,
        model,
        output,
        per_query,
        measure,
        split,
        extra=variance_predictors(model, dataset, split, **encoder),
        picture=picture,
        analyzer=bm25_analyzer,
        policy=identical_ids,
        batch_size=encode_batch_size,
        progress=True,
        **encoder,
    )
    if as_json:
        print_json(report)
    else:
        print_tables(qpp_table(report))
