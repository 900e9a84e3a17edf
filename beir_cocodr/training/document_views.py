"""The training set of pre-training: what one epoch sees of each document."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.masking import WholeWordMasker
from beir_cocodr.data.spans import has_two_spans, span_ranges
from beir_cocodr.data.views import SpannedText
from beir_cocodr.errors import InputError
from beir_cocodr.training.callbacks import EpochClock
from beir_cocodr.training.masking_collator import MaskingCollator, masking_collator
from beir_cocodr.training.pretrain_options import PretrainOptions
from beir_cocodr.training.text_room import text_room

log = logging.getLogger(__name__)


@dataclass
class DocumentViews:
    """One row of texts per document, drawn anew each epoch, reproducibly by (seed, epoch, row).

    Rows number the documents of all corpora one after another; documents without enough spans give no
    row and are left out, counted.

    Args:
        collections: only their documents are read.
        model: the encoder, for its tokenizer and text format.
        options: see :class:`PretrainOptions`.
        columns: name of each text column, and whether its texts are encoded as "query" or "document".
        view: draws the texts of one document, one per column.
        two_spans: whether a document needs two spans; one with any token is enough otherwise.
        masked: whether texts are masked for the language-model losses.
    """

    collections: Sequence[Collection]
    model: Any
    options: PretrainOptions
    columns: dict[str, str]
    view: Callable[[SpannedText, np.random.Generator], tuple[str, ...]]
    two_spans: bool
    masked: bool
    clock: EpochClock = field(default_factory=EpochClock)
    #: No two rows are of one document.
    batch_keys: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.bounds = np.cumsum([0] + [len(collection.documents) for collection in self.collections])
        self.max_tokens = text_room(self.model, self.options.max_length)
        least = self.options.span_tokens if self.two_spans else 0
        found, start = [], 0
        for collection in self.collections:
            for chunk in collection.documents.chunks(10_000):
                texts = [self.model.text_format.document(document) for document in chunk]
                keep = has_two_spans(texts, self.model.tokenizer, least)
                found.append(start + np.flatnonzero(keep))
                start += len(chunk)
        self.rows = np.concatenate(found)
        names = ", ".join(collection.name for collection in self.collections)
        if not len(self.rows):
            raise InputError(self._nothing(names))
        has = "have two spans" if self.two_spans else "have text"
        log.info("%s: %d of %d documents %s, the others are left out", names, len(self.rows), start, has)

    def dataset(self) -> Dataset:
        return Dataset.from_dict({"row": self.rows}).with_transform(self._draw)

    def collator(self) -> MaskingCollator:
        options = self.options
        maskers = {}
        if self.masked:
            maskers = dict.fromkeys(
                self.columns, WholeWordMasker(self.model.tokenizer, options.mask_probability)
            )
        return masking_collator(
            self.model, self.columns, maskers, options.max_length, self.clock, options.seed
        )

    def counts(self) -> dict[str, int]:
        """How many documents are trained on."""
        return {"documents_with_two_spans" if self.two_spans else "documents_with_text": len(self.rows)}

    def names(self, rows: Sequence[int]) -> list[str]:
        """Documents by row number: "corpus: id", or the id alone where there is one corpus."""
        named = []
        for row in rows:
            collection, place = self._place(row)
            (id,) = collection.documents.ids([place])
            named.append(f"{collection.name}: {id}" if len(self.collections) > 1 else id)
        return named

    def texts(self, row: int) -> tuple[str, ...]:
        """What this epoch sees of one document, a text per column."""
        collection, place = self._place(row)
        (document,) = collection.documents.take([place])
        text = self.model.text_format.document(document)
        tokens = self.model.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        options = self.options
        rng = np.random.default_rng((options.seed, self.clock.epoch, row))
        offsets = tokens["offset_mapping"]
        ranges = span_ranges(text, offsets, options.span_tokens, options.flush_probability, rng)
        return self.view(SpannedText(text, offsets, ranges, self.max_tokens), rng)

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        rows = [int(row) for row in batch["row"]]
        texts = zip(*(self.texts(row) for row in rows), strict=True)
        return {name: list(column) for name, column in zip(self.columns, texts, strict=True)} | {
            "label": rows
        }

    def _place(self, row: int) -> tuple[Collection, int]:
        corpus = int(np.searchsorted(self.bounds, row, side="right")) - 1
        return self.collections[corpus], int(row - self.bounds[corpus])

    def _nothing(self, names: str) -> str:
        if not self.two_spans:
            return f"no document of {names} has any text to train on"
        return (
            f"no document of {names} has more than {self.options.span_tokens} tokens, so two spans for "
            f"{self.options.objective}; lower span_tokens, or join short texts into longer documents"
        )
