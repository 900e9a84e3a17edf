"""Queries whose answer is known because they were made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.words import words

#: Depth of the measure: a pseudo-query has one relevant document, so nDCG@10 is 1 / log2(1 + its rank).
DEPTH = 10
#: The count of pseudo-queries left out because a model was trained on them.
TRAINED_ON = "queries_trained_on"


@dataclass(frozen=True)
class PseudoQueries:
    """Queries made from documents.

    Attributes:
        texts: (S,) queries.
        rows: (S,) the corpus row of the document that each has to find, no two alike.
        verbatim: mean share of a query's distinct words that its document has, as it stands in the index: 1
            where exact words give the answer away, None without queries.
        counts: what was looked at and left out.
    """

    texts: list[str]
    rows: npt.NDArray[np.int64]
    verbatim: float | None
    counts: dict[str, int]

    @property
    def queries(self) -> dict[str, str]:
        """The queries by an id of their own."""
        return {str(number): text for number, text in enumerate(self.texts)}

    def score(self, found: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """(S,) nDCG@10 from the (S, k) rows that a search found, best first, -1 for no result."""
        hits = found[:, :DEPTH] == self.rows[:, None]
        discounts = 1 / np.log2(2 + np.arange(hits.shape[1]))
        scores: npt.NDArray[np.float64] = hits @ discounts
        return scores

    def describe(self) -> dict[str, Any]:
        return {"queries": len(self.texts), "verbatim": self.verbatim, "counts": self.counts}


def verbatim_share(queries: Sequence[str], documents: Sequence[str]) -> float | None:
    """Mean share of a query's distinct words that its document has; None without queries."""
    shares = [
        len(asked & set(words(document))) / len(asked)
        for query, document in zip(queries, documents, strict=True)
        if (asked := set(words(query)))
    ]
    return float(np.mean(shares)) if shares else None
