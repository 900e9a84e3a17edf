"""How evenly embeddings are spread over the sphere."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def uniformity(embeddings: Tensor, temperature: float = 2.0, block: int = 1024) -> float:
    """ℓ_uniform = log mean exp(−t ‖f(x) − f(y)‖²) over all pairs of different rows, on the unit sphere.

    0 where all texts have the same embedding, −4t where two are opposite; the smaller the more even. A row
    is not paired with itself, as in the authors' code: the mean estimates that over independent draws.

    Args:
        embeddings: (n, d) of any length, n at least 2.
        temperature: t (paper: 2).
        block: rows whose scores with all others are held at a time, so (block, n) float64 in memory.

    Raises:
        ValueError: fewer than two rows.

    Source: COCO-DR, appendix H; Wang and Isola, 2020.
    """
    rows = len(embeddings)
    if embeddings.ndim != 2 or rows < 2:
        raise ValueError(f"uniformity needs at least two rows (n, d), not shape {tuple(embeddings.shape)}")
    points = F.normalize(embeddings.double(), dim=1)
    norms = points.square().sum(dim=1)  # 1, but 0 for a vector of zeros
    parts = []
    for start in range(0, rows, block):
        part = points[start : start + block]
        distances = norms[start : start + block, None] + norms - 2 * part @ points.T  # (b, n)
        later = torch.ones_like(distances).triu(diagonal=start + 1) > 0  # each pair once
        exponents = torch.where(later, -temperature * distances, -torch.inf)
        parts.append(exponents.flatten().logsumexp(dim=0))
    return float(torch.stack(parts).logsumexp(dim=0)) - math.log(rows * (rows - 1) / 2)
