"""The commands ``compare``, of models on a collection or of three tools on a run, and ``report``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from beir_cocodr.cli import options
from beir_cocodr.cli.options import plain
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.report.terminal import print_json, print_record


@options.takes(
    "search",
    *("analyzer", "bm25_weight", "bf16", "query_length", "document_length", "title_separator", "batch_size", "device"),
)
def compare(
    context: Context,
    dataset: options.Dataset,
    models: Annotated[
        list[str] | None,
        Argument(
            help="Models to compare, named as for evaluate; with --judgements a single encoder, for all its uses.",
            show_default=False,
        ),
    ] = None,
    parity: Annotated[
        Path | None,
        Option(metavar="RUN", help="A TREC run to score by BEIR, ir-measures and pytrec_eval, instead of models."),
    ] = None,
    output: Annotated[Path | None, Option(help="Folder for results.")] = None,
    measures: Annotated[
        str | None,
        Option(
            help="Separated by spaces; default: nDCG@10 R@100, or nDCG@10 AP@100 R@100 R_cap@100 RR@10 with --parity."
        ),
    ] = None,
    split: options.Split = "test",
    labels: Annotated[
        bool | None, Option("--labels/--no-labels", help="Judge models with labels; default: where the split has some.")
    ] = None,
    identical_ids: options.Policy = "auto",
    samples: Annotated[int, Option(help="Crops and generated queries, without labels.")] = 300,
    seed: Annotated[int, Option(help="Seed of the samples.")] = 42,
    wanted: Annotated[int, Option(help="Query-document pairs proposed for labelling.")] = 50,
    judgements: options.Judgements = None,
    overwrite: options.Overwrite = False,
    *,
    search: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Compare models on a collection, or with --parity what three evaluation tools say of one run."""
    if (parity is not None) == bool(models):
        raise InputError("name models to compare, or a run with --parity, and not both")
    if parity is not None:
        with options.results(context, output, overwrite) as folder:
            _parity(parity, dataset, folder, split, measures, as_json)
        return
    from beir_cocodr.evaluation.compare import compare_models
    from beir_cocodr.evaluation.measures import DEFAULT_MEASURES
    from beir_cocodr.report.evaluation_tables import verdict_tables

    measured = DEFAULT_MEASURES if measures is None else measures
    record = compare_models(
        *(models or [], dataset, output, split, measured, labels, identical_ids),
        samples=samples,
        seed=seed,
        wanted=wanted,
        search=search,
        overwrite=overwrite,
        judgements=judgements,
    )
    print_record(record, as_json, verdict_tables)


def _parity(run: Path, dataset: str, output: Path | None, split: str, measures: str | None, as_json: bool) -> None:
    from beir_cocodr.evaluation.parity import PARITY_MEASURES, parity
    from beir_cocodr.report.evaluation_tables import parity_tables

    record = parity(run, dataset, split, PARITY_MEASURES if measures is None else measures)
    if output is not None:
        record.write(output / "parity.json")
    print_record(record, as_json, parity_tables)


def report(
    context: Context,
    folder: Annotated[
        Path, Argument(help="Output of evaluate, compare, adapt, quickstart or a training command.", show_default=False)
    ],
    output: Annotated[Path | None, plain("The page; default: report.html in the folder.")] = None,
    dataset: Annotated[
        str | None, plain("The collection, for titles and texts, if the one on record is not at hand.")
    ] = None,
    split: Annotated[str | None, Option(help="Split of its qrels; default: the one on record.")] = None,
    queries: Annotated[int, Option(help="Queries shown one by one, at most.", min=0)] = 50,
    published: Annotated[
        list[Path] | None, Option(help="File of published figures, instead of the packaged ones; repeat.")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the page of another run.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write one HTML page about a run: the verdict, tables, single queries, pictures. It needs no network."""
    from beir_cocodr.report.html.page import write_report

    page = write_report(folder, output, dataset, split, queries, published or (), overwrite)
    context.params["output"] = page.path
    if as_json:
        print_json(asdict(page))
    else:
        print(page.sentence)
        print(page.path)
