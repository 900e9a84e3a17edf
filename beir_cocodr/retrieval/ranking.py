"""Rankings: the results of a search by rows of the corpus, and the protocols of what ranks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol, Self

import numpy as np

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.records import Json

Hits = list[tuple[str, float]]
#: Query id to (document id, score) pairs, best first.
Results = dict[str, Hits]

#: Added to ranks before their reciprocals are summed.
RRF_CONSTANT = 60

# Hits whose ids are looked up at a time.
_HITS = 1 << 20


@dataclass(frozen=True)
class Ranking:
    """The best documents of each query, best first, ties by descending document id.

    Args:
        queries: (Q,) query ids.
        scores: (Q, k) float32.
        rows: (Q, k) int64 corpus rows; -1 where a query has fewer results.
    """

    queries: list[str]
    scores: np.ndarray
    rows: np.ndarray

    @classmethod
    def of_best(
        cls,
        queries: Iterable[str],
        candidates: Iterable[tuple[np.ndarray, np.ndarray]],
        ties: np.ndarray,
        top_k: int,
    ) -> Self:
        """Return the best candidates of each query.

        Args:
            queries: (Q,) query ids.
            candidates: for each query (n,) different rows and their float32 scores, in any order.
            ties: (N,) tie ranks of the corpus.
            top_k: documents of a query; k = min(top_k, N).
        """
        ids = list(queries)
        depth = min(top_k, len(ties))
        shape = (len(ids), depth)
        scores = np.zeros(shape, np.float32)
        rows = np.full(shape, -1, np.int64)
        for i, (query_rows, query_scores) in enumerate(candidates):
            best = best_rows(query_scores, ties[query_rows], depth)
            rows[i, : len(best)] = query_rows[best]
            scores[i, : len(best)] = query_scores[best]
        return cls(ids, scores, rows)

    def hits(
        self,
        ids: Callable[[np.ndarray], list[str]],
        drop_identical_ids: bool = False,
        depth: int | None = None,
    ) -> Iterator[tuple[str, Hits]]:
        """Yield each query id with its (document id, score) pairs in rank order.

        Args:
            ids: returns the ids of (n,) different rows; it is asked for some queries at a time.
            drop_identical_ids: leave out the document whose id is the query's.
            depth: the most pairs of a query; None is all.
        """
        depth_of_rows = max(1, self.rows.shape[1])
        size = max(1, _HITS // depth_of_rows)
        for start in range(0, len(self.queries), size):
            block = slice(start, start + size)
            rows = self.rows[block]
            is_result = rows >= 0
            different, positions = _different_rows(rows[is_result])
            names = np.array(ids(different), dtype=object)[positions].tolist()
            scores = self.scores[block][is_result].tolist()
            pairs = zip(names, scores, strict=True)
            counts = is_result.sum(axis=1).tolist()
            for query, count in zip(self.queries[block], counts, strict=True):
                hits = list(islice(pairs, count))
                if drop_identical_ids:
                    hits = [hit for hit in hits if hit[0] != query]
                yield query, hits[:depth]

    def results(
        self,
        documents: Documents,
        drop_identical_ids: bool = False,
        depth: int | None = None,
    ) -> Results:
        """Return query id to (document id, score) pairs, see :meth:`hits`."""
        return dict(self.hits(documents.ids, drop_identical_ids, depth))


def _different_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different rows in ascending order, and the position of each row among them."""
    last = 0
    if len(rows):
        last = int(rows.max())
    if not len(rows) or last >= len(rows):
        return np.unique(rows, return_inverse=True)
    # Many rows of a small corpus are marked, which takes less time than sorting them.
    occurs = np.zeros(last + 1, bool)
    occurs[rows] = True
    different = np.flatnonzero(occurs)
    position_of_row = np.cumsum(occurs) - 1
    return different, position_of_row[rows]


class Parts(NamedTuple):
    """The parts that the scores of documents are sums of, (k,) each; None for a missing part.

    A ranker that knows them has a method ``parts(query, rows, scores)`` for (k,) rows that it
    ranked for a query.
    """

    dense: np.ndarray | None = None
    lexical: np.ndarray | None = None


class Ranker(Protocol):
    """Anything that ranks one corpus for a batch of queries."""

    def prepare(self) -> None:
        """Make the index or the embeddings that searching needs; a second call costs nothing."""
        ...

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for query id to text."""
        ...

    def describe(self) -> Json:
        """Return what the results depend on: text format, similarity, analyser, parameters."""
        ...


class Lexical(Ranker, Protocol):
    """A ranker that scores every document for a query, as BM25 does."""

    def scores(self, query: str) -> np.ndarray:
        """Return (N,) float32 scores, 0 where a document shares no term with the query."""
        ...


def best_rows(
    scores: np.ndarray,
    ties: np.ndarray,
    top_k: int,
) -> np.ndarray:
    """Return the rows of the ``top_k`` best of (N,) scores, exact at the last rank.

    Args:
        scores: (N,).
        ties: (N,) ranks by which equal scores are ordered, ascending.
        top_k: rows to return.
    """
    candidates = np.arange(len(scores))
    if top_k < len(scores):
        kth = len(scores) - top_k
        last = np.partition(scores, kth)[kth]
        candidates = np.flatnonzero(scores >= last)
    order = np.lexsort((ties[candidates], -scores[candidates]))
    return candidates[order][:top_k]


def reciprocal_ranks(lists: Sequence[Ints]) -> tuple[Ints, Doubles]:
    """Sum 1 / (60 + rank) over several lists of rows, best first.

    Args:
        lists: rows, each once in a list.

    Returns:
        The (n,) rows that are in any list, ascending, and their sums.

    References:
        Cormack et al., 2009: Reciprocal rank fusion outperforms Condorcet and individual rank
        learning methods.
    """
    rows = np.unique(np.concatenate(lists))
    sums = np.zeros(len(rows))
    for ranked in lists:
        ranks = np.arange(1, len(ranked) + 1)
        places = np.searchsorted(rows, ranked)
        sums[places] += 1 / (RRF_CONSTANT + ranks)
    return rows, sums


def overlap(
    rows: Ints,
    reference: Ints,
    depth: int = 10,
) -> Doubles:
    """Return the share of a reference's best documents that are among those of a ranking.

    Args:
        rows: (Q, k) rows of the ranking, -1 for no result.
        reference: (Q, m) rows of the reference.
        depth: documents of each that count.

    Returns:
        (Q,) shares; 0 for a query without a reference.
    """
    ranked = rows[:, :depth]
    best = reference[:, :depth]
    is_result = best >= 0
    is_same = best[:, :, None] == ranked[:, None, :]  # (Q, depth, depth)
    is_shared = is_same.any(axis=2) & is_result
    shared = is_shared.sum(axis=1)
    results = is_result.sum(axis=1)
    shares: Doubles = shared / np.maximum(results, 1)
    return shares


def blocks(queries: dict[str, str], size: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the ids and texts of ``size`` queries at a time."""
    ids = list(queries)
    texts = list(queries.values())
    for start in range(0, len(ids), size):
        block = slice(start, start + size)
        yield ids[block], texts[block]
