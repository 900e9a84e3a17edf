"""The result of a search, before ids are put to rows."""

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
        found: Iterable[tuple[np.ndarray, np.ndarray]],
        ties: np.ndarray,
        top_k: int,
    ) -> Self:
        """The best of what was found for each of (Q,) queries: (n,) different rows and their
        float32 scores, in any order; ``ties`` are (N,) tie ranks of the corpus, and k = min(top_k,
        N).
        """
        ids, depth = list(queries), min(top_k, len(ties))
        scores = np.zeros((len(ids), depth), np.float32)
        rows = np.full((len(ids), depth), -1, np.int64)
        for i, (candidates, values) in enumerate(found):
            best = best_rows(values, ties[candidates], depth)
            rows[i, : len(best)], scores[i, : len(best)] = candidates[best], values[best]
        return cls(ids, scores, rows)

    def hits(
        self,
        ids: Callable[[np.ndarray], list[str]],
        drop_identical_ids: bool = False,
        depth: int | None = None,
    ) -> Iterator[tuple[str, Hits]]:
        """Each query id with its (document id, score) pairs in rank order, at most ``depth`` of
        them; ``ids``, which gives those of (n,) different rows, is asked for some queries at a
        time.
        """
        size = max(1, _HITS // max(1, self.rows.shape[1]))
        for start in range(0, len(self.queries), size):
            block = slice(start, start + size)
            there = self.rows[block] >= 0
            rows, places = _different(self.rows[block][there])
            names = np.array(ids(rows), dtype=object)[places].tolist()
            pairs = zip(names, self.scores[block][there].tolist(), strict=True)
            for query, count in zip(self.queries[block], there.sum(axis=1).tolist(), strict=True):
                hits = list(islice(pairs, count))
                if drop_identical_ids:
                    hits = [(name, value) for name, value in hits if name != query]
                yield query, hits[:depth]

    def results(
        self, documents: Documents, drop_identical_ids: bool = False, depth: int | None = None
    ) -> Results:
        """Query id to (document id, score) pairs in rank order, at most ``depth`` of them."""
        return dict(self.hits(documents.ids, drop_identical_ids, depth))


def _different(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different rows in ascending order, and the place of each row among them; many of few are not
    sorted.
    """
    if not len(rows) or (last := int(rows.max())) >= len(rows):
        return np.unique(rows, return_inverse=True)
    there = np.zeros(last + 1, bool)
    there[rows] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[rows]


class Parts(NamedTuple):
    """What the scores of documents are the sums of: an encoder's part and BM25's, (k,) each; None
    where there is none.

    A retriever that knows them has a method ``parts(query, rows, scores)``: of (k,) rows that it
    found for a query.
    """

    dense: np.ndarray | None = None
    lexical: np.ndarray | None = None


class Ranker(Protocol):
    """Anything that ranks one corpus for a batch of queries."""

    def prepare(self) -> None:
        """Make what searching needs, an index or embeddings; a second call costs nothing."""
        ...

    def search(self, queries: dict[str, str], top_k: int) -> Ranking: ...

    def describe(self) -> Json:
        """What a number depends on: text format, similarity, analyser, parameters."""
        ...


class Lexical(Ranker, Protocol):
    """A retriever that scores every document for a query: BM25, here or elsewhere."""

    def scores(self, query: str) -> np.ndarray:
        """(N,) float32, 0 where no term is shared."""
        ...


def best_rows(scores: np.ndarray, ties: np.ndarray, top_k: int) -> np.ndarray:
    """Rows of the ``top_k`` best of (N,) scores, ties by ascending (N,) ``ties``, exact at the last
    place.
    """
    if top_k < len(scores):
        last = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        candidates = np.flatnonzero(scores >= last)
    else:
        candidates = np.arange(len(scores))
    return candidates[np.lexsort((ties[candidates], -scores[candidates]))][:top_k]


#: What is added to ranks before their reciprocals are.
RRF_CONSTANT = 60


def reciprocal_ranks(lists: Sequence[Ints]) -> tuple[Ints, Doubles]:
    """Lists of rows, best first, to the (n,) rows that are in any, ascending, and their sums of 1 /
    (60 + rank).

    Source: Cormack et al., 2009.
    """
    found = np.unique(np.concatenate(lists))
    fused = np.zeros(len(found))
    for rows in lists:
        fused[np.searchsorted(found, rows)] += 1 / (RRF_CONSTANT + 1 + np.arange(len(rows)))
    return found, fused


def overlap(found: Ints, reference: Ints, depth: int = 10) -> Doubles:
    """(Q,) share of the best ``depth`` documents of the (Q, k) reference rows that are among those
    found; 0 of none.
    """
    mine, theirs = found[:, :depth], reference[:, :depth]
    wanted = theirs >= 0
    shared = ((theirs[:, :, None] == mine[:, None, :]).any(axis=2) & wanted).sum(axis=1)
    return shared / np.maximum(wanted.sum(axis=1), 1)  # type: ignore[no-any-return]


def blocks(queries: dict[str, str], size: int) -> Iterator[tuple[list[str], list[str]]]:
    """Ids and texts of ``size`` queries at a time."""
    ids, texts = list(queries), list(queries.values())
    for start in range(0, len(ids), size):
        yield ids[start : start + size], texts[start : start + size]
