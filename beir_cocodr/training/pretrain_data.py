"""The training sets of pre-training, drawn anew each epoch, and how a batch is tokenised and
masked.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, concatenate_datasets
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from beir_cocodr.arrays import Ints
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.spans import SpannedText, span_pair, span_ranges
from beir_cocodr.data.text import MOST_CHARACTERS, WholeWordMasker
from beir_cocodr.distributed import on_main
from beir_cocodr.errors import InputError
from beir_cocodr.generation.query_context import load_query_context
from beir_cocodr.io import cache_folder, filling_cache, json_sha256, save_array
from beir_cocodr.models.loading import tokenizer_sha256
from beir_cocodr.records import Json
from beir_cocodr.retrieval.pool import share_over_ranks
from beir_cocodr.training.objectives import OBJECTIVES
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.trainer import BatchKeys, EpochClock, drawn_dataset

log = logging.getLogger(__name__)

# Of a tokenizer: the tokens of the texts alone.
_BARE: Json = {
    "add_special_tokens": False,
    "return_attention_mask": False,
    "return_token_type_ids": False,
    "verbose": False,
}


@dataclass
class MaskingCollator(SentenceTransformerDataCollator):
    """Tokenises text columns and masks them, so that both passes of gradient caching see the same
    masks.

    Args:
        columns: names of the text columns.
        maskers: by column; columns without one are left as they are.
        clock, seed: with the row in the column ``label`` and the column's number they decide the
        mask.
    """

    columns: tuple[str, ...] = ()
    maskers: Mapping[str, WholeWordMasker] = field(default_factory=dict)
    clock: EpochClock = field(default_factory=EpochClock)
    seed: int = 0

    def __call__(self, features: list[Json]) -> Json:
        batch = super().__call__(features)
        rows = batch["label"].tolist()
        for number, column in enumerate(self.columns):
            if column not in self.maskers:
                continue
            ids, masker = batch[f"{column}_input_ids"].numpy(), self.maskers[column]
            rngs = (
                np.random.default_rng((self.seed, self.clock.epoch, row, number)) for row in rows
            )
            masked = [masker(tokens, rng) for tokens, rng in zip(ids, rngs, strict=True)]
            batch[f"{column}_input_ids"] = torch.from_numpy(np.stack([ids for ids, _ in masked]))
            batch[f"{column}_mlm_labels"] = torch.from_numpy(
                np.stack([labels for _, labels in masked])
            )
        return batch


class Views:
    """Rows of texts, drawn anew each epoch, reproducibly by (seed, epoch, row).

    Attributes:
        model: the encoder, for its tokenizer and text format.
        options: see :class:`PretrainOptions`.
        clock: the running epoch.
        columns: name of each text column, and whether its texts are encoded as "query" or
        "document".
    """

    model: Any
    options: PretrainOptions
    clock: EpochClock
    columns: dict[str, str]

    def texts(self, row: int) -> tuple[str, ...]:
        """What this epoch sees of one row, a text per column."""
        [texts] = self.texts_of([row])
        return texts

    def texts_of(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """:meth:`texts` of several rows."""
        raise NotImplementedError

    def mask_shares(self) -> dict[str, float]:
        """The share of tokens that is masked, by column; columns without one are left as they
        are.
        """
        raise NotImplementedError

    def collator(self) -> MaskingCollator:
        """Tokenises the texts behind the model's prompts, cuts them to ``max_length``, and masks
        them.
        """
        text_format, options = self.model.text_format, self.options
        prompts = {"query": text_format.query_prompt, "document": text_format.document_prompt}
        return MaskingCollator(
            preprocess_fn=self.model.preprocess,
            prompts={
                column: prompts[task] for column, task in self.columns.items() if prompts[task]
            },
            router_mapping=dict(self.columns),
            max_length=options.max_length,
            columns=tuple(self.columns),
            maskers={
                name: WholeWordMasker(self.model.tokenizer, share)
                for name, share in self.mask_shares().items()
            },
            clock=self.clock,
            seed=options.seed,
        )

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, Sequence[str | int]]:
        rows = [int(row) for row in batch["row"]]
        texts = zip(*self.texts_of(rows), strict=True)
        drawn = {name: list(column) for name, column in zip(self.columns, texts, strict=True)}
        return {**drawn, "label": rows}


def content_tokens(model: Any, max_length: int) -> int:
    """Tokens, at least 1, of a document beside special ones and prompt; InputError: an unreadable
    length.
    """
    tokenizer = model.tokenizer
    positions = getattr(model.transformers_model.config, "max_position_embeddings", None)
    limit = min(positions or max_length, tokenizer.model_max_length)
    if max_length > limit:
        raise InputError(
            f"max_length {max_length} is more than the {limit} tokens that this encoder can read"
        )
    prompt = tokenizer(model.text_format.document_prompt, add_special_tokens=False)["input_ids"]
    return max(1, max_length - int(tokenizer.num_special_tokens_to_add()) - len(prompt))


# Documents that are counted at a time.
_COUNTED = 10_000


def token_counts(documents: Documents, model: Any) -> Ints:
    """(N, 2) int32: the tokens of each document, special ones not counted, and its characters, of
    which the first :data:`~beir_cocodr.data.text.MOST_CHARACTERS` are tokenised.

    A corpus is counted once for a tokenizer, by all processes of a run together, and the counts are
    kept in the cache; what a killed run counted is not counted again. All processes call this.
    """
    described = [
        documents.content_hash,
        model.text_format.title_separator,
        tokenizer_sha256(model.tokenizer),
    ]
    root = cache_folder("token-counts")
    file = root / f"{json_sha256([*described, MOST_CHARACTERS])[:32]}.npy"
    parts = file.with_suffix(".parts")

    def part(start: int) -> Path:
        return parts / f"{start:010}.npy"

    def count(start: int) -> None:
        rows = np.arange(start, min(start + _COUNTED, len(documents)))
        texts = [model.text_format.document(document) for document in documents.take(rows)]
        read = [text[:MOST_CHARACTERS] for text in texts]
        tokens = model.tokenizer(read, **_BARE)["input_ids"] if read else []
        found = [(len(ids), len(text)) for ids, text in zip(tokens, texts, strict=True)]
        save_array(part(start), np.array(found, np.int32).reshape(-1, 2))

    def merge() -> None:
        save_array(file, np.concatenate([np.load(part(start)) for start in starts]))
        rmtree(parts)

    if on_main(lambda: not file.is_file()):
        starts = range(0, max(1, len(documents)), _COUNTED)
        with filling_cache(root):
            parts.mkdir(exist_ok=True)
            # A tokenizer takes all cores by itself.
            share_over_ranks(
                starts, lambda device: count, lambda start: part(start).is_file(), seconds=0
            )
            on_main(merge)
            if not file.is_file():  # of a process with a disk of its own
                merge()
    counts: Ints = np.load(file, mmap_mode="r")
    return counts


@dataclass
class DocumentViews(Views):
    """One row of texts per document, drawn anew each epoch, reproducibly by (seed, epoch, row).

    Rows number the documents of all corpora one after another; those without enough spans, two or
    one by the objective's view, which also draws the texts, give no row and are counted. With
    ``single_spans``, a document of one span is a pair of it and itself.
    """

    collections: Sequence[Collection]
    model: Any
    options: PretrainOptions
    clock: EpochClock = field(default_factory=EpochClock)
    #: No two rows are of one document.
    batch_keys: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        view = OBJECTIVES[self.options.objective].view
        assert view is not None  # objectives on queries have none
        self.view, self.columns = view, dict(view.columns)
        self.bounds = np.cumsum(
            [0] + [len(collection.documents) for collection in self.collections]
        )
        self.max_tokens = content_tokens(self.model, self.options.max_length)
        counts = [token_counts(collection.documents, self.model) for collection in self.collections]
        tokens, characters = np.concatenate(counts).T
        self.two_spans = view.two_spans and not self.options.single_spans
        self.rows = np.flatnonzero(tokens > (self.options.span_tokens if self.two_spans else 0))
        long = int((characters > MOST_CHARACTERS).sum())
        names = ", ".join(collection.name for collection in self.collections)
        if not len(self.rows):
            if not self.two_spans:
                raise InputError(f"no document of {names} has any text to train on")
            raise InputError(
                f"no document of {names} has more than {self.options.span_tokens} tokens, so two spans for "
                f"{self.options.objective}; lower span_tokens, or join short texts into longer documents"
            )
        if long:
            log.warning(
                "%d documents have more than %d characters: their rest is not read",
                long,
                MOST_CHARACTERS,
            )
        has = "have two spans" if self.two_spans else "have text"
        log.info(
            "%s: %d of %d documents %s, the others are left out",
            names,
            len(self.rows),
            len(tokens),
            has,
        )

    def dataset(self) -> Dataset:
        return drawn_dataset("row", self.rows, self._draw)

    def mask_shares(self) -> dict[str, float]:
        return (
            dict.fromkeys(self.columns, self.options.mask_probability)
            if self.options.masked
            else {}
        )

    def counts(self) -> dict[str, int]:
        """How many documents are trained on."""
        return {
            "documents_with_two_spans" if self.two_spans else "documents_with_text": len(self.rows)
        }

    def names(self, rows: Sequence[int]) -> list[str]:
        """Documents by row number: "corpus: id", or the id alone where there is one corpus."""
        ids = [document["_id"] for document in self._documents(rows)]
        if len(self.collections) == 1:
            return ids
        corpora = np.searchsorted(self.bounds, rows, side="right") - 1
        return [
            f"{self.collections[number].name}: {id}"
            for number, id in zip(corpora, ids, strict=True)
        ]

    def texts_of(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """What this epoch sees of documents, a text per column."""
        options, found = self.options, []
        texts = [
            self.model.text_format.document(document)[:MOST_CHARACTERS]
            for document in self._documents(rows)
        ]
        tokens = self.model.tokenizer(texts, return_offsets_mapping=True, **_BARE)
        for row, text, offsets in zip(rows, texts, tokens["offset_mapping"], strict=True):
            rng = np.random.default_rng((options.seed, self.clock.epoch, row))
            ranges = span_ranges(text, offsets, options.span_tokens, options.flush_probability, rng)
            found.append(
                self.view.texts(options, SpannedText(text, offsets, ranges, self.max_tokens), rng)
            )
        return found

    def _documents(self, rows: Sequence[int]) -> list[dict[str, str]]:
        """In the order of the rows, each corpus asked once."""
        corpora = np.searchsorted(self.bounds, rows, side="right") - 1
        found: dict[int, dict[str, str]] = {}
        for number in np.unique(corpora).tolist():
            asked = np.asarray(rows)[corpora == number]
            taken = self.collections[number].documents.take(asked - self.bounds[number])
            found.update(zip(asked.tolist(), taken, strict=True))
        return [found[row] for row in rows]


# A share of cut passages that is worth a warning.
_MANY = 0.05


@dataclass
class ContextViews(Views):
    """One row (passage, context) per passage, drawn anew each epoch, reproducibly by (seed, epoch,
    row). ``folders``: made by ``generate-queries``; their passages are numbered one after another.
    An InputError where none has a query, or there are too few documents for a batch.

    The context is one of the passage's queries. With probability ``mix`` it is instead the passage
    before or after it in its document (the nearest that has a query); a passage that is alone in
    its document is then replaced by two of its spans, and one that has a single span meets a query
    all the same.

    Source: query-as-context pre-training, sections 3.1 and 5.2.
    """

    folders: Sequence[str]
    model: Any
    options: PretrainOptions
    clock: EpochClock = field(default_factory=EpochClock)

    def __post_init__(self) -> None:
        self.columns = {"passage": "document", "context": "query"}
        content_tokens(self.model, self.options.max_length)
        tables = [self._load(folder) for folder in self.folders]
        self.passages = concatenate_datasets(tables)
        self.bounds = np.cumsum([0] + [len(table) for table in tables])
        # (N,) the number of each passage's document over all folders: rows of one document are
        # consecutive.
        starts = [np.diff(table.data.column("row").to_numpy(), prepend=-1) != 0 for table in tables]
        self.document = np.cumsum(np.concatenate(starts))
        names, passages, documents = ", ".join(map(str, self.folders)), len(self), self._documents()
        if not passages:
            raise InputError(
                f"no passage of {names} has a query; generate queries with other settings"
            )
        if self.batch_keys is not None and documents < self.options.batch_size <= passages:
            raise InputError(
                f"a batch holds no two passages of one document, and {names} has {documents} documents: "
                f"lower batch_size, which is {self.options.batch_size}"
            )
        log.info("%s: %d passages of %d documents have queries", names, passages, documents)

    @property
    def batch_keys(self) -> BatchKeys | None:
        """What rows of a batch must not share, where they are contrasted with each other: document,
        passage, context; one would else be trained to be far from its own neighbour, or query.
        """
        return BatchKeys(len(self), self._keys) if self.options.objective == "qc" else None

    def _keys(self, row: int) -> list[str]:
        # No text begins with a zero byte, so a document is not taken for one.
        return [f"\0{self.document[row]}", *self.texts(row)]

    def __len__(self) -> int:
        return len(self.document)

    def dataset(self) -> Dataset:
        return drawn_dataset("row", np.arange(len(self)), self._draw)

    def mask_shares(self) -> dict[str, float]:
        options = self.options
        if options.objective == "cotmae":
            masked = options.decoder == "masked"
            context = {"context": options.decoder_mask_probability} if masked else {}
            return {"passage": options.mask_probability} | context
        return (
            dict.fromkeys(self.columns, options.mask_probability) if options.mlm_weight > 0 else {}
        )

    def names(self, rows: Sequence[int]) -> list[str]:
        """Passages by row number: "document passage 0", after the folder where there are
        several.
        """
        named = []
        for row in map(int, rows):
            passage = self.passages[row]
            folder = self.folders[int(np.searchsorted(self.bounds, row, side="right")) - 1]
            place = f"{passage['document']} passage {passage['number']}"
            named.append(f"{folder}: {place}" if len(self.folders) > 1 else place)
        return named

    def texts_of(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """What this epoch sees of rows: passage and context."""
        return [self._pair(row) for row in rows]

    def _pair(self, row: int) -> tuple[str, str]:
        rng = np.random.default_rng((self.options.seed, self.clock.epoch, row))
        if self.options.mix and rng.random() < self.options.mix:
            pair = self._two_passages(row, rng)
            if pair is not None:
                return pair
        passage = self.passages[row]
        queries = passage["queries"]
        return passage["text"], queries[int(rng.integers(len(queries)))]

    def counts(self) -> Json:
        """Passages, documents, queries; the share of texts that are cut, over at most 1,000 rows;
        with mixed contexts, passages that are alone in their document, and those of them that
        always meet a query.
        """
        queries = pc.sum(pc.list_value_length(self.passages.data.column("queries"))).as_py()
        counts = {"passages": len(self), "documents": self._documents(), "queries": queries}
        return {
            **counts,
            "truncated": self._truncated(),
            **(self._unmixed() if self.options.mix else {}),
        }

    def _load(self, folder: str) -> Dataset:
        # The first process writes the table, all map it.
        on_main(lambda: len(load_query_context(folder, self.options.per_passage)))
        return load_query_context(folder, self.options.per_passage)

    def _documents(self) -> int:
        return int(self.document[-1]) if len(self) else 0

    def _two_passages(self, row: int, rng: np.random.Generator) -> tuple[str, str] | None:
        near = (place for place in (row - 1, row + 1) if 0 <= place < len(self))
        places = [place for place in near if self.document[place] == self.document[row]]
        text = self.passages[row]["text"]
        if places:
            return text, self.passages[places[int(rng.integers(len(places)))]]["text"]
        offsets = self.model.tokenizer(text, return_offsets_mapping=True, **_BARE)["offset_mapping"]
        spanned = SpannedText(
            text, offsets, span_ranges(text, offsets, self.options.span_tokens), len(offsets)
        )
        return span_pair(spanned, rng) if len(spanned.ranges) > 1 else None

    def _unmixed(self) -> dict[str, int]:
        changes = np.diff(self.document, prepend=0, append=self._documents() + 1) != 0
        alone = np.flatnonzero(changes[:-1] & changes[1:])
        short = 0
        for begin in range(0, len(alone), 10_000):
            texts = self.passages[alone[begin : begin + 10_000].tolist()]["text"]
            tokens = self.model.tokenizer([text[:MOST_CHARACTERS] for text in texts], **_BARE)[
                "input_ids"
            ]
            short += sum(len(ids) <= self.options.span_tokens for ids in tokens)  # no two spans
        return {"passages_alone": len(alone), "passages_never_mixed": short}

    def _truncated(self, most: int = 1000) -> dict[str, float]:
        rows, longest = range(0, len(self), -(-len(self) // most)), self.options.max_length
        texts = dict(zip(self.columns, zip(*self.texts_of(rows), strict=True), strict=True))
        shares = {
            column: self.model.truncated_share(texts[column], task, longest)
            for column, task in self.columns.items()
        }
        if shares["passage"] > _MANY:
            log.warning(
                "%.0f%% of the passages are cut at %d tokens: raise max_length, or generate queries with "
                "this encoder's tokenizer",
                *(100 * shares["passage"], longest),
            )
        return shares
