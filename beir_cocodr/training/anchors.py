"""What a query's list is built around where its only label is trivial."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.fusion import Hybrid

# Queries fused at a time; their results are all that is held of a search.
_QUERY_BLOCK = 10_000


def fused_anchors(
    hybrid: Hybrid,
    queries: Mapping[str, str],
    relevant: Mapping[str, npt.NDArray[np.int64]],
    count: int,
) -> dict[str, npt.NDArray[np.int64]]:
    """The ``count`` best documents of the fusion for each query, its relevant ones left out.

    Args:
        hybrid: BM25 and an encoder over the corpus.
        queries: id to text.
        relevant: query id to corpus rows.
        count: of documents a query.

    Returns:
        Query id to (count,) corpus rows, best first; fewer where the corpus has no more.

    Raises:
        InputError: the corpus has nothing but a query's relevant documents.
    """
    most = max(len(rows) for rows in relevant.values())
    names, found = list(queries), {}
    for start in range(0, len(names), _QUERY_BLOCK):
        block = {name: queries[name] for name in names[start : start + _QUERY_BLOCK]}
        for name, rows in zip(block, hybrid.search(block, count + most).rows, strict=True):
            found[name] = rows[(rows >= 0) & ~np.isin(rows, relevant[name])][:count]
            if not len(found[name]):
                raise InputError(f"every document is relevant to query {name!r}, so there is nothing to rank")
    return found
