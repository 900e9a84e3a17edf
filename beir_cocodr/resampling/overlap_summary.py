"""How much a training set gives away of a test set, in a few numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.resampling.overlap import Qrels, label_overlap
from beir_cocodr.resampling.train_test import TrainTest

#: The rule that the paper states, "any of its passages", and that of its script, "more than one".
MINIMA = (1, 2)


def overlap_summary(
    pair: TrainTest,
    train: Collection[str],
    test: Collection[str],
    similarities: npt.NDArray[np.floating[Any]],
) -> dict[str, Any]:
    """Label overlap by both rules, repeated queries, and similarity to the nearest training query.

    Args:
        pair: the full sets.
        train, test: ids of the training and test queries that are looked at; sets are fast.
        similarities: (t,) of those test queries to their nearest of those training queries.
    """
    train_qrels = {query: grades for query, grades in pair.train.qrels.items() if query in train}
    test_qrels = {query: grades for query, grades in pair.test.qrels.items() if query in test}
    return {
        "training_queries": len(train_qrels),
        "test_queries": len(test_qrels),
        "label_overlap": label_overlaps(train_qrels, test_qrels),
        **pair.duplicates.among(train, test),
        "nearest_similarity": similarity_summary(similarities),
    }


def label_overlaps(train_qrels: Qrels, test_qrels: Qrels) -> list[dict[str, Any]]:
    """Label overlap at every grade, by both rules."""
    return [
        {**row._asdict(), "share": row.share}
        for minimum in MINIMA
        for row in label_overlap(train_qrels, test_qrels, minimum)
    ]


def similarity_summary(similarities: npt.NDArray[np.floating[Any]]) -> dict[str, float]:
    """Mean, median and range; the last bits, which depend on the processor, are cut off."""
    found = np.asarray(similarities, np.float64)
    return {
        name: round(float(value), 5)
        for name, value in (
            ("mean", found.mean()),
            ("median", np.median(found)),
            ("least", found.min()),
            ("most", found.max()),
        )
    }
