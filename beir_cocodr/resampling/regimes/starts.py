"""Starts of architectures: the bare start, and a masked language model around it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from accelerate.data_loader import BatchSamplerShard

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.text import TextFormat, load_tokenizer, readable
from beir_cocodr.distributed import on_main, rank, wait_for_all
from beir_cocodr.io import draft_folder
from beir_cocodr.models.checkpoints.checkpoint_heads import mlm_layers
from beir_cocodr.models.checkpoints.integrity import NEW_HEAD, loading
from beir_cocodr.models.checkpoints.loading import load_encoder, model_source
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.training.batches import drawn_dataset
from beir_cocodr.training.trainer import keep_to_one_gpu

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from beir_cocodr.models.cocodr import COCODR

log = logging.getLogger(__name__)

#: Share of tokens that are masked.
_MASKED = 0.15


def save_start(recipe: Recipe, seed: int, folder: Path) -> TextFormat:
    """Save transformer and tokenizer of the recipe's start as a bare folder.

    All processes of a run call this, and have the same random state after it. Pooling, similarity
    and prompts of the start belong to the dense encoder and are not saved.

    Args:
        recipe: names the start.
        seed: of layers that the start lacks.
        folder: for transformer and tokenizer.

    Returns:
        The separator and lengths in force.

    Raises:
        InputError: The start cannot be loaded.
    """
    transformers.set_seed(seed)
    model = load_encoder(recipe.start, recipe.encoder)
    transformer: Any = model.transformers_model

    def save() -> None:
        transformer.save_pretrained(str(folder))
        model.tokenizer.save_pretrained(str(folder))

    on_main(save)
    return replace(model.text_format, query_prompt="", document_prompt="")


def masked_language_model(
    collection: Collection,
    recipe: Recipe,
    seed: int,
    shared: Path,
) -> tuple[str, TextFormat]:
    """Return a masked language model around the recipe's start.

    A start that is saved with its head stays as it is. Any other gets the host's head for its kind
    of transformer, tied to the input embeddings, and some steps of masked language modelling on the
    documents. Neither depends on training queries, so it is made once for a corpus and a seed.

    Args:
        collection: has the documents.
        recipe: names the start and the steps.
        seed: of the head and the steps.
        shared: folder for the model.

    Returns:
        Its folder or name, and the separator and lengths of the start.

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
        if on_main(lambda: not folder.is_dir()):
            _train(
                bare,
                folder,
                collection,
                text_format,
                recipe,
                seed,
            )
        return str(folder), text_format
    finally:
        if rank() == 0:
            shutil.rmtree(bare)


class _IdenticalSteps(transformers.Trainer):
    """Makes every process compute all of every step, with the same masks and dropout.

    The steps are few, and those of one process.
    """

    def get_train_dataloader(self) -> Any:
        """Return the host's loader, without a division of batches among processes."""
        loader = super().get_train_dataloader()
        sampler: Any = loader.batch_sampler
        if isinstance(sampler, BatchSamplerShard):
            sampler.num_processes = 1
            sampler.process_index = 0
            sampler.even_batches = False
        return loader


def _train(
    bare: Path,
    folder: Path,
    collection: Collection,
    text_format: TextFormat,
    recipe: Recipe,
    seed: int,
) -> None:
    """Add a head to the bare start, train both, and save them to ``folder`` in one step."""
    transformers.set_seed(seed)
    with loading(str(bare), NEW_HEAD):
        model = transformers.AutoModelForMaskedLM.from_pretrained(bare)
        tokenizer = load_tokenizer(str(bare))
    wait_for_all()  # until each has read the start
    read = readable(tokenizer)

    def encode(batch: dict[str, list[int]]) -> dict[str, object]:
        documents = collection.documents.take(batch["row"])
        texts = [read(text_format.document(document)) for document in documents]
        encoded = tokenizer(texts, truncation=True, max_length=text_format.document_length)
        return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}

    def save(draft: Path) -> None:
        shutil.rmtree(draft / "trainer", ignore_errors=True)
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)

    with ExitStack() as stack:
        draft = on_main(lambda: stack.enter_context(draft_folder(folder)))
        if recipe.mlm_steps:
            log.info(
                "%s has no head: %d steps of masked language modelling",
                recipe.start,
                recipe.mlm_steps,
            )
            _train_steps(
                model,
                tokenizer,
                encode,
                len(collection.documents),
                recipe,
                seed,
                draft,
            )
        on_main(lambda: save(draft))
    wait_for_all()  # until the first has moved it to its folder


def _train_steps(
    model: COCODR,
    tokenizer: PreTrainedTokenizerBase,
    encode: Callable[[dict[str, list[int]]], dict[str, object]],
    documents: int,
    recipe: Recipe,
    seed: int,
    draft: Path,
) -> None:
    uses_cuda = torch.cuda.is_available() and not str(recipe.device).startswith("cpu")
    arguments = transformers.TrainingArguments(
        output_dir=str(draft / "trainer"),
        max_steps=recipe.mlm_steps,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.mlm_learning_rate,
        warmup_steps=recipe.warmup,
        seed=seed,
        use_cpu=not uses_cuda,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=uses_cuda,
    )
    keep_to_one_gpu(arguments)
    trainer = _IdenticalSteps(
        model=model,
        args=arguments,
        train_dataset=drawn_dataset("row", np.arange(documents), encode),
        data_collator=transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=_MASKED
        ),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
