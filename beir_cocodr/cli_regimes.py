"""The command that judges a family of models in interpolation and extrapolation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from beir_cocodr import cli_options as options
from beir_cocodr.report.terminal import print_json, print_tables


def evaluate(
    folder: Annotated[
        Path, typer.Option(help="Output of resample restrain or resample resttest.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option(help="Folder for results; one that was begun is gone on with.", show_default=False)
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
    max_steps: options.MaxSteps = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    learning_rate: options.LearningRate = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="Of dense-distilled: hybrid, cross-encoder (of the same set), or as for distill."),
    ] = None,
    recipe: options.Settings = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Of training; repeat for several. Default: 42.")
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Collection outside the distribution, for the alignment; repeat."),
    ] = None,
    measures: options.Measures = "nDCG@10 R@100",
    keep_models: Annotated[
        bool, typer.Option("--keep-models/--drop-models", help="Keep trained models, or only their scores.")
    ] = True,
    picture: Annotated[
        bool | None,
        typer.Option(
            "--picture/--no-picture", help="Scatter of the alignment; default: where matplotlib is there."
        ),
    ] = None,
    query_length: options.QueryLength = None,
    document_length: options.DocumentLength = None,
    encode_batch_size: options.EncodeBatch = 64,
    device: options.Device = None,
    show_config: options.ShowConfig = False,
    as_json: options.Json = False,
) -> None:
    """Interpolation, extrapolation and gap of retrieval architectures trained on the collections."""
    from dataclasses import asdict

    from beir_cocodr.report.regime_table import regime_tables
    from beir_cocodr.resampling.regimes.evaluate_regimes import evaluate_regimes
    from beir_cocodr.resampling.regimes.recipe import Recipe
    from beir_cocodr.training.settings import stage_options

    kind: Any = Recipe  # options of no single stage
    settings: Recipe = stage_options(
        kind,
        "regimes",
        None,
        recipe or (),
        start=start,
        max_steps=max_steps,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        teacher=teacher,
        query_length=query_length,
        document_length=document_length,
        encode_batch_size=encode_batch_size,
        device=device,
    )
    if show_config:
        print_json(asdict(settings))
        return
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
        picture=picture,
        progress=True,
    )
    if as_json:
        print_json(report)
    else:
        print_tables(*regime_tables(report))
