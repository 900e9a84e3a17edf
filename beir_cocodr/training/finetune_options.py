"""Settings of fine-tuning, with the paper's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from beir_cocodr.errors import InputError
from beir_cocodr.training.options import TrainingOptions


@dataclass(frozen=True)
class FinetuneOptions(TrainingOptions):
    """InfoNCE over in-batch and BM25 negatives, redrawn each epoch.

    Args:
        negatives: hard negatives per query and step; 0 leaves in-batch negatives only.
        negative_depth: BM25 results that they are drawn from, known positives removed.
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
    """

    negatives: int = 1
    negative_depth: int = 30
    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negatives < 0 or self.negative_depth < 1:
            raise InputError(
                f"negatives must be at least 0 and negative_depth at least 1, "
                f"not {self.negatives} and {self.negative_depth}"
            )
        if self.batch_size == 1 and not self.negatives:
            raise InputError("a batch of one query needs hard negatives: raise batch_size or negatives")
