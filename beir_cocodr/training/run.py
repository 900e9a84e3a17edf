"""One training run: the host's trainer, resumable checkpoints, a model that appears when it is complete."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler
from transformers import ProgressCallback, TrainerCallback

from beir_cocodr.errors import InputError
from beir_cocodr.files import output_folder, write_text
from beir_cocodr.models.loading import weights_sha256
from beir_cocodr.training.callbacks import StderrProgress
from beir_cocodr.training.options import TrainingOptions
from beir_cocodr.training.record import read_record, write_record
from beir_cocodr.versions import versions

log = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
_PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Stage:
    """What one training stage is made of.

    Args:
        plan: what identifies it, see :func:`training_plan`.
        model: the encoder, trained in place.
        loss, dataset, collator: as ``SentenceTransformerTrainer`` takes them (collator None: its own).
        column_tasks: column name to "query" or "document", for prompts and lengths.
        batch_keys: rows of the dataset as mappings to texts; two rows that share a text are kept out of one
            batch.
        finish: called before the final save, to take off what only training needs.
    """

    plan: dict[str, Any]
    model: Any
    loss: torch.nn.Module
    dataset: Any
    column_tasks: dict[str, str]
    collator: Any = None
    batch_keys: Any = None
    callbacks: Sequence[TrainerCallback] = ()
    finish: Callable[[Path], None] = lambda folder: None
    extra: dict[str, Any] | None = None


def training_plan(
    stage: str,
    base: str,
    model: Any,
    encoder: dict[str, Any],
    options: TrainingOptions,
    seen: list[dict[str, Any]],
) -> dict[str, Any]:
    """What makes two runs the same: stage, starting weights and how they are loaded, options, and data."""
    return {
        "stage": stage,
        "base": base,
        "base_sha256": weights_sha256(model),
        "encoder": {name: value for name, value in encoder.items() if value is not None and name != "device"},
        "options": asdict(options),
        "seen": seen,
    }


def claim_output(output: Path, resume: bool, plan: dict[str, Any]) -> dict[str, Any] | None:
    """Take ``output`` for a :func:`training_plan`; never writes over something else.

    Returns:
        None where there is something to train, else the record of the model that is already there.

    Raises:
        InputError: the folder holds files and ``resume`` is off, or what it holds followed another plan, or
            is not from here.
    """
    output_folder(output)
    record = read_record(output)
    if record is not None:
        if not resume:
            raise InputError(
                f"{output} already holds a trained model; choose another --output, or --resume to keep it"
            )
        _same_plan(output, record, plan)
        return record
    started = output / CHECKPOINTS / _PLAN_FILE
    if started.is_file() and resume:
        _same_plan(output, json.loads(started.read_text()), plan)
    elif any(path.is_file() for path in output.rglob("*")):
        way = "nothing in it can be resumed" if resume else "or --resume if it was interrupted"
        raise InputError(f"{output} is not empty; choose another --output, {way}")
    return None


def _same_plan(output: Path, before: dict[str, Any], plan: dict[str, Any]) -> None:
    then, now = _content(before), _content(plan)
    if changed := [key for key in now if then.get(key) != now[key]]:
        raise InputError(
            f"{output} was started with other {', '.join(changed)}; "
            "resume with the same ones, or choose another --output"
        )


def _content(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without names and paths, which may change while the content stays."""
    kept = {key: plan.get(key) for key in ("stage", "base_sha256", "encoder", "options")}
    kept["seen"] = [{k: v for k, v in found.items() if k != "dataset"} for found in plan.get("seen", [])]
    content: dict[str, Any] = json.loads(json.dumps(kept))  # as it looks when read back
    return content


def run_stage(stage: Stage, options: TrainingOptions, output: Path, resume: bool) -> dict[str, Any]:
    """Train, save the encoder to ``output`` and write its training.json last.

    Returns:
        The record that was written.
    """
    start = time.perf_counter()
    checkpoints = output / CHECKPOINTS
    last = _last_checkpoint(checkpoints) if resume else None
    write_text(checkpoints / _PLAN_FILE, json.dumps(stage.plan, indent=2) + "\n")
    trainer = _Trainer(
        batch_keys=stage.batch_keys,
        model=stage.model,
        args=_arguments(stage, options, checkpoints),
        train_dataset=stage.dataset,
        loss=stage.loss,
        data_collator=stage.collator,
        callbacks=list(stage.callbacks),
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(StderrProgress)
    result = trainer.train(resume_from_checkpoint=str(last) if last else None)
    if result.global_step == 0:
        shutil.rmtree(checkpoints)
        raise InputError(
            f"{output}: not one step could be made, as no batch of {options.batch_size} can be filled "
            "without repeated texts; lower the batch size"
        )
    if result.global_step < options.max_steps:
        log.warning(
            "%s: %d of %d steps were made, there were no more batches without repeated texts; "
            "lower the batch size for more",
            stage.plan["stage"],
            result.global_step,
            options.max_steps,
        )
    stage.finish(output)
    stage.model.save_pretrained(str(output))
    record = {
        **stage.plan,
        "steps": result.global_step,
        # The next two cover what was done after a resume only.
        "resumed_from": last.name if last else None,
        "training_loss": result.training_loss,
        "seconds": round(time.perf_counter() - start, 1),
        **(stage.extra or {}),
        "versions": versions(),
        "parent": read_record(stage.plan["base"]),
    }
    write_record(output, record)
    shutil.rmtree(checkpoints)
    return record


class _Trainer(SentenceTransformerTrainer):
    """The host's trainer with batches made by our keys, and without its model card, which would quote the
    corpus; training.json says more."""

    def __init__(self, batch_keys: Any = None, **settings: Any) -> None:
        self.batch_keys = batch_keys
        super().__init__(**settings)

    def get_batch_sampler(self, dataset: Any, *args: Any, **settings: Any) -> Any:
        if self.batch_keys is None:
            return super().get_batch_sampler(dataset, *args, **settings)
        return NoDuplicatesBatchSampler(self.batch_keys, *args, **settings)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        return


def _arguments(
    stage: Stage, options: TrainingOptions, checkpoints: Path
) -> SentenceTransformerTrainingArguments:
    text_format = stage.model.text_format
    prompts = {"query": text_format.query_prompt, "document": text_format.document_prompt}
    steps = options.max_steps
    if steps < 0:
        steps = max(1, round(options.epochs * len(stage.dataset) / options.batch_size))
    device = stage.model.device
    if device.type == "cuda" and device.index not in (None, 0):
        raise InputError(f"training takes the first GPU, not {device}: choose it by CUDA_VISIBLE_DEVICES")
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return SentenceTransformerTrainingArguments(
        output_dir=str(checkpoints),
        max_steps=options.max_steps,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        seed=options.seed,
        use_cpu=device.type == "cpu",
        bf16=bf16,
        prompts={column: prompts[task] for column, task in stage.column_tasks.items() if prompts[task]}
        or None,
        router_mapping=stage.column_tasks,
        save_strategy="steps",
        save_steps=options.save_steps or min(500, max(1, -(-steps // 10))),
        save_total_limit=2,
        logging_steps=max(1, min(50, steps // 20)),
        logging_nan_inf_filter=False,
        dataloader_drop_last=len(stage.dataset) >= options.batch_size,
        dataloader_pin_memory=device.type == "cuda",
        report_to="none",
        disable_tqdm=False,
    )


def _last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint; the host writes trainer_state.json last."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[-1])):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text())
        except (OSError, ValueError):
            shutil.rmtree(checkpoint)  # half-written when the run died
            continue
        return checkpoint
    return None
