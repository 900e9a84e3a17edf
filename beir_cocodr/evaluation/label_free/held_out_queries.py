"""Queries that are cut out of documents, which have to be found without them."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import regex

from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import Documents, hashes_of, open_corpus, write_arrow
from beir_cocodr.data.spans import Range, span_ranges
from beir_cocodr.data.text import TextFormat, words
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    LOOKS,
    Drawing,
    IsKnown,
    PseudoQueries,
    nothing_is_known,
)

#: The file of a corpus without the queries that were cut out of it.
CORPUS_FILE = "held_out.arrow"

#: The most words of a crop.
CROP_WORDS = 16

#: Lengths of matched crops, in words, where there are no real queries to take them from.
USUAL_LENGTHS = (4, 5, 6, 7, 8, 9, 10, 12)

# The fewest words of a crop.
_FEWEST = 3

# The fewest and the most words of a title or heading, and the fewest of the text that is left.
_TITLE_WORDS = (2, 14)
_FEWEST_LEFT = 20

# Documents that are read at a time.
_CHUNK = 1_000

# A character of a script that puts no space between words, or a run of other characters.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_UNIT = regex.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")

#: A document: its title and its text.
Document = Mapping[str, str]

#: Cuts a query out of a document, and returns it with the rest; None if it gives no query.
Cut = Callable[[Document], tuple[str, Document] | None]


class HeldOutQueries:
    """Queries of several kinds that are cut out of one copy of a corpus.

    Documents that gave no query yet come first, so that a document loses two texts only where the
    corpus is small.

    Attributes:
        changed: Row to title and text of each document that lost something.
    """

    def __init__(
        self,
        documents: Documents,
        size: int = 300,
        seed: int = 42,
        is_known: IsKnown = nothing_is_known,
    ) -> None:
        """Take the corpus; nothing is cut yet.

        Args:
            documents: The corpus.
            size: The most queries of a kind.
            seed: Seed of the drawing.
            is_known: Returns true for a query that a model was trained on.
        """
        self.documents = documents
        self.size = size
        self.seed = seed
        self.is_known = is_known
        self.changed: dict[int, Document] = {}
        self._drawings: dict[str, Drawing] = {}

    def draw_crops(self, name: str) -> None:
        """Cut spans.

        A span consists of whole sentences of at most 16 words together, or is a part of a longer
        sentence. Titles are not cut.
        """
        rng = np.random.default_rng(self.seed)
        order = rng.permutation(len(self.documents))
        self._draw(name, order, lambda document: _cut_span(document, rng))

    def draw_matched_crops(self, name: str, lengths: Sequence[int] = ()) -> None:
        """Cut runs of words as long as real queries, but at most half of a text.

        Args:
            name: Name of the kind.
            lengths: Words of the real queries; :data:`USUAL_LENGTHS` by default.
        """
        rng = np.random.default_rng((self.seed, 1))
        drawn_from = np.array(lengths or USUAL_LENGTHS)
        self._draw(
            name,
            self._untouched_first(rng),
            lambda document: _cut_run(document, int(rng.choice(drawn_from)), rng),
        )

    def draw_titles(self, name: str) -> None:
        """Take titles out of their documents, or the first heading of one without a title.

        The title leaves the text as well, wherever it is repeated there. A title that several
        documents have is no query.
        """
        rng = np.random.default_rng((self.seed, 2))
        titles = (_normal_title(document) for document in self.documents.values())
        hashes, counts = np.unique(hashes_of(titles), return_counts=True)
        repeated = set(hashes[counts > 1].tolist())
        self._draw(
            name,
            self._untouched_first(rng),
            lambda document: _cut_title(document, repeated),
        )

    def queries(self) -> dict[str, PseudoQueries]:
        """Return the queries of each kind, after all kinds were drawn."""
        text_format = TextFormat()
        drawn = {}
        for name, drawing in self._drawings.items():
            documents = [self.changed[row] for row in drawing.rows]
            rests = [text_format.document(document) for document in documents]
            drawn[name] = drawing.queries(rests, "documents_without_query")
        return drawn

    def write_corpus(self, folder: Path) -> Documents:
        """Write the corpus without the queries, row by row, to a folder that the caller removes.

        It keeps the facts about its files, so that BM25 reads it in the same language.
        """
        path = folder / CORPUS_FILE
        documents = itertools.chain.from_iterable(self.documents.chunks(_CHUNK))
        rows = (self._row(row, document) for row, document in enumerate(documents))
        write_arrow(path, rows, facts=self.documents.facts.to_json())
        return open_corpus(path)

    def _row(self, row: int, document: dict[str, str]) -> tuple[int, str, str, str]:
        rest = self.changed.get(row, document)
        return row, document["_id"], rest["title"], rest["text"]

    def _untouched_first(self, rng: np.random.Generator) -> Ints:
        order = rng.permutation(len(self.documents))
        touched = np.isin(order, list(self.changed))
        return np.concatenate([order[~touched], order[touched]])

    def _draw(
        self,
        name: str,
        order: Ints,
        cut: Cut,
    ) -> None:
        """Cut a query out of each of the first documents of an order that give one."""
        drawing = Drawing()
        most_looks = LOOKS * self.size
        for row, document in self._in_order(order[:most_looks]):
            if len(drawing.texts) == self.size:
                break
            drawing.looked_at += 1
            parts = cut(document)
            if parts is None:
                continue
            query, rest = parts
            if self.is_known(query):
                drawing.known += 1
            else:
                drawing.add(row, query)
                self.changed[row] = rest
        self._drawings[name] = drawing

    def _in_order(self, order: Ints) -> Iterator[tuple[int, Document]]:
        """Yield rows and what is left of their documents, which are read a chunk at a time."""
        for start in range(0, len(order), _CHUNK):
            rows = order[start : start + _CHUNK]
            documents = self.documents.take(rows)
            for row, document in zip(rows.tolist(), documents, strict=True):
                yield row, self.changed.get(row, document)


def hold_out_crops(
    documents: Documents,
    folder: Path,
    size: int = 300,
    seed: int = 42,
    is_known: IsKnown = nothing_is_known,
) -> tuple[PseudoQueries, Documents]:
    """Cut a span out of each of ``size`` random documents, which it has to find.

    Words of the span that the document repeats still help; ``verbatim`` gives their share.
    Documents of fewer than two spans, and crops that a model was trained on, are left out and
    counted.

    Args:
        documents: The corpus.
        folder: For the changed corpus; the caller removes it.
        size: The most crops.
        seed: Seed of the drawing.
        is_known: Returns true for a crop that a model was trained on.

    Returns:
        The crops, and the corpus without them, row by row.

    References:
        Lee et al., 2019, section 3 (the inverse cloze task), here to measure instead of to train.
    """
    held_out = HeldOutQueries(documents, size, seed, is_known)
    held_out.draw_crops("crops")
    crops = held_out.queries()["crops"]
    corpus = held_out.write_corpus(folder)
    return crops, corpus


def count_words(text: str) -> int:
    """Return the number of words of a text; a character of a script without spaces is one."""
    return len(_UNIT.findall(text))


def _offsets(text: str) -> list[Range]:
    return [match.span() for match in _UNIT.finditer(text)]


def _cut_span(document: Document, rng: np.random.Generator) -> tuple[str, Document] | None:
    """Cut a span out of a document; one of fewer than two spans gives none."""
    text = document["text"]
    offsets = _offsets(text)
    ranges = span_ranges(text, offsets, CROP_WORDS)
    long_enough = [(first, last) for first, last in ranges if last - first >= _FEWEST]
    if len(ranges) < 2 or not long_enough:
        return None
    drawn = int(rng.integers(len(long_enough)))
    first, after_last = long_enough[drawn]
    return _words_taken_out(document, offsets[first:after_last])


def _cut_run(
    document: Document,
    length: int,
    rng: np.random.Generator,
) -> tuple[str, Document] | None:
    """Cut consecutive words out of a document, wherever they begin."""
    offsets = _offsets(document["text"])
    length = min(length, len(offsets) // 2)
    if length < 2:
        return None
    places = len(offsets) - length + 1
    first = int(rng.integers(places))
    return _words_taken_out(document, offsets[first : first + length])


def _words_taken_out(
    document: Document,
    offsets: Sequence[Range],
) -> tuple[str, Document] | None:
    """Take consecutive words out of a document, which are a query if both parts have words."""
    text = document["text"]
    start, _ = offsets[0]
    _, end = offsets[-1]
    query = text[start:end]
    before = text[:start].rstrip()
    after = text[end:].lstrip()
    rest = f"{before} {after}".strip()
    if not words(query) or not words(rest):
        return None
    return query, {"title": document["title"], "text": rest}


def _normal_title(document: Document) -> str:
    return " ".join(document["title"].lower().split())


def _cut_title(document: Document, repeated: set[int]) -> tuple[str, Document] | None:
    """Take the title out of a document, or the first heading of one without a title.

    Args:
        document: The document.
        repeated: Hashes of titles that several documents have.
    """
    heading = " ".join(document["title"].split())
    if heading and hash(_normal_title(document)) in repeated:
        return None
    heading = heading or _first_heading(document["text"])
    fewest, most = _TITLE_WORDS
    if not fewest <= count_words(heading) <= most:
        return None
    escaped_words = [regex.escape(word) for word in heading.split()]
    pattern = r"\s+".join(escaped_words)
    without_title = regex.sub(
        pattern,
        " ",
        document["text"],
        flags=regex.IGNORECASE,
    )
    rest = without_title.strip()
    if count_words(rest) < _FEWEST_LEFT:
        return None
    return heading, {"title": "", "text": rest}


def _first_heading(text: str) -> str:
    """Return the first line that looks like a heading and has text below it, or ""."""
    fewest, most = _TITLE_WORDS
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1]):
        heading = line.strip().lstrip("#").strip()
        is_open = heading[-1:].isalnum()
        if is_open and fewest <= count_words(heading) <= most:
            below = "\n".join(lines[number + 1 :])
            if count_words(below) < _FEWEST_LEFT:
                return ""
            return heading
    return ""
