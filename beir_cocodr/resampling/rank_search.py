"""Ranks of training queries, searched as deep as training sets of given sizes need."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.resampling.query_embeddings import Vectors
from beir_cocodr.resampling.similarity import nearest_ranks

log = logging.getLogger(__name__)


def ranks_for_targets(
    train: Vectors,
    test: npt.NDArray[Any],
    sizes: Sequence[int] = (),
    ks: Sequence[int] = (),
    exclude_top: int | None = None,
    method: str = "exact",
) -> tuple[npt.NDArray[np.int64], int]:
    """Best ranks from lists that are long enough for `restrain` with the same targets.

    How much lists share, and so how long they must be, is only known when they are there: those that turn out
    too short are made anew, twice as long.

    Args:
        train: (N, d) embeddings of training queries.
        test: (T, d) embeddings of test queries.
        sizes, ks, exclude_top: as for `restrain`.
        method: of the search, see `nearest`.

    Returns:
        The ranks, (N,), and the length of the lists that they come from.
    """
    count = len(train)
    guess = max((-(-2 * size // len(test)) for size in sizes), default=1)
    depth = min(count, max(guess, *ks, exclude_top or 1))
    while True:
        log.info("searching the %d nearest of %d training queries", depth, count)
        ranks = nearest_ranks(train, test, depth, method)
        if depth == count or np.count_nonzero(ranks < depth) >= max(sizes, default=0):
            return ranks, depth
        depth = min(count, 2 * depth)
