"""How near the two texts of a positive pair are."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """‖f(x) − f(x⁺)‖² of every pair, on the unit sphere: 0 for the same direction, 4 for opposite ones.

    Its mean over pairs is ℓ_align, the smaller the better aligned.

    Args:
        first, second: (n, d) embeddings of any length; row i of both is a positive pair.

    Returns:
        (n,) float64.

    Source: COCO-DR, appendix H; Wang and Isola, Understanding Contrastive Representation Learning through
    Alignment and Uniformity on the Hypersphere, 2020 (α = 2).
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"pairs need two tensors of one shape (n, d), not {first.shape} and {second.shape}")
    return (F.normalize(first.double(), dim=1) - F.normalize(second.double(), dim=1)).square().sum(dim=1)
