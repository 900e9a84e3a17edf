"""Negative KL divergence between diagonal normal distributions, as a dot product of vectors."""

from typing import Literal

import torch
from torch import Tensor

#: "exact" is the divergence. "paper" is Eq. 10 as printed, with a ratio of products in the place of
#: a sum of ratios.
Formula = Literal["exact", "paper"]

# Products of the paper's formula saturate at e^±30 each: their ratio and its gradient still fit
# into float32.
_MAX_EXPONENT = 30.0


def flatten_query(
    mean: Tensor,
    variance: Tensor,
    formula: Formula = "exact",
    log_reference: float = 0.0,
) -> Tensor:
    """Flatten a query to q = [1, σ_q² + μ_q², μ_q], so that −2·KL(Q‖D) = q·d + Σ_i log σ_qi² + k.

    The last two terms are the same for all documents, and d is :func:`flatten_document`. The vector
    is computed in float64, because q·d is a small difference of large sums.

    Args:
        mean: μ_q, (..., k).
        variance: σ_q² > 0, (..., k).
        formula: "paper" makes q = [1, Π σ_qi², μ_q², μ_q] of Eq. 14, with q·d twice Eq. 10.
        log_reference: For "paper", a number to subtract from Σ log σ_i² of queries and documents
            alike, so that products of hundreds of variances stay within the range of float32
            (beyond e^±30 they saturate).

    Returns:
        (..., 2k + 1), or (..., 2k + 2) for "paper", in float64 where the mean is, else in float32.

    References:
        MRL, Eq. 13 and 14, with the trace of Eq. 9.
    """
    m = _wide(mean)
    v = _wide(variance)
    one = torch.ones_like(m[..., :1])
    if formula == "exact":
        parts = [one, v + m**2, m]
    else:
        parts = [one, _product(v, log_reference), m**2, m]
    dtype = torch.promote_types(mean.dtype, torch.float32)
    return torch.cat(parts, dim=-1).to(dtype)


def flatten_document(
    mean: Tensor,
    variance: Tensor,
    formula: Formula = "exact",
    log_reference: float = 0.0,
) -> Tensor:
    """Flatten a document to d = [γ_d, −1/σ_d², 2μ_d/σ_d²].

    The prior of the document is γ_d = −Σ_i (log σ_di² + μ_di²/σ_di²).

    Args:
        mean: μ_d, (..., k).
        variance: σ_d² > 0, (..., k).
        formula: "paper" makes d = [γ_d, −1/Π σ_di², −1/σ_d², 2μ_d/σ_d²] of Eq. 14.
        log_reference: See :func:`flatten_query`.

    Returns:
        A vector of the shape and type of :func:`flatten_query`.

    References:
        MRL, Eq. 13 and 14.
    """
    m = _wide(mean)
    v = _wide(variance)
    terms = v.log() + m**2 / v
    prior = -terms.sum(dim=-1, keepdim=True)
    parts = [prior, -1 / v, 2 * m / v]
    if formula == "paper":
        parts.insert(1, -1 / _product(v, log_reference))
    dtype = torch.promote_types(mean.dtype, torch.float32)
    return torch.cat(parts, dim=-1).to(dtype)


def _product(variance: Tensor, log_reference: float) -> Tensor:
    """Return (..., 1) products Π σ_i², divided by e^``log_reference``."""
    volume = variance.log().sum(dim=-1, keepdim=True) - log_reference
    return volume.clamp(-_MAX_EXPONENT, _MAX_EXPONENT).exp()


def _wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, or in float32 on Apple's GPUs, which have nothing wider."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)
