"""The one place that trains: the host's trainer, with checks and resumable checkpoints.

A :class:`Stage` describes a training, and :func:`run_stage` runs it to a complete end.
"""

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.trainer import BaseTrainer
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PrinterCallback, TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput

from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import on_main, wait_for_all, world_size
from beir_cocodr.errors import InputError, naming_full_disk
from beir_cocodr.models.card import write_card
from beir_cocodr.progress import Bar
from beir_cocodr.provenance import (
    GENERATED_QUERIES,
    LOGGED,
    TrainingPlan,
    TrainingRecord,
    read_record,
    write_record,
)
from beir_cocodr.records import Json, versions
from beir_cocodr.training.batches import (
    BatchKeys,
    ConsecutiveBatches,
    WholeEpochs,
    counting_workers,
    loader_workers,
)
from beir_cocodr.training.checkpoints import (
    CHECKPOINTS,
    LossState,
    Seal,
    checkpoint_to_resume,
    last_checkpoint,
)
from beir_cocodr.training.finite_guard import FiniteGuard
from beir_cocodr.training.lamb import LAMB
from beir_cocodr.training.output_folder import started, training_precision
from beir_cocodr.training.reporting import (
    closing_reports,
    report_arguments,
    report_callbacks,
)
from beir_cocodr.training.shared_options import TrainingOptions, report_services

log = logging.getLogger(__name__)

# The paper of training on generated queries, for the card.
_GENERATED_QUERIES_PAPER = "ma2021qgen"


class StepBar(TrainerCallback):
    """A bar of the steps with the loss beside it; the host's own prints losses to stdout.

    Args:
        ends_step: whether the running step of the command ends with the training.
    """

    bar: Bar | None = None

    def __init__(self, ends_step: bool) -> None:
        """Begin without a bar."""
        self.ends_step = ends_step

    def on_train_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Open the bar on the first process."""
        if state.is_world_process_zero:
            self.bar = Bar(
                total=state.max_steps, initial=state.global_step, desc="Training", unit=" steps"
            )
            self.bar.ends_step = self.ends_step

    def on_step_end(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Move the bar by a step."""
        if self.bar is not None:
            self.bar.update()

    def on_log(
        self,
        args: object,
        state: object,
        control: object,
        logs: Json | None = None,
        **kwargs: object,
    ) -> None:
        """Show the loss."""
        if self.bar is not None and logs and "loss" in logs:
            self.bar.set_postfix(loss=f"{float(str(logs['loss'])):.4f}", refresh=False)

    def close(self) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()


def _nothing_to_finish(folder: Path) -> Json:
    return {}


@dataclass(frozen=True)
class Stage:
    """A training stage.

    Attributes:
        plan: what identifies it.
        model: the encoder, trained in place.
        loss: the loss, as ``SentenceTransformerTrainer`` takes it.
        dataset: the training data, likewise.
        column_tasks: column to "query" or "document", for prompts and lengths.
        collator: makes batches; None means the host's own.
        batch_keys: texts of the rows; two rows that share one never come into one batch.
        consecutive: rows that stay together, in their order, when the others are shuffled.
        callbacks: callbacks of the trainer.
        names: gives ids of examples by row number, which the column ``label`` holds, for messages.
        details: what the record says of this stage alone.
        concluding: called on every process once training is over, in this order, such as to put
            other weights into the model.
        finish: called before the model is saved, on the first process, to take off what only
            training needs. What it returns goes to the details.
        ends_step: whether the running step of the command ends with this training.
        rehearsed: what the method practises, see
            :attr:`~beir_cocodr.provenance.TrainingRecord.rehearsed`.
        citations: papers of the method, see
            :attr:`~beir_cocodr.provenance.TrainingRecord.citations`.
        trainer: the host's trainer for another kind of model than a dense encoder, behind
            :class:`GuardedTrainer`.
        arguments: the class of its arguments.
    """

    plan: TrainingPlan
    model: Any
    loss: torch.nn.Module
    dataset: Any
    column_tasks: dict[str, str] = field(default_factory=dict)
    collator: Any = None
    batch_keys: BatchKeys | None = None
    consecutive: int = 1
    callbacks: Sequence[TrainerCallback] = ()
    names: Callable[[Sequence[int]], list[str]] | None = None
    details: Json = field(default_factory=dict)
    concluding: Sequence[Callable[[], None]] = ()
    finish: Callable[[Path], Json] = _nothing_to_finish
    ends_step: bool = False
    rehearsed: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()
    trainer: "type[GuardedTrainer] | None" = None
    arguments: Any = SentenceTransformerTrainingArguments

    @property
    def on_generated_queries(self) -> bool:
        """Return true if the stage is trained on generated queries."""
        return any(part.generation is not None for part in self.plan.seen)

    def all_rehearsed(self) -> tuple[str, ...]:
        """Return what the method practises, and generated queries if there are any."""
        extra = (GENERATED_QUERIES,) if self.on_generated_queries else ()
        return tuple(dict.fromkeys((*self.rehearsed, *extra)))

    def all_citations(self) -> tuple[str, ...]:
        """Return the papers of the method, and that of generated queries if there are any."""
        extra = (_GENERATED_QUERIES_PAPER,) if self.on_generated_queries else ()
        return tuple(dict.fromkeys((*self.citations, *extra)))


class GuardedTrainer(BaseTrainer):
    """A mixin before a host's trainer: batches by our keys, losses checked, and no model card.

    The host's card would quote the corpus; ours is made from training.json.

    Attributes:
        guard: checks losses and gradients; also one of the callbacks.
        batch_keys: those of the stage.
    """

    guard: FiniteGuard
    batch_keys: BatchKeys | None = None
    optimizer_name = "adamw"
    consecutive = 1

    def get_optimizer_cls_and_kwargs(self, *args: Any, **settings: Any) -> tuple[Any, Json]:
        """Choose the optimiser by our options, with the host's groups of parameters."""
        kind, keywords = super().get_optimizer_cls_and_kwargs(*args, **settings)
        if self.optimizer_name == "lamb":
            known = ("lr", "betas", "eps", "params", "model", "optimizer_dict")
            keywords = {name: value for name, value in keywords.items() if name in known}
            return LAMB, keywords
        return kind, keywords

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor | Any], *args: Any, **settings: Any
    ) -> Any:
        """Compute the loss as the host does, and check it."""
        labels = inputs.get("label")  # numbers of examples, or a teacher's scores
        numbered = isinstance(labels, Tensor) and labels.ndim == 1
        self.guard.rows = labels.tolist() if numbered else []  # type: ignore[union-attr]
        loss = super().compute_loss(model, inputs, *args, **settings)
        self.guard.check_loss(loss[0] if isinstance(loss, tuple) else loss)
        return loss

    def get_batch_samples(self, *args: Any, **settings: Any) -> Any:
        """Fetch the batches of a step as the host does, and none after the last step.

        A host that resumes from the checkpoint of the last step would make another one.
        """
        if self.state.global_step >= self.state.max_steps:
            return [], None
        return super().get_batch_samples(*args, **settings)

    def get_batch_sampler(self, dataset: Any, *args: Any, **settings: Any) -> Any:
        """Sample batches by our keys, or as the host does if there are none."""
        if self.consecutive > 1:
            return ConsecutiveBatches(dataset, self.consecutive, *args, **settings)
        if self.batch_keys is None:
            return super().get_batch_sampler(dataset, *args, **settings)
        return WholeEpochs(self.batch_keys, *args, **settings)

    def add_model_card_callback(self, default_args_dict: Json) -> None:
        """Add nothing."""

    def train_guarded(
        self, guard: FiniteGuard, stage: Stage, resume: Path | None = None
    ) -> TrainOutput:
        """Train, with progress on stderr.

        Raises:
            NonFiniteTraining: A loss, gradient or weight is NaN or infinite.
        """
        self.guard = guard
        self.batch_keys = stage.batch_keys
        guard.scaled = self.args.fp16
        self.remove_callback(PrinterCallback)
        progress = StepBar(stage.ends_step)
        for callback in (guard, progress, Seal()):
            self.add_callback(callback)
        workers = self.args.dataloader_num_workers
        try:
            with counting_workers(self.data_collator, self.model, workers):
                result = self.train(resume_from_checkpoint=str(resume) if resume else None)
        finally:
            progress.close()
        # Every process looks for checkpoints at the end, and the first soon removes them.
        wait_for_all()
        return result


class _Trainer(GuardedTrainer, SentenceTransformerTrainer):
    pass


def run_stage(
    stage: Stage,
    options: TrainingOptions,
    output: Path,
    resume: bool,
) -> TrainingRecord:
    """Train, save the encoder to ``output``, and write its training.json last.

    Args:
        stage: what is trained.
        options: how it is trained.
        output: folder for the encoder.
        resume: go on from the newest complete checkpoint.

    Returns:
        The content of training.json.

    Raises:
        InputError: No batch can be made of the data.
        NonFiniteTraining: A loss, gradient or weight is NaN or infinite.
    """
    start = time.perf_counter()
    checkpoints = output / CHECKPOINTS
    last = on_main(lambda: checkpoint_to_resume(checkpoints)) if resume else None
    with started(output, stage.plan):
        arguments = _arguments(stage, options, output)
        keep_to_one_gpu(arguments)
    if options.dropout is not None:
        for part in (stage.model, stage.loss):
            set_dropout(part, options.dropout)
    services = report_services(options.report_to)
    trainer = _build_trainer(stage, options, arguments, last)
    for callback in report_callbacks(services, output):
        trainer.add_callback(callback)
    guard = FiniteGuard(output, lambda: last_checkpoint(checkpoints), stage.names)

    def complete_so_far() -> str:
        complete = last_checkpoint(checkpoints)
        name = complete.name if complete else "no checkpoint"
        return f"{name} is complete, and --resume continues from there"

    with naming_full_disk(output, complete_so_far), closing_reports(services):
        result = trainer.train_guarded(guard, stage, last)
    _check_steps(stage, options, output, result.global_step)
    for conclude in stage.concluding:
        conclude()
    losses = [
        [entry["step"], entry["loss"]] for entry in trainer.state.log_history if "loss" in entry
    ]
    record = TrainingRecord(
        **vars(stage.plan),
        steps=result.global_step,
        processes=world_size(),
        resumed_from=last.name if last else None,
        training_loss=result.training_loss if _has_trained(last, result.global_step) else None,
        seconds=round(time.perf_counter() - start, 1),
        details=stage.details | {LOGGED: losses},
        versions=versions(),
        parent=read_record(str(stage.plan.base)),
        rehearsed=stage.all_rehearsed(),
        citations=stage.all_citations(),
    )
    with naming_full_disk(output, complete_so_far):
        return on_main(lambda: _save(stage, output, record))


def set_dropout(module: torch.nn.Module, rate: float) -> None:
    """Set the rates of dropout of a module and its parts; its configuration keeps its own.

    Some layers of transformers keep their rate as a number instead of a module.
    """
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = rate
        for name, value in vars(part).items():
            if "dropout" in name and isinstance(value, float):
                setattr(part, name, rate)


def _has_trained(last: Path | None, steps: int) -> bool:
    """Return whether a run made a step, after the checkpoint that it resumed from."""
    return last is None or last.name != f"checkpoint-{steps}"


def _build_trainer(
    stage: Stage, options: TrainingOptions, arguments: Any, last: Path | None
) -> GuardedTrainer:
    callbacks = list(stage.callbacks)
    if getattr(stage.loss, "stateful", False):
        callbacks.append(LossState(stage.loss, last))
    trainer = (stage.trainer or _Trainer)(
        model=stage.model,
        args=arguments,
        train_dataset=stage.dataset,
        loss=stage.loss,
        data_collator=stage.collator,
        callbacks=callbacks,
    )
    trainer.optimizer_name = options.optimizer
    trainer.consecutive = stage.consecutive
    return trainer


def _check_steps(
    stage: Stage,
    options: TrainingOptions,
    output: Path,
    steps: int,
) -> None:
    """Refuse a training without any step, and warn of one with fewer steps than wanted."""
    if steps == 0:
        on_main(lambda: shutil.rmtree(output / CHECKPOINTS))
        names = ", ".join(part.dataset for part in stage.plan.seen)
        raise InputError(
            f"{output}: no training step was possible, as no batch of {options.batch_size} can be "
            f"filled from {names} without repeated texts; lower the batch size"
        )
    if stage.batch_keys is not None and steps < options.max_steps:
        log.warning(
            "%s: %d of %d steps were run, as there were no more batches without repeated texts; "
            "lower the batch size for more",
            stage.plan.stage,
            steps,
            options.max_steps,
        )


def _save(stage: Stage, output: Path, record: TrainingRecord) -> TrainingRecord:
    texts_cut = getattr(stage.model, "texts_cut", None)
    counts: Json = {} if texts_cut is None else {"texts_cut": texts_cut}
    record = replace(record, details=record.details | counts | stage.finish(output))
    rules = getattr(getattr(stage.model, "tokenizer", None), "backend_tokenizer", None)
    if rules is not None:
        # The host sets these two for every batch, and would save those of the last one, if this
        # process had any.
        rules.no_truncation()
        rules.no_padding()
    stage.model.save_pretrained(str(output), create_model_card=False)
    write_card(output, record)
    written = write_record(output, record)
    shutil.rmtree(output / CHECKPOINTS)
    return written


#: Before torch 2.13 DDP writes constants such as BERT's positions anew in each pass, which breaks
#: the gradient of two.
BROADCAST_BUFFERS = (
    None if "forward_sync_buffers" in signature(DistributedDataParallel).parameters else False
)


def _arguments(stage: Stage, options: TrainingOptions, output: Path) -> Any:
    """Return the host's arguments of a stage."""
    device = stage.model.device
    examples = len(stage.dataset)
    _check_device(device)
    _check_batch(options, examples)
    steps = options.steps_for(examples)
    if options.warmup >= 1 and steps <= options.warmup:
        log.warning(
            "the warm-up of %d steps is no shorter than the training of %d: the learning rate "
            "never reaches its peak; train longer, or set warmup to a share of the steps such as "
            "0.1",
            options.warmup,
            steps,
        )
    precision = training_precision(device, options.precision)
    return stage.arguments(
        output_dir=str(output / CHECKPOINTS),
        per_device_train_batch_size=options.batch_size,
        max_steps=options.max_steps,
        num_train_epochs=options.epochs,
        # Each process takes its slice of the global batch, so that their number changes nothing.
        accelerator_config={"split_batches": True},
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        dataloader_num_workers=loader_workers(device, options.loader_workers),
        seed=options.seed,
        prompts=_prompts(stage) or None,
        router_mapping=stage.column_tasks,
        save_strategy="steps",
        save_steps=options.save_steps or min(500, max(1, -(-steps // 10))),
        save_total_limit=2,
        use_cpu=device.type == "cpu",
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        logging_steps=max(1, min(50, steps // 20)),
        logging_nan_inf_filter=False,
        # A last batch that is not full would follow full ones.
        dataloader_drop_last=examples >= options.batch_size,
        dataloader_pin_memory=device.type == "cuda",
        **report_arguments(report_services(options.report_to), output),
        ddp_broadcast_buffers=BROADCAST_BUFFERS,
        disable_tqdm=True,  # our own bar is shown
    )


def keep_to_one_gpu(arguments: Any) -> None:
    """Train on one GPU in this process, and say how to take all that are visible.

    The host would wrap the model in DataParallel and multiply the batch by the number of GPUs.
    Losses over a batch would then see parts of it.

    Args:
        arguments: the host's arguments of a trainer, changed in place.
    """
    visible = arguments.n_gpu
    if visible <= 1:
        return
    log.warning(
        "%d GPUs are visible, and this training uses one; to use all, start the same command "
        "as: torchrun --standalone --nproc-per-node %d -m beir_cocodr.cli ...",
        visible,
        visible,
    )
    # A private name of the host, which sets it itself for models that are split over GPUs.
    arguments._n_gpu = 1


def _check_device(device: torch.device) -> None:
    later_gpu = device.type == "cuda" and device.index not in (None, 0)
    if world_size() == 1 and later_gpu:
        raise InputError(
            f"training uses the first GPU, not {device}: choose another with CUDA_VISIBLE_DEVICES"
        )


def _check_batch(options: TrainingOptions, examples: int) -> None:
    too_large = world_size() > 1 and examples < options.batch_size
    if options.batch_size % world_size() or too_large:
        raise InputError(
            f"the batch of {options.batch_size} is split evenly over {world_size()} processes: "
            f"make it a multiple of them and no larger than the {examples} examples"
        )


def _prompts(stage: Stage) -> dict[str, str]:
    """Return column to its prompt, for columns that have one."""
    text_format = getattr(stage.model, "text_format", TextFormat())
    by_task = {"query": text_format.query_prompt, "document": text_format.document_prompt}
    prompts = {column: by_task[task] for column, task in stage.column_tasks.items()}
    return {column: prompt for column, prompt in prompts.items() if prompt}
