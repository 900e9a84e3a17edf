"""Tokenising and masking of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from beir_cocodr.data.masking import WholeWordMasker
from beir_cocodr.training.callbacks import EpochClock


@dataclass
class MaskingCollator(SentenceTransformerDataCollator):
    """Tokenises text columns and masks them, so that both passes of gradient caching see the same masks.

    Args:
        columns: names of the text columns.
        masker: None leaves texts as they are.
        clock, seed: with the row in the column ``label`` and the column's number they decide the mask.
    """

    columns: tuple[str, ...] = ()
    masker: WholeWordMasker | None = None
    clock: EpochClock = field(default_factory=EpochClock)
    seed: int = 0

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().__call__(features)
        if self.masker is None:
            return batch
        rows = batch["label"].tolist()
        for number, column in enumerate(self.columns):
            ids = batch[f"{column}_input_ids"].numpy()
            masked = [
                self.masker(ids[i], np.random.default_rng((self.seed, self.clock.epoch, row, number)))
                for i, row in enumerate(rows)
            ]
            batch[f"{column}_input_ids"] = torch.from_numpy(np.stack([ids for ids, _ in masked]))
            batch[f"{column}_mlm_labels"] = torch.from_numpy(np.stack([labels for _, labels in masked]))
        return batch
