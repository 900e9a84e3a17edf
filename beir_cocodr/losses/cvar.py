"""CVaR-style greedy DRO: only the worst share of the clusters counts fully."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beir_cocodr.losses.cluster_loss import ClusterLoss

# Weight of a new value in the moving averages.
_NEW = 0.1


def cvar_weights(losses: Tensor, sizes: Tensor, alpha: float = 0.5, eps: float = 0.01) -> Tensor:
    """Go through the clusters from the largest loss on, and give 1/α until a share α of all is used up.

    Args:
        losses: (K,) moving averages of cluster losses.
        sizes: (K,) moving averages of cluster sizes.
        alpha: the share, by sizes, that counts fully.
        eps: weight of the clusters beyond it, and the least of the one on the boundary.

    Returns:
        (K,). The cluster on the boundary gets what is left of the share over its own share, at least ``eps``.

    Source: Oren et al., 2019; Zhou et al., 2021; the rival of COCO-DR's section 6.
    """
    order = losses.argsort(descending=True, stable=True)
    shares = (sizes / sizes.sum())[order]
    reached = shares.cumsum(0)
    ranked = torch.full_like(losses, eps).masked_fill(reached < alpha, 1 / alpha)
    boundary = int((reached < alpha).sum())
    if boundary < len(ranked):
        used = shares[:boundary].sum()
        ranked[boundary] = ((1 - used / alpha) / shares[boundary]).clamp(min=eps)
    return torch.empty_like(ranked).index_copy_(0, order, ranked)


class CVaRLoss(ClusterLoss):
    """Greedy DRO: the loss is Σ_k h_k Σ_{i in k} ℓ_i / B, with h from moving averages of this and past steps.

    Args:
        model, n_clusters, ...: as for :class:`ClusterLoss`.
        cvar_alpha: the share that counts fully.
        eps: weight of the rest.

    References:
        Oren et al., Distributionally robust language modeling, 2019; Zhou et al., Distributionally robust
        multilingual machine translation, 2021.
    """

    average_losses: Tensor
    average_counts: Tensor

    def __init__(
        self, model: Any, n_clusters: int, cvar_alpha: float = 0.5, eps: float = 0.01, **settings: Any
    ) -> None:
        super().__init__(model, n_clusters, **settings)
        self.cvar_alpha, self.eps = cvar_alpha, eps
        self.register_buffer("average_losses", torch.zeros_like(self.weights))
        self.register_buffer("average_counts", torch.ones_like(self.weights))

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        moved = self.average_losses + _NEW * (losses - self.average_losses)
        self.average_losses.copy_(torch.where(counts > 0, moved, self.average_losses))
        self.average_counts += _NEW * (counts - self.average_counts)
        self.weights.copy_(cvar_weights(self.average_losses, self.average_counts, self.cvar_alpha, self.eps))

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        return self.weights * counts / counts.sum()
