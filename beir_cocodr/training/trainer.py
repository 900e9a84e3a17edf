"""The one place that trains: the host's trainer with checks, resumable checkpoints, and a complete
end. A :class:`Stage` says what is trained, and :func:`run_stage` trains it.
"""

import json
import logging
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler
from sentence_transformers.base.trainer import BaseTrainer
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import get_worker_info
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import TrainOutput

from beir_cocodr.arrays import Ints
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import on_main, rank, wait_for_all, world_size
from beir_cocodr.errors import InputError, listed, naming_full_disk
from beir_cocodr.io import atomic_path, files_sha256, write_text
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
from beir_cocodr.retrieval.pool import available_cores
from beir_cocodr.training import output_folder
from beir_cocodr.training.options import TrainingOptions

log = logging.getLogger(__name__)


class EpochClock(TrainerCallback):
    """Holds the number of the running epoch for whoever draws data by it, also after a resume."""

    def __init__(self) -> None:
        self.epoch = 0

    def on_epoch_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        self.epoch = int((state.epoch or 0) + 1e-6)


class _Draw:
    """A row transform pickled without what it holds: to name a data set, the host would pickle
    model and corpus.
    """

    def __init__(self, draw: Callable[[dict[str, list[int]]], Mapping[str, Any]]) -> None:
        self.draw = draw

    def __call__(self, rows: dict[str, list[int]]) -> Mapping[str, Any]:
        return self.draw(rows)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (uuid4().hex,)


def drawn_dataset(
    column: str, numbers: Ints, draw: Callable[[dict[str, list[int]]], Mapping[str, Any]]
) -> Dataset:
    """Rows known by a number, drawn when they are read: ``draw`` takes ``{column: numbers}`` and
    gives the columns.
    """
    return Dataset.from_dict({column: numbers}).with_transform(_Draw(draw))


#: Loader workers of a process on a GPU, where nothing else is asked for and there are as many
#: cores.
_MOST_WORKERS = 4


def loader_workers(device: torch.device, asked: int | None) -> int:
    """The processes that prepare batches for one that trains on ``device``."""
    if asked is not None or device.type != "cuda":
        return asked or 0
    return max(
        0, min(_MOST_WORKERS, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1)
    )


class _Reading:
    """A collator's way to read texts, which counts those that lose words in loader workers, whose
    own counts end with them.
    """

    def __init__(self, model: Any, read: Callable[..., Any]) -> None:
        self.model, self.read, self.lost = model, read, multiprocessing.Value("q", 0)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        before = self.model.texts_cut
        found = self.read(*args, **settings)
        if get_worker_info() is not None:
            with self.lost.get_lock():
                self.lost.value += self.model.texts_cut - before
        return found


@contextmanager
def _loading(collator: Any, model: Any, workers: int) -> Iterator[None]:
    """While loader workers, if any, read with ``collator``: what they count is added to the model's
    ``texts_cut``.
    """
    if not workers or not hasattr(model, "texts_cut"):
        yield
        return
    told = "TOKENIZERS_PARALLELISM" in os.environ
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else tokenizers warn of the fork
    collator.preprocess_fn = reading = _Reading(model, collator.preprocess_fn)
    try:
        yield
    finally:
        model.texts_cut += reading.lost.value
        collator.preprocess_fn = reading.read
        if not told:
            del os.environ["TOKENIZERS_PARALLELISM"]


class StepBar(TrainerCallback):
    """A bar of the steps with the loss beside it; the host's own prints losses to stdout."""

    bar: Bar | None = None

    def on_train_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        if state.is_world_process_zero:
            self.bar = Bar(
                total=state.max_steps, initial=state.global_step, desc="Training", unit=" steps"
            )

    def on_step_end(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
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
        if self.bar is not None and logs and "loss" in logs:
            self.bar.set_postfix(loss=f"{float(str(logs['loss'])):.4f}", refresh=False)

    def close(self) -> None:
        """End the bar, so that a message after it stands in a line of its own."""
        if self.bar is not None:
            self.bar.close()


class NonFiniteTraining(InputError):
    """A loss or gradient that is NaN or infinite; nothing after it would mean anything."""


class FiniteGuard(TrainerCallback):
    """Checks every loss before its backward, and every gradient before the weights move by it.

    The message names the step, the examples of the batch, by ``names`` of row numbers, and the
    newest complete ``checkpoint``, if any; all examples stand in ``nonfinite.json`` in the output
    folder.
    """

    def __init__(
        self,
        output: Path,
        checkpoint: Callable[[], Path | None],
        names: Callable[[Sequence[int]], list[str]] | None,
    ) -> None:
        self.output, self.checkpoint, self.names = output, checkpoint, names
        self.step = 0
        self.rows: list[int] = []
        self.scaled = False

    def check_loss(self, loss: torch.Tensor) -> None:
        if not torch.isfinite(loss.detach()).all():
            self._stop(f"the loss is {loss.detach().float().mean().item()}")

    def on_step_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        self.step = state.global_step + 1

    def on_pre_optimizer_step(
        self, args: object, state: object, control: object, model: Any = None, **kwargs: object
    ) -> None:
        if self.scaled:
            return  # float16's loss scaler looks for overflows itself, and skips such a step
        norms = [p.grad.detach().norm() for p in model.parameters() if p.grad is not None]
        if norms and not torch.isfinite(torch.stack(norms)).all():
            self._stop("the loss is finite, its gradient is not")

    def on_step_end(
        self,
        args: object,
        state: object,
        control: TrainerControl,
        model: Any = None,
        **kwargs: object,
    ) -> None:
        if control.should_save and not all(
            weight.isfinite().all() for weight in model.parameters()
        ):
            self._stop("the loss and its gradient are finite, the weights after the step are not")

    def _stop(self, what: str) -> None:
        examples = self.names(self.rows) if self.names is not None else []
        last = self.checkpoint()
        place = self.output / f"nonfinite{f'-{rank()}' if rank() else ''}.json"
        good = None if last is None else str(last)
        found = {
            "step": self.step,
            "what": what,
            "examples": examples,
            "last_good_checkpoint": good,
        }
        write_text(place, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        batch = f", for the batch {listed(examples)}" if examples else ""
        way = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        raise NonFiniteTraining(
            f"step {self.step}: {what}{batch} (all in {place}); {way}: "
            "start again with a lower learning rate, or look at these texts"
        )


class LossState(TrainerCallback):
    """Saves what a loss knows, but for its ``model``, beside each checkpoint, and gives it from the
    one resumed.
    """

    def __init__(self, loss: nn.Module, checkpoint: Path | None) -> None:
        self.loss, self.checkpoint = loss, checkpoint

    def on_train_begin(
        self, args: object, state: object, control: object, **kwargs: object
    ) -> None:
        if self.checkpoint is not None:
            self.loss.load_state_dict(
                load_file(self.checkpoint / output_folder.LOSS_FILE), strict=False
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        if finish_step := getattr(self.loss, "finish_step", None):
            finish_step()
        if rank() == 0:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            own = {k: v for k, v in self.loss.state_dict().items() if not k.startswith("model.")}
            with atomic_path(folder / output_folder.LOSS_FILE) as temporary:
                save_file(
                    {name: value.detach().cpu().clone() for name, value in own.items()}, temporary
                )


class Seal(TrainerCallback):
    """Records the checksum of every file of a checkpoint, once all processes have written theirs;
    the last callback.
    """

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        wait_for_all()
        if rank() == 0:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_text(
                folder / output_folder.SEAL_FILE, json.dumps(files_sha256(folder), indent=2) + "\n"
            )


@dataclass(frozen=True)
class Stage:
    """What one training stage is made of.

    Args:
        plan: what identifies it.
        model: the encoder, trained in place.
        loss, dataset, collator: as ``SentenceTransformerTrainer`` takes them (collator None: its
            own).
        column_tasks: column name to "query" or "document", for prompts and lengths.
        batch_keys: texts of the rows; two rows that share one are kept out of one batch.
        names: ids of examples by row number, which the column ``label`` holds; for messages.
        details: what the record says of this stage alone.
        finish: called before the final save, on the first process, to take off what only training
            needs; what it returns goes to the details.
        rehearsed, citations: facts of the objective, the loss and so on for the record, see
            :class:`~beir_cocodr.provenance.TrainingRecord`.
        trainer, arguments: the host's classes for another kind of model than a dense encoder; the
            first has :class:`GuardedTrainer` before it.
    """

    plan: TrainingPlan
    model: Any
    loss: torch.nn.Module
    dataset: Any
    column_tasks: dict[str, str] = field(default_factory=dict)
    collator: Any = None
    batch_keys: "BatchKeys | None" = None
    callbacks: Sequence[TrainerCallback] = ()
    names: Callable[[Sequence[int]], list[str]] | None = None
    details: Json = field(default_factory=dict)
    finish: Callable[[Path], Json] = lambda folder: {}
    rehearsed: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()
    trainer: "type[GuardedTrainer] | None" = None
    arguments: Any = SentenceTransformerTrainingArguments


@dataclass(frozen=True)
class BatchKeys:
    """For each of so many rows, the texts that no other row of its batch may have; the host's
    sampler reads it like a dataset.
    """

    rows: int
    texts: Callable[[int], Sequence[str]]
    column_names: tuple[str, ...] = ("keys",)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, str]:
        return {str(number): text for number, text in enumerate(self.texts(row))}


# Passes without a single batch after which there is none; and what keeps the seeds of passes apart.
_PASSES, _PASS_SEED = 10, 1_000_003


class WholeEpochs(NoDuplicatesBatchSampler):
    """The host's batches without repeated texts, in every epoch as many as its length says: where
    few texts differ, the host ends some early, and training that is resumed counts epochs by their
    length.
    """

    def __iter__(self) -> Iterator[list[int]]:
        epoch, left, barren = self.epoch, len(self), 0
        try:
            while left and barren < _PASSES:
                before = left
                for batch in islice(super().__iter__(), left):
                    yield batch
                    left -= 1
                barren = barren + 1 if left == before else 0
                self.set_epoch(self.epoch + _PASS_SEED)  # else the same batches came again
        finally:
            self.set_epoch(epoch)


class GuardedTrainer(BaseTrainer):
    """To be put before a host's trainer: batches by our keys, losses looked at, and no model card,
    which would quote the corpus; training.json says more.

    Attributes:
        guard: looks at losses and gradients; also one of the callbacks.
        batch_keys: of the stage.
    """

    guard: FiniteGuard
    batch_keys: BatchKeys | None = None

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor | Any], *args: Any, **settings: Any
    ) -> Any:
        labels = inputs.get("label")  # numbers of examples, or a teacher's scores
        self.guard.rows = labels.tolist() if isinstance(labels, Tensor) and labels.ndim == 1 else []
        loss = super().compute_loss(model, inputs, *args, **settings)
        self.guard.check_loss(loss[0] if isinstance(loss, tuple) else loss)
        return loss

    def get_batch_sampler(self, dataset: Any, *args: Any, **settings: Any) -> Any:
        if self.batch_keys is None:
            return super().get_batch_sampler(dataset, *args, **settings)
        return WholeEpochs(self.batch_keys, *args, **settings)

    def add_model_card_callback(self, default_args_dict: Json) -> None:
        return

    def train_guarded(
        self, guard: FiniteGuard, batch_keys: BatchKeys | None, resume: Path | None = None
    ) -> TrainOutput:
        """Train, with progress on stderr; NonFiniteTraining for NaN or infinity."""
        self.guard, self.batch_keys = guard, batch_keys
        guard.scaled = self.args.fp16
        self.remove_callback(PrinterCallback)
        progress = StepBar()
        for callback in (guard, progress, Seal()):
            self.add_callback(callback)
        try:
            with _loading(self.data_collator, self.model, self.args.dataloader_num_workers):
                return self.train(resume_from_checkpoint=str(resume) if resume else None)
        finally:
            progress.close()


class _Trainer(GuardedTrainer, SentenceTransformerTrainer):
    pass


def run_stage(stage: Stage, options: TrainingOptions, output: Path, resume: bool) -> TrainingRecord:
    """Train, save the encoder to ``output``, and last write its training.json and return it; an
    InputError where no batch can be made of the data, NonFiniteTraining where a loss or gradient is
    NaN or infinite.
    """
    start = time.perf_counter()
    checkpoints = output / output_folder.CHECKPOINTS
    stateful = getattr(stage.loss, "stateful", False)
    last = on_main(lambda: output_folder.checkpoint_to_resume(checkpoints)) if resume else None
    with output_folder.started(output, stage.plan):
        arguments = _arguments(stage, options, checkpoints)
    trainer = (stage.trainer or _Trainer)(
        model=stage.model,
        args=arguments,
        train_dataset=stage.dataset,
        loss=stage.loss,
        data_collator=stage.collator,
        callbacks=[*stage.callbacks, *([LossState(stage.loss, last)] if stateful else [])],
    )
    guard = FiniteGuard(output, lambda: output_folder.last_checkpoint(checkpoints), stage.names)

    def safe() -> str:
        last = output_folder.last_checkpoint(checkpoints)
        return f"{last.name if last else 'no checkpoint'} is complete, --resume goes on from there"

    with naming_full_disk(output, safe):
        result = trainer.train_guarded(guard, stage.batch_keys, last)
    if result.global_step == 0:
        on_main(lambda: shutil.rmtree(checkpoints))
        raise InputError(
            f"{output}: not one step could be made, as no batch of {options.batch_size} can be filled without repeated "
            "texts; lower the batch size"
        )
    if stage.batch_keys is not None and result.global_step < options.max_steps:
        log.warning(
            "%s: %d of %d steps were made, there were no more batches without repeated texts; "
            "lower the batch size for more",
            *(stage.plan.stage, result.global_step, options.max_steps),
        )
    record = TrainingRecord(
        **vars(stage.plan),
        steps=result.global_step,
        processes=world_size(),
        resumed_from=last.name if last else None,
        training_loss=result.training_loss,
        seconds=round(time.perf_counter() - start, 1),
        details=stage.details
        | {LOGGED: [[e["step"], e["loss"]] for e in trainer.state.log_history if "loss" in e]},
        versions=versions(),
        parent=read_record(str(stage.plan.base)),
        rehearsed=rehearsed_in(stage),
        citations=stage.citations,
    )
    with naming_full_disk(output, safe):
        return on_main(lambda: _save(stage, output, record))


def rehearsed_in(stage: Stage) -> tuple[str, ...]:
    """Return what a stage practises: what its method does, and generated queries if it has any."""
    generated = any(part.generation is not None for part in stage.plan.seen)
    return (*stage.rehearsed, GENERATED_QUERIES) if generated else stage.rehearsed


def _save(stage: Stage, output: Path, record: TrainingRecord) -> TrainingRecord:
    texts_cut = getattr(stage.model, "texts_cut", None)
    counts: Json = {} if texts_cut is None else {"texts_cut": texts_cut}
    record = replace(record, details=record.details | counts | stage.finish(output))
    if rules := getattr(getattr(stage.model, "tokenizer", None), "backend_tokenizer", None):
        # The host sets these two for every batch, and would save those of the last one, if this
        # process had any.
        rules.no_truncation()
        rules.no_padding()
    stage.model.save_pretrained(str(output), create_model_card=False)
    write_card(output, record)
    written = write_record(output, record)
    shutil.rmtree(output / output_folder.CHECKPOINTS)
    return written


def planned_steps(max_steps: int, epochs: float, examples: int, batch_size: int) -> int:
    """The optimiser steps that options ask for: ``max_steps``, or where that is -1 those of the
    epochs.
    """
    return max_steps if max_steps > 0 else max(1, round(epochs * examples / batch_size))


#: Before torch 2.13 DDP writes constants such as BERT's positions anew in each pass, which breaks
#: the gradient of two.
BROADCAST_BUFFERS = (
    None if "forward_sync_buffers" in signature(DistributedDataParallel).parameters else False
)


def _arguments(stage: Stage, options: TrainingOptions, checkpoints: Path) -> Any:
    text_format, examples = getattr(stage.model, "text_format", TextFormat()), len(stage.dataset)
    prompts = {"query": text_format.query_prompt, "document": text_format.document_prompt}
    device = stage.model.device
    if world_size() == 1 and device.type == "cuda" and device.index not in (None, 0):
        raise InputError(
            f"training takes the first GPU, not {device}: choose it by CUDA_VISIBLE_DEVICES"
        )
    if options.batch_size % world_size() or (world_size() > 1 and examples < options.batch_size):
        raise InputError(
            f"the batch of {options.batch_size} is split evenly over {world_size()} processes, and has to be "
            f"a multiple of them and no larger than the {examples} examples"
        )
    steps = planned_steps(options.max_steps, options.epochs, examples, options.batch_size)
    if options.warmup >= 1 and steps <= options.warmup:
        log.warning(
            "the warm-up of %d steps is no shorter than the training of %d: the learning rate never reaches its peak; "
            "train longer, or set warmup to a share of the steps such as 0.1",
            *(options.warmup, steps),
        )
    precision = output_folder.training_precision(device)
    return stage.arguments(
        output_dir=str(checkpoints),
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
        prompts={
            column: prompts[task] for column, task in stage.column_tasks.items() if prompts[task]
        }
        or None,
        router_mapping=stage.column_tasks,
        save_strategy="steps",
        save_steps=options.save_steps or min(500, max(1, -(-steps // 10))),
        save_total_limit=2,
        use_cpu=device.type == "cpu",
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        logging_steps=max(1, min(50, steps // 20)),
        logging_nan_inf_filter=False,
        dataloader_drop_last=examples
        >= options.batch_size,  # a last batch that is not full, after full ones
        dataloader_pin_memory=device.type == "cuda",
        report_to="none",
        ddp_broadcast_buffers=BROADCAST_BUFFERS,
        disable_tqdm=True,  # our own bar is shown
    )
