"""Which words a corpus has, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from beir_cocodr.data.documents import Documents

#: Everything between two words: whatever is not a letter, a mark on a letter, a digit or an underscore.
_BETWEEN_WORDS = r"[^\pL\pM\pN_]+"
_CHUNK_ROWS = 4096
#: Rows of counts that may wait for the next merge, beside as many as there are words already.
_WAITING_ROWS = 1 << 20


@dataclass(frozen=True)
class Unigrams:
    """The words of a corpus with their collection frequencies.

    A word is a run of letters, digits and underscores of title or text, in lower case. Nothing is stemmed
    and no word is left out, since the paper names neither. Scripts that put no space between words are not
    cut into words: there this says little.

    Attributes:
        words: (V,) Arrow strings, each once.
        counts: (V,) int64, how often each stands in the corpus.

    Source: COCO-DR, appendix C.2.
    """

    words: Any
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, documents: Documents, chunk_rows: int = _CHUNK_ROWS) -> Unigrams:
        """Count the words of a corpus in one pass.

        Args:
            documents: the corpus; it is streamed. Memory grows with the number of different words, some
                25 bytes each in the result and 250 at the peak, not with the number of documents.
            chunk_rows: documents read at a time; the result does not depend on it.
        """
        merged = _merge([])
        waiting: list[Any] = []
        for start in range(0, len(documents), chunk_rows):
            part = documents.table.slice(start, chunk_rows)
            # Apart rather than joined: what stands between title and text belongs to no word.
            waiting += [_count(part.column(name)) for name in ("title", "text")]
            if sum(map(len, waiting)) > max(_WAITING_ROWS, len(merged)):
                merged, waiting = _merge([merged, *waiting]), []
        merged = _merge([merged, *waiting])
        return cls(merged.column("word").combine_chunks(), merged.column("count").to_numpy())

    def aligned(self, other: Unigrams) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Both counts over the words that both have, and two entries more: the words of one side alone.

        These are summed up: against a count of 0, the sum of minima and that of maxima do not depend on how
        they are divided among words.

        Returns:
            (C + 2,) counts here, (C + 2,) counts there.
        """
        places = pc.index_in(self.words, value_set=other.words).fill_null(-1).to_numpy(zero_copy_only=False)
        common = places >= 0
        here, there = self.counts[common], other.counts[places[common]]
        alone_here, alone_there = self.counts.sum() - here.sum(), other.counts.sum() - there.sum()
        return np.append(here, [alone_here, 0]), np.append(there, [0, alone_there])


def _count(texts: Any) -> Any:
    words = pc.list_flatten(pc.split_pattern_regex(pc.utf8_lower(texts), pattern=_BETWEEN_WORDS))
    found = pc.value_counts(words)
    return _table(found.field("values"), found.field("counts"))


def _merge(parts: list[Any]) -> Any:
    if not parts:
        return _table(pa.array([], pa.large_string()), pa.array([], pa.int64()))
    # One thread: the order of words, and with it nothing else either, may depend on the machine.
    grouped = pa.concat_tables(parts).group_by("word", use_threads=False).aggregate([("count", "sum")])
    return _table(grouped.column("word"), grouped.column("count_sum"))


def _table(words: Any, counts: Any) -> Any:
    table = pa.table({"word": words, "count": counts})
    # A text that starts or ends between words is split off an empty one.
    return table.filter(pc.not_equal(table.column("word"), ""))
