"""How the models of all architectures are trained: on what, on equal budgets, from one start.

Here are the recipe that all architectures share, the training sets with the test queries that evaluate them, training
by the trainers of sentence-transformers' other model classes, the start's bare transformer for what puts something else
on top of it, and a masked-language-model head for a start that has none.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.io import draft_folder
from beir_cocodr.models.condenser import mlm_layers
from beir_cocodr.models.loading import load_encoder, model_source
from beir_cocodr.provenance import TrainingPlan, TrainingRecord, read_record, write_record
from beir_cocodr.records import versions
from beir_cocodr.resampling.manifest import Manifest, ResttestParameters
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.training.trainer import FiniteGuard, GuardedTrainer, planned_steps, shared_arguments

log = logging.getLogger(__name__)

#: Share of tokens that are masked.
_MASKED = 0.15


REGIMES = ("interpolation", "extrapolation")


@dataclass(frozen=True)
class TrainingUnit:
    """One training set with its test sets.

    Attributes:
        name: of the set, as a path below the output of `resample`.
        group: what is put together in one row: a size or k of ReSTrain, all buckets of ReSTTest.
        train: folder with the split "train".
        tests: regime to the folder with the split "test" that evaluates in it.
    """

    name: str
    group: str
    train: Path
    tests: dict[str, Path]


def training_units(folder: Path, manifest: Manifest) -> list[TrainingUnit]:
    """The units of an output of `resample`: every set of ReSTrain, every bucket of ReSTTest.

    Both regimes of a bucket have the same training queries and are one unit.

    Args:
        folder: the output.
        manifest: its content, see `read_manifest`.
    """
    found: dict[str, TrainingUnit] = {}
    for record in manifest.sets:
        name, group = record.folder, record.label
        if isinstance(manifest.parameters, ResttestParameters):
            name, group = f"bucket-{record.bucket}", f"{manifest.parameters.buckets} buckets"
        unit = found.setdefault(name, TrainingUnit(name, group, folder / record.train.folder, {}))
        unit.tests[record.regime] = folder / record.test.folder
    return list(found.values())


@dataclass(frozen=True)
class HostRun:
    """What one training run is made of.

    Args:
        trainer: a :class:`GuardedTrainer` and the host's trainer in one.
        arguments: the host's class of training arguments.
        model, loss, dataset: as the trainer takes them.
        plan: stage and data, for training.json.
        clock: of the dataset; the trainer sets its epoch.
        batch_keys: rows of the dataset as mappings to texts; two rows that share one do not meet in a batch.
        column_tasks: column name to "query" or "document".
        names: ids of examples by row number, for messages.
    """

    trainer: type[GuardedTrainer]
    arguments: Any
    model: Any
    loss: nn.Module
    dataset: Dataset
    plan: TrainingPlan
    clock: TrainerCallback
    batch_keys: Any = None
    column_tasks: dict[str, str] | None = None
    names: Callable[[Sequence[int]], list[str]] | None = None


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
    trainer = run.trainer(
        model=run.model, args=arguments, train_dataset=run.dataset, loss=run.loss, callbacks=[run.clock]
    )
    result = trainer.train_guarded(FiniteGuard(output, lambda: None, run.names), run.batch_keys)
    shutil.rmtree(output / "trainer", ignore_errors=True)
    run.model.save_pretrained(str(output))
    record = TrainingRecord(
        **vars(run.plan),
        steps=result.global_step,
        training_loss=result.training_loss,
        seconds=round(time.perf_counter() - start, 1),
        details={"recipe": recipe.describe(), "seed": seed},
        versions=versions(),
    )
    write_record(output, record)
    return output


def _arguments(run: HostRun, folder: Path, recipe: Recipe, seed: int) -> Any:
    steps = planned_steps(recipe.max_steps, recipe.epochs, len(run.dataset), recipe.batch_size)
    return run.arguments(
        **shared_arguments(run.model.device, steps, len(run.dataset), recipe.batch_size),
        output_dir=str(folder),
        max_steps=recipe.max_steps,
        num_train_epochs=recipe.epochs,
        learning_rate=recipe.learning_rate,
        warmup_steps=recipe.warmup,
        weight_decay=0.01,
        seed=seed,
        router_mapping=run.column_tasks,
        save_strategy="no",
    )


def save_start(recipe: Recipe, seed: int, folder: Path) -> TextFormat:
    """Save transformer and tokenizer of the recipe's start as a bare folder.

    Pooling, similarity and prompts of the start are the dense encoder's and stay behind.

    Args:
        recipe: with start and lengths.
        seed: of layers that the start lacks.
        folder: for the transformer.

    Returns:
        Separator and lengths in force.

    Raises:
        InputError: there is no such start.
    """
    set_seed(seed)
    model = load_encoder(recipe.start, recipe.encoder)
    transformer: Any = model.transformers_model
    transformer.save_pretrained(str(folder))
    model.tokenizer.save_pretrained(str(folder))
    found = model.text_format
    return TextFormat(
        title_separator=found.title_separator, query_length=found.query_length, document_length=found.document_length
    )


def masked_language_model(collection: Collection, recipe: Recipe, seed: int, shared: Path) -> tuple[str, TextFormat]:
    """A masked language model around the recipe's start.

    A start that is saved with its head stays as it is. Any other gets the host's head for its kind of transformer, tied
    to the input embeddings, and some steps of masked language modelling on the documents. Neither depends on training
    queries, so it is made once for a corpus and a seed.

    Args:
        collection: its documents are trained on.
        recipe, seed: the start, ``mlm_steps`` and so on.
        shared: folder that the model is kept in.

    Returns:
        Its folder or name, and separator and lengths of the start.

    Source: BERT (Devlin et al., 2019); SPLADE (Formal et al., 2021) needs such a head.
    """
    name = f"mlm-{collection.documents.content_hash[:12]}-{seed}"
    bare = shared / f"{name}-start"
    text_format = save_start(recipe, seed, bare)
    source = model_source(recipe.start)
    try:
        if mlm_layers(source) is not None:
            return source, text_format
        folder = shared / name
        if not folder.is_dir():
            _train(bare, folder, collection, text_format, recipe, seed)
        return str(folder), text_format
    finally:
        shutil.rmtree(bare)


def _train(
    bare: Path, folder: Path, collection: Collection, text_format: TextFormat, recipe: Recipe, seed: int
) -> None:
    set_seed(seed)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(bare), AutoTokenizer.from_pretrained(bare)

    def tokens(batch: dict[str, list[int]]) -> dict[str, object]:
        texts = [text_format.document(found) for found in collection.documents.take(batch["row"])]
        encoded = tokenizer(texts, truncation=True, max_length=text_format.document_length)
        return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}

    with draft_folder(folder) as draft:
        if recipe.mlm_steps:
            log.info("%s has no head: %d steps of masked language modelling", recipe.start, recipe.mlm_steps)
            cuda = torch.cuda.is_available() and not str(recipe.device).startswith("cpu")
            trainer = Trainer(
                model=model,
                args=TrainingArguments(
                    output_dir=str(draft / "trainer"),
                    max_steps=recipe.mlm_steps,
                    per_device_train_batch_size=recipe.batch_size,
                    learning_rate=recipe.mlm_learning_rate,
                    warmup_steps=recipe.warmup,
                    seed=seed,
                    use_cpu=not cuda,
                    save_strategy="no",
                    report_to="none",
                    remove_unused_columns=False,
                    dataloader_pin_memory=cuda,
                    disable_tqdm=True,
                ),
                train_dataset=Dataset.from_dict({"row": range(len(collection.documents))}).with_transform(tokens),
                data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=_MASKED),
            )
            trainer.remove_callback(ProgressCallback)
            trainer.train()
            shutil.rmtree(draft / "trainer", ignore_errors=True)
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
