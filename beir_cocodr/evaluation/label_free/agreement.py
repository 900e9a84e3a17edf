"""How far ranked lists agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
_RRF_CONSTANT = 60


def overlap(found: Rows, reference: Rows, depth: int = 10) -> npt.NDArray[np.float64]:
    """(Q,) share of the reference's best ``depth`` documents that are among the best ``depth`` found.

    Args:
        found, reference: (Q, k) corpus rows, best first, -1 for no result.
        depth: documents looked at; where the reference has fewer, the share is of those, and 0 of none.
    """
    shares = np.zeros(len(found))
    for i, (mine, theirs) in enumerate(zip(found[:, :depth], reference[:, :depth], strict=True)):
        wanted = theirs[theirs >= 0]
        if len(wanted):
            shares[i] = np.isin(wanted, mine).mean()
    return shares


def fuse(lists: Sequence[Rows], depth: int = 10) -> Rows:
    """(Q, depth) rows by reciprocal rank fusion of (Q, k) lists, -1 for no result; ties to the smaller row.

    Source: Cormack et al., 2009.
    """
    count = len(lists[0])
    fused = np.full((count, depth), -1, np.int64)
    for i in range(count):
        ranked = [rows[i][rows[i] >= 0] for rows in lists]
        candidates = np.unique(np.concatenate(ranked))
        scores = np.zeros(len(candidates))
        for rows in ranked:
            scores[np.searchsorted(candidates, rows)] += 1 / (_RRF_CONSTANT + 1 + np.arange(len(rows)))
        # Rounded, as sums of the same ranks in another order differ in their last bits.
        best = np.argsort(-np.round(scores, 12), kind="stable")[:depth]
        fused[i, : len(best)] = candidates[best]
    return fused
