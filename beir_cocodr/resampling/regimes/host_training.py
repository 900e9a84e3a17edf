"""Training by the trainers of sentence-transformers' other model classes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler
from sentence_transformers.base.trainer import BaseTrainer
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.training.callbacks import StderrProgress
from beir_cocodr.training.finite import FiniteGuard
from beir_cocodr.training.record import read_record, write_record
from beir_cocodr.versions import versions


class GuardedTrainer(BaseTrainer):
    """To be put before a host's trainer: batches by our keys, losses looked at, and no model card, which
    would quote the corpus."""

    guard: FiniteGuard
    batch_keys: Any = None

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **settings: Any) -> Any:
        labels = inputs.get("label")
        self.guard.rows = labels.tolist() if isinstance(labels, torch.Tensor) and labels.ndim == 1 else []
        loss = super().compute_loss(model, inputs, *args, **settings)
        self.guard.check_loss(loss[0] if isinstance(loss, tuple) else loss)
        return loss

    def get_batch_sampler(self, dataset: Any, *args: Any, **settings: Any) -> Any:
        if self.batch_keys is None:
            return super().get_batch_sampler(dataset, *args, **settings)
        return NoDuplicatesBatchSampler(self.batch_keys, *args, **settings)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        return


@dataclass(frozen=True)
class HostRun:
    """What one training run is made of.

    Args:
        trainer: a :class:`GuardedTrainer` and the host's trainer in one.
        arguments: the host's class of training arguments.
        model, loss, dataset: as the trainer takes them.
        batch_keys: rows of the dataset as mappings to texts; two rows that share one do not meet in a batch.
        column_tasks: column name to "query" or "document".
        callbacks: beside our own.
        names: ids of examples by row number, for messages.
        record: what training.json says besides.
    """

    trainer: Any
    arguments: Any
    model: Any
    loss: Any
    dataset: Any
    record: dict[str, Any]
    batch_keys: Any = None
    column_tasks: dict[str, str] | None = None
    callbacks: Sequence[TrainerCallback] = ()
    names: Any = None


def is_trained(output: Path) -> bool:
    """Whether a complete model is there; what an interrupted run has left is removed."""
    if read_record(output) is not None:
        return True
    if output.is_dir():
        shutil.rmtree(output)
    return False


def run_host(run: HostRun, output: Path, recipe: Recipe, seed: int) -> Path:
    """Train, save the model to ``output`` and write its training.json last.

    Raises:
        InputError: no batch can be made of the data.
        NonFiniteTraining: a loss or gradient is NaN or infinite.
    """
    start = time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    arguments = _arguments(run, output / "trainer", recipe, seed)
    guard = FiniteGuard(output, lambda: None, run.names)
    guard.scaled = arguments.fp16
    progress = StderrProgress()
    trainer = run.trainer(
        model=run.model,
        args=arguments,
        train_dataset=run.dataset,
        loss=run.loss,
        callbacks=[guard, *run.callbacks],
    )
    trainer.guard, trainer.batch_keys = guard, run.batch_keys
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(progress)
    try:
        result = trainer.train()
    finally:
        progress.close()
    if result.global_step == 0:
        raise InputError(
            f"{output}: not one step could be made, as no batch of {recipe.batch_size} can be filled "
            "without repeated texts; lower the batch size"
        )
    shutil.rmtree(output / "trainer", ignore_errors=True)
    run.model.save_pretrained(str(output))
    record = {
        **run.record,
        "recipe": recipe.told(),
        "seed": seed,
        "steps": result.global_step,
        "training_loss": result.training_loss,
        "seconds": round(time.perf_counter() - start, 1),
        "versions": versions(),
    }
    write_record(output, record)
    return output


def _arguments(run: HostRun, folder: Path, recipe: Recipe, seed: int) -> Any:
    device = run.model.device
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    steps = recipe.max_steps
    if steps < 0:
        steps = max(1, round(recipe.epochs * len(run.dataset) / recipe.batch_size))
    return run.arguments(
        output_dir=str(folder),
        max_steps=recipe.max_steps,
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        warmup_steps=recipe.warmup,
        weight_decay=0.01,
        seed=seed,
        use_cpu=device.type == "cpu",
        bf16=bf16,
        fp16=device.type == "cuda" and not bf16,
        router_mapping=run.column_tasks,
        save_strategy="no",
        logging_steps=max(1, min(50, steps // 20)),
        logging_nan_inf_filter=False,
        dataloader_drop_last=len(run.dataset) >= recipe.batch_size,
        dataloader_pin_memory=device.type == "cuda",
        report_to="none",
        disable_tqdm=False,
    )
