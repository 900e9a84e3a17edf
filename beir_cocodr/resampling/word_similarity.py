"""The training query that shares most words with a test query."""

from __future__ import annotations

from typing import Any

import numpy as np

from beir_cocodr.resampling.neighbours import Neighbours

# Test queries whose overlaps with all training queries are held at a time.
_BLOCK = 64


def nearest_by_words(train: Any, test: Any) -> Neighbours:
    """The training query of highest Jaccard similarity for every test query; the first of equal ones.

    Args:
        train: (N, V) sparse word sets.
        test: (T, V) sparse word sets, of the same columns.

    Returns:
        scores (T, 1) in 0..1 and rows (T, 1); where no training query shares a word, 0 and -1.
    """
    scores, rows = np.zeros((test.shape[0], 1), np.float32), np.full((test.shape[0], 1), -1, np.int64)
    by_word = train.T.tocsr()
    train_sizes, test_sizes = np.diff(train.indptr), np.diff(test.indptr)
    for start in range(0, test.shape[0], _BLOCK):
        common = (test[start : start + _BLOCK] @ by_word).tocsr()
        for i in range(common.shape[0]):
            part = slice(common.indptr[i], common.indptr[i + 1])
            columns, shared = common.indices[part], common.data[part]
            if not len(columns):
                continue
            jaccard = shared / (test_sizes[start + i] + train_sizes[columns] - shared)
            scores[start + i] = jaccard.max()
            rows[start + i] = columns[jaccard == jaccard.max()].min()
    return Neighbours(scores, rows)
