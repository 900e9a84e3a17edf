"""A training set and a test set."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.resampling.duplicates import QueryDuplicates, duplicate_queries
from beir_cocodr.resampling.query_words import word_sets

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainTest:
    """A training set and a test set, usually two splits of one collection.

    Attributes:
        train, test: the loaded collections, with judged queries each.
    """

    train: Collection
    test: Collection

    @classmethod
    def load(cls, train: str, test: str, train_split: str = "train", test_split: str = "test") -> TrainTest:
        """Load both; it is said where their corpora differ.

        Args:
            train, test: datasets as the command line names them.
            train_split, test_split: splits of their judgements.

        Raises:
            InputError: either cannot be loaded with its queries and judgements.
        """
        pair = cls(load_collection(train, train_split), load_collection(test, test_split))
        if not pair.same_corpus:
            log.warning(
                "%s and %s have different corpora; labels are compared by the ids of documents", train, test
            )
        return pair

    @property
    def same_corpus(self) -> bool:
        """Whether both have the same documents, whatever they are called."""
        return self.train.documents.content_hash == self.test.documents.content_hash

    @cached_property
    def duplicates(self) -> QueryDuplicates:
        """Test queries that training queries repeat."""
        return duplicate_queries(self.train.queries, self.test.queries, *self.words)

    @cached_property
    def words(self) -> tuple[object, object]:
        """The word sets of training and test queries."""
        train, test = word_sets(list(self.train.queries.values()), list(self.test.queries.values()))
        return train, test

    def refuse_unusable(self) -> None:
        """Refuse what cannot be resampled.

        Raises:
            InputError: more test than training queries; or, where both go into one folder, an id that has two
                texts.
        """
        queries, tests = self.train.queries, self.test.queries
        if len(tests) > len(queries):
            raise InputError(
                f"the test set is larger than the training set: {len(tests)} queries of {self.test.name} and "
                f"{len(queries)} of {self.train.name}; training queries are chosen among, so give the larger "
                "set as --train"
            )
        if not self.same_corpus:
            return
        for query, text in tests.items():
            if queries.get(query, text) != text:
                raise InputError(
                    f"the id {query!r} has one text in {self.train.name} and another in {self.test.name}: "
                    "rename it in one of them"
                )
