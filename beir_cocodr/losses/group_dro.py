"""Group DRO: the clusters with the largest losses gain weight, online."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from beir_cocodr.losses.cluster_loss import ClusterLoss


def group_dro_weights(weights: Tensor, losses: Tensor, eta: float = 0.01) -> Tensor:
    """q_k ∝ q_k exp(η ℓ_k), sum 1.

    Args:
        weights: q, (K,).
        losses: ℓ, (K,), 0 where absent.
        eta: step size (paper: 0.01).

    Source: Sagawa et al., 2020, Algorithm 1.
    """
    return torch.softmax(weights.log() + eta * losses, dim=0)


class GroupDROLoss(ClusterLoss):
    """Group DRO: the loss is Σ_k q_k ℓ_k, with q moved by this step's losses first.

    Args:
        model, n_clusters, ...: as for :class:`ClusterLoss`.
        eta: step size of the weights.

    References:
        Sagawa et al., Distributionally robust neural networks for group shifts, 2020.
    """

    def __init__(self, model: Any, n_clusters: int, eta: float = 0.01, **settings: Any) -> None:
        super().__init__(model, n_clusters, **settings)
        self.eta = eta
        self.weights /= n_clusters

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        self.weights.copy_(group_dro_weights(self.weights, losses, self.eta))

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        return torch.where(counts > 0, self.weights, 0.0)
