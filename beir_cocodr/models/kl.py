"""Negative KL divergence between diagonal normal distributions, and its form as a dot product."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

#: "exact": the divergence. "paper": Eq. 10 as printed, a ratio of products where a sum of ratios belongs.
Formula = Literal["exact", "paper"]

# Products of the paper's formula saturate at e^±30 each: their ratio and its gradient still fit into float32.
_MAX_EXPONENT = 30.0


def negative_kl(
    query_mean: Tensor,
    query_variance: Tensor,
    document_mean: Tensor,
    document_variance: Tensor,
    formula: Formula = "exact",
) -> Tensor:
    """−KL(Q‖D) = −½ Σ_i [log σ_di² − log σ_qi² + (σ_qi² + (μ_qi − μ_di)²) / σ_di² − 1].

    Args:
        query_mean, query_variance: μ_q and σ_q² > 0, (..., k).
        document_mean, document_variance: μ_d and σ_d² > 0, (..., k); the leading dimensions broadcast.
        formula: "paper" gives Eq. 10 instead, for ablation:
            −½ [Σ log σ_di² + Π σ_qi² / Π σ_di² + Σ (μ_qi − μ_di)² / σ_di²], its ratio at most e^60.

    Returns:
        (...), in the arguments' type.

    Source: MRL, Eq. 9; Eq. 10 for "paper".

    Example:
        >>> import torch
        >>> from beir_cocodr.models.kl import negative_kl
        >>> mean, variance = torch.zeros(2), torch.ones(2)
        >>> float(negative_kl(mean, variance, mean + 1, variance))
        -1.0
    """
    distance = (query_mean - document_mean) ** 2 / document_variance
    if formula == "paper":
        volume_q, volume_d = query_variance.log().sum(dim=-1), document_variance.log().sum(dim=-1)
        ratio = (volume_q - volume_d).clamp(max=2 * _MAX_EXPONENT).exp()
        return -0.5 * (volume_d + ratio + distance.sum(dim=-1))
    ratios = query_variance / document_variance
    return -0.5 * (ratios - ratios.log() - 1 + distance).sum(dim=-1)


def flatten_query(mean: Tensor, variance: Tensor, formula: Formula = "exact", log_reference: float = 0.0) -> Tensor:
    """q = [1, σ_q² + μ_q², μ_q], so that −2·KL(Q‖D) = q·d + Σ_i log σ_qi² + k.

    The last two terms are the same for all documents; d is that of :func:`flatten_document`. Built in float64 whatever
    comes in, because q·d is a small difference of large sums.

    Args:
        mean, variance: μ_q and σ_q² > 0, (..., k).
        formula: "paper" gives q = [1, Π σ_qi², μ_q², μ_q] of Eq. 14, with q·d twice Eq. 10.
        log_reference: for "paper" only, subtracted from Σ log σ_i² of queries and documents alike, so that products of
            hundreds of variances keep within the range of float32 (beyond e^±30 they saturate).

    Returns:
        (..., 2k + 1), or (..., 2k + 2) for "paper"; float64 for float64 input, else float32.

    Source: MRL, Eq. 13 and 14, with the trace of Eq. 9.
    """
    m, v = _wide(mean), _wide(variance)
    one = torch.ones_like(m[..., :1])
    parts = [one, v + m**2, m] if formula == "exact" else [one, _product(v, log_reference), m**2, m]
    return torch.cat(parts, dim=-1).to(torch.promote_types(mean.dtype, torch.float32))


def flatten_document(mean: Tensor, variance: Tensor, formula: Formula = "exact", log_reference: float = 0.0) -> Tensor:
    """d = [γ_d, −1/σ_d², 2μ_d/σ_d²] with the document's prior γ_d = −Σ_i (log σ_di² + μ_di²/σ_di²).

    Args:
        mean, variance: μ_d and σ_d² > 0, (..., k).
        formula: "paper" gives d = [γ_d, −1/Π σ_di², −1/σ_d², 2μ_d/σ_d²] of Eq. 14.
        log_reference: as for the queries, see :func:`flatten_query`.

    Returns:
        (..., 2k + 1), or (..., 2k + 2) for "paper"; float64 for float64 input, else float32.

    Source: MRL, Eq. 13 and 14.
    """
    m, v = _wide(mean), _wide(variance)
    prior = -(v.log() + m**2 / v).sum(dim=-1, keepdim=True)
    parts = [prior, -1 / v, 2 * m / v]
    if formula == "paper":
        parts.insert(1, -1 / _product(v, log_reference))
    return torch.cat(parts, dim=-1).to(torch.promote_types(mean.dtype, torch.float32))


def _product(variance: Tensor, log_reference: float) -> Tensor:
    """(..., 1): Π σ_i² over e^``log_reference``."""
    volume = variance.log().sum(dim=-1, keepdim=True) - log_reference
    return volume.clamp(-_MAX_EXPONENT, _MAX_EXPONENT).exp()


def _wide(tensor: Tensor) -> Tensor:
    """Float64, or float32 on Apple's GPUs, which have nothing wider."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)
