"""Each example's own loss: its positive against its hard negatives, or against a whole batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def triplet_losses(queries: Tensor, documents: Tensor, scale: float = 1.0, normalize: bool = False) -> Tensor:
    """−log softmax of each query's positive over its own positive and negatives.

    Args:
        queries: (B, d).
        documents: (B, 1 + n, d), the positive first.
        scale: factor on the scores (paper: 1).
        normalize: compare by cosine instead of dot product.

    Returns:
        (B,) losses, float32 or wider. An example's loss depends on its own texts alone.

    Source: COCO-DR, Eq. 2; ANCE (Xiong et al., 2021).
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries, documents = _prepared(queries, normalize), _prepared(documents, normalize)
        scores = scale * torch.einsum("bd,bnd->bn", queries, documents)  # (B, 1 + n)
        return -scores.log_softmax(dim=1)[:, 0]


def in_batch_losses(
    queries: Tensor, candidates: Tensor, targets: Tensor, scale: float = 1.0, normalize: bool = False
) -> Tensor:
    """−log softmax of each query's positive over all documents of a batch (InfoNCE).

    Args:
        queries: (B, d).
        candidates: (M, d), the documents of the whole batch.
        targets: (B,) rows of ``candidates`` that hold the positives.
        scale, normalize: as above.

    Returns:
        (B,) losses, float32 or wider.
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries, candidates = _prepared(queries, normalize), _prepared(candidates, normalize)
        return F.cross_entropy(scale * (queries @ candidates.T), targets, reduction="none")


def _prepared(vectors: Tensor, normalize: bool) -> Tensor:
    vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
    return F.normalize(vectors, dim=-1) if normalize else vectors
