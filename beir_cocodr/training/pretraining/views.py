"""Views of a corpus for an objective of pre-training, and the batches made of them.

Texts are drawn anew each epoch, tokenised and masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from beir_cocodr.data.text import WholeWordMasker
from beir_cocodr.errors import InputError
from beir_cocodr.records import Json
from beir_cocodr.training.batches import BatchKeys, EpochClock
from beir_cocodr.training.options import PretrainOptions

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

#: Arguments of a tokenizer that gives the tokens of the texts alone.
BARE_TOKENS: Json = {
    "add_special_tokens": False,
    "return_attention_mask": False,
    "return_token_type_ids": False,
    "verbose": False,
}


@dataclass
class MaskingCollator(SentenceTransformerDataCollator):
    """Tokenises text columns and masks them.

    The mask is part of the batch, so that both passes of gradient caching see the same one.

    Attributes:
        columns: names of the text columns.
        maskers: column to its masker; columns without one are left as they are.
        clock: the running epoch.
        seed: with epoch, row (the column ``label``) and column it decides the mask.
    """

    columns: tuple[str, ...] = ()
    maskers: Mapping[str, WholeWordMasker] = field(default_factory=dict)
    clock: EpochClock = field(default_factory=EpochClock)
    seed: int = 0

    def __call__(self, features: list[Json]) -> Json:
        """Return a batch with ``COLUMN_mlm_labels`` for masked columns."""
        batch = super().__call__(features)
        rows = batch["label"].tolist()
        for number, column in enumerate(self.columns):
            masker = self.maskers.get(column)
            if masker is None:
                continue
            masked_ids = []
            labels = []
            for row, tokens in zip(rows, batch[f"{column}_input_ids"].numpy(), strict=True):
                rng = np.random.default_rng((self.seed, self.clock.epoch, row, number))
                masked, original = masker(tokens, rng)
                masked_ids.append(masked)
                labels.append(original)
            batch[f"{column}_input_ids"] = torch.from_numpy(np.stack(masked_ids))
            batch[f"{column}_mlm_labels"] = torch.from_numpy(np.stack(labels))
        return batch


class Views:
    """Rows of texts, drawn anew each epoch, reproducibly by seed, epoch and row.

    Attributes:
        model: the encoder, for its tokenizer and text format.
        options: the options of the pre-training.
        clock: the running epoch.
        columns: text column to the task it is encoded as, "query" or "document".
    """

    model: COCODR
    options: PretrainOptions
    clock: EpochClock
    columns: dict[str, str]

    @property
    def batch_keys(self) -> BatchKeys | None:
        """Return what rows of a batch must not share."""
        return None

    def dataset(self) -> Dataset:
        """Return the rows, drawn when they are read."""
        raise NotImplementedError

    def names(self, rows: Sequence[int]) -> list[str]:
        """Return what rows are called in messages."""
        raise NotImplementedError

    def counts(self) -> Json:
        """Return counts for the record of the training."""
        raise NotImplementedError

    def texts(self, row: int) -> tuple[str, ...]:
        """Return what this epoch sees of one row, a text per column."""
        [texts] = self.texts_of([row])
        return texts

    def texts_of(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """Return :meth:`texts` of several rows."""
        raise NotImplementedError

    def mask_shares(self) -> dict[str, float]:
        """Return column to the share of its tokens that is masked; others are left as they are."""
        raise NotImplementedError

    def collator(self) -> MaskingCollator:
        """Return what makes batches.

        It tokenises the texts behind the model's prompts, cuts them to ``max_length``, and masks
        them.
        """
        text_format = self.model.text_format
        by_task = {"query": text_format.query_prompt, "document": text_format.document_prompt}
        prompts = {column: by_task[task] for column, task in self.columns.items()}
        tokenizer = self.model.tokenizer
        shares = self.mask_shares()
        return MaskingCollator(
            preprocess_fn=self.model.preprocess,
            prompts={column: prompt for column, prompt in prompts.items() if prompt},
            router_mapping=dict(self.columns),
            max_length=self.options.max_length,
            columns=tuple(self.columns),
            maskers={name: WholeWordMasker(tokenizer, share) for name, share in shares.items()},
            clock=self.clock,
            seed=self.options.seed,
        )

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, Sequence[str | int]]:
        rows = [int(row) for row in batch["row"]]
        texts = zip(*self.texts_of(rows), strict=True)
        drawn = {name: list(column) for name, column in zip(self.columns, texts, strict=True)}
        return {**drawn, "label": rows}


def content_tokens(model: Any, max_length: int) -> int:
    """Return the tokens, at least 1, that a document has beside special ones and the prompt.

    Raises:
        InputError: The encoder cannot read so many tokens.
    """
    tokenizer = model.tokenizer
    positions = getattr(model.transformers_model.config, "max_position_embeddings", None)
    limit = min(positions or max_length, tokenizer.model_max_length)
    if max_length > limit:
        raise InputError(
            f"the option max_length is {max_length}, more than the {limit} tokens that this "
            "encoder can read; lower it"
        )
    prompt = tokenizer(model.text_format.document_prompt, add_special_tokens=False)["input_ids"]
    return max(1, max_length - int(tokenizer.num_special_tokens_to_add()) - len(prompt))
