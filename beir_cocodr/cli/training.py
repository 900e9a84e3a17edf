"""The commands that train."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beir_cocodr.cli import options
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.report.terminal import print_json, print_training

if TYPE_CHECKING:
    from beir_cocodr.training.options import TrainingOptions


def pretrain(
    dataset: Annotated[
        list[str], typer.Option(help="Corpus to adapt to; repeat for several.", show_default=False)
    ],
    model: Annotated[str, typer.Option(help="Encoder to start from.", show_default=False)],
    output: options.Output,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What to train: coco (default), mlm, condenser, cocondenser, simcse, ict or tsdae; with "
            "--queries qc or cotmae."
        ),
    ] = None,
    queries: Annotated[
        list[str] | None,
        typer.Option(help="Folder of generate-queries, for qc and cotmae; repeat for several corpora."),
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="Of cotmae: autoregressive (default) or masked.")
    ] = None,
    mix: Annotated[
        float | None,
        typer.Option(help="Chance that a passage meets another passage instead of a query (0)."),
    ] = None,
    per_passage: Annotated[
        int | None, typer.Option(help="The most queries of a passage that are used; default: all.")
    ] = None,
    span_tokens: Annotated[int | None, typer.Option(help="The most tokens of a span.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens a sequence is cut to.")] = None,
    mlm_weight: Annotated[
        float | None, typer.Option(help="Weight of the language-model losses; 0 leaves them out.")
    ] = None,
    skip_from: Annotated[
        int | None, typer.Option(help="Layer the head takes its tokens from; default: half the depth.")
    ] = None,
    encoder_dropout: Annotated[
        bool | None,
        typer.Option(
            "--encoder-dropout/--no-encoder-dropout",
            help="Dropout of the encoder; default: off for coco, else on.",
        ),
    ] = None,
    max_steps: options.MaxSteps = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    mini_batch_size: options.MiniBatchSize = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    preset: options.Preset = None,
    assignments: options.Settings = None,
    resume: options.Resume = False,
    show_config: options.ShowConfig = False,
    device: options.Device = None,
) -> None:
    """Pre-train an encoder on corpora without labels: COCO, one of its rivals, or queries as context."""
    from beir_cocodr.training.options import PretrainOptions
    from beir_cocodr.training.presets import stage_options

    settings = stage_options(
        PretrainOptions,
        "pretrain",
        preset,
        assignments or [],
        objective=objective,
        span_tokens=span_tokens,
        max_length=max_length,
        mlm_weight=mlm_weight,
        skip_from=skip_from,
        encoder_dropout=encoder_dropout,
        decoder=decoder,
        mix=mix,
        per_passage=per_passage,
        max_steps=max_steps,
        epochs=epochs,
        batch_size=batch_size,
        mini_batch_size=mini_batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    if _shown(show_config, pretrain=settings):
        return
    from beir_cocodr.training.pretrain import pretrain as run

    print_training(
        run(dataset, model, output, settings, resume, queries or [], EncoderOptions(device=device))
    )


def finetune(
    dataset: options.Dataset,
    model: Annotated[str, typer.Option(help="Encoder to start from.", show_default=False)],
    output: options.Output,
    split: Annotated[str, typer.Option(help="Split of the qrels to train on.")] = "train",
    weighting: Annotated[
        str | None,
        typer.Option(
            help="How clusters of queries are weighted: erm (alike; default), idro, groupdro, cvar."
        ),
    ] = None,
    clusters: Annotated[int | None, typer.Option(help="Clusters of queries (50).")] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="triplet or infonce; default: infonce for erm without episodes, else triplet."),
    ] = None,
    negatives: Annotated[int | None, typer.Option(help="Hard negatives a query and step.")] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Times that negatives are mined by the model itself, after BM25's (0).")
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option(help="2: a second retriever starts anew on negatives that the first one mines (1)."),
    ] = None,
    stage2_negatives: Annotated[
        str | None,
        typer.Option(
            "--stage2-negatives", help="Of the second: both (BM25's and mined ones; default) or mined."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Labelled collection to evaluate every episode or stage on; repeat."),
    ] = None,
    measures: options.Measures = "nDCG@10 R@100",
    max_steps: options.MaxSteps = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    mini_batch_size: options.MiniBatchSize = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    preset: options.Preset = None,
    assignments: options.Settings = None,
    resume: options.Resume = False,
    show_config: options.ShowConfig = False,
    device: options.Device = None,
) -> None:
    """Fine-tune an encoder on labelled queries: plainly or by iDRO, on BM25's negatives, in episodes or in
    two stages.
    """
    from beir_cocodr.training.options import FinetuneOptions
    from beir_cocodr.training.presets import stage_options

    settings = stage_options(
        FinetuneOptions,
        "finetune",
        preset,
        assignments or [],
        weighting=weighting,
        clusters=clusters,
        loss=loss,
        negatives=negatives,
        episodes=episodes,
        stages=stages,
        stage2_negatives=stage2_negatives,
        max_steps=max_steps,
        epochs=epochs,
        batch_size=batch_size,
        mini_batch_size=mini_batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    if _shown(show_config, finetune=settings):
        return
    from beir_cocodr.training.finetune import finetune as run

    record = run(
        dataset, model, output, settings, split, resume, target or [], measures, EncoderOptions(device=device)
    )
    print_training(record)


def distill(
    dataset: options.Dataset,
    model: Annotated[str, typer.Option(help="Encoder to start from.", show_default=False)],
    teacher: Annotated[
        str,
        typer.Option(
            help="bm25, hybrid (BM25 and the encoder), a file of scores, or a cross-encoder.",
            show_default=False,
        ),
    ],
    output: options.Output,
    student: Annotated[str | None, typer.Option(help="dot (default), or mrl: means and variances.")] = None,
    loss: Annotated[str | None, typer.Option(help="lambdarank (default), kl or margin_mse.")] = None,
    split: Annotated[str, typer.Option(help="Split of the qrels to train on.")] = "train",
    max_steps: options.MaxSteps = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    mini_batch_size: options.MiniBatchSize = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    assignments: options.Settings = None,
    resume: options.Resume = False,
    show_config: options.ShowConfig = False,
    device: options.Device = None,
) -> None:
    """Teach an encoder to rank as a teacher does, by listwise distillation."""
    from beir_cocodr.training.options import DistillOptions
    from beir_cocodr.training.presets import stage_options

    settings = stage_options(
        DistillOptions,
        "distill",
        None,
        assignments or [],
        student=student,
        loss=loss,
        max_steps=max_steps,
        epochs=epochs,
        batch_size=batch_size,
        mini_batch_size=mini_batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    if _shown(show_config, distill=settings):
        return
    from beir_cocodr.training.distill import distill as run

    print_training(
        run(dataset, model, teacher, output, settings, split, resume, EncoderOptions(device=device))
    )


def adapt(
    corpus: Annotated[
        str, typer.Option(help="Target collection; its labels, if any, only judge.", show_default=False)
    ],
    base: Annotated[str, typer.Option(help="Encoder to start from.", show_default=False)],
    output: options.Output,
    source: Annotated[str | None, typer.Option(help="Labelled collection to fine-tune on.")] = None,
    stages: Annotated[
        str,
        typer.Option(
            help="Any of coco,cotmae,qc,finetune,qgen,gpl,hybrid-distill; run in the order that is right, "
            "each alone and all together."
        ),
    ] = "coco,finetune",
    queries: Annotated[
        Path | None,
        typer.Option(help="Folder of generate-queries for the corpus; without it one is made where needed."),
    ] = None,
    generator: Annotated[
        str, typer.Option(help="Of queries: lexical, or a seq2seq or causal model.")
    ] = "lexical",
    teacher: Annotated[
        str | None, typer.Option(help="Cross-encoder of the stage gpl; default: GPL's own, from the hub.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the target's qrels.")] = "test",
    samples: Annotated[
        int, typer.Option(help="Of a target without labels: held-out crops, and generated queries.")
    ] = 300,
    source_split: Annotated[str, typer.Option(help="Split of the source's qrels.")] = "train",
    measures: options.Measures = "nDCG@10 R@100",
    weighting: Annotated[
        str | None, typer.Option(help="Of the source's queries: erm (default), idro, groupdro, cvar.")
    ] = None,
    max_steps: options.MaxSteps = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    preset: options.Preset = None,
    resume: options.Resume = False,
    show_config: options.ShowConfig = False,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Adapt an encoder to a corpus, compare it with its base, and recommend one.

    Labels of the corpus judge, if it has some. Without them estimates do, and how often such estimates were
    right is said; labels_wanted.tsv then names the query-document pairs whose labels would tell most.
    """
    from beir_cocodr.report.tables.evaluation import print_adaptation
    from beir_cocodr.training.adapt import adapt as run
    from beir_cocodr.training.presets import GPL_TEACHER, adapt_options, chosen_stages

    shared: dict[str, Any] = {
        "max_steps": max_steps,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    chosen = chosen_stages([stage.strip() for stage in stages.split(",") if stage.strip()])
    settings = {
        stage: adapt_options(stage, preset, **shared, weighting=weighting if stage == "finetune" else None)
        for stage in chosen
    }
    if _shown(show_config, **settings):
        return
    report = run(
        corpus,
        source,
        base,
        output,
        chosen,
        split,
        source_split,
        measures,
        settings,
        queries,
        generator,
        teacher=teacher or GPL_TEACHER,
        resume=resume,
        samples=samples,
        search=SearchOptions(EncoderOptions(device=device), progress=True),
    )
    print_adaptation(report, as_json)


def _shown(show: bool, **settings: TrainingOptions) -> bool:
    if show:
        print_json({name: asdict(values) for name, values in settings.items()})
    return show
