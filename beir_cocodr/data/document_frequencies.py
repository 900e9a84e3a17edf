"""In how many documents a word stands, in memory that does not grow with the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.saved_array import save_array
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.data.words import words

# 16 MiB of counters. Words of which two share one look as frequent as both together.
_BUCKETS = 1 << 22
_CHUNK = 1000


@dataclass(frozen=True)
class DocumentFrequencies:
    """Document frequencies of hashed words.

    Attributes:
        counts: (2^22,) uint32, documents by hash of a word.
        documents: N.
    """

    counts: npt.NDArray[np.uint32]
    documents: int

    def idf(self, terms: Sequence[str]) -> npt.NDArray[np.float64]:
        """(n,) inverse document frequencies ln(1 + N/df), positive even where a word is everywhere."""
        df = np.maximum(self.counts[_buckets(terms)], 1)
        return np.asarray(np.log1p(self.documents / df))

    def save(self, path: Path) -> None:
        """Write to a ``.npy`` file in one step."""
        save_array(path, np.append(self.counts, np.uint32(self.documents)))

    @classmethod
    def load(cls, path: Path) -> DocumentFrequencies:
        """What :meth:`save` wrote."""
        saved = np.load(path)
        return cls(saved[:-1], int(saved[-1]))


def count_document_frequencies(
    documents: Documents, text_format: TextFormat | None = None
) -> DocumentFrequencies:
    """Count the words of a corpus, streamed.

    Args:
        documents: the corpus.
        text_format: joins titles and texts.
    """
    text_format = text_format or TextFormat()
    counts = np.zeros(_BUCKETS, np.uint32)
    for chunk in documents.chunks(_CHUNK):
        found = [_buckets(set(words(text_format.document(document)))) for document in chunk]
        # Two words of a document that share a counter count once.
        np.add.at(counts, np.concatenate([np.unique(buckets) for buckets in found]), 1)
    return DocumentFrequencies(counts, len(documents))


def _buckets(terms: Iterable[str]) -> npt.NDArray[np.int64]:
    return np.fromiter((crc32(term.encode()) % _BUCKETS for term in terms), np.int64)
