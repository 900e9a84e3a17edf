"""Labelled queries as training pairs: a query, a relevant document, and hard negatives."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset

from beir_cocodr.arrays import Ints
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.training.batches import (
    BatchKeys,
    EpochClock,
    TextKeys,
    drawn_dataset,
    text_key,
)
from beir_cocodr.training.options import FinetuneOptions

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

log = logging.getLogger(__name__)


@dataclass
class TrainingPairs:
    """(query, positive, negatives), with negatives drawn again each epoch by seed, epoch and pair.

    Queries without negatives are left out and counted.

    Attributes:
        collection: a corpus with queries and judgements.
        text_format: how documents become texts.
        options: the number of negatives, the seed and the loss.
        pool: query id to the corpus rows that its negatives are drawn from. None means none.
        clock: the running epoch.
    """

    collection: Collection
    text_format: TextFormat
    options: FinetuneOptions
    pool: Mapping[str, Ints] | None = None
    clock: EpochClock = field(default_factory=EpochClock)

    def __post_init__(self) -> None:
        """Choose the pairs."""
        labelled = self._labelled()
        documents = [document for _, document in labelled]
        rows = self.collection.documents.rows(documents)
        is_known = rows >= 0
        has_pool = np.array([self._has_pool(query) for query, _ in labelled], bool)
        lacks_negatives = is_known & ~has_pool
        self.unknown = int((~is_known).sum())
        self.without_negative = int(lacks_negatives.sum())
        kept = np.flatnonzero(is_known & has_pool)
        self._document_keys = TextKeys(len(self.collection.documents), self._texts)
        self.queries = [labelled[pair][0] for pair in kept]
        self.positives = rows[kept]
        self.relevant: dict[str, list[int]] = {}
        for query, row in zip(self.queries, self.positives.tolist(), strict=True):
            self.relevant.setdefault(query, []).append(row)
        if not len(self.positives):
            raise InputError(
                f"{self.collection.name}: no query of split {self.collection.split} has relevant "
                "documents; choose another split, or check the ids of its judgements"
            )
        log.info(
            "%d pairs; left out: %d with an unknown document, %d with a query without negatives",
            len(self.positives),
            self.unknown,
            self.without_negative,
        )

    def _has_pool(self, query: str) -> bool:
        return self.pool is None or query in self.pool

    def _labelled(self) -> list[tuple[str, str]]:
        """Return query and document of all judgements above 0, in their order."""
        pairs = []
        for query, grades in self.collection.qrels.items():
            for document, grade in grades.items():
                if grade > 0:
                    pairs.append((query, document))
        return pairs

    @property
    def column_tasks(self) -> dict[str, str]:
        """Return column to task, "query" or "document", as the loss's row says."""
        count = 0
        if self.pool is not None:
            count = self.options.negatives
        loss = self.options.row("loss")
        tasks: dict[str, str] = loss.column_tasks(count)
        return tasks

    @property
    def columns(self) -> list[str]:
        """Return the names of the text columns."""
        return list(self.column_tasks)

    def dataset(self, read: Callable[[str], str] = str) -> Dataset:
        """Return rows of texts, each as ``read`` makes it."""
        numbers = np.arange(len(self.positives) * self.options.consecutive)
        return drawn_dataset("pair", numbers, partial(self._draw, read))

    def rows(self, pair: int, turn: int = 0) -> list[int]:
        """Return the corpus rows of a pair in this epoch: the positive, then its negatives.

        Args:
            pair: the number of the pair.
            turn: a number from 0 to before ``consecutive``; each has negatives of its own.
        """
        rows = [int(self.positives[pair])]
        if self.pool is not None:
            seed = (self.options.seed, self.clock.epoch, pair)
            rng = np.random.default_rng(seed)
            pool = self.pool[self.queries[pair]]
            count = self.options.negatives
            drawn = count * self.options.consecutive
            negatives = rng.choice(pool, drawn, replace=len(pool) < drawn)
            first = turn * count
            rows += negatives[first : first + count].tolist()
        return rows

    def batch_keys(self) -> BatchKeys:
        """Return what pairs of a batch must not share.

        These are the query, the documents, and all that are relevant to the query, which would
        otherwise be trained as negatives.
        """
        numbers: dict[str, int] = {}
        groups = array("l", (numbers.setdefault(query, len(numbers)) for query in self.queries))
        shared = _QueryKeys(list(numbers), self)
        return BatchKeys(len(self.positives), self._keys, groups, shared.of)

    def _keys(self, pair: int) -> list[int]:
        """Return the keys of the documents of a pair."""
        return self._document_keys.of(np.array(self.rows(pair), np.int64))

    def query_keys(self, query: str) -> list[int]:
        """Return the keys of a query and of all that is relevant to it."""
        relevant = np.array(self.relevant[query], np.int64)
        return [text_key(self.collection.queries[query]), *self._document_keys.of(relevant)]

    def _query(self, pair: int) -> str:
        """Return the text of the query of a pair."""
        return self.collection.queries[self.queries[pair]]

    def _texts(self, rows: Sequence[int] | Ints) -> list[str]:
        documents = self.collection.documents.take(rows)
        return [self.text_format.document(document) for document in documents]

    def names(self, pairs: Sequence[int]) -> list[str]:
        """Return query and document id of pairs, for messages."""
        rows = self.positives[list(pairs)].tolist()
        documents = self.collection.documents.ids(rows)
        queries = [self.queries[pair] for pair in pairs]
        labelled = zip(queries, documents, strict=True)
        return [f"({query!r}, {document!r})" for query, document in labelled]

    def truncated(self, model: COCODR, most: int = 1000) -> dict[str, float]:
        """Return the shares of queries and of positives that are cut.

        They are taken over at most ``most`` evenly spaced pairs.
        """
        step = -(-len(self.positives) // most)
        pairs = np.arange(0, len(self.positives), step)
        queries = [self._query(pair) for pair in pairs.tolist()]
        documents = self._texts(self.positives[pairs])
        return {
            "query": model.truncated_share(queries, "query"),
            "document": model.truncated_share(documents, "document"),
        }

    def _draw(
        self, read: Callable[[str], str], batch: dict[str, list[int]]
    ) -> dict[str, list[Any]]:
        columns = self.columns
        texts: dict[str, list[Any]] = {column: [] for column in columns}
        pairs = []
        for number in batch["pair"]:
            pair, turn = divmod(number, self.options.consecutive)
            pairs.append(pair)
            documents = self._texts(self.rows(pair, turn))
            row = [self._query(pair), *documents]
            for column, text in zip(columns, row, strict=True):
                texts[column].append(read(text))
        return texts | {"label": pairs}  # losses and messages know a pair by its number


class _QueryKeys:
    """The keys of the queries of pairs, kept where several pairs have the same query."""

    def __init__(self, queries: Sequence[str], pairs: TrainingPairs) -> None:
        self.queries = queries
        self.pairs = pairs
        self._kept: dict[int, frozenset[int]] = {}

    def of(self, number: int) -> frozenset[int]:
        """Return the keys of a query by its number."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        query = self.queries[number]
        keys = frozenset(self.pairs.query_keys(query))
        if len(self.pairs.relevant[query]) > 1:
            self._kept[number] = keys
        return keys
