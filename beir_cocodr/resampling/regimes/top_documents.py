"""The best documents of each query, over a corpus that is scored piece by piece."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.ranking import Ranking, best_rows


class TopDocuments:
    """Keeps the ``top_k`` best of what it has been shown.

    Args:
        queries: (Q,) query ids.
        top_k: documents a query.
        ties: (N,) tie ranks of the corpus; among equal scores the smaller comes first.
    """

    def __init__(self, queries: list[str], top_k: int, ties: npt.NDArray[np.int64]) -> None:
        self.queries, self.top_k, self.ties = queries, min(top_k, len(ties)), ties
        self._rows = [np.zeros(0, np.int64) for _ in queries]
        self._scores = [np.zeros(0, np.float32) for _ in queries]

    def add(self, query: int, rows: npt.NDArray[np.int64], scores: npt.NDArray[np.float32]) -> None:
        """Show (n,) further corpus rows with their scores for the query of that number.

        Raises:
            InputError: a score is NaN or infinite.
        """
        if not np.isfinite(scores).all():
            raise InputError(
                f"query {self.queries[query]!r} has a score that is NaN or infinite; the model is broken, "
                "as after training with too high a learning rate"
            )
        rows = np.concatenate([self._rows[query], rows])
        scores = np.concatenate([self._scores[query], scores.astype(np.float32, copy=False)])
        best = best_rows(scores, self.ties[rows], self.top_k)
        self._rows[query], self._scores[query] = rows[best], scores[best]

    def ranking(self) -> Ranking:
        """What is kept; queries that were shown fewer documents have fewer."""
        rows = np.full((len(self.queries), self.top_k), -1, np.int64)
        scores = np.zeros((len(self.queries), self.top_k), np.float32)
        for i, (found, values) in enumerate(zip(self._rows, self._scores, strict=True)):
            rows[i, : len(found)], scores[i, : len(found)] = found, values
        return Ranking(self.queries, scores, rows)
