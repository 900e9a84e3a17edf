"""iDRO: implicit distributionally robust optimisation over clusters of source queries."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from beir_cocodr.errors import InputError
from beir_cocodr.losses.cluster_loss import ClusterLoss

# Least weight in the mode "paper", far below what its test against a numerical minimiser can see.
_LEAST = 1e-8
Mode = Literal["stable", "published", "paper"]
Absent = Literal["reset", "keep"]


def idro_weights(
    weights: Tensor,
    losses: Tensor,
    counts: Tensor,
    gram: Tensor,
    alpha: float = 0.25,
    rho: float = 0.05,
    ema: float = 0.1,
    eps: float = 0.01,
    absent: Absent = "keep",
) -> Tensor:
    """The cluster weights after one step, as the published code moves them.

    R_ij = (ℓ_i ℓ_j)^α cos(g_i, g_j), e_j = ρ mean_i R_ij, and h_j ← h_j^ema exp(e_j) for the clusters of the
    batch, so a cluster whose gradient agrees with those of lossy clusters gains.

    Args:
        weights: h, (K,).
        losses: ℓ, (K,), 0 where absent.
        counts: n, (K,) examples in the batch.
        gram: (K, K) inner products of the clusters' gradients, 0 where absent.
        alpha, rho, ema, eps: as published.
        absent: "reset" as published: absent clusters fall to ``eps`` and the present ones share 1. "keep":
            absent clusters keep their weight and the present ones share what they had. Where all are present
            the two agree.

    Returns:
        (K,), at least ``eps`` each, so the sum may pass 1.

    Source: COCO-DR, section 4.2, and its published code.
    """
    present = counts > 0
    norms = gram.diagonal().clamp(min=0).sqrt() + 1e-12  # each gradient g is divided by |g| + 1e-12
    cosine = gram / (norms[:, None] * norms)
    powers = losses.clamp(min=0) ** alpha
    exponent = rho * (powers[:, None] * powers * cosine).sum(dim=0) / len(weights)
    exponent = torch.where(present, exponent, 0.0)
    moved = torch.where(present, weights**ema * torch.exp(exponent - exponent.max()), 0.0)
    moved = moved / moved.sum()
    if absent == "keep":
        before = weights / weights.sum()
        moved = torch.where(present, moved * before[present].sum(), before)
    return moved.clamp(min=eps)


def idro_weights_in_closed_form(
    weights: Tensor, losses: Tensor, gram: Tensor, beta: float = 0.25, tau: float = 1000.0
) -> Tensor:
    """The minimiser of −Σ_i ω_i Σ_j r_ij + τ KL(ω‖ω_old) over the simplex, r_ij = (ℓ_i ℓ_j)^β ∇ℓ_i·∇ℓ_j.

    Args:
        weights: ω_old, (K,), positive; only their ratios matter.
        losses: ℓ, (K,), 0 where absent.
        gram: ∇ℓ_i·∇ℓ_j, (K, K), 0 where absent.
        beta: weight of lossy clusters.
        tau: how much the weights are held back.

    Returns:
        (K,), sum 1.

    Source: COCO-DR, Eq. 8 and 23. The outer α_i that Eq. 8 adds and the stray sum that appendix E carries
    into r are left out: without them this is the minimiser.
    """
    powers = losses.clamp(min=0) ** beta
    gains = (powers[:, None] * powers * gram).sum(dim=1)
    return torch.softmax(weights.log() + gains / tau, dim=0)


class IDROLoss(ClusterLoss):
    """iDRO: clusters are weighted by how far a step along their gradient lowers all clusters' losses.

    The loss of a step uses the weights from before it, and its backward moves them: :func:`idro_weights`
    in the modes "stable" and "published", :func:`idro_weights_in_closed_form` in the mode "paper".

    Args:
        model, n_clusters, ...: as for :class:`ClusterLoss`.
        mode: "published" is the released code bit for bit: ``absent="reset"``, loss Σ_k h_k ℓ_k, weights 1 at
            first. "stable" (default) is the same update with ``absent="keep"`` and
            ``renormalize_present``, because small batches hold few of the clusters and the sum of their
            weights swings. "paper": loss Σ_k α_k ω_k ℓ_k with α_k ∝ ℓ_k^β, mean 1 over the clusters of the
            batch, and Eq. 23 with weights of at least 1e-8. Its gradients are raw: where they are large the
            default τ lets one cluster take nearly all the weight, so look at the log and raise τ.
        alpha, rho, ema, eps: of the published update (0.25, 0.05, 0.1, 0.01).
        beta, tau: of the paper's; τ is K/ρ by default, 1,000 with the published settings.
        absent: what becomes of absent clusters, see :func:`idro_weights`; None is the mode's own.
        renormalize_present: divide the factors of the clusters of a batch by their sum; None is the mode's
            own.

    Raises:
        InputError: an unknown mode, or settings that "published" does not have.

    References:
        COCO-DR, section 4.2, Eq. 4 to 8, and appendix E.
    """

    needs_gram = True

    def __init__(
        self,
        model: Any,
        n_clusters: int,
        mode: Mode = "stable",
        alpha: float = 0.25,
        rho: float = 0.05,
        ema: float = 0.1,
        eps: float = 0.01,
        beta: float = 0.25,
        tau: float | None = None,
        absent: Absent | None = None,
        renormalize_present: bool | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, n_clusters, **settings)
        if mode not in get_args(Mode):
            raise InputError(f"unknown iDRO mode {mode!r}; there are {', '.join(get_args(Mode))}")
        if absent not in (None, *get_args(Absent)):
            raise InputError(f"absent is {absent!r}; there are {', '.join(get_args(Absent))}")
        if mode == "published" and (absent == "keep" or renormalize_present):
            raise InputError("mode published resets absent clusters and keeps sums; the mode stable does not")
        if mode == "paper" and absent == "reset":
            raise InputError("mode paper keeps the weights of absent clusters")
        self.mode, self.alpha, self.rho, self.ema, self.eps = mode, alpha, rho, ema, eps
        self.beta, self.tau = beta, n_clusters / rho if tau is None else tau
        self.absent: Absent = absent or ("reset" if mode == "published" else "keep")
        self.renormalize_present = mode == "stable" if renormalize_present is None else renormalize_present
        if mode == "paper":
            self.weights /= n_clusters

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        present = counts > 0
        factors = torch.where(present, self.weights, 0.0)
        if self.mode == "paper":
            powers = losses.clamp(min=0) ** self.beta
            mean = powers[present].mean()
            factors = factors * (powers / mean if mean > 0 else 1.0)
        return factors / factors.sum() if self.renormalize_present else factors

    def update(self, losses: Tensor, counts: Tensor, gram: Tensor) -> None:
        if self.mode == "paper":
            weights = idro_weights_in_closed_form(self.weights, losses, gram, self.beta, self.tau)
            # Raw gradients can be large, and a weight that has become 0 would never grow again.
            weights = weights.clamp(min=_LEAST)
        else:
            weights = idro_weights(
                self.weights, losses, counts, gram, self.alpha, self.rho, self.ema, self.eps, self.absent
            )
        self.weights.copy_(weights)
