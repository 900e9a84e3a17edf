"""The commands that look at results, and those about interpolation and extrapolation."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table
from typer import Context, Option

from beir_cocodr.analysis import RepresentationOptions, SourceClusterOptions
from beir_cocodr.cli import parameters
from beir_cocodr.cli.parameters import plain
from beir_cocodr.io import results_folder
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import Report
from beir_cocodr.report import png_pictures
from beir_cocodr.report.terminal import print_record
from beir_cocodr.resampling import RestrainOptions, ResttestOptions
from beir_cocodr.resampling.manifest import Manifest
from beir_cocodr.resampling.regimes import Recipe

R = TypeVar("R", bound=Report)

Picture = Annotated[
    bool | None,
    Option("--picture/--no-picture", help="Draw a picture; default: where matplotlib is there."),
]

_Results = Annotated[
    list[Path] | None, Option(help="A results.json of evaluate on one of the collections; repeat.")
]

_ResultsMeasure = Annotated[str, Option(help="The measure of the results.")]


def deliver(
    report: R,
    file: str,
    output: Path | None,
    picture: tuple[str, Callable[[Path, R], None]] | None,
    tables: Callable[[R], Iterable[Table]],
    as_json: bool,
) -> None:
    """Draw and write what a command found, as ``file`` of ``output`` if there is one, and print it,
    as ``tables`` or as JSON. ``picture``: its name in ``output``, and what draws it; None for none.
    """
    if output is not None:
        if picture is not None:
            name, draw = picture
            draw(output / name, report)
            report = replace(report, picture=name)
        report.write(output / file)
    print_record(report, as_json, tables)


@parameters.takes("search", *parameters.SEARCHING)
def qpp(
    context: Context,
    dataset: parameters.Dataset,
    model: Annotated[str, plain("Whose quality is predicted; names as for evaluate.")],
    output: parameters.Output,
    per_query: Annotated[
        Path | None, Option(help="A NAME.per_query.tsv of evaluate, instead of searching.")
    ] = None,
    measure: Annotated[str, Option(help="One measure that ir-measures knows.")] = "nDCG@10",
    split: parameters.Split = "test",
    word_vectors: Annotated[
        bool, Option(help="Train word vectors on the corpus, for MaxDC and P_clarity.")
    ] = False,
    picture: Picture = None,
    identical_ids: parameters.Policy = "auto",
    overwrite: parameters.Overwrite = False,
    *,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Correlate predictors of query performance, an MRL's variance among them, with per-query
    quality.
    """
    from beir_cocodr.analysis.predictors import variance_predictors, word_vector_predictors
    from beir_cocodr.analysis.qpp import qpp as run
    from beir_cocodr.report.analysis_tables import qpp_table

    drawn = png_pictures.will_draw(picture, True, "")
    with results_folder(output, parameters.this_run(context), overwrite) as folder:
        extra = variance_predictors(model, dataset, split, search.encoder)
        if word_vectors:
            extra |= word_vector_predictors(
                dataset, split, search.encoder.text_format, search.analyzer
            )
        found = run(dataset, model, folder, per_query, measure, split, extra, identical_ids, search)
        found.write_values(folder / found.record.values)
        drawing = (
            ("qpp.png", lambda path, _: png_pictures.qpp_picture(path, found)) if drawn else None
        )
        deliver(
            found.record, "qpp.json", folder, drawing, lambda report: [qpp_table(report)], as_json
        )


def shift(
    context: Context,
    source: Annotated[str, plain("Collection a model is trained on, named as for evaluate.")],
    target: Annotated[list[str], plain("Collection to compare with it; repeat for several.")],
    split: Annotated[
        str | None, Option(help="Split of the targets' queries; default: test, or all if none.")
    ] = None,
    source_split: Annotated[
        str | None, Option(help="Split of the source's queries; default: train, or all.")
    ] = None,
    output: Annotated[Path | None, Option(help="Folder for shift.json and shift.png.")] = None,
    results: _Results = None,
    measure: _ResultsMeasure = "nDCG@10",
    baseline: Annotated[
        str | None,
        Option(help="A model in the results, such as bm25: scores are differences to it."),
    ] = None,
    picture: Picture = None,
    overwrite: parameters.Overwrite = False,
    as_json: parameters.Json = False,
) -> None:
    """Compare targets with a source: words of documents and types of queries, by weighted
    Jaccard.
    """
    from beir_cocodr.analysis.shift import shift as run
    from beir_cocodr.report.analysis_tables import shift_tables

    drawn = png_pictures.will_draw(
        picture, output is not None and bool(results), "give --results and --output"
    )
    with parameters.results(context, output, overwrite) as folder:
        report = run(source, target, split, source_split, results or (), measure, baseline)
        drawing = ("shift.png", png_pictures.shift_picture) if drawn else None
        deliver(report, "shift.json", folder, drawing, shift_tables, as_json)


@parameters.takes("settings", "sample", "batch_size", "temperature", "span_tokens", "seed")
@parameters.takes("search", "document_length", "title_separator", "batch_size", "device")
def representation(
    context: Context,
    dataset: Annotated[list[str], plain("Corpus, named as for evaluate; repeat for several.")],
    model: Annotated[list[str], plain("An encoder, and optionally a second: before and after.")],
    output: Annotated[
        Path | None, Option(help="Folder for representation.json and representation.png.")
    ] = None,
    *,
    settings: RepresentationOptions,
    results: _Results = None,
    measure: _ResultsMeasure = "nDCG@10",
    picture: Picture = None,
    overwrite: parameters.Overwrite = False,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Alignment, uniformity and contrastive loss of an encoder on corpora, or of two: before and
    after.
    """
    from beir_cocodr.analysis.representation import representation as run
    from beir_cocodr.report.analysis_tables import representation_tables

    drawn = png_pictures.will_draw(picture, output is not None, "give --output")
    with parameters.results(context, output, overwrite) as folder:
        report = run(dataset, model, settings, results or (), measure, search)
        drawing = ("representation.png", png_pictures.representation_picture) if drawn else None
        deliver(report, "representation.json", folder, drawing, representation_tables, as_json)


@parameters.takes("settings", "clusters", "sample", "negatives", "cases", "nearest", "seed")
@parameters.takes(
    "search", "query_length", "document_length", "title_separator", "batch_size", "device"
)
def source_clusters(
    context: Context,
    source: Annotated[str, plain("Labelled collection that the models were trained on.")],
    target: Annotated[list[str], plain("Collection with queries; repeat for several.")],
    before: Annotated[str, plain("An encoder, such as one without iDRO.")],
    after: Annotated[str, plain("An encoder, such as one with iDRO.")],
    output: Annotated[
        Path | None, Option(help="Folder for source_clusters.json and source_clusters.png.")
    ] = None,
    *,
    settings: SourceClusterOptions,
    query: Annotated[
        list[str] | None, Option(help="Id of a target query to show as a case; repeat.")
    ] = None,
    source_split: Annotated[str, Option(help="Split of the source's qrels.")] = "train",
    split: Annotated[str, Option(help="Split of the targets' queries.")] = "test",
    results: _Results = None,
    measure: _ResultsMeasure = "nDCG@10",
    picture: Picture = None,
    overwrite: parameters.Overwrite = False,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Which source queries resemble a target, and whether training helped on both."""
    from beir_cocodr.analysis.source_clusters import source_clusters as run
    from beir_cocodr.report.analysis_tables import source_clusters_tables

    drawn = png_pictures.will_draw(
        picture, output is not None and bool(results), "give --results and --output"
    )
    with parameters.results(context, output, overwrite) as folder:
        report = run(
            source,
            target,
            before,
            after,
            settings,
            results or (),
            measure,
            query or (),
            source_split,
            split,
            search,
        )
        drawing = ("source_clusters.png", png_pictures.source_clusters_picture) if drawn else None
        deliver(report, "source_clusters.json", folder, drawing, source_clusters_tables, as_json)


_Train = Annotated[
    str,
    plain("Dataset of the training queries: BEIR folder, irds:ID, BEIR name, or apidocs/DOMAIN."),
]

_Test = Annotated[
    list[str],
    plain("Dataset of the test queries, named the same way; repeat for several that count as one."),
]

_Encoder = Annotated[
    str, plain("Encoder whose query embeddings are compared: minilm, a folder or a hub name.")
]

_NewOutput = Annotated[Path, plain("Folder for the collections; must not be there yet.")]

resample = typer.Typer(
    help="Make interpolation and extrapolation collections from a training and a test set.",
    rich_markup_mode=None,
)


@resample.command()
@parameters.trains(
    *(
        None,
        "start",
        "teacher",
        "held_out",
        "query_length",
        "document_length",
        "encode_batch_size",
        "device",
    ),
    presets="resample evaluate",
)
def evaluate(
    folder: Annotated[Path, plain("Output of resample restrain or resample resttest.")],
    output: Annotated[Path, plain("Folder for results; one that was begun is resumed.")],
    architecture: Annotated[
        list[str] | None,
        Option(
            help="To train on every set, separated by commas: bm25, dense, dense-hard, dense-distilled, "
            "splade, late-interaction, cross-encoder; or all."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        Option(
            help="Given models; in PATH {set} stands for a training set, {seed} for a seed; repeat.",
            metavar="NAME=PATH",
        ),
    ] = None,
    other_start: Annotated[
        list[str] | None,
        Option(
            help="Further starts of all architectures, for rows ARCHITECTURE@NAME; repeat.",
            metavar="NAME=PATH",
        ),
    ] = None,
    *,
    settings: Recipe,
    seed: Annotated[
        list[int] | None, Option(help="Of training; repeat for several. Default: 42.")
    ] = None,
    ood: Annotated[
        list[str] | None,
        Option(help="Collection outside the distribution, for the alignment; repeat."),
    ] = None,
    measures: parameters.Measures = "nDCG@10 R@100",
    keep_models: Annotated[
        bool,
        Option("--keep-models/--drop-models", help="Keep trained models, or only their scores."),
    ] = True,
    picture: Picture = None,
    as_json: parameters.Json = False,
) -> None:
    """Interpolation, extrapolation and gap of retrieval architectures trained on the
    collections.
    """
    from beir_cocodr.distributed import rank
    from beir_cocodr.report.analysis_tables import regime_tables
    from beir_cocodr.resampling.regimes.regimes import PICTURE_FILE, RESULTS_FILE, evaluate_regimes

    drawn = png_pictures.will_draw(
        picture, bool(ood), "name collections outside the distribution with --ood"
    )
    chosen = [
        name.strip() for names in architecture or () for name in names.split(",") if name.strip()
    ]
    report = evaluate_regimes(
        *(
            folder,
            output,
            chosen,
            model or (),
            settings,
            seed or (42,),
            ood or (),
            measures,
            keep_models,
        ),
        progress=True,
        starts=other_start or (),
    )
    if rank() == 0:
        drawing = (PICTURE_FILE, png_pictures.alignment_picture) if drawn else None
        deliver(report, RESULTS_FILE, output, drawing, regime_tables, as_json)


#: Flags of both ways to resample, behind their own.
_RESAMPLING = ("seed", "train_split", "test_split")


@resample.command()
@parameters.takes("encoding", "query_length", "batch_size", "device")
@parameters.takes("settings", "sizes", "ks", "exclude_top", *_RESAMPLING, "method", "base")
def restrain(
    train: _Train,
    test: _Test,
    encoder: _Encoder,
    output: _NewOutput,
    picture: Picture = None,
    *,
    settings: RestrainOptions,
    encoding: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Training queries near to test queries (interpolation), and as many far from all
    (extrapolation).
    """
    from beir_cocodr.resampling.restrain import resample_restrain

    drawn = png_pictures.will_draw(picture, True, "")
    _finish(
        resample_restrain(train, test, encoder, output, settings, encoding), output, drawn, as_json
    )


@resample.command()
@parameters.takes("encoding", "query_length", "batch_size", "device")
@parameters.takes("settings", "buckets", *_RESAMPLING, "base")
def resttest(
    train: _Train,
    test: _Test,
    encoder: _Encoder,
    output: _NewOutput,
    picture: Picture = None,
    *,
    settings: ResttestOptions,
    encoding: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Buckets of training and test queries: train on all but one, whose test queries are
    extrapolation.
    """
    from beir_cocodr.resampling.resttest import resample_resttest

    drawn = png_pictures.will_draw(picture, True, "")
    _finish(
        resample_resttest(train, test, encoder, output, settings, encoding), output, drawn, as_json
    )


def _finish(manifest: Manifest, output: Path, drawn: bool, as_json: bool) -> None:
    from beir_cocodr.report.analysis_tables import resample_tables

    if drawn and manifest.points:
        png_pictures.resampling_picture(output / "queries.png", manifest)
    print_record(manifest, as_json, resample_tables)


@parameters.takes("search", "query_length", "batch_size", "device")
def overlap(
    context: Context,
    train: _Train,
    test: _Test,
    train_split: Annotated[str, Option(help="Split of the training queries.")] = "train",
    test_split: Annotated[str, Option(help="Split of the test queries.")] = "test",
    encoder: Annotated[
        str | None,
        Option(help="Find nearest training queries by this encoder; default: by their words."),
    ] = None,
    output: Annotated[
        Path | None, Option(help="Folder for overlap.json, nearest.tsv and similarity.png.")
    ] = None,
    picture: Picture = None,
    overwrite: parameters.Overwrite = False,
    *,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """How much a training set gives away of a test set: labels and queries that stand in both."""
    from beir_cocodr.report.analysis_tables import overlap_tables
    from beir_cocodr.resampling.overlap import overlap as run

    drawn = png_pictures.will_draw(picture, output is not None, "give --output")
    with parameters.results(context, output, overwrite) as folder:
        report = run(
            train,
            test,
            train_split=train_split,
            test_split=test_split,
            encoder=encoder,
            search=search,
        )
        if folder is not None:
            report.write_nearest(folder / "nearest.tsv")
        drawing = ("similarity.png", png_pictures.overlap_picture) if drawn else None
        deliver(report, "overlap.json", folder, drawing, overlap_tables, as_json)
