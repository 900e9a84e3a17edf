"""The documents that a query's teacher and student compare."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.training.distill_options import DistillOptions

#: Stands where a query has fewer documents than the list has places.
EMPTY = -1
LIST_COUNTS = ("drawn", "of_one_document", "all_tied")

log = logging.getLogger(__name__)


def round_queries(seed: int, number: int, size: int, queries: int) -> npt.NDArray[np.int64]:
    """(size,) numbers below ``queries``, which a round trains on: in random order by (seed, round), each once
    before any comes again."""
    turns = range(-(-size // queries))
    drawn = [np.random.default_rng((seed, number, turn)).permutation(queries) for turn in turns]
    return np.concatenate(drawn)[:size].astype(np.int64)


def draw_list(
    anchors: npt.NDArray[np.int64],
    bm25: npt.NDArray[np.int64],
    hard: npt.NDArray[np.int64],
    options: DistillOptions,
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """One query's D_q: its anchors (relevant documents), some of BM25's best and some of the student's own.

    Args:
        anchors: (p,) corpus rows, at least one.
        bm25, hard: candidates, no anchor among them; what BM25 gave is not drawn again from ``hard``.

    Returns:
        (n,) rows, no one twice, :data:`EMPTY` in places that nothing is left for. Where the lists overlap or
        run short, the places of one are filled from the other.

    Source: MRL, section 4.2.
    """
    kept = anchors if len(anchors) <= options.positives else rng.choice(anchors, options.positives, False)
    first = rng.permutation(bm25)
    second = rng.permutation(np.setdiff1d(hard, first[: options.m_bm25]))
    chosen = np.concatenate([first[: options.m_bm25], second[: options.m_hard]])
    wanted = options.m_bm25 + options.m_hard
    rest = np.concatenate([second[options.m_hard :], first[options.m_bm25 :]])
    rest = rest[~np.isin(rest, chosen)]
    chosen = np.concatenate([chosen, list(dict.fromkeys(rest.tolist()))[: wanted - len(chosen)]]).astype(
        np.int64
    )
    drawn = np.full(options.list_size, EMPTY, np.int64)
    drawn[: len(kept)] = kept
    drawn[options.positives : options.positives + len(chosen)] = chosen
    return drawn


def count_lists(scores: npt.NDArray[np.float32]) -> dict[str, int]:
    """How many lists hold an order to learn: (S, n) teacher scores, −inf in empty places, to counts by name.

    A list of one document, or of documents that the teacher scores alike, says nothing but that its
    documents come before those of other queries.

    Raises:
        InputError: no list holds an order.
    """
    lengths = (scores > -np.inf).sum(axis=1)
    lowest = np.where(scores > -np.inf, scores, np.inf).min(axis=1)
    single, tied = lengths == 1, (lengths > 1) & (lowest == scores.max(axis=1))
    counts = dict(zip(LIST_COUNTS, (len(scores), int(single.sum()), int(tied.sum())), strict=True))
    without = counts["of_one_document"] + counts["all_tied"]
    told = (
        f"of {len(scores)} lists, {counts['of_one_document']} have one document and in {counts['all_tied']} "
        "the teacher scores all documents alike"
    )
    if without == len(scores):
        raise InputError(f"there is no order to learn: {told}; take another teacher, or more candidates")
    if without:
        log.warning("%s; these teach no order", told)
    return counts
