"""Spans cut out of documents, as queries for what is left of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import regex

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.arrow_corpus import CorpusWriter, open_corpus
from beir_cocodr.data.spans import Range, span_ranges
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.data.words import words
from beir_cocodr.evaluation.label_free.pseudo_queries import TRAINED_ON, PseudoQueries, verbatim_share

#: The most words of a crop, and the fewest.
CROP_WORDS, _FEWEST = 16, 3
_CHUNK = 1_000
# Documents looked at for each crop that is wanted, so that a corpus of titles is not read to its end.
_LOOKS = 20
# A character of a script that puts no space between words, or a run of other characters.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_UNIT = regex.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


@dataclass(frozen=True)
class Crops:
    """Crops, and the corpus that they have to be found in.

    Attributes:
        queries: the crops.
        documents: the corpus, row by row, with each crop taken out of its document.
    """

    queries: PseudoQueries
    documents: Documents


def hold_out_crops(
    documents: Documents,
    folder: Path,
    size: int = 300,
    seed: int = 42,
    trained_on: Callable[[str], bool] | None = None,
) -> Crops:
    """Cut a span out of each of ``size`` random documents: the span must find the rest of its document.

    The span is taken out of the index, so that no exact copy of the query is there to be found; what its
    document repeats of its words still helps, and ``verbatim`` says how much. A span is a run of whole
    sentences of at most 16 words, or a part of a longer sentence; titles are left alone. Documents of fewer
    than two spans give none and are counted.

    Args:
        documents: the corpus.
        folder: where the changed corpus is written; the caller removes it.
        size: crops wanted.
        seed: of documents and spans.
        trained_on: tells the crops that a model was trained on, which are left out and counted.

    Source: the inverse cloze task of Lee et al., 2019, section 3, used to measure instead of to train.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(documents))[: _LOOKS * size]
    texts: list[str] = []
    rests: dict[int, str] = {}
    whole: list[str] = []
    looked = known = 0
    for start in range(0, len(order), _CHUNK):
        rows = order[start : start + _CHUNK]
        for row, document in zip(rows.tolist(), documents.take(rows), strict=True):
            if len(texts) == size:
                break
            looked += 1
            cut = _cut(document["text"], rng)
            if cut is not None and trained_on is not None and trained_on(cut[0]):
                known += 1
            elif cut is not None:
                texts.append(cut[0])
                rests[row] = cut[1]
                whole.append(TextFormat().document({"title": document["title"], "text": cut[1]}))
    counts = {"documents_looked_at": looked, "documents_without_two_spans": looked - known - len(texts)}
    counts |= {TRAINED_ON: known} if known else {}
    queries = PseudoQueries(
        texts, np.fromiter(rests, np.int64, len(rests)), verbatim_share(texts, whole), counts
    )
    path = folder / "held_out.arrow"
    CorpusWriter(path).write(_changed(documents, rests), {})
    return Crops(queries, open_corpus(path).documents)


def _cut(text: str, rng: np.random.Generator) -> tuple[str, str] | None:
    """A span of a text, and the text without it; None where there are no two spans."""
    offsets: list[Range] = [match.span() for match in _UNIT.finditer(text)]
    ranges = span_ranges(text, offsets, CROP_WORDS)
    if len(ranges) < 2:
        return None
    long = [(first, last) for first, last in ranges if last - first >= _FEWEST]
    if not long:
        return None
    first, last = long[int(rng.integers(len(long)))]
    start, end = offsets[first][0], offsets[last - 1][1]
    crop, rest = text[start:end], f"{text[:start].rstrip()} {text[end:].lstrip()}".strip()
    return (crop, rest) if words(crop) and words(rest) else None


def _changed(documents: Documents, rests: dict[int, str]) -> Iterator[tuple[int, str, str, str]]:
    row = 0
    for chunk in documents.chunks(_CHUNK):
        for document in chunk:
            yield row, document["_id"], document["title"], rests.get(row, document["text"])
            row += 1
