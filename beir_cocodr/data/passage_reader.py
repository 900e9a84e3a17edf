"""The passages of a corpus, some documents at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.generation.generated import Passage
from beir_cocodr.data.passages import split_passages
from beir_cocodr.data.saved_array import save_array
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.data.token_counts import Count

log = logging.getLogger(__name__)

_COUNTS = "passages_per_document.npy"
_CHUNK = 1000


class PassageReader:
    """Splits documents into passages, and keeps all of them or a random sample.

    Args:
        documents: the corpus.
        text_format: joins titles and texts.
        count: tokens of texts.
        limit: the most tokens of a passage.
        language: of the sentences.
    """

    def __init__(
        self, documents: Documents, text_format: TextFormat, count: Count, limit: int, language: str
    ) -> None:
        self.documents, self.text_format = documents, text_format
        self.count, self.limit, self.language = count, limit, language
        self._sample: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def draw(self, size: int, seed: int, folder: Path) -> None:
        """Keep a uniform random sample of ``size`` passages of the corpus from now on.

        Reads the corpus once, to count passages, unless another process has left the counts in ``folder``.
        """
        saved = folder / _COUNTS
        if not saved.is_file():
            log.info("counting the passages of %d documents", len(self.documents))
            counts = np.zeros(len(self.documents), np.int64)
            for start in range(0, len(counts), _CHUNK):
                for passage in self._split(range(start, min(start + _CHUNK, len(counts)))):
                    counts[passage.row] += 1
            save_array(saved, counts)
        first = np.concatenate(
            [[0], np.cumsum(np.load(saved))]
        )  # (N + 1,) number of passages before a document
        total = int(first[-1])
        rng = np.random.default_rng(seed)
        self._sample = first, np.sort(rng.choice(total, min(size, total), replace=False))

    def read(self, rows: Sequence[int]) -> tuple[list[Passage], dict[str, int]]:
        """The passages of documents, and counts: documents, those without text, passages, those left out."""
        found = self._split(rows)
        kept = [passage for passage in found if self._is_kept(passage)]
        counts = {
            "documents": len(rows),
            "documents_without_text": len(rows) - len({passage.row for passage in found}),
            "passages": len(kept),
            "passages_left_out": len(found) - len(kept),
        }
        return kept, counts

    def _split(self, rows: Sequence[int]) -> list[Passage]:
        documents = self.documents.take(rows)
        texts = [self.text_format.document(document) for document in documents]
        titles = [document["title"].strip() for document in documents]
        heads = [len(title) for title in titles]
        ranges = split_passages(texts, self.count, self.limit, self.language, heads)
        return [
            Passage(row, number, start, end, text[start:end], title)
            for row, text, title, found in zip(rows, texts, titles, ranges, strict=True)
            for number, (start, end) in enumerate(found)
        ]

    def _is_kept(self, passage: Passage) -> bool:
        if self._sample is None:
            return True
        first, chosen = self._sample
        place = first[passage.row] + passage.number
        at = int(np.searchsorted(chosen, place))
        return at < len(chosen) and bool(chosen[at] == place)
