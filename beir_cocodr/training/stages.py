"""The stages of an adaptation: each trains one encoder further on what the adaptation has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection
from beir_cocodr.errors import InputError
from beir_cocodr.generation.generators import LEXICAL_GENERATOR
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.spec import BM25, HYBRID, EncoderOptions, SearchOptions
from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.retrieval.hybrid.fuse import HeldEmbeddings, fuse_over
from beir_cocodr.training.distillation.distill import check_teacher, distill
from beir_cocodr.training.distillation.merging import (
    check_merging,
    generated_kinds,
    kind_to_hold_out,
)
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.presets import BEST_RANKING, GPL_TEACHER
from beir_cocodr.training.pretraining.pretrain import pretrain
from beir_cocodr.training.start import ModelLike, Start


@dataclass(frozen=True)
class StageData:
    """The data that the stages of one adaptation learn from.

    Attributes:
        target: the corpus that is adapted to.
        source: the labelled collection of the stage ``finetune``.
        queries: the collection of generated queries, for stages that need it.
        queries_folder: its folder.
        teacher: the cross-encoder of the stages ``gpl`` and ``distill``; None means GPL's for
            ``gpl``, and the best ranking without labels for ``distill``.
    """

    target: Collection
    source: Collection | None = None
    queries: Collection | None = None
    queries_folder: Path | None = None
    teacher: str | None = None


@dataclass(frozen=True)
class StageRun:
    """One training of one stage.

    Attributes:
        data: what it learns from.
        start: the encoder that it starts from; it must stay as it is.
        output: folder for the trained encoder.
        options: options of the stage's own class.
        resume: go on from the last checkpoint, and keep a finished output.
        encoder: how encoders are loaded.
    """

    data: StageData
    start: Start
    output: Path
    options: Any
    resume: bool = False
    encoder: EncoderOptions = field(default_factory=EncoderOptions)


def pretrain_stage(run: StageRun) -> TrainingRecord:
    """Pre-train on the target, and on generated queries if the objective needs them."""
    queries: tuple[Path, ...] = ()
    if run.options.row("objective").on_queries:
        queries = (_queries_folder(run),)
    return pretrain(
        run.start,
        run.data.target,
        output=run.output,
        options=run.options,
        queries=queries,
        resume=run.resume,
    )


def source_stage(run: StageRun) -> TrainingRecord:
    """Fine-tune on the labelled collection."""
    return finetune(
        run.start, run.data.source, output=run.output, options=run.options, resume=run.resume
    )


def qgen_stage(run: StageRun) -> TrainingRecord:
    """Fine-tune on generated queries."""
    return finetune(
        run.start, run.data.queries, output=run.output, options=run.options, resume=run.resume
    )


def gpl_stage(run: StageRun) -> TrainingRecord:
    """Distil a cross-encoder on generated queries."""
    return _distill(run, run.data.teacher or GPL_TEACHER)


def distill_stage(run: StageRun) -> TrainingRecord:
    """Distil a ranking on generated queries of several kinds, and merge with the start.

    The teacher is the cross-encoder that was named, or else the best ranking without labels: RM3 of
    BM25 and the encoder itself. One kind of queries is not trained on; it chooses the share of the
    distilled weights in the mean with those of the start. If there is only one kind, crops of
    documents choose.
    """
    options = run.options
    if options.merge_on is None:
        kind = kind_to_hold_out(generated_kinds(_queries_folder(run)))
        options = replace(options, merge_on=kind)
    return _distill(replace(run, options=options), run.data.teacher or BEST_RANKING)


def generation_for_distillation(
    generation: GenerationOptions, generator: str, model: ModelLike, search: SearchOptions
) -> GenerationOptions:
    """Return how queries are generated for the stage ``distill``.

    What a language model writes is filtered by the fusion of BM25 and the encoder, or by BM25 alone
    if the encoder is loaded in a way that its name does not say.
    """
    retriever = None
    if generator != LEXICAL_GENERATOR:
        is_named = isinstance(model, str | Path)
        usual = replace(search.encoder, device=None) == EncoderOptions()
        retriever = f"{HYBRID}:{model}" if is_named and usual else BM25
    return generation.in_kinds(retriever, search)


def check_distillation(
    options: Any,
    teacher: str | None,
    generated: Path | str | None,
    generator: str,
    generation: GenerationOptions,
) -> None:
    """Check what the stage ``distill`` would refuse, before any stage has trained.

    Args:
        options: Its options.
        teacher: The teacher that was named.
        generated: The folder of generated queries that are there; None if they are yet to be made.
        generator: What makes them.
        generation: How they are made.

    Raises:
        InputError: The teacher is a file and cannot score the lists, or nothing could show whether
            training gains.
    """
    check_teacher(teacher or BEST_RANKING, options)
    if generated is not None:
        check_merging(Path(generated), options.merge_on)
        return
    is_lexical = generator == LEXICAL_GENERATOR
    only_spans = generation.kinds in (("claims",), ("titles",))
    if is_lexical and only_spans and options.merge_on is None:
        raise InputError(
            f"query_kinds {generation.query_kinds}: these queries are spans of documents, and with "
            "no other kind nothing can show whether training gains; name several kinds"
        )


def fuse_stage(run: StageRun) -> TrainingRecord:
    """Join the encoder with BM25 over the target."""
    return fuse_over(
        run.start.name,
        run.data.target,
        run.output,
        run.options,
        encoder=run.encoder,
        held=HeldEmbeddings(pool=run.start.pool),
        resume=run.resume,
    )


def _distill(run: StageRun, teacher: str) -> TrainingRecord:
    return distill(
        run.start,
        run.data.queries,
        teacher=teacher,
        output=run.output,
        options=run.options,
        resume=run.resume,
    )


def _queries_folder(run: StageRun) -> Path:
    assert run.data.queries_folder is not None
    return run.data.queries_folder
