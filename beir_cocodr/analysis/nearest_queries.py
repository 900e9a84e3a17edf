"""Target queries beside the source queries that a model takes for most alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def nearest_queries(
    shown: Sequence[str],
    target: Mapping[str, str],
    target_embeddings: npt.NDArray[np.float32],
    source: Mapping[str, str],
    source_embeddings: npt.NDArray[np.float32],
    count: int = 1,
) -> list[dict[str, Any]]:
    """For each of some target queries, the source queries of the largest dot product.

    Args:
        shown: ids of target queries.
        target, source: id -> text, in the order of the embeddings.
        target_embeddings, source_embeddings: (T, d) and (Q, d).
        count: source queries for each; ties go to the earlier one.

    Returns:
        One record a target query: its id and text, and under "nearest" id, text, ``row`` among the source
        queries and similarity of each source query.

    Source: COCO-DR, Table 4.
    """
    rows = {query: row for row, query in enumerate(target)}
    ids, texts = list(source), list(source.values())
    found = []
    for query in shown:
        scores = source_embeddings @ target_embeddings[rows[query]]  # (Q,)
        best = np.argsort(-scores, kind="stable")[:count].tolist()
        nearest = [
            {"query_id": ids[i], "query": texts[i], "row": i, "similarity": float(scores[i])} for i in best
        ]
        found.append({"query_id": query, "query": target[query], "nearest": nearest})
    return found
