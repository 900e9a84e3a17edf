"""Queries with known answers: spans, for what is left of their documents, and queries made of
documents by no model.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import regex

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.data.documents import Documents, open_corpus, write_arrow
from beir_cocodr.data.passages import Passage, PassageReader
from beir_cocodr.data.spans import Range, span_ranges
from beir_cocodr.data.text import TextFormat, word_counter, words
from beir_cocodr.evaluation.results import TRAINED_ON, PseudoQueryFigures
from beir_cocodr.generation.lexical import LexicalGenerator
from beir_cocodr.generation.settings import GenerationOptions

#: Depth of the measure: a pseudo-query has one relevant document, so nDCG@10 is 1 / log2(1 + its
#: rank).
DEPTH = 10

#: Tells texts that a model was trained on.
Known = Callable[[str], bool]


@dataclass(frozen=True)
class PseudoQueries:
    """Queries made from documents.

    Attributes:
        texts: (S,) queries.
        rows: (S,) the corpus row of the document that each has to find, no two alike.
        verbatim: mean share of a query's distinct words that its document has, as it stands in the
            index: 1 where exact words give the answer away, None without queries.
        counts: what was looked at and left out.
    """

    texts: list[str]
    rows: Ints
    verbatim: float | None
    counts: dict[str, int]

    @property
    def queries(self) -> dict[str, str]:
        """The queries by an id of their own."""
        return {str(number): text for number, text in enumerate(self.texts)}

    def score(self, found: Ints) -> Doubles:
        """(S,) nDCG@10 from the (S, k) rows that a search found, best first, -1 for no result."""
        hits = found[:, :DEPTH] == self.rows[:, None]
        discounts = 1 / np.log2(2 + np.arange(hits.shape[1]))
        return hits @ discounts  # type: ignore[no-any-return]

    def describe(self, scores: Doubles) -> PseudoQueryFigures:
        """For the record, with BM25's (S,) scores."""
        bm25 = float(scores.mean()) if len(scores) else None
        return PseudoQueryFigures(len(self.texts), self.verbatim, self.counts, bm25)


def verbatim_share(queries: Sequence[str], documents: Sequence[str]) -> float | None:
    """Mean share of a query's distinct words that its document has; None without queries."""
    shares = [
        len(asked & set(words(document))) / len(asked)
        for query, document in zip(queries, documents, strict=True)
        if (asked := set(words(query)))
    ]
    return float(np.mean(shares)) if shares else None


#: The most words of a crop, and the fewest.
CROP_WORDS, _FEWEST = 16, 3
_CROP_CHUNK = 1_000

# Documents looked at for each crop that is wanted, so that a corpus of titles is not read to its
# end.
_LOOKS = 20

# A character of a script that puts no space between words, or a run of other characters.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_UNIT = regex.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def hold_out_crops(
    documents: Documents,
    folder: Path,
    size: int = 300,
    seed: int = 42,
    trained_on: Known = lambda _: False,
) -> tuple[PseudoQueries, Documents]:
    """Cut a span out of each of ``size`` random documents, which it must find: the spans, and the
    corpus, row by row, without them.

    What the document repeats of the span's words still helps; ``verbatim`` gives its share. A span
    is a run of whole sentences of at most 16 words, or a part of a longer sentence; titles are left
    alone. Documents of fewer than two spans, and crops that a model was ``trained_on``, are left
    out and counted. The changed corpus is written to ``folder``, which the caller removes.

    Source: the inverse cloze task of Lee et al., 2019, section 3, used to measure instead of to
    train.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(documents))[: _LOOKS * size]
    texts: list[str] = []
    rests: dict[int, str] = {}
    whole: list[str] = []
    looked = known = 0
    for start in range(0, len(order), _CROP_CHUNK):
        rows = order[start : start + _CROP_CHUNK]
        for row, document in zip(rows.tolist(), documents.take(rows), strict=True):
            if len(texts) == size:
                break
            looked += 1
            crop, rest = _cut(document["text"], rng)
            if crop and trained_on(crop):
                known += 1
            elif crop:
                texts.append(crop)
                rests[row] = rest
                whole.append(TextFormat().document({"title": document["title"], "text": rest}))
    counts = _counts("documents_without_two_spans", looked, known, len(texts))
    queries = PseudoQueries(
        texts, np.fromiter(rests, np.int64, len(rests)), verbatim_share(texts, whole), counts
    )
    path = folder / "held_out.arrow"
    chunks = enumerate(itertools.chain.from_iterable(documents.chunks(_CROP_CHUNK)))
    write_arrow(path, ((row, d["_id"], d["title"], rests.get(row, d["text"])) for row, d in chunks))
    return queries, open_corpus(path)


def _counts(without: str, looked: int, known: int, made: int) -> dict[str, int]:
    counts = {"documents_looked_at": looked, without: looked - known - made}
    return counts | {TRAINED_ON: known} if known else counts


def _cut(text: str, rng: np.random.Generator) -> tuple[str, str]:
    """A span of a text, and the text without it; both empty where there are no two spans."""
    offsets: list[Range] = [match.span() for match in _UNIT.finditer(text)]
    ranges = span_ranges(text, offsets, CROP_WORDS)
    long = [(first, last) for first, last in ranges if last - first >= _FEWEST]
    if len(ranges) < 2 or not long:
        return "", ""
    first, last = long[int(rng.integers(len(long)))]
    start, end = offsets[first][0], offsets[last - 1][1]
    crop, rest = text[start:end], f"{text[:start].rstrip()} {text[end:].lstrip()}".strip()
    return (crop, rest) if words(crop) and words(rest) else ("", "")


_CHUNK = 256


def lexical_queries(
    documents: Documents,
    folder: Path,
    size: int = 300,
    seed: int = 42,
    trained_on: Known = lambda _: False,
) -> PseudoQueries:
    """One query of :class:`LexicalGenerator` for each of ``size`` random documents.

    A query is the title, a sentence or some terms of a passage of its document, so nearly all of
    its words stand there: models that match words do better on it than on real queries. Those that
    a model was ``trained_on`` are left out and counted; ``folder`` is for what the generator keeps,
    and the caller removes it.
    """
    rng = np.random.default_rng(seed)
    text_format = TextFormat()
    reader = PassageReader(documents, text_format, word_counter().count, 144, "en")
    generator = LexicalGenerator(documents, GenerationOptions(per_passage=1, seed=seed))
    generator.prepare(folder)
    order = rng.permutation(len(documents))[: _LOOKS * size]
    texts: list[str] = []
    rows: list[int] = []
    looked = known = 0
    for start in range(0, len(order), _CHUNK):
        if len(texts) == size:
            break
        taken = order[start : start + min(_CHUNK, size - len(texts))]
        looked += len(taken)
        passages = _one_a_document(reader.read(taken.tolist())[0], rng)
        for passage, made in zip(passages, generator.generate(passages, 0).queries, strict=True):
            if made and trained_on(made[0].text):
                known += 1
            elif made and made[0].text.strip():
                texts.append(made[0].text)
                rows.append(passage.row)
    found = [text_format.document(document) for document in documents.take(rows)]
    counts = _counts("documents_without_query", looked, known, len(texts))
    return PseudoQueries(texts, np.array(rows, np.int64), verbatim_share(texts, found), counts)


def _one_a_document(passages: list[Passage], rng: np.random.Generator) -> list[Passage]:
    documents = (
        list(found) for _, found in itertools.groupby(passages, lambda passage: passage.row)
    )
    return [found[int(rng.integers(len(found)))] for found in documents]
