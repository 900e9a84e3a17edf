"""Passages of documents: whole sentences in any language, up to a number of tokens."""

import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sentencex import segment

from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import Count, TextFormat
from beir_cocodr.io import save_array


class Passage(NamedTuple):
    """A passage of a document.

    Attributes:
        row: row of the document in its corpus.
        number: number of the passage in the document, from 0.
        start: first character in the text of the document, its title and text joined.
        end: the character after the last.
        text: the passage itself.
        title: title of the document, "" where it has none.
    """

    row: int
    number: int
    start: int
    end: int
    text: str
    title: str


#: First character, and the one after the last.
Range = tuple[int, int]

# sentencex panics after a mark that is followed by white space of several bytes. One character
# replaces another here, so that positions in the text stay the same.
_SPACES = (0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x202F, 0x205F, 0x3000)
_PLAIN_SPACE = dict.fromkeys(_SPACES, " ") | {0x85: "\n", 0x2029: "\n"}


def sentence_ranges(text: str, language: str = "en") -> list[Range]:
    """Return the sentences of a text as character ranges, by Wikimedia's sentencex.

    Together they hold every character that is not white space, once and in order; none begins or
    ends with white space.

    Args:
        text: the text.
        language: ISO 639 code; it says which abbreviations do not end a sentence. The marks that
            end sentences are known for all scripts, whatever the language is. For a language that
            sentencex does not know it takes a related one, or English.
    """
    ranges = []
    for start, end in _split_sentences(text, language):
        if text[start:end].strip():
            ranges.append(_stripped(text, start, end))
    return ranges


def _split_sentences(text: str, language: str) -> Iterator[Range]:
    start = 0
    end = 0
    text = text.translate(_PLAIN_SPACE)
    for sentence in segment(language, text):
        # What the segmenter leaves out between two sentences goes to the later one.
        position = text.find(sentence, end)
        if position < 0:
            continue
        end = position + len(sentence)
        yield start, end
        start = end
    yield start, len(text)


def _stripped(
    text: str,
    start: int = 0,
    end: int | None = None,
) -> Range:
    """Return a range, by default the whole text, without the white space around it."""
    part = text[start:end]
    leading = len(part) - len(part.lstrip())
    return start + leading, start + len(part.rstrip())


class _Unit(NamedTuple):
    """A sentence, or a part of a long one.

    Attributes:
        start: its first character.
        end: the character after its last.
        tokens: its number of tokens, with those that the tokenizer adds.
    """

    start: int
    end: int
    tokens: int


_WORD = re.compile(r"\S+")

# A token is seldom longer than this; where it is, a part is only shorter than it could be.
_CHARACTERS_A_TOKEN = 8

# How far the end of a part is looked for: a text without spaces is not read to its end each time.
_WINDOW_A_TOKEN = 16


def split_passages(
    texts: Sequence[str],
    count: Count,
    limit: int = 144,
    language: str = "en",
    titles: Sequence[int] | None = None,
) -> list[list[Range]]:
    """Split documents into consecutive passages of at most ``limit`` tokens.

    Sentences are grouped greedily. One that is too long by itself is divided between words, and a
    word that is too long (a text without spaces) between characters. No character except white
    space is lost, the order is kept, and no passage begins or ends with white space; a blank text
    has no passage.

    Args:
        texts: the documents.
        count: tokens of texts, with those that a tokenizer adds to every text; passages are counted
            as they are.
        limit: the most tokens of a passage. A single character of more tokens is a passage.
        language: language of the sentences, see :func:`sentence_ranges`.
        titles: for each text the number of characters at its start that are a title, and so a
            sentence of their own; none by default.

    Returns:
        The character ranges of the passages of each document.

    References:
        Wu et al., 2023 (Query-as-context Pre-training), section 4.1; published code groups one
        sentence too many.
    """
    passages: list[list[Range]] = [[] for _ in texts]
    long: list[int] = []
    stripped = [text.strip() for text in texts]
    for row, tokens in enumerate(count(stripped)):
        if tokens > limit:
            long.append(row)
        elif texts[row].strip():
            passages[row] = [_stripped(texts[row])]
    long_texts = [texts[row] for row in long]
    all_titles = titles or [0] * len(texts)
    sentences = [_sentences(texts[row], all_titles[row], language) for row in long]
    [added] = count([""])
    groups: list[tuple[int, list[_Unit]]] = []
    units_of_texts = _units(long_texts, sentences, count, limit)
    for row, units in zip(long, units_of_texts, strict=True):
        for group in _group(units, limit, added):
            groups.append((row, group))
    grouped = []
    for row, group in groups:
        start = group[0].start
        end = group[-1].end
        grouped.append(texts[row][start:end])
    lengths = count(grouped)
    for (row, group), tokens in zip(groups, lengths, strict=True):
        fitting: Iterable[list[_Unit]] = [group]
        if tokens > limit:
            fitting = _regroup(texts[row], group, count, limit)
        for units in fitting:
            start = units[0].start
            end = units[-1].end
            passages[row].append((start, end))
    return passages


def fitting_prefix(
    text: str,
    count: Count,
    limit: int,
) -> str:
    """Return the longest prefix of at most ``limit`` tokens, up to a word's end if possible."""
    start, end = _stripped(text)
    if start >= end:
        return ""
    part = _first_part(text, start, end, count, limit)
    return text[start : part.end]


def _sentences(
    text: str,
    title: int,
    language: str,
) -> list[Range]:
    ranges = []
    if text[:title].strip():
        ranges.append(_stripped(text, 0, title))
    for start, end in sentence_ranges(text[title:], language):
        ranges.append((title + start, title + end))
    return ranges


def _units(
    texts: Sequence[str],
    sentences: Sequence[list[Range]],
    count: Count,
    limit: int,
) -> Iterator[list[_Unit]]:
    """Stream the sentences of each text with their tokens; those that are too long in parts."""
    parts: list[str] = []
    for text, ranges in zip(texts, sentences, strict=True):
        parts.extend(text[start:end] for start, end in ranges)
    lengths = iter(count(parts))
    for text, ranges in zip(texts, sentences, strict=True):
        units: list[_Unit] = []
        for start, end in ranges:
            tokens = next(lengths)
            if tokens <= limit:
                units.append(_Unit(start, end, tokens))
            else:
                units.extend(_parts(text, start, end, count, limit))
        yield units


def _group(
    units: Sequence[_Unit],
    limit: int,
    added: int,
) -> Iterator[list[_Unit]]:
    """Group units greedily while the sum of their tokens fits; added tokens count once."""
    group: list[_Unit] = []
    total = added
    for unit in units:
        tokens = unit.tokens - added
        if group and total + tokens > limit:
            yield group
            group = []
            total = added
        group.append(unit)
        total += tokens
    if group:
        yield group


def _regroup(
    text: str,
    group: list[_Unit],
    count: Count,
    limit: int,
) -> Iterator[list[_Unit]]:
    """Divide a group that is longer than the sum of its units into groups that are measured."""

    def fits(units: list[_Unit]) -> bool:
        joined = text[units[0].start : units[-1].end]
        [tokens] = count([joined])
        return tokens <= limit

    while group:
        size = len(group) - 1
        while size > 1 and not fits(group[:size]):
            size -= 1
        size = max(size, 1)
        yield group[:size]
        group = group[size:]
        if group and fits(group):
            yield group
            return


def _parts(
    text: str,
    start: int,
    end: int,
    count: Count,
    limit: int,
) -> Iterator[_Unit]:
    """Divide a sentence that is too long into parts that fit."""
    while start < end:
        part = _first_part(text, start, end, count, limit)
        yield part
        following = _WORD.search(text, part.end, end)
        start = following.start() if following else end


def _first_part(
    text: str,
    start: int,
    end: int,
    count: Count,
    limit: int,
) -> _Unit:
    """Return the first part of a range: it ends after a word if any fits, else within the first."""
    window = min(end, start + _WINDOW_A_TOKEN * limit)
    words = islice(_WORD.finditer(text, start, window), limit + 1)
    ends = [match.end() for match in words]
    if len(ends) > 1 and ends[-1] == window < end:
        ends.pop()  # its word may continue
    part = _last_fitting(text, start, ends, count, limit)
    if part is None:
        most = min(ends[0], start + _CHARACTERS_A_TOKEN * limit)
        part = _last_fitting(text, start, range(start + 1, most), count, limit)
    if part is None:
        [tokens] = count([text[start : start + 1]])
        part = _Unit(start, start + 1, tokens)
    return part


def _last_fitting(
    text: str,
    start: int,
    ends: Sequence[int],
    count: Count,
    limit: int,
) -> _Unit | None:
    """Return the longest part that fits and ends at one of some ascending ends, by bisection."""

    def tokens(end: int) -> int:
        return count([text[start:end]])[0]

    fitting = bisect_right(ends, limit, key=tokens)
    if fitting == 0:
        return None
    end = ends[fitting - 1]
    return _Unit(start, end, tokens(end))


log = logging.getLogger(__name__)

_COUNTS = "passages_per_document.npy"

# Documents that are split at a time.
_CHUNK = 1000


class PassageReader:
    """A reader of the passages of a corpus: all of them, or a random sample."""

    def __init__(
        self,
        documents: Documents,
        text_format: TextFormat,
        count: Count,
        limit: int,
        language: str,
    ) -> None:
        """Read the passages of documents.

        Args:
            documents: the corpus.
            text_format: joins titles and texts.
            count: see :func:`split_passages`.
            limit: the most tokens of a passage.
            language: language of the sentences.
        """
        self.documents = documents
        self.text_format = text_format
        self.count = count
        self.limit = limit
        self.language = language
        # (N + 1,) numbers of passages before each document, and the drawn ones, ascending.
        self._sample: tuple[Ints, Ints] | None = None

    def draw(
        self,
        size: int,
        seed: int,
        folder: Path,
    ) -> None:
        """Keep a uniform random sample of the passages from now on.

        The corpus is read once to count its passages, unless another process left the counts.

        Args:
            size: number of passages.
            seed: seed of the draw.
            folder: where the counts are kept.
        """
        file = folder / _COUNTS
        if not file.is_file():
            save_array(file, self._count_passages())
        counts = np.load(file)
        before = np.concatenate([[0], np.cumsum(counts)])
        total = int(before[-1])
        rng = np.random.default_rng(seed)
        chosen = rng.choice(total, min(size, total), replace=False)
        self._sample = before, np.sort(chosen)

    def read(self, rows: Sequence[int]) -> tuple[list[Passage], dict[str, int]]:
        """Return the passages of documents, and counts of documents and passages."""
        passages = self._split(rows)
        kept = [passage for passage in passages if self._is_kept(passage)]
        with_text = {passage.row for passage in passages}
        counts = {
            "documents": len(rows),
            "documents_without_text": len(rows) - len(with_text),
            "passages": len(kept),
            "passages_left_out": len(passages) - len(kept),
        }
        return kept, counts

    def _count_passages(self) -> Ints:
        """Return the number of passages of each document, (N,)."""
        log.info("counting the passages of %d documents", len(self.documents))
        counts = np.zeros(len(self.documents), np.int64)
        for start in range(0, len(counts), _CHUNK):
            stop = min(start + _CHUNK, len(counts))
            for passage in self._split(range(start, stop)):
                counts[passage.row] += 1
        return counts

    def _split(self, rows: Sequence[int]) -> list[Passage]:
        documents = self.documents.take(rows)
        texts = [self.text_format.document(document) for document in documents]
        titles = [document["title"].strip() for document in documents]
        lengths = [len(title) for title in titles]
        ranges = split_passages(
            texts=texts,
            count=self.count,
            limit=self.limit,
            language=self.language,
            titles=lengths,
        )
        passages = []
        for row, text, title, parts in zip(rows, texts, titles, ranges, strict=True):
            for number, (start, end) in enumerate(parts):
                passage = Passage(
                    row=row,
                    number=number,
                    start=start,
                    end=end,
                    text=text[start:end],
                    title=title,
                )
                passages.append(passage)
        return passages

    def _is_kept(self, passage: Passage) -> bool:
        if self._sample is None:
            return True
        before, chosen = self._sample
        number = before[passage.row] + passage.number
        position = np.searchsorted(chosen, number)
        if position == len(chosen):
            return False
        return bool(chosen[position] == number)
