"""A seeded sample of source queries with the documents that their training loss compares."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.negatives import bm25_negatives
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.errors import InputError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceTriplets:
    """Q queries, each with a positive and n negatives.

    Attributes:
        queries: query id -> text, in collection order.
        rows: (Q, 1 + n) int64 corpus rows, the positive first.
    """

    queries: dict[str, str]
    rows: npt.NDArray[np.int64]


def sample_triplets(
    collection: Collection, text_format: TextFormat, size: int, negatives: int = 4, seed: int = 42
) -> SourceTriplets:
    """Draw queries that have a relevant document, one of these, and negatives among BM25's best 30 others.

    Args:
        collection: with queries and qrels.
        text_format: of BM25.
        size: the most queries; a collection that has fewer gives them all.
        negatives: n; of a query that has fewer, some are drawn repeatedly.
        seed: of all draws.

    Raises:
        InputError: no query has a relevant document in the corpus.

    Source: COCO-DR, sections 4.2 and 5.1 (the first negatives of fine-tuning are BM25's).
    """
    rng = np.random.default_rng(seed)
    positives: dict[str, npt.NDArray[np.int64]] = {}
    for query, grades in collection.qrels.items():
        rows = collection.documents.rows([document for document, grade in grades.items() if grade > 0])
        if (rows >= 0).any():
            positives[query] = rows[rows >= 0]
    if not positives:
        raise InputError(f"{collection.name}: no query of split {collection.split} has a relevant document")
    ids = list(positives)
    drawn = {ids[i] for i in rng.choice(len(ids), min(size, len(ids)), replace=False).tolist()}
    queries = {query: text for query, text in collection.queries.items() if query in drawn}
    log.info("%s: %d of %d queries with a relevant document", collection.name, len(queries), len(ids))
    judged = {query: collection.qrels[query] for query in queries}
    sampled = replace(collection, queries=queries, qrels=judged)
    pools = bm25_negatives(sampled, text_format, seed=seed)
    triplets = [
        [rng.choice(positives[query]), *rng.choice(pools[query], negatives, len(pools[query]) < negatives)]
        for query in queries
    ]
    return SourceTriplets(queries, np.array(triplets, np.int64))
