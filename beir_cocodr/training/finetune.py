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
from beir_cocodr.training.finetune_options import FinetuneOptions
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
    batch, by the model's own similarity. No text stands twice in a batch, and no document in it is relevant
    to another of its queries.

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
    set_seed(options.seed)  # a checkpoint may lack layers, which are then drawn at random
    model = load_encoder(base, **encoder)
    plan = training_plan("finetune", base, model, encoder, options, [seen(collection, queries=True)])
    if (record := claim_output(output, resume, plan)) is not None:
        return record
    pairs = TrainingPairs(collection, model.text_format, options)
    columns = pairs.columns
    stage = Stage(
        plan=plan,
        model=model,
        loss=_infonce(model, options),
        dataset=pairs.dataset(),
        column_tasks={column: "query" if column == "query" else "document" for column in columns},
        callbacks=[pairs.clock],
        batch_keys=BatchKeys(pairs),
        extra={
            "pairs": len(pairs.positives),
            "pairs_without_document": pairs.unknown,
            "truncated": pairs.truncated(model),
        },
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
        self.relevant: dict[str, list[int]] = {}
        for query, row in zip(self.queries, self.positives.tolist(), strict=True):
            self.relevant.setdefault(query, []).append(row)
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

    def rows(self, pair: int) -> list[int]:
        """The corpus rows of a pair in this epoch: the positive, then its negatives."""
        rows = [int(self.positives[pair])]
        if self.options.negatives:
            rng = np.random.default_rng((self.options.seed, self.clock.epoch, pair))
            pool = self.pool[self.queries[pair]]
            few = len(pool) < self.options.negatives
            rows += rng.choice(pool, self.options.negatives, replace=few).tolist()
        return rows

    def truncated(self, model: Any, most: int = 1000) -> dict[str, float]:
        """The share of queries and of positives that are cut, over at most ``most`` evenly spaced pairs."""
        pairs = np.arange(0, len(self.positives), -(-len(self.positives) // most))
        queries = [self.collection.queries[self.queries[pair]] for pair in pairs.tolist()]
        documents = self.collection.documents.take(self.positives[pairs])
        texts = [self.text_format.document(document) for document in documents]
        shares = {"query": model.truncated_share(queries, "query")}
        return shares | {"document": model.truncated_share(texts, "document")}

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, list[str]]:
        texts: dict[str, list[str]] = {column: [] for column in self.columns}
        for pair in batch["pair"]:
            documents = [
                self.text_format.document(d) for d in self.collection.documents.take(self.rows(pair))
            ]
            query = self.collection.queries[self.queries[pair]]
            for column, text in zip(self.columns, [query, *documents], strict=True):
                texts[column].append(text)
        return texts


@dataclass
class BatchKeys:
    """What a pair must not share with another of its batch: its query, its documents, and all documents
    that are relevant to its query, which would otherwise be trained as negatives.

    The host's sampler reads it like a dataset of texts.
    """

    pairs: TrainingPairs
    column_names: tuple[str, ...] = ("keys",)

    def __len__(self) -> int:
        return len(self.pairs.positives)

    def __getitem__(self, pair: int) -> dict[str, str]:
        pairs = self.pairs
        query = pairs.queries[pair]
        rows = np.union1d(pairs.rows(pair), pairs.relevant[query]).astype(np.int64)
        texts = [pairs.text_format.document(document) for document in pairs.collection.documents.take(rows)]
        return {str(i): text for i, text in enumerate([pairs.collection.queries[query], *texts])}


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
