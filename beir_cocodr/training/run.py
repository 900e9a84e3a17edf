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
from transformers import ProgressCallback, TrainerCallback

from beir_cocodr.errors import InputError
from beir_cocodr.files import write_text
from beir_cocodr.training.callbacks import StderrProgress
from beir_cocodr.training.options import TrainingOptions
from beir_cocodr.training.record import RECORD_FILE, read_record, write_record
from beir_cocodr.versions import versions

log = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
_PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Stage:
    """What one training stage is made of.

    Args:
        name: of the stage, as it stands in training.json.
        model: the encoder, trained in place.
        loss, dataset, collator: as ``SentenceTransformerTrainer`` takes them (collator None: its own).
        column_tasks: column name to "query" or "document", for prompts and lengths.
        seen: what the data shows of which collections.
        base: name of the model that training starts from.
        finish: called before the final save, to take off what only training needs.
    """

    name: str
    model: Any
    loss: torch.nn.Module
    dataset: Any
    column_tasks: dict[str, str]
    seen: list[dict[str, Any]]
    base: str
    collator: Any = None
    batch_sampler: str = "batch_sampler"
    callbacks: Sequence[TrainerCallback] = ()
    finish: Callable[[Path], None] = lambda folder: None
    extra: dict[str, Any] | None = None


def claim_output(output: Path, resume: bool) -> bool:
    """Whether ``output`` still has to be trained; refuses to write over something else.

    Raises:
        InputError: the folder holds files and ``resume`` is off.
    """
    if (output / RECORD_FILE).is_file():
        if resume:
            return False
        raise InputError(
            f"{output} already holds a trained model; choose another --output, or --resume to keep it"
        )
    if output.is_dir() and any(output.iterdir()) and not resume:
        raise InputError(f"{output} is not empty; choose another --output, or --resume to go on with it")
    return True


def run_stage(stage: Stage, options: TrainingOptions, output: Path, resume: bool) -> dict[str, Any]:
    """Train, save the encoder to ``output`` and write its training.json last.

    Returns:
        The record that was written.
    """
    start = time.perf_counter()
    checkpoints = output / CHECKPOINTS
    plan = {"stage": stage.name, "base": stage.base, "options": asdict(options), "seen": stage.seen}
    last = _last_checkpoint(checkpoints, plan) if resume else None
    write_text(checkpoints / _PLAN_FILE, json.dumps(plan, indent=2) + "\n")
    trainer = SentenceTransformerTrainer(
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
    if result.global_step < options.max_steps:
        log.warning(
            "%s: %d of %d steps were made, there were no more batches without repeated texts; "
            "lower the batch size for more",
            stage.name,
            result.global_step,
            options.max_steps,
        )
    stage.finish(output)
    stage.model.save_pretrained(str(output))
    record = {
        "stage": stage.name,
        "base": stage.base,
        "options": asdict(options),
        "steps": result.global_step,
        "training_loss": result.training_loss,
        "seconds": round(time.perf_counter() - start, 1),
        "seen": stage.seen,
        **(stage.extra or {}),
        "versions": versions(),
        "parent": read_record(stage.base),
    }
    write_record(output, record)
    shutil.rmtree(checkpoints)
    return record


def _arguments(
    stage: Stage, options: TrainingOptions, checkpoints: Path
) -> SentenceTransformerTrainingArguments:
    text_format = stage.model.text_format
    prompts = {"query": text_format.query_prompt, "document": text_format.document_prompt}
    steps = options.max_steps
    if steps < 0:
        steps = max(1, round(options.epochs * len(stage.dataset) / options.batch_size))
    bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
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
        bf16=bf16,
        prompts={column: prompts[task] for column, task in stage.column_tasks.items() if prompts[task]}
        or None,
        router_mapping=stage.column_tasks,
        batch_sampler=stage.batch_sampler,
        save_strategy="steps",
        save_steps=options.save_steps or min(500, max(1, -(-steps // 10))),
        save_total_limit=2,
        logging_steps=max(1, min(50, steps // 20)),
        logging_nan_inf_filter=False,
        dataloader_drop_last=len(stage.dataset) >= options.batch_size,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=False,
    )


def _last_checkpoint(folder: Path, plan: dict[str, Any]) -> Path | None:
    """The newest complete checkpoint of the same plan; the host writes trainer_state.json last."""
    if not (folder / _PLAN_FILE).is_file():
        return None
    before = json.loads((folder / _PLAN_FILE).read_text())
    if changed := [key for key in plan if before.get(key) != json.loads(json.dumps(plan[key]))]:
        raise InputError(
            f"{folder.parent} was started with other {', '.join(changed)}; "
            "resume with the same ones, or choose another --output"
        )
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[-1])):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text())
        except (OSError, ValueError):
            shutil.rmtree(checkpoint)  # half-written when the run died
            continue
        return checkpoint
    return None
