"""Views of documents: what objectives that need no generated queries see of a corpus."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import numpy as np
from datasets import Dataset

from beir_cocodr.arrays import Ints
from beir_cocodr.checksums import is_kept, save_array
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.spans import SpannedText, count_sentences, span_ranges
from beir_cocodr.data.text import MOST_CHARACTERS
from beir_cocodr.distributed import on_main
from beir_cocodr.errors import InputError
from beir_cocodr.io import cache_folder, filling_cache, json_sha256
from beir_cocodr.records import Json
from beir_cocodr.retrieval.vectors.pool import share_over_ranks
from beir_cocodr.training.batches import EpochClock, drawn_dataset
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretraining.objectives import SpanPairOptions
from beir_cocodr.training.pretraining.token_places import TokenPlaces
from beir_cocodr.training.pretraining.views import Views, content_tokens

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

log = logging.getLogger(__name__)

# Documents that are counted at a time.
_COUNTED = 10_000


def token_counts(documents: Documents, model: COCODR) -> Ints:
    """Return (N, 2) int32: the tokens of each document, without special ones, and its characters.

    Only the first :data:`~beir_cocodr.data.text.MOST_CHARACTERS` are tokenised. A corpus is counted
    once for a tokenizer, by all processes of a run together, and the counts are kept in the cache,
    as are the places of the tokens; what a killed run counted is not counted again. All processes
    call this.
    """
    places = TokenPlaces(documents, model)
    root = cache_folder("token-counts")
    file = root / f"{json_sha256(places.identity)[:32]}.npy"
    if on_main(lambda: not is_kept(file)):
        counting = _TokenCounting(places, file)
        with filling_cache(root):
            counting.parts.mkdir(exist_ok=True)
            # A tokenizer takes all cores by itself.
            share_over_ranks(
                counting.starts,
                lambda device: counting.count,
                lambda start: is_kept(counting.part(start)),
                seconds=0,
            )
            on_main(counting.merge)
            if not file.is_file():  # on a process with a disk of its own
                counting.merge()
    counts: Ints = np.load(file, mmap_mode="r")
    return counts


def sentence_counts(documents: Documents, model: COCODR) -> Ints:
    """Return (N,) the sentences of each document, of its first characters as they are tokenised.

    The counts are kept in the cache. All processes call this.
    """
    text_format = model.text_format
    identity = [documents.content_hash, text_format.title_separator, MOST_CHARACTERS, "sentences"]
    root = cache_folder("token-counts")
    file = root / f"{json_sha256(identity)[:32]}.npy"

    def count() -> None:
        counts: list[int] = []
        for start in range(0, len(documents), _COUNTED):
            rows = np.arange(start, min(start + _COUNTED, len(documents)))
            for document in documents.take(rows):
                text = text_format.document(document)[:MOST_CHARACTERS]
                counts.append(count_sentences(text))
        with filling_cache(root):
            save_array(file, np.array(counts, np.int32))

    if on_main(lambda: not is_kept(file)):
        on_main(count)
        if not file.is_file():  # on a process with a disk of its own
            count()
    kept: Ints = np.load(file, mmap_mode="r")
    return kept


@dataclass
class _TokenCounting:
    """The counting of a corpus, part by part."""

    places: TokenPlaces
    file: Path

    def __post_init__(self) -> None:
        self.parts = self.file.with_suffix(".parts")
        self.starts = self.places.starts

    def part(self, start: int) -> Path:
        return self.parts / f"{start:010}.npy"

    def count(self, start: int) -> None:
        counts = self.places.write(start)
        save_array(self.part(start), counts)

    def merge(self) -> None:
        parts = [np.load(self.part(start)) for start in self.starts]
        save_array(self.file, np.concatenate(parts))
        rmtree(self.parts)


@dataclass
class DocumentViews(Views):
    """One row of texts per document, drawn anew each epoch, reproducibly by seed, epoch and row.

    Rows number the documents of all corpora one after another. Documents without enough spans, two
    or one by the objective's view, give no row and are counted. With ``single_spans``, a document
    of one span is paired with itself.

    Attributes:
        collections: the corpora.
        model: the encoder, for its tokenizer and text format.
        options: the options of the pre-training.
        clock: the running epoch.
    """

    collections: Sequence[Collection]
    model: COCODR
    options: PretrainOptions
    clock: EpochClock = field(default_factory=EpochClock)

    def __post_init__(self) -> None:
        """Count tokens, and choose the documents."""
        objective = self.options.row("objective")
        self.view = objective.view
        self.columns = dict(objective.columns)
        sizes = [len(corpus.documents) for corpus in self.collections]
        self.bounds = np.cumsum([0, *sizes])
        self.max_tokens = content_tokens(self.model, self.options.max_length)
        counts = [token_counts(corpus.documents, self.model) for corpus in self.collections]
        self.places: list[TokenPlaces] = []
        for corpus, of_corpus in zip(self.collections, counts, strict=True):
            places = TokenPlaces(corpus.documents, self.model)
            places.complete(of_corpus[:, 0])
            self.places.append(places)
        tokens, characters = np.concatenate(counts).T
        own_options = self.options.objective_options
        single_spans = isinstance(own_options, SpanPairOptions) and own_options.single_spans
        self.two_spans = self.view.two_spans and not single_spans
        least = self.options.span_tokens if self.two_spans else 0
        is_used = tokens > least
        if self.two_spans and self.options.whole_sentences:
            counts = [sentence_counts(corpus.documents, self.model) for corpus in self.collections]
            sentences = np.concatenate(counts)
            is_used &= sentences > 1
        self.rows = np.flatnonzero(is_used)
        self._check_rows()
        is_long = characters > MOST_CHARACTERS
        self._log_rows(len(tokens), int(is_long.sum()))

    def _check_rows(self) -> None:
        if len(self.rows):
            return
        names = ", ".join(corpus.name for corpus in self.collections)
        if not self.two_spans:
            raise InputError(f"no document of {names} has any text to train on; add documents")
        raise InputError(
            f"no document of {names} has more than {self.options.span_tokens} tokens, so none "
            f"gives the two spans that {self.options.objective} needs; lower span_tokens, or join "
            "short texts into longer documents"
        )

    def _log_rows(self, documents: int, long: int) -> None:
        if long:
            log.warning(
                "%d documents have more than %d characters: the rest of each document is not read",
                long,
                MOST_CHARACTERS,
            )
        log.info(
            "%s: %d of %d documents have %s, the others are left out",
            ", ".join(corpus.name for corpus in self.collections),
            len(self.rows),
            documents,
            "two spans" if self.two_spans else "text",
        )

    def dataset(self) -> Dataset:
        """Return the rows, drawn when they are read."""
        return drawn_dataset("row", self.rows, self._draw)

    def mask_shares(self) -> dict[str, float]:
        """Return column to the share of its tokens that is masked."""
        if not self.options.masked:
            return {}
        share = self.options.language_model.mask_probability
        return dict.fromkeys(self.columns, share)

    def counts(self) -> Json:
        """Return how many documents are trained on."""
        name = "documents_with_two_spans" if self.two_spans else "documents_with_text"
        return {name: len(self.rows)}

    def names(self, rows: Sequence[int]) -> list[str]:
        """Return documents by row: "corpus: id", or the id alone if there is one corpus."""
        ids = [document["_id"] for document in self._documents(rows)]
        if len(self.collections) == 1:
            return ids
        corpora = np.searchsorted(self.bounds, rows, side="right") - 1
        labelled = zip(corpora, ids, strict=True)
        return [f"{self.collections[number].name}: {id}" for number, id in labelled]

    def texts_of(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """Return what this epoch sees of documents, a text per column."""
        options = self.options
        views = []
        for row, document in zip(rows, self._documents(rows), strict=True):
            whole_text = self.model.text_format.document(document)
            text = whole_text[:MOST_CHARACTERS]
            offsets = self._places(row)
            seed = (options.seed, self.clock.epoch, row)
            rng = np.random.default_rng(seed)
            ranges = span_ranges(
                text,
                offsets,
                options.span_tokens,
                options.flush_probability,
                rng,
                whole_sentences=options.whole_sentences,
            )
            spanned = SpannedText(text, offsets, ranges, self.max_tokens)
            view = self.view.texts(options.objective_options, spanned, rng)
            views.append(view)
        return views

    def _places(self, row: int) -> Ints:
        """Return the (n, 2) character ranges of the tokens of a document."""
        corpus = int(np.searchsorted(self.bounds, row, side="right")) - 1
        first_row = int(self.bounds[corpus])
        return self.places[corpus].of(row - first_row)

    def _documents(self, rows: Sequence[int]) -> list[dict[str, str]]:
        """Return documents in the order of the rows; each corpus is read once."""
        corpora = np.searchsorted(self.bounds, rows, side="right") - 1
        document_of: dict[int, dict[str, str]] = {}
        for number in np.unique(corpora).tolist():
            of_corpus = np.asarray(rows)[corpora == number]
            corpus = self.collections[number].documents
            documents = corpus.take(of_corpus - self.bounds[number])
            document_of.update(zip(of_corpus.tolist(), documents, strict=True))
        return [document_of[row] for row in rows]
