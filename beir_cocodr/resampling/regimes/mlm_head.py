"""A masked-language-model head for an encoder that has none."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    ProgressCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.models.condenser_weights import mlm_layers
from beir_cocodr.models.loading import model_source
from beir_cocodr.resampling.draft_folder import draft_folder
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.resampling.regimes.start_encoder import save_start

log = logging.getLogger(__name__)

_MASKED = 0.15


def masked_language_model(
    collection: Collection, recipe: Recipe, seed: int, shared: Path
) -> tuple[str, TextFormat]:
    """A masked language model around the recipe's start.

    A start that is saved with its head stays as it is. Any other gets the host's head for its kind of
    transformer, tied to the input embeddings, and some steps of masked language modelling on the documents.
    Neither depends on training queries, so it is made once for a corpus and a seed.

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

    def tokens(batch: dict[str, list[int]]) -> dict[str, Any]:
        texts = [text_format.document(found) for found in collection.documents.take(batch["row"])]
        encoded: dict[str, Any] = tokenizer(texts, truncation=True, max_length=text_format.document_length)
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
                train_dataset=Dataset.from_dict({"row": range(len(collection.documents))}).with_transform(
                    tokens
                ),
                data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=_MASKED),
            )
            trainer.remove_callback(ProgressCallback)
            trainer.train()
            shutil.rmtree(draft / "trainer", ignore_errors=True)
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
