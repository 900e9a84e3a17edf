"""Labelled queries as training examples."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.training.options import FinetuneOptions
from beir_cocodr.training.trainer import EpochClock, drawn_dataset

log = logging.getLogger(__name__)


@dataclass
class TrainingPairs:
    """(query, positive, negatives) with the negatives drawn anew each epoch by (seed, epoch, pair).

    Args:
        pool: query id to the corpus rows that its negatives are drawn from; None where there are none. Queries without
            any are left out, counted.
    """

    collection: Collection
    text_format: TextFormat
    options: FinetuneOptions
    pool: dict[str, np.ndarray] | None = None
    clock: EpochClock = field(default_factory=EpochClock)

    def __post_init__(self) -> None:
        judged = [(query, *pair) for query, grades in self.collection.qrels.items() for pair in grades.items()]
        labelled = [(query, document) for query, document, grade in judged if grade > 0]
        rows = self.collection.documents.rows([document for _, document in labelled])
        self.unknown = int((rows < 0).sum())
        has_pool = np.array([self.pool is None or query in self.pool for query, _ in labelled], bool)
        self.without_negative = int(((rows >= 0) & ~has_pool).sum())
        kept = np.flatnonzero((rows >= 0) & has_pool)
        self.queries = [labelled[i][0] for i in kept]
        self.positives = rows[kept]
        self.relevant: dict[str, list[int]] = {}
        for query, row in zip(self.queries, self.positives.tolist(), strict=True):
            self.relevant.setdefault(query, []).append(row)
        if not len(self.positives):
            raise InputError(
                f"{self.collection.name}: no query of split {self.collection.split} has a relevant document"
            )
        log.info(
            "%d pairs; left out: %d with an unknown document, %d with a query without negatives",
            len(self.positives),
            self.unknown,
            self.without_negative,
        )

    @property
    def columns(self) -> list[str]:
        count = self.options.negatives if self.pool is not None else 0
        return ["query", "positive", *(f"negative_{i + 1}" for i in range(count))]

    def dataset(self, read: Callable[[str], str] = str) -> Dataset:
        """Rows of texts, each as ``read`` makes it."""
        return drawn_dataset("pair", np.arange(len(self.positives)), partial(self._draw, read))

    def rows(self, pair: int) -> list[int]:
        """The corpus rows of a pair in this epoch: the positive, then its negatives."""
        rows = [int(self.positives[pair])]
        if self.pool is not None:
            rng = np.random.default_rng((self.options.seed, self.clock.epoch, pair))
            pool = self.pool[self.queries[pair]]
            few = len(pool) < self.options.negatives
            rows += rng.choice(pool, self.options.negatives, replace=few).tolist()
        return rows

    def names(self, pairs: Sequence[int]) -> list[str]:
        """Query and document id of pairs, for messages."""
        documents = self.collection.documents.ids(self.positives[list(pairs)].tolist())
        queries = [self.queries[pair] for pair in pairs]
        return [f"({query!r}, {document!r})" for query, document in zip(queries, documents, strict=True)]

    def truncated(self, model: Any, most: int = 1000) -> dict[str, float]:
        """The share of queries and of positives that are cut, over at most ``most`` evenly spaced pairs."""
        pairs = np.arange(0, len(self.positives), -(-len(self.positives) // most))
        queries = [self.collection.queries[self.queries[pair]] for pair in pairs.tolist()]
        documents = self.collection.documents.take(self.positives[pairs])
        texts = [self.text_format.document(document) for document in documents]
        return {"query": model.truncated_share(queries, "query"), "document": model.truncated_share(texts, "document")}

    def _draw(self, read: Callable[[str], str], batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        texts: dict[str, list[Any]] = {column: [] for column in self.columns}
        for pair in batch["pair"]:
            documents = [self.text_format.document(d) for d in self.collection.documents.take(self.rows(pair))]
            query = self.collection.queries[self.queries[pair]]
            for column, text in zip(self.columns, [query, *documents], strict=True):
                texts[column].append(read(text))
        return texts | {"label": batch["pair"]}  # losses and messages know a pair by its number


@dataclass
class BatchKeys:
    """What a pair must not share with another of its batch: its query, its documents, and all that are relevant to its
    query, which would otherwise be trained as negatives. The host's sampler reads it like a dataset of texts.
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
