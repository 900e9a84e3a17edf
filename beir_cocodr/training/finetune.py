"""Supervised fine-tuning on labelled pairs, with BM25 hard negatives."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from sentence_transformers import util
from sentence_transformers.sentence_transformer import losses
from transformers import set_seed

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.negatives import bm25_negatives
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.training.callbacks import EpochClock
from beir_cocodr.training.options import FinetuneOptions
from beir_cocodr.training.record import seen
from beir_cocodr.training.run import Stage, claim_output, run_stage, training_plan

log = logging.getLogger(__name__)


def finetune(
    dataset: str,
    base: str,
    output: Path,
    options: FinetuneOptions | None = None,
    split: str = "train",
    resume: bool = False,
    **encoder: Any,
) -> dict[str, Any]:
    """Fine-tune ``base`` on the labelled queries of one collection and save it to ``output``.

    The loss is InfoNCE: each query has to find its positive among all positives and hard negatives of the
    batch. It uses the model's own similarity; texts that stand twice in a batch are kept apart.

    Args:
        dataset, split: the labelled collection.
        base: what ``COCODR`` loads, or ``minilm``.
        output: folder for the model.
        options: see :class:`FinetuneOptions`.
        resume: go on from the last checkpoint; a finished output is left as it is.
        **encoder: overrides for loading ``base`` (lengths, prompts, separator, device), None meaning none.

    Returns:
        The content of training.json.

    Raises:
        InputError: no labelled pair, or ``output`` is taken.

    Source: COCO-DR, section 4.2 (its ERM baseline); query-as-context pre-training, section 4.1.
    """
    options = options or FinetuneOptions()
    collection = load_collection(dataset, split)
    plan = training_plan("finetune", base, encoder, options, [seen(collection, queries=True)])
    if (record := claim_output(output, resume, plan)) is not None:
        return record
    set_seed(options.seed)  # a checkpoint may lack layers, which are then drawn at random
    model = load_encoder(base, **encoder)
    pairs = TrainingPairs(collection, model.text_format, options)
    columns = pairs.columns
    stage = Stage(
        plan=plan,
        model=model,
        loss=_infonce(model, options),
        dataset=pairs.dataset(),
        column_tasks={column: "query" if column == "query" else "document" for column in columns},
        callbacks=[pairs.clock],
        batch_sampler="no_duplicates",
        extra={"pairs": len(pairs.positives), "pairs_without_document": pairs.unknown},
    )
    return run_stage(stage, options, output, resume)


@dataclass
class TrainingPairs:
    """(query, positive, negatives) with the negatives drawn anew each epoch by (seed, epoch, pair)."""

    collection: Collection
    text_format: TextFormat
    options: FinetuneOptions
    clock: EpochClock = field(default_factory=EpochClock)

    def __post_init__(self) -> None:
        labelled = [
            (query, document)
            for query, grades in self.collection.qrels.items()
            for document, grade in grades.items()
            if grade > 0
        ]
        rows = self.collection.documents.rows([document for _, document in labelled])
        self.unknown = int((rows < 0).sum())
        self.queries = [query for (query, _), row in zip(labelled, rows, strict=True) if row >= 0]
        self.positives = rows[rows >= 0]
        if not len(self.positives):
            raise InputError(
                f"{self.collection.name}: no query of split {self.collection.split} has a relevant document"
            )
        if self.options.negatives:
            self.pool = bm25_negatives(self.collection, self.text_format, self.options.negative_depth)
        log.info("%d pairs, %d left out because their document is unknown", len(self.positives), self.unknown)

    @property
    def columns(self) -> list[str]:
        return ["query", "positive", *(f"negative_{i + 1}" for i in range(self.options.negatives))]

    def dataset(self) -> Dataset:
        return Dataset.from_dict({"pair": np.arange(len(self.positives))}).with_transform(self._draw)

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, list[str]]:
        texts: dict[str, list[str]] = {column: [] for column in self.columns}
        for pair in batch["pair"]:
            query = self.queries[pair]
            rows = [self.positives[pair]]
            if self.options.negatives:
                rng = np.random.default_rng((self.options.seed, self.clock.epoch, pair))
                pool = self.pool[query]
                rows += rng.choice(
                    pool, self.options.negatives, replace=len(pool) < self.options.negatives
                ).tolist()
            documents = [self.text_format.document(d) for d in self.collection.documents.take(rows)]
            for column, text in zip(self.columns, [self.collection.queries[query], *documents], strict=True):
                texts[column].append(text)
        return texts


def _infonce(model: Any, options: FinetuneOptions) -> Any:
    """The host's in-batch loss on the model's own similarity, cached where the batch is large."""
    cosine = model.similarity_fn_name == "cosine"
    settings: dict[str, Any] = {
        "scale": options.scale or (20.0 if cosine else 1.0),
        "similarity_fct": util.cos_sim if cosine else util.dot_score,
    }
    if options.batch_size > options.mini_batch_size:
        return losses.CachedMultipleNegativesRankingLoss(
            model, mini_batch_size=options.mini_batch_size, **settings
        )
    return losses.MultipleNegativesRankingLoss(model, **settings)
