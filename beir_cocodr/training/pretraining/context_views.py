"""Views of passages and generated queries, for query-as-context pre-training."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets

from beir_cocodr.arrays import Bools
from beir_cocodr.data.spans import SpannedText, span_pair, span_ranges
from beir_cocodr.data.text import MOST_CHARACTERS
from beir_cocodr.distributed import on_main
from beir_cocodr.errors import InputError
from beir_cocodr.generation.query_context import load_query_context
from beir_cocodr.records import Json
from beir_cocodr.training.batches import BatchKeys, EpochClock, drawn_dataset
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretraining.context_draws import AFTER, BEFORE, SPANS, ContextDraws
from beir_cocodr.training.pretraining.context_keys import ContextKeys, query_counts
from beir_cocodr.training.pretraining.objectives import ContextOptions, CoTMAEOptions
from beir_cocodr.training.pretraining.views import BARE_TOKENS, Views, content_tokens

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

log = logging.getLogger(__name__)

# A share of cut passages that is worth a warning.
_MANY = 0.05

# Passages that are tokenised at a time.
_CHUNK = 10_000


@dataclass
class ContextViews(Views):
    """One row (passage, context) per passage, drawn anew each epoch by seed, epoch and row.

    The context is one of the passage's queries. With probability ``mix`` it is instead the passage
    before or after it in its document (the nearest that has a query). A passage that is alone in
    its document is then replaced by two of its spans, and one with a single span meets a query all
    the same.

    Attributes:
        folders: folders of ``generate-queries``; their passages are numbered one after another.
        model: the encoder, for its tokenizer and text format.
        options: the options of the pre-training.
        clock: the running epoch.

    Raises:
        InputError: No passage has a query, or there are too few documents for a batch.

    References:
        Query-as-context pre-training, sections 3.1 and 5.2.
    """

    folders: Sequence[str]
    model: COCODR
    options: PretrainOptions
    clock: EpochClock = field(default_factory=EpochClock)

    def __post_init__(self) -> None:
        """Load the passages."""
        self.columns = dict(self.options.row("objective").columns)
        own_options = self.options.objective_options
        assert isinstance(own_options, ContextOptions)
        self.own = own_options
        content_tokens(self.model, self.options.max_length)
        # A tokenizer keeps the padding and truncation of its last call. Rows are also drawn in a
        # thread that makes batches ahead, so that they must not share one with the collator.
        self._drawing_tokenizer = copy.deepcopy(self.model.tokenizer)
        tables = [self._load(folder) for folder in self.folders]
        sizes = [len(table) for table in tables]
        self.passages = concatenate_datasets(tables)
        self.bounds = np.cumsum([0, *sizes])
        # (N,) the number of each passage's document over all folders: rows of one document are
        # consecutive.
        starts: list[Bools] = []
        for table in tables:
            rows = table.data.column("row").to_numpy()
            is_start = np.diff(rows, prepend=-1) != 0
            starts.append(is_start)
        self.document = np.cumsum(np.concatenate(starts), dtype=np.int64)
        self._tables = tables
        self._draws = ContextDraws(
            seed=self.options.seed,
            mix=self.own.mix,
            query_counts=np.concatenate([query_counts(table) for table in tables]),
            document=self.document,
        )
        self._check_size()

    def _check_size(self) -> None:
        names = ", ".join(map(str, self.folders))
        passages = len(self)
        documents = self._document_count()
        if not passages:
            raise InputError(
                f"no passage of {names} has a query; generate queries with other settings"
            )
        batch_size = self.options.batch_size
        if self._is_contrastive and documents < batch_size <= passages:
            raise InputError(
                f"a batch contains no two passages of one document, and {names} has {documents} "
                f"documents: lower batch_size, which is {batch_size}"
            )
        log.info("%s: %d passages of %d documents have queries", names, passages, documents)

    @property
    def _is_contrastive(self) -> bool:
        contrastive: bool = self.options.row("objective").contrastive
        return contrastive

    @cached_property
    def batch_keys(self) -> BatchKeys | None:
        """Return what rows of a batch must not share, if they are compared with each other.

        These are document, passage and context: a passage would otherwise be trained to be far from
        its own neighbour, or query. All processes ask for them together.
        """
        if not self._is_contrastive:
            return None
        keys = ContextKeys(self._tables, self._draws, self.clock, self.texts)
        return BatchKeys(len(self), keys.of)

    def __len__(self) -> int:
        """Return the number of passages."""
        return len(self.document)

    def dataset(self) -> Dataset:
        """Return the rows, drawn when they are read."""
        return drawn_dataset("row", np.arange(len(self)), self._draw)

    def mask_shares(self) -> dict[str, float]:
        """Return column to the share of its tokens that is masked."""
        if not self.options.masked:
            return {}
        share = self.options.language_model.mask_probability
        if not isinstance(self.own, CoTMAEOptions):
            return dict.fromkeys(self.columns, share)
        if self.own.decoder == "masked":
            return {"passage": share, "context": self.own.decoder_mask_probability}
        return {"passage": share}

    def names(self, rows: Sequence[int]) -> list[str]:
        """Return passages by row: "document passage 0", behind the folder if there are several."""
        names = []
        for row in map(int, rows):
            passage = self.passages[row]
            name = f"{passage['document']} passage {passage['number']}"
            if len(self.folders) > 1:
                number = int(np.searchsorted(self.bounds, row, side="right")) - 1
                name = f"{self.folders[number]}: {name}"
            names.append(name)
        return names

    def texts_of(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """Return what this epoch sees of rows: passage and context."""
        numbers = np.asarray(rows, np.int64)
        contexts = self._draws(self.clock.epoch, numbers)
        drawn = zip(numbers.tolist(), contexts.tolist(), strict=True)
        return [self._pair(row, context) for row, context in drawn]

    def _pair(self, row: int, context: int) -> tuple[str, str]:
        if context == SPANS:
            return self._two_spans(row)
        passage = self.passages[row]
        if context == BEFORE:
            return passage["text"], self.passages[row - 1]["text"]
        if context == AFTER:
            return passage["text"], self.passages[row + 1]["text"]
        return passage["text"], passage["queries"][context]

    def counts(self) -> Json:
        """Return passages, documents and queries, and the share of texts that are cut.

        The share is taken over at most 1,000 rows. With mixed contexts there are also the passages
        that are alone in their document, and those of them that always meet a query.
        """
        queries_of_passages = self.passages.data.column("queries")
        queries = pc.sum(pc.list_value_length(queries_of_passages)).as_py()
        counts: Json = {
            "passages": len(self),
            "documents": self._document_count(),
            "queries": queries,
            "truncated": self._truncated(),
        }
        if self.own.mix:
            return counts | self._unmixed()
        return counts

    def _load(self, folder: str) -> Dataset:
        # The first process writes the table, and all map it.
        on_main(lambda: len(load_query_context(folder, self.own.per_passage)))
        return load_query_context(folder, self.own.per_passage)

    def _document_count(self) -> int:
        if len(self):
            return int(self.document[-1])
        return 0

    def _two_spans(self, row: int) -> tuple[str, str]:
        """Return two spans of a passage; itself and a query if it has a single span."""
        rng = np.random.default_rng((self.options.seed, self.clock.epoch, row))
        passage = self.passages[row]
        text = passage["text"]
        tokens = self._drawing_tokenizer(text, return_offsets_mapping=True, **BARE_TOKENS)
        offsets = tokens["offset_mapping"]
        ranges = span_ranges(text, offsets, self.options.span_tokens)
        spanned = SpannedText(text, offsets, ranges, len(offsets))
        if len(spanned.ranges) > 1:
            return span_pair(spanned, rng)
        queries = passage["queries"]
        drawn = int(rng.integers(len(queries)))
        return text, queries[drawn]

    def _unmixed(self) -> Json:
        """Count the passages that are alone in their document, and those without two spans."""
        after_last = self._document_count() + 1
        changes = np.diff(self.document, prepend=0, append=after_last) != 0
        is_alone = changes[:-1] & changes[1:]
        alone = np.flatnonzero(is_alone)
        without_spans = 0
        for begin in range(0, len(alone), _CHUNK):
            rows = alone[begin : begin + _CHUNK].tolist()
            texts = self.passages[rows]["text"]
            read = [text[:MOST_CHARACTERS] for text in texts]
            tokens = self.model.tokenizer(read, **BARE_TOKENS)["input_ids"]
            without_spans += sum(len(ids) <= self.options.span_tokens for ids in tokens)
        return {
            "passages_alone": len(alone),
            "passages_never_mixed": without_spans,
        }

    def _truncated(self, most: int = 1000) -> dict[str, float]:
        """Return column to the share of its texts that is cut."""
        longest = self.options.max_length
        step = -(-len(self) // most)
        rows = range(0, len(self), step)
        columns = zip(*self.texts_of(rows), strict=True)
        texts = dict(zip(self.columns, columns, strict=True))
        shares = {
            column: self.model.truncated_share(texts[column], task, longest)
            for column, task in self.columns.items()
        }
        if shares["passage"] > _MANY:
            log.warning(
                "%.0f%% of the passages are cut at %d tokens: raise max_length, or generate "
                "queries with this encoder's tokenizer",
                100 * shares["passage"],
                longest,
            )
        return shares
