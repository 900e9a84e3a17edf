"""Batches of texts of like length, as many as a budget of tokens holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt


def token_batches(lengths: npt.NDArray[np.int64], budget: int) -> Iterator[npt.NDArray[np.int64]]:
    """Part texts into batches, longest texts first.

    Neighbours in length are padded to nearly their own length, and a batch of short texts has more of them,
    so that all batches are about as much work. The longest come first: what does not fit into memory is
    known at once.

    Args:
        lengths: (n,) tokens of each text, after truncation.
        budget: the most tokens of a batch, padding included; a text above it is a batch of its own.

    Yields:
        (b,) indices of texts; each text is in one batch.

    Raises:
        ValueError: a budget below 1.
    """
    if budget < 1:
        raise ValueError(f"a token budget is at least 1, not {budget}")
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        size = max(1, budget // longest)
        yield order[start : start + size]
        start += size
