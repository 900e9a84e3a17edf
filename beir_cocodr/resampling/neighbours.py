"""Lists of the most similar training queries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Neighbours(NamedTuple):
    """The k most similar training queries of T test queries, best first.

    Attributes:
        scores: (T, k) float32 similarities.
        rows: (T, k) int64 rows of training queries.
    """

    scores: npt.NDArray[np.float32]
    rows: npt.NDArray[np.int64]
