"""Hard negatives for labelled queries."""

from __future__ import annotations

import logging

import numpy as np
from tqdm import tqdm

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25

log = logging.getLogger(__name__)


def bm25_negatives(
    collection: Collection, text_format: TextFormat, depth: int = 30, seed: int = 42
) -> dict[str, np.ndarray]:
    """BM25's best documents for each query, all known positives removed.

    A query for which BM25 finds nothing else gets documents drawn at random; they are counted.

    Args:
        collection: with queries and qrels.
        text_format: joins titles and texts.
        depth: most negatives a query.
        seed: of the random ones.

    Returns:
        Query id to corpus rows, (1..depth,) int64, best first.

    Raises:
        InputError: every document is relevant to a query.
    """
    size = len(collection.documents)
    relevant = {q: [d for d, grade in grades.items() if grade > 0] for q, grades in collection.qrels.items()}
    index = BM25(collection.documents, text_format)
    rng = np.random.default_rng(seed)
    pools, drawn = {}, 0
    for query, text in tqdm(collection.queries.items(), desc="BM25 negatives", disable=None):
        positive = collection.documents.rows(relevant.get(query, []))
        [rows] = index.search({query: text}, depth + len(positive)).rows
        pool = rows[(rows >= 0) & ~np.isin(rows, positive)][:depth]
        if not len(pool):
            others = np.setdiff1d(rng.choice(size, min(size, depth + len(positive)), replace=False), positive)
            if not len(others):
                raise InputError(f"every document is relevant to query {query!r}, so it has no negative")
            pool, drawn = others[:depth], drawn + 1
        pools[query] = pool
    if drawn:
        log.info("BM25 found no negative for %d of %d queries; theirs are random", drawn, len(pools))
    return pools
