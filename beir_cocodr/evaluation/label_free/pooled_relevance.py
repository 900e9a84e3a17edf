"""How relevant the best documents of rankings are, as a language model reads them.

The documents that models rank first for a query are pooled, and a reader, which took no part in the
ranking, scores each of them for the query. For two models, a softmax over the documents of both
turns scores into probabilities, and each ranking gains the discounted probability of what it ranks
first, as in nDCG.
Unlike crops and titles, this looks at real queries and at the documents that are found for them.

References:
    Sachan et al., 2022: Improving Passage Retrieval with Zero-Shot Question Generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from beir_cocodr.arrays import Bools, Doubles, Ints, spaced_rows
from beir_cocodr.data.documents import Documents

#: The documents of each ranking that are pooled, and the most queries whose pools are read.
POOL_DEPTH = 5
MOST_READ = 60

_DISCOUNTS = 1 / np.log2(np.arange(2, 2 + POOL_DEPTH))


class PoolReader(Protocol):
    """What scores pooled documents for queries."""

    def read(
        self,
        queries: Sequence[str],
        pools: Sequence[Ints],
        documents: Documents,
    ) -> list[Doubles]:
        """Return the logarithms of how relevant documents are, up to a constant of each query.

        Args:
            queries: Q texts.
            pools: For each query the rows of the documents to read, at least one.
            documents: The corpus.
        """
        ...


@dataclass(frozen=True)
class PooledScores:
    """What a reader says of the pooled documents of some queries.

    Attributes:
        queries: (Q,) numbers of the queries among those of the rankings.
        rows: (Q, p) rows of the pooled documents, -1 where a pool has fewer.
        scores: (Q, p) logarithms of their relevance, up to a constant of each query.
    """

    queries: Ints
    rows: Ints
    scores: Doubles

    def gains(self, first: Ints, second: Ints) -> tuple[Doubles, Doubles]:
        """Return the (Q,) gains of two rankings, each between 0 and 1.

        The relevance of all documents that either of both ranks first adds up to 1.

        Args:
            first: The (N, k) rows of one model for all queries, best first, -1 for no result.
            second: Those of the other.
        """
        in_first = self._places(first)
        in_second = self._places(second)
        is_pooled = in_first.any(axis=1) | in_second.any(axis=1)
        scores = np.where(is_pooled, self.scores, -np.inf)
        highest = scores.max(axis=1, keepdims=True, initial=-np.inf)
        relevance = np.exp(scores - np.where(np.isfinite(highest), highest, 0.0))
        total = relevance.sum(axis=1, keepdims=True)
        relevance = relevance / np.where(total > 0, total, 1.0)
        gain = "qkp,k,qp->q"
        return (
            np.einsum(gain, in_first, _DISCOUNTS, relevance),
            np.einsum(gain, in_second, _DISCOUNTS, relevance),
        )

    def _places(self, ranking: Ints) -> Doubles:
        """Return a (Q, k, p) array that is 1 where a rank has the document of a pool's column."""
        best = ranking[self.queries, :POOL_DEPTH]
        missing = POOL_DEPTH - best.shape[1]
        best = np.pad(best, ((0, 0), (0, missing)), constant_values=-1)
        is_same: Bools = best[:, :, None] == self.rows[:, None, :]
        is_result = (best >= 0)[:, :, None]
        return (is_same & is_result).astype(np.float64)


def read_pools(
    reader: PoolReader,
    queries: Sequence[str],
    rankings: Sequence[Ints],
    documents: Documents,
) -> PooledScores:
    """Let a reader score the documents that models rank first.

    Args:
        reader: The reader.
        queries: N texts; of more than 60, evenly spaced ones are read.
        rankings: The (N, k) rows of each model, best first, -1 for no result.
        documents: The corpus.
    """
    numbers = spaced_rows(len(queries), MOST_READ)
    pools = [_pool(rankings, number) for number in numbers.tolist()]
    width = max((len(pool) for pool in pools), default=0)
    rows = np.full((len(pools), width), -1, np.int64)
    padded = np.zeros((len(pools), width))
    with_results = [number for number, pool in enumerate(pools) if len(pool)]
    scores = reader.read(
        [queries[numbers[number]] for number in with_results],
        [pools[number] for number in with_results],
        documents,
    )
    for number, of_query in zip(with_results, scores, strict=True):
        rows[number, : len(pools[number])] = pools[number]
        padded[number, : len(pools[number])] = of_query
    return PooledScores(numbers, rows, padded)


def _pool(rankings: Sequence[Ints], number: int) -> Ints:
    """Return the rows that rankings have first for a query, in the order of the corpus."""
    best = np.concatenate([rows[number, :POOL_DEPTH] for rows in rankings])
    return np.unique(best[best >= 0])
