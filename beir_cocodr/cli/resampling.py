"""The commands about interpolation and extrapolation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Context, Option

from beir_cocodr.cli import options
from beir_cocodr.cli.analysis import Picture, deliver
from beir_cocodr.cli.options import plain
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.report.pictures import alignment_picture, overlap_picture, resampling_picture, will_draw
from beir_cocodr.report.terminal import print_record
from beir_cocodr.resampling.manifest import Manifest
from beir_cocodr.resampling.regimes import Recipe

_Train = Annotated[str, plain("Dataset of the training queries: BEIR folder, irds:ID, BEIR name, or apidocs/DOMAIN.")]

_Test = Annotated[
    list[str], plain("Dataset of the test queries, named the same way; repeat for several that count as one.")
]

_TrainSplit = Annotated[str, Option(help="Split of the training queries.")]

_TestSplit = Annotated[str, Option(help="Split of the test queries.")]

_Encoder = Annotated[str, plain("Encoder whose query embeddings are compared: minilm, a folder or a hub name.")]

_BaseId = Annotated[str | None, Option(help="BASE in the ids for ir_datasets; default: the name of the training set.")]

_Seed = Annotated[int, Option(help="Seed of what is drawn.")]

_NewOutput = Annotated[Path, plain("Folder for the collections; must not be there yet.")]

resample = typer.Typer(
    help="Make interpolation and extrapolation collections from a training and a test set.", rich_markup_mode=None
)


@resample.command()
@options.trains(
    *(None, "start", "teacher", "query_length", "document_length", "encode_batch_size", "device"),
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
        Option(help="Further starts of all architectures, for rows ARCHITECTURE@NAME; repeat.", metavar="NAME=PATH"),
    ] = None,
    *,
    settings: Recipe,
    seed: Annotated[list[int] | None, Option(help="Of training; repeat for several. Default: 42.")] = None,
    ood: Annotated[
        list[str] | None, Option(help="Collection outside the distribution, for the alignment; repeat.")
    ] = None,
    measures: options.Measures = "nDCG@10 R@100",
    keep_models: Annotated[
        bool, Option("--keep-models/--drop-models", help="Keep trained models, or only their scores.")
    ] = True,
    picture: Picture = None,
    as_json: options.Json = False,
) -> None:
    """Interpolation, extrapolation and gap of retrieval architectures trained on the collections."""
    from beir_cocodr.report.resampling_tables import regime_tables
    from beir_cocodr.resampling.regimes.regimes import PICTURE_FILE, RESULTS_FILE, evaluate_regimes

    drawn = will_draw(picture, bool(ood), "name collections outside the distribution with --ood")
    chosen = [name.strip() for names in architecture or () for name in names.split(",") if name.strip()]
    report = evaluate_regimes(
        folder,
        output,
        chosen,
        model or (),
        settings,
        seed or (42,),
        ood or (),
        measures,
        keep_models,
        progress=True,
        starts=other_start or (),
    )
    drawing = (PICTURE_FILE, alignment_picture) if drawn else None
    deliver(report, RESULTS_FILE, output, drawing, regime_tables, as_json)


@resample.command()
@options.takes("encoding", "query_length", "batch_size", "device")
def restrain(
    train: _Train,
    test: _Test,
    encoder: _Encoder,
    output: _NewOutput,
    size: Annotated[
        list[int] | None, Option(help="Training queries a set should have, as near as k allows; repeat for several.")
    ] = None,
    k: Annotated[
        list[int] | None, Option(help="Instead of a size: nearest training queries of each test query; repeat.")
    ] = None,
    exclude_top: Annotated[
        int | None,
        Option(help="Extrapolation is drawn outside so many nearest of every test query; default: the largest k."),
    ] = None,
    seed: _Seed = 42,
    train_split: _TrainSplit = "train",
    test_split: _TestSplit = "test",
    search: Annotated[str, Option(help="exact, or faiss.")] = "exact",
    base_id: _BaseId = None,
    picture: Picture = None,
    *,
    encoding: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Training queries near to test queries (interpolation), and as many far from all (extrapolation)."""
    from beir_cocodr.resampling.restrain import resample_restrain

    drawn = will_draw(picture, True, "")
    manifest = resample_restrain(
        train,
        test,
        encoder,
        output,
        sizes=size or (),
        ks=k or (),
        exclude_top=exclude_top,
        seed=seed,
        train_split=train_split,
        test_split=test_split,
        method=search,
        base=base_id,
        search=encoding,
    )
    _finish(manifest, output, drawn, as_json)


@resample.command()
@options.takes("search", "query_length", "batch_size", "device")
def resttest(
    train: _Train,
    test: _Test,
    encoder: _Encoder,
    output: _NewOutput,
    buckets: Annotated[int, Option(help="Buckets, each held out once.")] = 5,
    seed: _Seed = 42,
    train_split: _TrainSplit = "train",
    test_split: _TestSplit = "test",
    base_id: _BaseId = None,
    picture: Picture = None,
    *,
    search: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Buckets of training and test queries: train on all but one, whose test queries are extrapolation."""
    from beir_cocodr.resampling.resttest import resample_resttest

    drawn = will_draw(picture, True, "")
    manifest = resample_resttest(
        train,
        test,
        encoder,
        output,
        buckets=buckets,
        seed=seed,
        train_split=train_split,
        test_split=test_split,
        base=base_id,
        search=search,
    )
    _finish(manifest, output, drawn, as_json)


def _finish(manifest: Manifest, output: Path, drawn: bool, as_json: bool) -> None:
    from beir_cocodr.report.resampling_tables import resample_table

    if drawn and manifest.points:
        resampling_picture(output / "queries.png", manifest)
    print_record(manifest, as_json, lambda manifest: [resample_table(manifest)])


@options.takes("search", "query_length", "batch_size", "device")
def overlap(
    context: Context,
    train: _Train,
    test: _Test,
    train_split: _TrainSplit = "train",
    test_split: _TestSplit = "test",
    encoder: Annotated[
        str | None, Option(help="Find nearest training queries by this encoder; default: by their words.")
    ] = None,
    output: Annotated[Path | None, Option(help="Folder for overlap.json, nearest.tsv and similarity.png.")] = None,
    picture: Picture = None,
    overwrite: options.Overwrite = False,
    *,
    search: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """How much a training set gives away of a test set: labels and queries that stand in both."""
    from beir_cocodr.report.resampling_tables import overlap_tables
    from beir_cocodr.resampling.overlap import overlap as run

    drawn = will_draw(picture, output is not None, "give --output")
    with options.results(context, output, overwrite) as folder:
        report = run(train, test, train_split=train_split, test_split=test_split, encoder=encoder, search=search)
        if folder is not None:
            report.write_nearest(folder / "nearest.tsv")
        drawing = ("similarity.png", overlap_picture) if drawn else None
        deliver(report, "overlap.json", folder, drawing, overlap_tables, as_json)
