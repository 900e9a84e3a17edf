"""The commands that look at results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from beir_cocodr.cli import options
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import Report
from beir_cocodr.report.pictures import (
    qpp_picture,
    representation_picture,
    shift_picture,
    source_clusters_picture,
    will_draw,
)
from beir_cocodr.report.terminal import print_json, print_tables

R = TypeVar("R", bound=Report)

_Picture = Annotated[
    bool | None, typer.Option("--picture/--no-picture", help="Scatter picture; default: where matplotlib is there.")
]

_Results = Annotated[
    list[Path] | None, typer.Option(help="A results.json of evaluate on one of the collections; repeat.")
]

_ResultsMeasure = Annotated[str, typer.Option(help="The measure of the results.")]


def open_output(output: Path | None) -> None:
    """Make the folder for the results, if there is one, before the work starts."""
    from beir_cocodr.io import output_folder

    if output is not None:
        output_folder(output)


def deliver(
    report: R,
    file: str,
    output: Path | None,
    picture: tuple[str, Callable[[Path, R], None]] | None,
    tables: Callable[[R], Iterable[Table]],
    as_json: bool,
) -> None:
    """Draw and write what a command found, and print it.

    Args:
        report: what was found.
        file: its name in ``output``.
        output: the folder, None to print only.
        picture: the picture's name in ``output``, and what draws it; None for none.
        tables: of the report, for a terminal.
        as_json: print the report as JSON instead.
    """
    if output is not None:
        if picture is not None:
            name, draw = picture
            draw(output / name, report)
            report = replace(report, picture=name)
        report.write(output / file)
    if as_json:
        print_json(report.to_json())
    else:
        print_tables(*tables(report))


@options.takes("search", "analyzer", "query_length", "document_length", "title_separator", "batch_size", "device")
def qpp(
    dataset: options.Dataset,
    model: Annotated[str, typer.Option(help="Whose quality is predicted; names as for evaluate.", show_default=False)],
    output: options.Output,
    per_query: Annotated[
        Path | None, typer.Option(help="A NAME.per_query.tsv of evaluate, instead of searching.")
    ] = None,
    measure: Annotated[str, typer.Option(help="One measure that ir-measures knows.")] = "nDCG@10",
    split: Annotated[str, typer.Option(help="Split of the qrels.")] = "test",
    picture: _Picture = None,
    identical_ids: options.Policy = "auto",
    *,
    search: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Correlate predictors of query performance, an MRL's variance among them, with per-query quality."""
    from beir_cocodr.analysis.predictors import variance_predictors
    from beir_cocodr.analysis.qpp import qpp as run
    from beir_cocodr.report.analysis_tables import qpp_table

    drawn = will_draw(picture, True, "")
    open_output(output)
    found = run(
        dataset,
        model,
        output,
        per_query,
        measure,
        split,
        extra=variance_predictors(model, dataset, split, search.encoder),
        policy=identical_ids,
        search=search,
    )
    found.write_values(output / found.record.values)
    drawing = ("qpp.png", lambda path, _: qpp_picture(path, found)) if drawn else None
    deliver(found.record, "qpp.json", output, drawing, lambda report: [qpp_table(report)], as_json)


def shift(
    source: Annotated[
        str, typer.Option(help="Collection a model is trained on, named as for evaluate.", show_default=False)
    ],
    target: Annotated[
        list[str], typer.Option(help="Collection to compare with it; repeat for several.", show_default=False)
    ],
    split: Annotated[
        str | None, typer.Option(help="Split of the targets' queries; default: test, or all if none.")
    ] = None,
    source_split: Annotated[
        str | None, typer.Option(help="Split of the source's queries; default: train, or all.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for shift.json and shift.png.")] = None,
    results: _Results = None,
    measure: _ResultsMeasure = "nDCG@10",
    baseline: Annotated[
        str | None, typer.Option(help="A model in the results, such as bm25: scores are differences to it.")
    ] = None,
    picture: _Picture = None,
    as_json: options.Json = False,
) -> None:
    """Compare targets with a source: words of documents and types of queries, by weighted Jaccard."""
    from beir_cocodr.analysis.shift import shift as run
    from beir_cocodr.report.analysis_tables import shift_tables

    drawn = will_draw(picture, output is not None and bool(results), "give --results and --output")
    open_output(output)
    report = run(source, target, split, source_split, results or (), measure, baseline)
    drawing = ("shift.png", shift_picture) if drawn else None
    deliver(report, "shift.json", output, drawing, shift_tables, as_json)


@options.takes("search", "document_length", "title_separator", "batch_size", "device")
def representation(
    dataset: Annotated[
        list[str], typer.Option(help="Corpus, named as for evaluate; repeat for several.", show_default=False)
    ],
    model: Annotated[
        list[str], typer.Option(help="An encoder, and optionally a second: before and after.", show_default=False)
    ],
    output: Annotated[Path | None, typer.Option(help="Folder for representation.json and representation.png.")] = None,
    sample: Annotated[int, typer.Option(help="Most documents of a corpus, a pair of spans of each.")] = 1024,
    batch_size: Annotated[int, typer.Option(help="Documents contrasted with each other in the loss.")] = 128,
    temperature: Annotated[float, typer.Option(help="Temperature of uniformity.")] = 2.0,
    span_tokens: Annotated[int, typer.Option(help="Most tokens of a span.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the sample and the spans.")] = 42,
    results: _Results = None,
    measure: _ResultsMeasure = "nDCG@10",
    picture: _Picture = None,
    *,
    search: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Alignment, uniformity and contrastive loss of an encoder on corpora, or of two: before and after."""
    from beir_cocodr.analysis.representation import RepresentationOptions
    from beir_cocodr.analysis.representation import representation as run
    from beir_cocodr.report.analysis_tables import representation_tables

    settings = RepresentationOptions(sample, batch_size, temperature, span_tokens, seed)
    drawn = will_draw(picture, output is not None, "give --output")
    open_output(output)
    report = run(dataset, model, settings, results or (), measure, search)
    drawing = ("representation.png", representation_picture) if drawn else None
    deliver(report, "representation.json", output, drawing, representation_tables, as_json)


@options.takes("search", "query_length", "document_length", "title_separator", "batch_size", "device")
def source_clusters(
    source: Annotated[
        str, typer.Option(help="Labelled collection that the models were trained on.", show_default=False)
    ],
    target: Annotated[list[str], typer.Option(help="Collection with queries; repeat for several.", show_default=False)],
    before: Annotated[str, typer.Option(help="An encoder, such as one without iDRO.", show_default=False)],
    after: Annotated[str, typer.Option(help="An encoder, such as one with iDRO.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="Folder for source_clusters.json and source_clusters.png.")
    ] = None,
    clusters: Annotated[int, typer.Option(help="Clusters of source queries.")] = 50,
    sample: Annotated[int, typer.Option(help="Most source queries.")] = 1000,
    negatives: Annotated[int, typer.Option(help="BM25 negatives a source query.")] = 4,
    cases: Annotated[int, typer.Option(help="Target queries shown with their nearest source queries.")] = 5,
    nearest: Annotated[int, typer.Option(help="Source queries shown for each.")] = 1,
    query: Annotated[list[str] | None, typer.Option(help="Id of a target query to show instead; repeat.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample, the negatives and the clusters.")] = 42,
    source_split: Annotated[str, typer.Option(help="Split of the source's qrels.")] = "train",
    split: Annotated[str, typer.Option(help="Split of the targets' queries.")] = "test",
    results: _Results = None,
    measure: _ResultsMeasure = "nDCG@10",
    picture: _Picture = None,
    *,
    search: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Which source queries resemble a target, and whether training helped on both."""
    from beir_cocodr.analysis.source_clusters import SourceClusterOptions
    from beir_cocodr.analysis.source_clusters import source_clusters as run
    from beir_cocodr.report.analysis_tables import source_clusters_tables

    settings = SourceClusterOptions(clusters, sample, negatives, cases, nearest, seed)
    drawn = will_draw(picture, output is not None and bool(results), "give --results and --output")
    open_output(output)
    report = run(
        source, target, before, after, settings, results or (), measure, query or (), source_split, split, search
    )
    drawing = ("source_clusters.png", source_clusters_picture) if drawn else None
    deliver(report, "source_clusters.json", output, drawing, source_clusters_tables, as_json)
