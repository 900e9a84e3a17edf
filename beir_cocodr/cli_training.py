"""The commands that train."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from beir_cocodr import cli_options as options
from beir_cocodr.errors import InputError
from beir_cocodr.report.terminal import print_adaptation, print_json

if TYPE_CHECKING:
    from beir_cocodr.training.options import TrainingOptions


def pretrain(
    dataset: Annotated[
        list[str], typer.Option(help="Corpus to adapt to; repeat for several.", show_default=False)
    ],
    model: Annotated[str, typer.Option(help="Encoder to start from.", show_default=False)],
    output: options.Output,
    objective: Annotated[str, typer.Option(help="What to train: coco.")] = "coco",
    max_steps: options.MaxSteps = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    resume: options.Resume = False,
    show_config: options.ShowConfig = False,
    device: options.Device = None,
) -> None:
    """Pre-train an encoder on corpora without labels (COCO)."""
    from beir_cocodr.training.pretrain_options import PretrainOptions

    if objective != "coco":
        raise InputError(f"unknown objective {objective!r}; there is coco")
    settings = PretrainOptions().with_overrides(
        max_steps=max_steps, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, seed=seed
    )
    if _shown(show_config, pretrain=settings):
        return
    from beir_cocodr.training.pretrain import pretrain as run

    print_json(run(dataset, model, output, settings, resume, device=device))


def finetune(
    dataset: options.Dataset,
    model: Annotated[str, typer.Option(help="Encoder to start from.", show_default=False)],
    output: options.Output,
    split: Annotated[str, typer.Option(help="Split of the qrels to train on.")] = "train",
    negatives: Annotated[int | None, typer.Option(help="BM25 hard negatives a query and step.")] = None,
    max_steps: options.MaxSteps = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    resume: options.Resume = False,
    show_config: options.ShowConfig = False,
    device: options.Device = None,
) -> None:
    """Fine-tune an encoder on labelled queries, with BM25 hard negatives."""
    from beir_cocodr.training.finetune_options import FinetuneOptions

    settings = FinetuneOptions().with_overrides(
        max_steps=max_steps,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
        negatives=negatives,
    )
    if _shown(show_config, finetune=settings):
        return
    from beir_cocodr.training.finetune import finetune as run

    print_json(run(dataset, model, output, settings, split, resume, device=device))


def adapt(
    corpus: Annotated[
        str, typer.Option(help="Target collection; its labels, if any, only judge.", show_default=False)
    ],
    base: Annotated[str, typer.Option(help="Encoder to start from.", show_default=False)],
    output: options.Output,
    source: Annotated[str | None, typer.Option(help="Labelled collection to fine-tune on.")] = None,
    stages: Annotated[
        str, typer.Option(help="Any of coco,finetune; run in the order that is right.")
    ] = "coco,finetune",
    split: Annotated[str, typer.Option(help="Split of the target's qrels.")] = "test",
    source_split: Annotated[str, typer.Option(help="Split of the source's qrels.")] = "train",
    measures: options.Measures = "nDCG@10 R@100",
    max_steps: options.MaxSteps = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    resume: options.Resume = False,
    show_config: options.ShowConfig = False,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Adapt an encoder to a corpus, compare it with its base, and recommend one."""
    from beir_cocodr.training.finetune_options import FinetuneOptions
    from beir_cocodr.training.pretrain_options import PretrainOptions

    shared = {
        "max_steps": max_steps,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    pretraining = PretrainOptions().with_overrides(**shared)
    finetuning = FinetuneOptions().with_overrides(**shared)
    if _shown(show_config, coco=pretraining, finetune=finetuning):
        return
    from beir_cocodr.training.adapt import adapt as run

    report = run(
        corpus,
        source,
        base,
        output,
        [stage.strip() for stage in stages.split(",") if stage.strip()],
        split,
        source_split,
        measures,
        pretraining,
        finetuning,
        resume,
        encoder={"device": device},
        progress=True,
    )
    print_adaptation(report, as_json)


def _shown(show: bool, **settings: TrainingOptions) -> bool:
    if show:
        print_json({name: asdict(values) for name, values in settings.items()})
    return show
