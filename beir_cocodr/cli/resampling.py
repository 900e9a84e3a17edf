"""The commands of the group ``study resample``: interpolation and extrapolation."""

from pathlib import Path
from typing import Annotated

from typer import Option

from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import plain, takes, trains
from beir_cocodr.cli.study import Delivery, TestQueries, TrainingQueries
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.report import png_pictures
from beir_cocodr.report.terminal import print_record
from beir_cocodr.resampling import RestrainOptions, ResttestOptions
from beir_cocodr.resampling.manifest import Manifest
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architecture_rows import architecture_forms

_Encoder = Annotated[
    str,
    plain("Compare the query embeddings of this encoder: minilm, a folder or a hub name."),
]

_NewOutput = Annotated[Path, plain("Write the collections to this folder, which must be new.")]

#: The fields that both ways to resample have flags for, behind their own.
_RESAMPLING = ("seed", "train_split", "test_split")


@takes("encoding", "query_length", "batch_size", "device")
@takes("settings", "sizes", "ks", "exclude_top", *_RESAMPLING, "method", "base")
def restrain(
    train: TrainingQueries,
    test: TestQueries,
    encoder: _Encoder,
    output: _NewOutput,
    picture: parameters.Picture = None,
    *,
    settings: RestrainOptions,
    encoding: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Draw training queries near test queries, and far away.

    Near queries form the collection for interpolation, and as many distant ones that for
    extrapolation.
    """
    from beir_cocodr.report.analysis_tables import resample_tables
    from beir_cocodr.resampling.restrain import resample_restrain

    drawn = png_pictures.will_draw(picture, True, "")
    manifest = resample_restrain(
        train,
        test,
        model=encoder,
        output=output,
        options=settings,
        search=encoding,
        draw=_draw if drawn else None,
    )
    print_record(manifest, as_json, resample_tables)


@takes("encoding", "query_length", "batch_size", "device")
@takes("settings", "buckets", *_RESAMPLING, "base")
def resttest(
    train: TrainingQueries,
    test: TestQueries,
    encoder: _Encoder,
    output: _NewOutput,
    picture: parameters.Picture = None,
    *,
    settings: ResttestOptions,
    encoding: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Divide training and test queries into buckets.

    A model is trained on all buckets but one; the test queries of that one test extrapolation.
    """
    from beir_cocodr.report.analysis_tables import resample_tables
    from beir_cocodr.resampling.resttest import resample_resttest

    drawn = png_pictures.will_draw(picture, True, "")
    manifest = resample_resttest(
        train,
        test,
        model=encoder,
        output=output,
        options=settings,
        search=encoding,
        draw=_draw if drawn else None,
    )
    print_record(manifest, as_json, resample_tables)


def _draw(folder: Path, manifest: Manifest) -> None:
    """Draw the queries of a resampling in its folder."""
    if manifest.points:
        png_pictures.resampling_picture(folder / "queries.png", manifest)


_Output = Annotated[Path, plain("Write the results to this folder; an interrupted run is resumed.")]

_Architecture = Annotated[
    list[str] | None,
    Option(
        help="Train these architectures on every set, separated by commas, or all: "
        f"{architecture_forms()}. ARCHITECTURE@NAME starts one only from that --other-start."
    ),
]

_Model = Annotated[
    list[str] | None,
    Option(
        help="Also evaluate this model. In PATH, {set} is replaced by the training set and "
        "{seed} by the seed; repeat for several.",
        metavar="NAME=PATH",
    ),
]

_OtherStart = Annotated[
    list[str] | None,
    Option(
        help="Also start all architectures from this encoder, in rows ARCHITECTURE@NAME, or only "
        "the ones that --architecture names in this form; repeat for several.",
        metavar="NAME=PATH",
    ),
]

_Seed = Annotated[
    list[int] | None,
    Option(help="Train with this seed; repeat for several. Default: 42."),
]

_Ood = Annotated[
    list[str] | None,
    Option(help="Also evaluate on this out-of-distribution collection; repeat for several."),
]

_KeepModels = Annotated[
    bool,
    Option(
        "--keep-models/--drop-models",
        help="Keep the trained models, or keep only their scores.",
    ),
]


@trains(
    None,
    "start",
    "teacher",
    "held_out",
    "query_length",
    "document_length",
    "encode_batch_size",
    "device",
    presets="resample evaluate",
)
def evaluate(
    folder: Annotated[Path, plain("Read this output of restrain or resttest.")],
    output: _Output,
    architecture: _Architecture = None,
    model: _Model = None,
    other_start: _OtherStart = None,
    *,
    settings: Recipe,
    seed: _Seed = None,
    ood: _Ood = None,
    measures: parameters.Measures = "nDCG@10 R@100",
    keep_models: _KeepModels = True,
    picture: parameters.Picture = None,
    as_json: parameters.Json = False,
) -> None:
    """Compare architectures on resampled collections.

    Each architecture is trained on the collections. The table shows interpolation, extrapolation
    and their gap.
    """
    from beir_cocodr.distributed import rank
    from beir_cocodr.report.analysis_tables import regime_tables
    from beir_cocodr.resampling.regimes.regimes import (
        PICTURE_FILE,
        RESULTS_FILE,
        RegimeOptions,
        evaluate_regimes,
    )

    drawn = png_pictures.will_draw(
        picture, bool(ood), "name collections outside the distribution with --ood"
    )
    names = [name.strip() for text in architecture or () for name in text.split(",")]
    record = evaluate_regimes(
        folder,
        output=output,
        architectures=[name for name in names if name],
        models=model or (),
        starts=other_start or (),
        recipe=settings,
        options=RegimeOptions(
            seeds=tuple(seed or (42,)),
            ood=ood or (),
            measures=measures,
            keep_models=keep_models,
            progress=True,
        ),
    )
    if rank() == 0:
        draw = png_pictures.alignment_picture if drawn else None
        delivery = Delivery(RESULTS_FILE, regime_tables, PICTURE_FILE, draw)
        delivery.deliver(record, output, as_json)
