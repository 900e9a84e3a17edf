"""Queries that stand in the training set and in the test set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

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

    def among(self, train: Collection[str], test: Collection[str]) -> dict[str, int]:
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
