"""Dense retrieval: in-batch negatives, hard negatives, or a teacher's lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.training.distill import distill
from beir_cocodr.training.distill_options import DistillOptions
from beir_cocodr.training.finetune import finetune
from beir_cocodr.training.finetune_options import FinetuneOptions


class DenseArchitecture:
    """An encoder trained by `finetune` or `distill`, from the recipe's start.

    Args:
        name: "dense" (the paper's base setting: other documents of the batch are the negatives, and
            cross-entropy), "dense-hard" (BM25's or mined negatives besides), or "dense-distilled" (LambdaRank
            on a teacher's lists).

    Source: Zhan et al., 2022, sections 5.1.2 and 5.2.2; teacher and hard negatives there are ColBERT and
    STAR/ADORE.
    """

    seeded = True

    def __init__(self, name: str) -> None:
        self.name = name

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        budget: dict[str, Any] = {
            "max_steps": recipe.max_steps,
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size,
            "learning_rate": recipe.learning_rate,
            "warmup": recipe.warmup,
            "seed": seed,
        }
        if self.name == "dense-distilled":
            lists = DistillOptions(
                **budget,
                # Equal budgets: no early stopping, and no search of the student's own candidates.
                held_out=0.0,
                positives=1,
                m_bm25=recipe.list_size - 1,
                m_hard=0,
            )
            distill(dataset, recipe.start, recipe.teacher, output, lists, resume=True, **recipe.encoder)
            return output
        hard = self.name == "dense-hard"
        options = FinetuneOptions(
            **budget,
            negatives=recipe.negatives if hard else 0,
            negative_depth=recipe.negative_depth,
            stages=2 if hard and recipe.hard_negatives == "mined" else 1,
        )
        finetune(dataset, recipe.start, output, options, resume=True, **recipe.encoder)
        return output
