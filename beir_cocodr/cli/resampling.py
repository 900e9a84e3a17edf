"""The commands about interpolation and extrapolation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beir_cocodr.cli import options
from beir_cocodr.cli.analysis import deliver, open_output
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.report.pictures import alignment_picture, overlap_picture, will_draw
from beir_cocodr.report.terminal import print_json, print_tables
from beir_cocodr.training.options import TrainingOptions


@options.takes("search", "query_length", "document_length", "batch_size", "device")
@options.gives("budget", TrainingOptions, "max_steps", "epochs", "batch_size", "learning_rate")
def evaluate(
    folder: Annotated[Path, typer.Option(help="Output of resample restrain or resample resttest.", show_default=False)],
    output: Annotated[
        Path, typer.Option(help="Folder for results; one that was begun is resumed.", show_default=False)
    ],
    architecture: Annotated[
        list[str] | None,
        typer.Option(
            help="To train on every set, separated by commas: bm25, dense, dense-hard, dense-distilled, "
            "splade, late-interaction, cross-encoder; or all."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Given models; in PATH {set} stands for a training set, {seed} for a seed; repeat.",
            metavar="NAME=PATH",
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="Encoder that all architectures start from; default: minilm.")
    ] = None,
    *,
    budget: dict[str, Any],
    teacher: Annotated[
        str | None, typer.Option(help="Of dense-distilled: hybrid, cross-encoder (of the same set), or as for distill.")
    ] = None,
    recipe: options.Settings = None,
    seed: Annotated[list[int] | None, typer.Option(help="Of training; repeat for several. Default: 42.")] = None,
    ood: Annotated[
        list[str] | None, typer.Option(help="Collection outside the distribution, for the alignment; repeat.")
    ] = None,
    measures: options.Measures = "nDCG@10 R@100",
    keep_models: Annotated[
        bool, typer.Option("--keep-models/--drop-models", help="Keep trained models, or only their scores.")
    ] = True,
    picture: Annotated[
        bool | None,
        typer.Option("--picture/--no-picture", help="Scatter of the alignment; default: where matplotlib is there."),
    ] = None,
    search: SearchOptions,
    show_config: options.ShowConfig = False,
    as_json: options.Json = False,
) -> None:
    """Interpolation, extrapolation and gap of retrieval architectures trained on the collections."""
    from dataclasses import asdict

    from beir_cocodr.report.resampling_tables import regime_tables
    from beir_cocodr.resampling.regimes.host_training import Recipe
    from beir_cocodr.resampling.regimes.regimes import PICTURE_FILE, RESULTS_FILE, evaluate_regimes
    from beir_cocodr.training.presets import stage_options

    kind: Any = Recipe  # options of no single stage
    settings: Recipe = stage_options(
        kind,
        "regimes",
        None,
        recipe or (),
        start=start,
        **budget,
        teacher=teacher,
        query_length=search.encoder.query_length,
        document_length=search.encoder.document_length,
        encode_batch_size=search.batch_size,
        device=search.encoder.device,
    )
    if show_config:
        print_json(asdict(settings))
        return
    drawn = will_draw(picture, bool(ood), "name collections outside the distribution with --ood")
    report = evaluate_regimes(
        folder,
        output,
        [name.strip() for names in architecture or [] for name in names.split(",") if name.strip()],
        model or (),
        settings,
        seeds=seed or (42,),
        ood=ood or (),
        measures=measures,
        keep_models=keep_models,
        progress=True,
    )
    drawing = (PICTURE_FILE, alignment_picture) if drawn else None
    deliver(report, RESULTS_FILE, output, drawing, regime_tables, as_json)


if TYPE_CHECKING:
    from beir_cocodr.resampling.manifest import Manifest

Train = Annotated[
    str,
    typer.Option(
        help="Dataset of the training queries: BEIR folder, irds:ID, BEIR name, or apidocs/DOMAIN.", show_default=False
    ),
]

Test = Annotated[str, typer.Option(help="Dataset of the test queries, named the same way.", show_default=False)]

TrainSplit = Annotated[str, typer.Option(help="Split of the training queries.")]

TestSplit = Annotated[str, typer.Option(help="Split of the test queries.")]

Encoder = Annotated[
    str,
    typer.Option(
        help="Encoder whose query embeddings are compared: minilm, a folder or a hub name.", show_default=False
    ),
]

BaseId = Annotated[
    str | None, typer.Option(help="BASE in the ids for ir_datasets; default: the name of the training set.")
]

ResampleSeed = Annotated[int, typer.Option(help="Seed of what is drawn.")]

NewOutput = Annotated[Path, typer.Option(help="Folder for the collections; must not be there yet.", show_default=False)]

resample = typer.Typer(
    help="Make interpolation and extrapolation collections from a training and a test set.", rich_markup_mode=None
)


def add_resampling(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(resample, name="resample")
    resample.command()(evaluate)
    app.command()(overlap)


@resample.command()
@options.takes("encoding", "query_length", "batch_size", "device")
def restrain(
    train: Train,
    test: Test,
    encoder: Encoder,
    output: NewOutput,
    size: Annotated[
        list[int] | None,
        typer.Option(help="Training queries a set should have, as near as k allows; repeat for several."),
    ] = None,
    k: Annotated[
        list[int] | None, typer.Option(help="Instead of a size: nearest training queries of each test query; repeat.")
    ] = None,
    exclude_top: Annotated[
        int | None,
        typer.Option(
            help="Extrapolation is drawn outside so many nearest of every test query; default: the largest k."
        ),
    ] = None,
    seed: ResampleSeed = 42,
    train_split: TrainSplit = "train",
    test_split: TestSplit = "test",
    search: Annotated[str, typer.Option(help="exact, or faiss.")] = "exact",
    base_id: BaseId = None,
    *,
    encoding: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Training queries near to test queries (interpolation), and as many far from all (extrapolation)."""
    from beir_cocodr.resampling.restrain import resample_restrain

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
    _print_manifest(manifest, as_json)


@resample.command()
@options.takes("search", "query_length", "batch_size", "device")
def resttest(
    train: Train,
    test: Test,
    encoder: Encoder,
    output: NewOutput,
    buckets: Annotated[int, typer.Option(help="Buckets, each held out once.")] = 5,
    seed: ResampleSeed = 42,
    train_split: TrainSplit = "train",
    test_split: TestSplit = "test",
    base_id: BaseId = None,
    *,
    search: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """Buckets of training and test queries: train on all but one, whose test queries are extrapolation."""
    from beir_cocodr.resampling.resttest import resample_resttest

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
    _print_manifest(manifest, as_json)


def _print_manifest(manifest: Manifest, as_json: bool) -> None:
    from beir_cocodr.report.resampling_tables import resample_table

    if as_json:
        print_json(manifest.to_json())
    else:
        print_tables(resample_table(manifest))


@options.takes("search", "query_length", "batch_size", "device")
def overlap(
    train: Train,
    test: Test,
    train_split: TrainSplit = "train",
    test_split: TestSplit = "test",
    encoder: Annotated[
        str | None, typer.Option(help="Find nearest training queries by this encoder; default: by their words.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for overlap.json, nearest.tsv and similarity.png.")
    ] = None,
    picture: Annotated[
        bool | None,
        typer.Option("--picture/--no-picture", help="Histogram of similarities; default: where matplotlib is there."),
    ] = None,
    *,
    search: SearchOptions,
    as_json: options.Json = False,
) -> None:
    """How much a training set gives away of a test set: labels and queries that stand in both."""
    from beir_cocodr.report.resampling_tables import overlap_tables
    from beir_cocodr.resampling.overlap import overlap as run

    drawn = will_draw(picture, output is not None, "give --output")
    open_output(output)
    report = run(train, test, train_split=train_split, test_split=test_split, encoder=encoder, search=search)
    if output is not None:
        report.write_nearest(output / "nearest.tsv")
    drawing = ("similarity.png", overlap_picture) if drawn else None
    deliver(report, "overlap.json", output, drawing, overlap_tables, as_json)
