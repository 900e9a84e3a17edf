"""The places of tokens in the texts of a corpus: tokenised once, kept, and mapped into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from beir_cocodr.arrays import Array, Ints
from beir_cocodr.checksums import is_kept, save_array
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.spans import Range
from beir_cocodr.data.text import MOST_CHARACTERS
from beir_cocodr.io import cache_folder, filling_cache, json_sha256
from beir_cocodr.models.checkpoints.loading import tokenizer_sha256
from beir_cocodr.records import Json
from beir_cocodr.retrieval.vectors.pool import share_over_ranks
from beir_cocodr.training.pretraining.views import BARE_TOKENS

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

#: The folder of the cache.
KIND = "token-places"

# Documents of a file.
_PART = 10_000


@dataclass
class TokenPlaces:
    """The character ranges of the tokens of a corpus, (T, 2) int32 in files of 10,000 documents.

    They take 8 bytes a token. Spans of a document are drawn from them anew each epoch, without
    tokenising the document again. A file is written in one step and has a checksum, so that what a
    killed run wrote is used, and a damaged file is made anew. Only the first
    :data:`~beir_cocodr.data.text.MOST_CHARACTERS` of a document are tokenised.

    Attributes:
        documents: The corpus.
        model: The encoder, for its tokenizer and text format.
    """

    documents: Documents
    model: COCODR

    def __post_init__(self) -> None:
        """Name the files by all that they depend on."""
        key = json_sha256(self.identity)
        self.folder = cache_folder(KIND) / key[:32]
        self._parts: dict[int, Ints] = {}

    @property
    def identity(self) -> list[object]:
        """Return what the places depend on."""
        return [
            self.documents.content_hash,
            self.model.text_format.title_separator,
            tokenizer_sha256(self.model.tokenizer),
            MOST_CHARACTERS,
        ]

    @cached_property
    def starts(self) -> range:
        """Return the first document of each file."""
        return range(0, max(1, len(self.documents)), _PART)

    def complete(self, counts: Ints) -> None:
        """Write the files that are missing or damaged, by all processes together.

        Args:
            counts: (N,) tokens of each document.
        """
        # (N + 1,) the number of tokens before each document.
        self.bounds = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        with filling_cache(self.folder.parent):
            # A tokenizer takes all cores by itself.
            share_over_ranks(
                tasks=self.starts,
                start=lambda device: self.write,
                is_done=self._is_kept,
                seconds=0,
            )

    def write(self, start: int) -> Array:
        """Tokenise the documents of a file, and write it.

        Returns:
            (n, 2) int32: the tokens of each document, without special ones, and its characters.
        """
        stop = min(start + _PART, len(self.documents))
        documents = self.documents.take(np.arange(start, stop))
        text_format = self.model.text_format
        texts = [text_format.document(document) for document in documents]
        read = [text[:MOST_CHARACTERS] for text in texts]
        places: list[Sequence[Range]] = []
        if read:
            settings: Json = {"return_offsets_mapping": True, **BARE_TOKENS}
            places = self.model.tokenizer(read, **settings)["offset_mapping"]
        arrays = [np.zeros((0, 2), np.int32)]
        counts: list[tuple[int, int]] = []
        for ranges, text in zip(places, texts, strict=True):
            arrays.append(np.array(ranges, np.int32).reshape(-1, 2))
            counts.append((len(ranges), len(text)))
        self.folder.mkdir(parents=True, exist_ok=True)
        save_array(self._file(start), np.concatenate(arrays))
        return np.array(counts, np.int32).reshape(-1, 2)

    def of(self, row: int) -> Ints:
        """Return the (n, 2) character ranges of the tokens of a document."""
        start = row - row % _PART
        part = self._parts.get(start)
        if part is None:
            part = np.asarray(np.load(self._file(start), mmap_mode="r"))  # a slice of it is cheaper
            self._parts[start] = part
        tokens_before = self.bounds[start]
        first = self.bounds[row] - tokens_before
        last = self.bounds[row + 1] - tokens_before
        return part[first:last]

    def _file(self, start: int) -> Path:
        return self.folder / f"{start:010}.npy"

    def _is_kept(self, start: int) -> bool:
        return is_kept(self._file(start))
