"""Flattened vectors as MRL's encoders make them."""

from __future__ import annotations

import numpy as np
import torch

from beir_cocodr.models.kl import flatten_document, flatten_query


def mrl_like(
    documents: int,
    queries: int,
    k: int = 48,
    topics: int = 60,
    certainty: float = 0.0,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """(Q, 2k + 1) queries and (N, 2k + 1) documents, float32.

    A common mean far larger than what differs, topics, and variances about ln 2; queries are about
    the topics of documents. Texts differ in how certain they are by a factor with that standard
    deviation of its logarithm: it moves all variances of a text together, and its prior most.
    """
    rng = np.random.default_rng(seed)
    centre, common = 2 * rng.standard_normal(k), 0.2 * rng.standard_normal(k)
    about = 0.5 * rng.standard_normal((topics, k))

    def texts(count):
        means = (
            centre + about[rng.integers(0, topics, count)] + 0.3 * rng.standard_normal((count, k))
        )
        variances = np.log1p(np.exp(common + 0.2 * rng.standard_normal((count, k))))
        variances *= np.exp(certainty * rng.standard_normal((count, 1)))
        return torch.from_numpy(means), torch.from_numpy(variances)

    return (
        flatten_query(*texts(queries)).float().numpy(),
        flatten_document(*texts(documents)).float().numpy(),
    )


def exact_top(queries: np.ndarray, documents: np.ndarray, depth: int) -> np.ndarray:
    """(Q, depth) rows by a full sort of float64 scores."""
    scores = queries.astype(np.float64) @ documents.astype(np.float64).T
    return np.argsort(-scores, axis=1, kind="stable")[:, :depth]


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(one, other, strict=True)]))
