"""Queries with known answers: spans cut out of documents, and queries that no model generates."""

import itertools
from collections.abc import Callable, Iterator, Sequence
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

#: Depth of the measure. A pseudo-query has one relevant document, so nDCG@10 is 1 / log2(1 + rank).
DEPTH = 10

#: The most words of a crop.
CROP_WORDS = 16

# The fewest words of a crop.
_FEWEST = 3

# Documents that are read at a time to be cropped, and to be queried.
_CROP_CHUNK = 1_000
_QUERY_CHUNK = 256

# Documents that are looked at for each query, so that a corpus of titles is not read to its end.
_LOOKS = 20

# Words of a passage that queries are made of.
_PASSAGE_WORDS = 144

# A character of a script that puts no space between words, or a run of other characters.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_UNIT = regex.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")

#: Returns true for a text that a model was trained on.
IsKnown = Callable[[str], bool]


def nothing_is_known(text: str) -> bool:
    """Return false: no model was trained on a text."""
    return False


@dataclass(frozen=True)
class PseudoQueries:
    """Queries made of documents.

    Attributes:
        texts: (S,) queries.
        rows: (S,) corpus rows of the documents that they have to find, all different.
        verbatim: Mean share of a query's distinct words that its document has in the index. It is 1
            if exact words give the answer away, and None without queries.
        counts: How many documents were looked at, and left out.
    """

    texts: list[str]
    rows: Ints
    verbatim: float | None
    counts: dict[str, int]

    @property
    def queries(self) -> dict[str, str]:
        """Return the queries by an id of their own."""
        return {str(number): text for number, text in enumerate(self.texts)}

    def score(self, rows: Ints) -> Doubles:
        """Return the (S,) nDCG@10 of the (S, k) rows of a search, best first, -1 for no result."""
        hits = rows[:, :DEPTH] == self.rows[:, None]
        discounts = 1 / np.log2(2 + np.arange(hits.shape[1]))
        return hits @ discounts  # type: ignore[no-any-return]

    def describe(self, bm25_scores: Doubles) -> PseudoQueryFigures:
        """Describe the queries for a record, with BM25's (S,) scores."""
        mean = float(bm25_scores.mean()) if len(bm25_scores) else None
        return PseudoQueryFigures(
            len(self.texts),
            self.verbatim,
            self.counts,
            mean,
        )


def verbatim_share(queries: Sequence[str], documents: Sequence[str]) -> float | None:
    """Return the mean share of a query's distinct words in its document; None without queries."""
    shares = []
    for query, document in zip(queries, documents, strict=True):
        query_words = set(words(query))
        if query_words:
            shared = query_words & set(words(document))
            shares.append(len(shared) / len(query_words))
    return float(np.mean(shares)) if shares else None


@dataclass
class _Drawing:
    """Queries from documents in a random order; some documents give none.

    Attributes:
        looked_at: How many were looked at.
        known: How many gave a query that a model was trained on.
        texts: The queries.
        rows: Rows of the documents that gave them.
    """

    looked_at: int
    known: int
    texts: list[str]
    rows: list[int]

    @classmethod
    def start(cls) -> "_Drawing":
        return cls(0, 0, [], [])

    def add(self, row: int, text: str) -> None:
        self.texts.append(text)
        self.rows.append(row)

    def counts(self, without: str) -> dict[str, int]:
        """Return the counts for a record; ``without`` names documents that gave no query."""
        nothing = self.looked_at - self.known - len(self.texts)
        counts = {"documents_looked_at": self.looked_at, without: nothing}
        return counts | {TRAINED_ON: self.known} if self.known else counts


def hold_out_crops(
    documents: Documents,
    folder: Path,
    size: int = 300,
    seed: int = 42,
    trained_on: IsKnown = nothing_is_known,
) -> tuple[PseudoQueries, Documents]:
    """Cut a span out of each of ``size`` random documents, which it has to find.

    Words of the span that the document repeats still help; ``verbatim`` gives their share. A span
    consists of whole sentences of at most 16 words together, or is a part of a longer sentence;
    titles are not cut. Documents of fewer than two spans, and crops that a model was trained on,
    are left out and counted.

    Args:
        documents: The corpus.
        folder: For the changed corpus; the caller removes it.
        size: The most crops.
        seed: Seed of the drawing.
        trained_on: Returns true for a crop that a model was trained on.

    Returns:
        The crops, and the corpus without them, row by row.

    References:
        Lee et al., 2019, section 3 (the inverse cloze task), here to measure instead of to train.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(documents))[: _LOOKS * size]
    drawing = _Drawing.start()
    rests: dict[int, str] = {}
    indexed: list[str] = []
    for row, document in _in_order(documents, order):
        if len(drawing.texts) == size:
            break
        drawing.looked_at += 1
        crop, rest = _cut(document["text"], rng)
        if crop and trained_on(crop):
            drawing.known += 1
        elif crop:
            drawing.add(row, crop)
            rests[row] = rest
            indexed.append(TextFormat().document({"title": document["title"], "text": rest}))
    queries = PseudoQueries(
        texts=drawing.texts,
        rows=np.array(drawing.rows, np.int64),
        verbatim=verbatim_share(drawing.texts, indexed),
        counts=drawing.counts("documents_without_two_spans"),
    )
    path = folder / "held_out.arrow"
    every = enumerate(itertools.chain.from_iterable(documents.chunks(_CROP_CHUNK)))
    write_arrow(path, ((row, d["_id"], d["title"], rests.get(row, d["text"])) for row, d in every))
    return queries, open_corpus(path)


def _in_order(documents: Documents, order: Ints) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield rows and their documents in an order, which are read a chunk at a time."""
    for start in range(0, len(order), _CROP_CHUNK):
        rows = order[start : start + _CROP_CHUNK]
        yield from zip(rows.tolist(), documents.take(rows), strict=True)


def _cut(text: str, rng: np.random.Generator) -> tuple[str, str]:
    """Return a span of a text and the text without it; both are empty if it has not two spans."""
    offsets: list[Range] = [match.span() for match in _UNIT.finditer(text)]
    ranges = span_ranges(text, offsets, CROP_WORDS)
    long_enough = [(first, last) for first, last in ranges if last - first >= _FEWEST]
    if len(ranges) < 2 or not long_enough:
        return "", ""
    first, last = long_enough[int(rng.integers(len(long_enough)))]
    start = offsets[first][0]
    end = offsets[last - 1][1]
    crop = text[start:end]
    rest = f"{text[:start].rstrip()} {text[end:].lstrip()}".strip()
    return (crop, rest) if words(crop) and words(rest) else ("", "")


def lexical_queries(
    documents: Documents,
    folder: Path,
    size: int = 300,
    seed: int = 42,
    trained_on: IsKnown = nothing_is_known,
) -> PseudoQueries:
    """Generate one query for each of ``size`` random documents, without a model.

    A query is the title, a sentence or some terms of a passage of its document, so nearly all of
    its words occur there: models that match words do better on it than on real queries. Queries
    that a model was trained on are left out and counted.

    Args:
        documents: The corpus.
        folder: For what the generator keeps; the caller removes it.
        size: The most queries.
        seed: Seed of the drawing.
        trained_on: Returns true for a query that a model was trained on.
    """
    rng = np.random.default_rng(seed)
    text_format = TextFormat()
    reader = PassageReader(
        documents,
        text_format,
        word_counter().count,
        _PASSAGE_WORDS,
        "en",
    )
    generator = LexicalGenerator(
        documents,
        GenerationOptions(per_passage=1, seed=seed),
    )
    generator.prepare(folder)
    order = rng.permutation(len(documents))[: _LOOKS * size]
    drawing = _Drawing.start()
    for start in range(0, len(order), _QUERY_CHUNK):
        if len(drawing.texts) == size:
            break
        rows = order[start : start + min(_QUERY_CHUNK, size - len(drawing.texts))]
        drawing.looked_at += len(rows)
        passages = _one_of_each_document(reader.read(rows.tolist())[0], rng)
        generated = generator.generate(passages, 0).queries
        for passage, queries in zip(passages, generated, strict=True):
            if queries and trained_on(queries[0].text):
                drawing.known += 1
            elif queries and queries[0].text.strip():
                drawing.add(passage.row, queries[0].text)
    texts = [text_format.document(document) for document in documents.take(drawing.rows)]
    return PseudoQueries(
        texts=drawing.texts,
        rows=np.array(drawing.rows, np.int64),
        verbatim=verbatim_share(drawing.texts, texts),
        counts=drawing.counts("documents_without_query"),
    )


def _one_of_each_document(passages: list[Passage], rng: np.random.Generator) -> list[Passage]:
    """Draw one passage of each document."""
    drawn = []
    for _, group in itertools.groupby(passages, lambda passage: passage.row):
        of_document = list(group)
        drawn.append(of_document[int(rng.integers(len(of_document)))])
    return drawn
