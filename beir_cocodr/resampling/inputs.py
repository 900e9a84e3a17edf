"""A training set and a test set.

Queries that stand in the training set and in the test set.

Queries as sets of words.

What every way of resampling starts from.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import Stemmer
from bm25s.tokenization import Tokenizer
from scipy import sparse

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.resampling.embeddings import QueryEncoder, query_embeddings
from beir_cocodr.resampling.manifest import Origin, origin
from beir_cocodr.retrieval.store.store import EmbeddingStore

#: Test query id to the ids of training queries, in their order.
Pairs = dict[str, list[str]]


@dataclass(frozen=True)
class QueryDuplicates:
    """Test queries that training queries repeat.

    Attributes:
        exact: the same text, but for case and white space.
        near: another text of the same words, after stop words and punctuation are taken out and the rest is
            stemmed, in any order and number; a query without such words has none.
    """

    exact: Pairs
    near: Pairs

    def among(self, train: Iterable[str], test: Container[str]) -> dict[str, int]:
        """How many of the given test queries the given training queries repeat."""
        return {
            name: sum(query in test and not set(found).isdisjoint(train) for query, found in pairs.items())
            for name, pairs in (("exact_duplicates", self.exact), ("near_duplicates", self.near))
        }


def duplicate_queries(
    train: Mapping[str, str], test: Mapping[str, str], train_words: Any, test_words: Any
) -> QueryDuplicates:
    """Find test queries that stand in the training set as well.

    Args:
        train, test: query id to text.
        train_words, test_words: their word sets, from `word_sets`, rows in the same order.

    Source: after Zhan et al., 2022, Table 4, whose duplicates differ in stop words and in the order of words.
    """
    by_text: defaultdict[str, list[str]] = defaultdict(list)
    by_words: defaultdict[bytes, list[str]] = defaultdict(list)
    for row, (query, text) in enumerate(train.items()):
        by_text[_folded(text)].append(query)
        by_words[_words(train_words, row)].append(query)
    exact, near = {}, {}
    for row, (query, text) in enumerate(test.items()):
        same_text = by_text.get(_folded(text), [])
        if same_text:
            exact[query] = same_text
        words = _words(test_words, row)
        apart = set(same_text)
        same_words = [other for other in by_words.get(words, []) if other not in apart] if words else []
        if same_words:
            near[query] = same_words
    return QueryDuplicates(exact, near)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _words(matrix: Any, row: int) -> bytes:
    """The words of a row as something that can be looked up; b"" where there are none."""
    found: bytes = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tobytes()
    return found


def word_sets(*groups: Sequence[str]) -> list[Any]:
    """Texts to sets of stems without English stop words.

    As in our BM25, but that single characters stay: queries that differ in a number are not the same.

    Args:
        *groups: lists of texts; columns mean the same in all of them.

    Returns:
        One (n, V) int32 sparse matrix of ones a group, rows in order, columns of a row ascending.
    """
    tokenizer: Any = Tokenizer(splitter=r"\w+", stopwords="english", stemmer=Stemmer.Stemmer("english"))
    # Without allow_empty the host gives a text without words a word of its own, "".
    tokens = [
        tokenizer.tokenize(list(texts), update_vocab=True, show_progress=False, allow_empty=False)
        if texts
        else []
        for texts in groups
    ]
    width = len(tokenizer.get_vocab_dict())
    return [_matrix(ids, width) for ids in tokens]


def _matrix(ids: list[list[int]], width: int) -> Any:
    words = [sorted(set(found)) for found in ids]
    starts = np.concatenate([[0], np.cumsum([len(found) for found in words], dtype=np.int64)])
    columns = np.fromiter((word for found in words for word in found), np.int64, int(starts[-1]))
    ones = np.ones(len(columns), np.int32)
    return sparse.csr_array((ones, columns, starts), shape=(len(words), width))


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

    def check_usable(self) -> None:
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


@dataclass(frozen=True)
class Inputs:
    """A training and a test set with the embeddings of their queries.

    Attributes:
        pair: the sets; the order of their queries is that of the rows.
        train_origin, test_origin: where they come from.
        encoder: what the similarity depends on.
        train, test: (N, d) and (T, d) embeddings.
    """

    pair: TrainTest
    train_origin: Origin
    test_origin: Origin
    encoder: dict[str, Any]
    train: EmbeddingStore
    test: EmbeddingStore


def embed_inputs(
    pair: TrainTest, splits: tuple[str, str], encoder: str, options: SearchOptions = SearchOptions()
) -> Inputs:
    """Embed the queries of both sets.

    Args:
        pair: the sets.
        splits: of training and test set, as they were asked for.
        encoder, options: as for :class:`QueryEncoder`.

    Raises:
        InputError: there is no such encoder, or its embeddings cannot be used.
    """
    model = QueryEncoder(encoder, options)
    train, test = (query_embeddings(model, part.queries) for part in (pair.train, pair.test))
    origins = [origin(part.name, split) for part, split in zip((pair.train, pair.test), splits, strict=True)]
    return Inputs(pair, origins[0], origins[1], model.describe(), train, test)
