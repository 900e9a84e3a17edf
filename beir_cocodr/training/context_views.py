"""The training set of query-as-context pre-training: passages, each with one of its queries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets

from beir_cocodr.data.masking import WholeWordMasker
from beir_cocodr.data.query_context import load_query_context
from beir_cocodr.data.spans import draw_pair, has_two_spans, split_spans
from beir_cocodr.errors import InputError
from beir_cocodr.training.callbacks import EpochClock
from beir_cocodr.training.masking_collator import MaskingCollator, masking_collator
from beir_cocodr.training.pretrain_options import PretrainOptions
from beir_cocodr.training.processes import on_main
from beir_cocodr.training.text_room import text_room

log = logging.getLogger(__name__)

# A share of cut passages that is worth a warning.
_MANY = 0.05


@dataclass
class ContextViews:
    """One row (passage, context) per passage, drawn anew each epoch, reproducibly by (seed, epoch, row).

    The context is one of the passage's queries. With probability ``mix`` it is instead the passage before or
    after it in its document (the nearest that has a query); a passage that is alone in its document is then
    replaced by two of its spans, and one that has a single span meets a query all the same.

    Args:
        folders: made by ``generate-queries``; their passages are numbered one after another.
        model: the encoder, for its tokenizer and text format.
        options: see :class:`PretrainOptions`.

    Raises:
        InputError: no passage has a query, too few documents for a batch, or a bad folder.

    Source: query-as-context pre-training, sections 3.1 and 5.2.
    """

    folders: Sequence[str]
    model: Any
    options: PretrainOptions
    clock: EpochClock = field(default_factory=EpochClock)

    def __post_init__(self) -> None:
        text_room(self.model, self.options.max_length)
        tables = [self._load(folder) for folder in self.folders]
        self.passages = concatenate_datasets(tables)
        self.bounds = np.cumsum([0] + [len(table) for table in tables])
        # (N,) the number of each passage's document over all folders: rows of one document are consecutive.
        starts = [np.diff(table.data.column("row").to_numpy(), prepend=-1) != 0 for table in tables]
        self.document = np.cumsum(np.concatenate(starts))
        names, passages, documents = ", ".join(map(str, self.folders)), len(self), self._documents()
        if not passages:
            raise InputError(f"no passage of {names} has a query; generate queries with other settings")
        if self.batch_keys is not None and documents < self.options.batch_size <= passages:
            raise InputError(
                f"a batch holds no two passages of one document, and {names} has {documents} documents: "
                f"lower batch_size, which is {self.options.batch_size}"
            )
        log.info("%s: %d passages of %d documents have queries", names, passages, documents)

    @property
    def columns(self) -> dict[str, str]:
        """Name of each text column, and its task."""
        return {"passage": "document", "context": "query"}

    @property
    def batch_keys(self) -> ContextKeys | None:
        """What rows of a batch must not share, where they are contrasted with each other."""
        return ContextKeys(self) if self.options.objective == "qc" else None

    def __len__(self) -> int:
        return len(self.document)

    def dataset(self) -> Dataset:
        return Dataset.from_dict({"row": np.arange(len(self))}).with_transform(self._draw)

    def collator(self) -> MaskingCollator:
        options, tokenizer = self.options, self.model.tokenizer
        shares: dict[str, float] = {}
        if options.objective == "cotmae":
            shares["passage"] = options.mask_probability
            if options.decoder == "masked":
                shares["context"] = options.decoder_mask_probability
        elif options.mlm_weight > 0:
            shares = dict.fromkeys(self.columns, options.mask_probability)
        maskers = {column: WholeWordMasker(tokenizer, share) for column, share in shares.items()}
        return masking_collator(
            self.model, self.columns, maskers, options.max_length, self.clock, options.seed
        )

    def names(self, rows: Sequence[int]) -> list[str]:
        """Passages by row number: "document passage 0", after the folder where there are several."""
        named = []
        for row in map(int, rows):
            passage = self.passages[row]
            folder = self.folders[int(np.searchsorted(self.bounds, row, side="right")) - 1]
            place = f"{passage['document']} passage {passage['number']}"
            named.append(f"{folder}: {place}" if len(self.folders) > 1 else place)
        return named

    def texts(self, row: int) -> tuple[str, str]:
        """What this epoch sees of one row: passage and context."""
        rng = np.random.default_rng((self.options.seed, self.clock.epoch, row))
        if self.options.mix and rng.random() < self.options.mix:
            pair = self._two_passages(row, rng)
            if pair is not None:
                return pair
        passage = self.passages[row]
        queries = passage["queries"]
        return passage["text"], queries[int(rng.integers(len(queries)))]

    def counts(self) -> dict[str, Any]:
        """How much is trained on: passages, documents, queries; the share of texts that are cut, over at
        most 1,000 rows; with mixed contexts, passages that are alone in their document, and those of them
        that always meet a query.
        """
        lengths = pc.sum(pc.list_value_length(self.passages.data.column("queries")))
        counts = {
            "passages": len(self),
            "documents": self._documents(),
            "queries": lengths.as_py(),
            "truncated": self._truncated(),
        }
        return counts | (self._unmixed() if self.options.mix else {})

    def _load(self, folder: str) -> Dataset:
        # The first process writes the table, all map it.
        on_main(lambda: len(load_query_context(folder, self.options.per_passage)))
        return load_query_context(folder, self.options.per_passage)

    def _documents(self) -> int:
        return int(self.document[-1]) if len(self) else 0

    def _two_passages(self, row: int, rng: np.random.Generator) -> tuple[str, str] | None:
        places = [
            place
            for place in (row - 1, row + 1)
            if 0 <= place < len(self) and self.document[place] == self.document[row]
        ]
        text = self.passages[row]["text"]
        if places:
            return text, self.passages[places[int(rng.integers(len(places)))]]["text"]
        tokens = self.model.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        spans = split_spans(text, tokens["offset_mapping"], self.options.span_tokens)
        return draw_pair(spans, rng) if len(spans) > 1 else None

    def _unmixed(self) -> dict[str, int]:
        changes = np.diff(self.document, prepend=0, append=self._documents() + 1) != 0
        alone = np.flatnonzero(changes[:-1] & changes[1:])
        short = 0
        for begin in range(0, len(alone), 10_000):
            texts = self.passages[alone[begin : begin + 10_000].tolist()]["text"]
            long = has_two_spans(texts, self.model.tokenizer, self.options.span_tokens)
            short += int((~long).sum())
        return {"passages_alone": len(alone), "passages_never_mixed": short}

    def _truncated(self, most: int = 1000) -> dict[str, float]:
        rows = range(0, len(self), -(-len(self) // most))
        text_format, shares = self.model.text_format, {}
        prompts = (text_format.document_prompt, text_format.query_prompt)
        columns = zip(*(self.texts(row) for row in rows), strict=True)
        for column, prompt, texts in zip(self.columns, prompts, columns, strict=True):
            tokens = self.model.tokenizer([prompt + text for text in texts], truncation=False, verbose=False)
            cut = sum(len(ids) > self.options.max_length for ids in tokens["input_ids"])
            shares[column] = cut / len(texts)
        if shares["passage"] > _MANY:
            log.warning(
                "%.0f%% of the passages are cut at %d tokens: raise max_length, or generate queries with "
                "this encoder's tokenizer",
                100 * shares["passage"],
                self.options.max_length,
            )
        return shares

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        rows = [int(row) for row in batch["row"]]
        texts = zip(*(self.texts(row) for row in rows), strict=True)
        return {name: list(column) for name, column in zip(self.columns, texts, strict=True)} | {
            "label": rows
        }


@dataclass
class ContextKeys:
    """What a row must not share with another of its batch: its document, its passage's text, its context.

    A passage would else be trained to be far from its own neighbour, or from its own query. The host's
    sampler reads it like a dataset of texts.
    """

    views: ContextViews
    column_names: tuple[str, ...] = ("keys",)

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, row: int) -> dict[str, str]:
        passage, context = self.views.texts(row)
        # No text begins with a zero byte, so a document is not taken for one.
        return {
            "document": f"\0{self.views.document[row]}",
            "passage": passage,
            "context": context,
        }
