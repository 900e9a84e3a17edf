"""A loss of your own in fine-tuning: a positive must score higher than its negatives by a margin.

The script is the command line with one more loss:

python examples/custom_loss.py finetune --dataset apidocs/numpy --model minilm --loss hinge \
    --set margin=0.2 --max-steps 20 --output runs/hinge
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from beir_cocodr.models.spec import Options, option
from beir_cocodr.training.finetuning.loss_rows import LOSSES, FinetuneLoss
from beir_cocodr.training.options import FinetuneOptions


@dataclass(frozen=True)
class HingeOptions(Options):
    """Options of the loss.

    Args:
        margin: how much higher a positive must score.
    """

    margin: float = option(0.1, above=0)


class HingeLoss(nn.Module):
    """max(0, margin − s(q, d⁺) + s(q, d⁻)), the mean over all negatives of all queries."""

    def __init__(self, model: Any, margin: float) -> None:
        """Take a sentence-transformers model."""
        super().__init__()
        self.model = model
        self.margin = margin

    def forward(
        self, features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss of the columns query, positive, negative_1, ..., each (B, tokens)."""
        queries, positives, *negatives = (
            self.model(column)["sentence_embedding"] for column in features
        )
        similarity = self.model.similarity_pairwise
        right = similarity(queries, positives)  # (B,)
        wrong = torch.stack([similarity(queries, negative) for negative in negatives])  # (n, B)
        loss: torch.Tensor = (self.margin - right + wrong).clamp(min=0).mean()
        return loss


def build(model: Any, options: FinetuneOptions, pairs: int) -> nn.Module:
    """Build the loss by the options of a training."""
    assert isinstance(options.loss_options, HingeOptions)
    return HingeLoss(model, options.loss_options.margin)


LOSSES["hinge"] = FinetuneLoss(
    build=f"{__name__}:build",
    help="a positive scores higher than its negatives by a margin",
    options=HingeOptions,
    columns={"query": "query", "positive": "document", "negative_n": "document"},
    citations=("@misc{hinge, title = {A Margin between Positive and Negative}, year = {2026}}",),
)


if __name__ == "__main__":
    from beir_cocodr.cli.__main__ import main

    main()
