"""What all architectures train on and start from: sets, the bare start, and an MLM head for a start
without one.
"""

import logging
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate.data_loader import BatchSamplerShard

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.text import TextFormat, load_tokenizer, readable
from beir_cocodr.distributed import on_main, rank, wait_for_all
from beir_cocodr.io import draft_folder
from beir_cocodr.models.checkpoint_heads import mlm_layers
from beir_cocodr.models.integrity import NEW_HEAD, loading
from beir_cocodr.models.loading import load_encoder, model_source
from beir_cocodr.resampling.manifest import Manifest, ResttestParameters, check_sets
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.training.trainer import drawn_dataset

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
        train, tests: folder with the split "train", and regime to the folder with the split "test".
    """

    name: str
    group: str
    train: Path
    tests: dict[str, Path]


def training_units(folder: Path, manifest: Manifest) -> list[TrainingUnit]:
    """The units of an output of `resample`: every set of ReSTrain, every bucket of ReSTTest, whose
    regimes have the same training queries. An InputError where a set is not what the manifest says.
    """
    check_sets(folder, manifest)
    found: dict[str, TrainingUnit] = {}
    for record in manifest.sets:
        name, group = record.folder, record.label
        if isinstance(manifest.parameters, ResttestParameters):
            name, group = f"bucket-{record.bucket}", f"{manifest.parameters.buckets} buckets"
        unit = found.setdefault(name, TrainingUnit(name, group, folder / record.train.folder, {}))
        unit.tests[record.regime] = folder / record.test.folder
    return list(found.values())


def save_start(recipe: Recipe, seed: int, folder: Path) -> TextFormat:
    """Save transformer and tokenizer of the recipe's start as a bare folder; gives separator and
    lengths in force. All processes of a run call this, and have the same state of chance after it.

    Pooling, similarity and prompts of the start are the dense encoder's and stay behind. The seed
    is that of layers that the start lacks. An InputError where there is no such start.
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
    collection: Collection, recipe: Recipe, seed: int, shared: Path
) -> tuple[str, TextFormat]:
    """A masked language model around the recipe's start: its folder or name, and separator and
    lengths of the start.

    A start that is saved with its head stays as it is. Any other gets the host's head for its kind
    of transformer, tied to the input embeddings, and some steps of masked language modelling on the
    documents. Neither depends on training queries, so it is made once for a corpus and a seed.

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
            _train(bare, folder, collection, text_format, recipe, seed)
        return str(folder), text_format
    finally:
        if rank() == 0:
            shutil.rmtree(bare)


class _Alike(transformers.Trainer):
    """Every process makes the whole of every step, with the same masks and dropout: few steps, and
    those of one.
    """

    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()
        sampler: Any = loader.batch_sampler
        if isinstance(sampler, BatchSamplerShard):
            sampler.num_processes, sampler.process_index, sampler.even_batches = 1, 0, False
        return loader


def _train(
    bare: Path, folder: Path, collection: Collection, form: TextFormat, recipe: Recipe, seed: int
) -> None:
    transformers.set_seed(seed)
    with loading(str(bare), NEW_HEAD):
        model, tokenizer = (
            transformers.AutoModelForMaskedLM.from_pretrained(bare),
            load_tokenizer(str(bare)),
        )
    wait_for_all()  # until each has read the start
    read = readable(tokenizer)

    def tokens(batch: dict[str, list[int]]) -> dict[str, object]:
        texts = [read(form.document(found)) for found in collection.documents.take(batch["row"])]
        encoded = tokenizer(texts, truncation=True, max_length=form.document_length)
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
            cuda = torch.cuda.is_available() and not str(recipe.device).startswith("cpu")
            trainer = _Alike(
                model=model,
                args=transformers.TrainingArguments(
                    output_dir=str(draft / "trainer"),
                    max_steps=recipe.mlm_steps,
                    per_device_train_batch_size=recipe.batch_size,
                    learning_rate=recipe.mlm_learning_rate,
                    warmup_steps=recipe.warmup,
                    seed=seed,
                    use_cpu=not cuda,
                    save_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                    remove_unused_columns=False,
                    dataloader_pin_memory=cuda,
                ),
                train_dataset=drawn_dataset("row", np.arange(len(collection.documents)), tokens),
                data_collator=transformers.DataCollatorForLanguageModeling(
                    tokenizer, mlm_probability=_MASKED
                ),
            )
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        on_main(lambda: save(draft))
    wait_for_all()  # until the first has put it in its place
