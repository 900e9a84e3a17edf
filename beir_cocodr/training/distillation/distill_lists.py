"""Lists of distillation: which queries a round takes, and which documents their lists hold."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from beir_cocodr.arrays import Array, Floats, Ints
from beir_cocodr.distributed import gather, on_main, rank, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.hybrid.fusion import Hybrid
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.training.distillation.teacher_scores import EMPTY
from beir_cocodr.training.distillation.teachers import Teacher, scored_rows
from beir_cocodr.training.options import DistillOptions

#: Counts of :func:`count_lists`.
LIST_COUNTS = ("drawn", "of_one_document", "all_tied")
log = logging.getLogger(__name__)

_NO_ROWS = np.empty(0, np.int64)

# Queries searched for at a time; their results are all of a search that is held.
_QUERY_BLOCK = 10_000


def round_queries(
    seed: int,
    number: int,
    size: int,
    queries: int,
) -> Ints:
    """Return (size,) numbers below ``queries`` for a round, each once before any again.

    Args:
        seed: with the number of the round it gives their random order.
        number: the round.
        size: how many.
        queries: the number of training queries.
    """
    turns = math.ceil(size / queries)
    drawn = []
    for turn in range(turns):
        rng = np.random.default_rng((seed, number, turn))
        drawn.append(rng.permutation(queries))
    numbers = np.concatenate(drawn)[:size]
    return numbers.astype(np.int64)


def draw_list(
    anchors: Ints,
    bm25: Ints,
    hard: Ints,
    options: DistillOptions,
    rng: np.random.Generator,
    easy: Ints = _NO_ROWS,
) -> Ints:
    """Draw a query's D_q: its anchors (relevant documents), and documents of BM25 and the student.

    What BM25 gave is not drawn again from ``hard``. Where the lists overlap or run short, the
    places of one are filled from the other.

    Args:
        anchors: (p,) corpus rows, at least one.
        bm25: candidates of BM25, without anchors.
        hard: candidates of the student, without anchors.
        options: how many of each.
        rng: draws them.
        easy: rows that were drawn from the whole corpus, for the last ``m_easy`` places.

    Returns:
        (n,) rows, no row twice, :data:`EMPTY` in places that nothing is left for.

    References:
        MRL, section 4.2.
    """
    kept = anchors
    if len(anchors) > options.positives:
        kept = rng.choice(anchors, options.positives, False)
    first = rng.permutation(bm25)
    second = rng.permutation(np.setdiff1d(hard, first[: options.m_bm25]))
    # The wanted ones first, then the rest of both lists; each once.
    parts = (
        first[: options.m_bm25],
        second[: options.m_hard],
        second[options.m_hard :],
        first[options.m_bm25 :],
    )
    others = list(dict.fromkeys(np.concatenate(parts).tolist()))
    others = others[: options.m_bm25 + options.m_hard]
    drawn = np.full(options.list_size, EMPTY, np.int64)
    drawn[: len(kept)] = kept
    end_of_others = options.positives + len(others)
    drawn[options.positives : end_of_others] = others
    if options.m_easy:
        is_drawn = np.isin(easy, drawn)
        last = easy[~is_drawn][: options.m_easy]
        easy_places = drawn[-options.m_easy :]
        easy_places[: len(last)] = last
    return drawn


def draw_easy(
    known: Ints, documents: int, options: DistillOptions, rng: np.random.Generator
) -> Ints:
    """Draw different rows from the whole corpus, more than ``m_easy`` as lists may have some.

    Args:
        known: rows that are not drawn.
        documents: documents of the corpus.
        options: how many are needed.
        rng: draws them.
    """
    count = min(documents, 2 * options.list_size + len(known))
    rows: Ints = rng.choice(documents, count, replace=False)
    is_known = np.isin(rows, known)
    return rows[~is_known]


@dataclass(frozen=True)
class ListCounts:
    """Counts of lists.

    Attributes:
        drawn: all of them.
        of_one_document: lists of a single document.
        all_tied: lists of several documents that the teacher scores alike.
    """

    drawn: int
    of_one_document: int
    all_tied: int

    @property
    def without_order(self) -> int:
        """Return the lists that say only that their documents come before others."""
        return self.of_one_document + self.all_tied


def count_lists(scores: Floats) -> ListCounts:
    """Count how many lists hold an order to learn.

    Args:
        scores: (S, n) scores of the teacher, −inf in empty places.

    Raises:
        InputError: No list holds an order.
    """
    filled = scores > -np.inf
    lengths = filled.sum(axis=1)
    lowest = np.where(filled, scores, np.inf).min(axis=1)
    highest = scores.max(axis=1)
    is_tied = (lengths > 1) & (lowest == highest)
    counts = ListCounts(
        drawn=len(scores),
        of_one_document=int((lengths == 1).sum()),
        all_tied=int(is_tied.sum()),
    )
    summary = (
        f"of {len(scores)} lists, {counts.of_one_document} have one document and in "
        f"{counts.all_tied} the teacher scores all documents alike"
    )
    if counts.without_order == len(scores):
        raise InputError(
            f"there is no order to learn: {summary}; choose another teacher, or more candidates"
        )
    if counts.without_order:
        log.warning("%s; these teach no order", summary)
    return counts


class CandidateRanker(Protocol):
    """Ranks documents for queries: an encoder over the corpus, or its fusion with BM25."""

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        ...


def best_others(
    ranker: CandidateRanker,
    queries: Mapping[str, str],
    known: Mapping[str, Ints],
    count: int,
    teacher: Teacher | None = None,
) -> dict[str, Array]:
    """Return query id to its ``count`` best corpus rows without the known ones.

    All processes of a run call this, each for its share.

    Args:
        ranker: ranks the corpus.
        queries: query id to text.
        known: query id to the rows that are left out.
        count: most rows of a query.
        teacher: rows that it cannot score are left out, too.

    Returns:
        Query id to int32 rows, best first.
    """
    deepest = count + max(len(rows) for rows in known.values())
    names = list(queries)
    others_of: dict[str, Array] = {}
    queries_of_process = math.ceil(len(names) / world_size())
    size = max(1, min(_QUERY_BLOCK, queries_of_process))
    starts = range(0, len(names), size)
    for start in starts[rank() :: world_size()]:
        block = {name: queries[name] for name in names[start : start + size]}
        ranking = ranker.search(block, deepest)
        for name, rows in zip(block, ranking.rows, strict=True):
            is_result = rows >= 0
            is_known = np.isin(rows, known[name])
            others = rows[is_result & ~is_known]
            if teacher is not None:
                others = scored_rows(teacher, name, others)
            others_of[name] = others[:count].astype(np.int32)
    for part in gather(others_of):
        others_of |= part
    return {name: others_of[name] for name in names}


def fused_anchors(
    hybrid: Hybrid, queries: Mapping[str, str], relevant: Mapping[str, Ints], count: int
) -> dict[str, Array]:
    """Return query id to the best documents of a fusion, without the relevant ones.

    Raises:
        InputError: A query has none.
    """
    anchors = best_others(hybrid, queries, relevant, count)

    def check() -> None:
        without = [name for name, rows in anchors.items() if not len(rows)]
        if without:
            raise InputError(
                f"every document is relevant to query {without[0]!r}, so there is nothing to rank; "
                "leave the query out, or add documents"
            )

    on_main(check)
    return anchors
