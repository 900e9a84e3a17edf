"""A weighting of your own in fine-tuning: a power of the last loss of each cluster.

The script is the command line with one more weighting:

python examples/custom_weighting.py finetune --dataset apidocs/numpy --model minilm \
    --weighting power --set power=2 --clusters 8 --max-steps 20 --output runs/power
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from beir_cocodr.losses import ClusterLoss
from beir_cocodr.models.spec import option
from beir_cocodr.training.finetuning.weightings import WEIGHTINGS, ClusterOptions, Weighting


class PowerLoss(ClusterLoss):
    """Σ_k c_k ℓ_k with c_k ∝ n_k w_k and w_k = ℓ_k^power of the last step that had the cluster.

    With power 0 it is the plain mean over examples.
    """

    def __init__(self, model: Any, n_clusters: int, power: float = 1.0, **settings: Any) -> None:
        """Start with equal weights."""
        super().__init__(model, n_clusters, **settings)
        self.power = power

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        """Move the weights by (K,) losses and (K,) numbers of examples, 0 where absent."""
        moved = losses.clamp(min=0) ** self.power
        self.weights.copy_(torch.where(counts > 0, moved, self.weights))

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        """Return (K,) the factor c_k of each cluster's loss."""
        factors = self.weights * counts
        return factors / factors.sum()


@dataclass(frozen=True)
class PowerOptions(ClusterOptions):
    """Options of the weighting, beside those of the clusters.

    Args:
        power: exponent of a cluster's last loss.
    """

    power: float = option(1.0, min=0)


WEIGHTINGS["power"] = Weighting(
    build=f"{__name__}:PowerLoss",
    help="more weight to clusters with a large last loss",
    options=PowerOptions,
    citations=("@misc{power, title = {Clusters by a Power of Their Loss}, year = {2026}}",),
)


if __name__ == "__main__":
    from beir_cocodr.cli.__main__ import main

    main()
