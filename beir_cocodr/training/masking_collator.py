"""Tokenising and masking of a batch."""

from __future__ import annotations

from collections.abc import Mapping
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
        maskers: by column; columns without one are left as they are.
        clock, seed: with the row in the column ``label`` and the column's number they decide the mask.
    """

    columns: tuple[str, ...] = ()
    maskers: Mapping[str, WholeWordMasker] = field(default_factory=dict)
    clock: EpochClock = field(default_factory=EpochClock)
    seed: int = 0

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().__call__(features)
        rows = batch["label"].tolist()
        for number, column in enumerate(self.columns):
            if column not in self.maskers:
                continue
            ids, masker = batch[f"{column}_input_ids"].numpy(), self.maskers[column]
            masked = [
                masker(ids[i], np.random.default_rng((self.seed, self.clock.epoch, row, number)))
                for i, row in enumerate(rows)
            ]
            batch[f"{column}_input_ids"] = torch.from_numpy(np.stack([ids for ids, _ in masked]))
            batch[f"{column}_mlm_labels"] = torch.from_numpy(np.stack([labels for _, labels in masked]))
        return batch


def masking_collator(
    model: Any,
    tasks: Mapping[str, str],
    maskers: Mapping[str, WholeWordMasker],
    max_length: int,
    clock: EpochClock,
    seed: int,
) -> MaskingCollator:
    """The collator of a model's training texts.

    Args:
        model: tokenises; its prompts are put before the texts.
        tasks: name of each text column, and whether its texts are encoded as "query" or "document".
        maskers, clock, seed: see :class:`MaskingCollator`.
        max_length: tokens that texts are cut to.
    """
    prompts = {"query": model.text_format.query_prompt, "document": model.text_format.document_prompt}
    return MaskingCollator(
        preprocess_fn=model.preprocess,
        prompts={column: prompts[task] for column, task in tasks.items() if prompts[task]},
        router_mapping=dict(tasks),
        max_length=max_length,
        columns=tuple(tasks),
        maskers=maskers,
        clock=clock,
        seed=seed,
    )
