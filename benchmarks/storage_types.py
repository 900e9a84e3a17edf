"""What fp16 and int8 do to the ranking of MRL vectors, folded and not."""

from __future__ import annotations

from typing import Any

import numpy as np


def storage_types(documents: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    """Share of the exact top 10 that stays when all but the prior is stored in fp16 or int8.

    int8 is at one scale for the whole corpus. The prior, γ or γ', is float32; the folding's mean
    query is of other queries than those judged.
    """
    from beir_cocodr.models.kl import Folding

    judged = queries[1::2][:500].astype(np.float64)
    folding = Folding.fit(queries[::2], documents)
    exact = top(judged @ documents.astype(np.float64).T)
    found: dict[str, Any] = {}
    for name, q, d in (
        ("not folded", judged, documents.astype(np.float64)),
        (
            "folded",
            folding.transform_queries(judged, np.float64),
            folding.transform_documents(documents),
        ),
    ):
        prior, rest = d[:, 0].astype(np.float32), d[:, 1:]
        scale = float(np.abs(rest).max()) / 127
        stored = {"fp16": rest.astype(np.float16), "int8": np.round(rest / scale).astype(np.int8)}
        reference = q @ d.astype(np.float64).T
        for kind, small in stored.items():
            scores = (
                prior + q[:, 1:] @ (small.astype(np.float64) * (scale if kind == "int8" else 1)).T
            )
            shared = [
                len(np.intersect1d(a, b)) / 10 for a, b in zip(top(scores), exact, strict=True)
            ]
            found.setdefault(kind, {})[name] = {
                "overlap_top_10": float(np.mean(shared)),
                "root_mean_square_error": float(np.sqrt(np.mean((scores - reference) ** 2))),
            }
    return found


def top(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :10]
