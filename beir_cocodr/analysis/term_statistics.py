"""What a corpus knows about its terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.retrieval.bm25 import BM25


@dataclass(frozen=True)
class QueryTerms:
    """The terms of one query, stop words gone, stemmed as the corpus is.

    Attributes:
        known: (m,) int64 columns of the terms that the corpus has, in order, as often as they stand there.
        unknown: how many words the corpus does not have.
    """

    known: npt.NDArray[np.int64]
    unknown: int


class TermStatistics:
    """Document and collection frequencies and postings of a corpus, by the analysis of our BM25.

    The texts and their tokens are streamed; the postings are held in memory, 8 bytes each, 16 while they
    are put together.

    Args:
        documents: the corpus.
        text_format: joins titles and texts; prompts and lengths play no part.
        analyzer: "english" or "none", see :class:`BM25`.
        chunk_size: documents tokenised at a time; the result does not depend on it.

    Attributes:
        documents: N, how many documents there are, empty ones included.
        postings: (N, V) int32 sparse term frequencies tf, column by column.
        df: (V,) int64, in how many documents a term stands.
        cf: (V,) int64, how often it stands in the collection.
        length: terms of the collection, Σ cf.

    Raises:
        InputError: the analyzer is unknown.
    """

    def __init__(
        self,
        documents: Documents,
        text_format: TextFormat | None = None,
        analyzer: str = "english",
        chunk_size: int = 10_000,
    ) -> None:
        text_format = text_format or TextFormat()
        # BM25's own tokeniser, with a vocabulary of its own: whatever BM25 comes to do with a text, these
        # statistics do too.
        self._tokenizer: Any = BM25(documents, text_format, analyzer)._tokenizer
        parts = []
        for chunk in documents.chunks(chunk_size):
            ids = self._tokenize([text_format.document(document) for document in chunk], learn=True)
            parts.append(_counts(ids, len(self._vocabulary)))
        for part in parts:
            part.resize((part.shape[0], len(self._vocabulary)))
        # Rows can be stacked without a detour; dropping the parts first keeps two copies at most.
        by_row = sparse.vstack(parts, format="csr")
        parts.clear()
        self.postings: Any = by_row.tocsc()
        self.documents = len(documents)
        self.df: npt.NDArray[np.int64] = np.diff(self.postings.indptr).astype(np.int64)
        self.cf: npt.NDArray[np.int64] = np.asarray(self.postings.sum(axis=0, dtype=np.int64)).ravel()
        self.length = int(self.cf.sum())

    def terms(self, query: str) -> QueryTerms:
        """The terms of a query."""
        [known] = self._tokenize([query], learn=False)
        words = [word for word in self._tokenizer.splitter(query.lower()) if word not in self._stop_words]
        return QueryTerms(np.asarray(known, np.int64), len(words) - len(known))

    def frequencies(self, column: int) -> npt.NDArray[np.int32]:
        """(df,) term frequencies of one term over its postings."""
        start, end = self.postings.indptr[column : column + 2]
        found: npt.NDArray[np.int32] = self.postings.data[start:end]
        return found

    @property
    def _vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self._tokenizer.get_vocab_dict()
        return vocabulary

    @property
    def _stop_words(self) -> frozenset[str]:
        return frozenset(self._tokenizer.stopwords or ())

    def _tokenize(self, texts: list[str], learn: bool) -> list[list[int]]:
        # Without allow_empty the host gives a text without words a term of its own, "".
        ids: list[list[int]] = self._tokenizer.tokenize(
            texts, update_vocab=learn, show_progress=False, allow_empty=False
        )
        return ids


def _counts(ids: list[list[int]], width: int) -> Any:
    """(n, width) sparse term frequencies of n documents, each a list of term ids."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    columns = np.fromiter((term for terms in ids for term in terms), np.int32, int(lengths.sum()))
    rows = np.repeat(np.arange(len(ids), dtype=np.int32), lengths)
    ones = np.ones(len(columns), np.int32)
    return sparse.coo_array((ones, (rows, columns)), shape=(len(ids), width)).tocsr()
