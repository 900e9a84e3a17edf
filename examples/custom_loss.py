"""A loss of one's own in fine-tuning: clusters of queries count by a power of their last loss.

python examples/custom_loss.py --dataset apidocs/numpy --model minilm --power 1 --output runs/power
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beir_cocodr import EncoderOptions, FinetuneOptions, finetune
from beir_cocodr.losses import ClusterLoss
from beir_cocodr.training.objectives import WEIGHTINGS, Weighting


class PowerLoss(ClusterLoss):
    """Σ_k c_k ℓ_k with c_k ∝ n_k w_k and w_k = ℓ_k^power of the last step that had the cluster.

    With power 0 it is the plain mean over examples.
    """

    def __init__(self, model: Any, n_clusters: int, power: float = 1.0, **settings: Any) -> None:
        super().__init__(model, n_clusters, **settings)
        self.power = power

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        """Called before each training step with (K,) losses and (K,) numbers of examples, 0 where
        absent.
        """
        self.weights.copy_(torch.where(counts > 0, losses.clamp(min=0) ** self.power, self.weights))

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        """(K,) the factor c_k of each cluster's loss."""
        factors = self.weights * counts
        return factors / factors.sum()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dataset", default="apidocs/numpy", help="labelled collection, split train"
    )
    parser.add_argument("--model", default="minilm", help="encoder to start from")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--power", type=float, default=1.0)
    parser.add_argument("--clusters", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-steps", type=int, default=20)
    parser.add_argument("--device")
    given = parser.parse_args()

    # The row names the class, and which option of FinetuneOptions each parameter of it is.
    WEIGHTINGS["power"] = Weighting(f"{__name__}:PowerLoss", {"power": "alpha"})
    settings = {
        "clusters": given.clusters,
        "batch_size": given.batch_size,
        "max_steps": given.max_steps,
    }
    options = FinetuneOptions.of(weighting="power", alpha=given.power, **settings)
    finetune(
        given.model,
        given.dataset,
        output=given.output,
        options=options.with_overrides(encoder=EncoderOptions(device=given.device)),
    )
    print((given.output / "cluster_weights.jsonl").read_text().splitlines()[-1])


if __name__ == "__main__":
    main()
