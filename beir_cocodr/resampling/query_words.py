"""Queries as sets of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import Stemmer
from bm25s.tokenization import Tokenizer
from scipy import sparse


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
