"""Passages of documents: whole sentences in any language, up to a number of tokens, read some
documents at a time.
"""

import logging
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
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
        row: of the document in its corpus.
        number: of the passage in the document, from 0.
        start, end: character range in the text of the document, its title and text joined.
        text: the passage itself.
        title: of the document, "" where it has none.
    """

    row: int
    number: int
    start: int
    end: int
    text: str
    title: str


#: First character, and the one after the last.
Range = tuple[int, int]

# sentencex panics after a mark that is followed by white space of several bytes; one character
# stands for another here, so that places in the text stay what they are.
_SPACES = (0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x202F, 0x205F, 0x3000)
_PLAIN_SPACE = dict.fromkeys(_SPACES, " ") | {0x85: "\n", 0x2029: "\n"}


def sentence_ranges(text: str, language: str = "en") -> list[Range]:
    """The sentences of a text as character ranges, by Wikimedia's sentencex.

    Together they hold every character that is not white space, once and in order; none begins or
    ends with white space. The marks that end sentences are known for all scripts whatever the
    language is; the language, an ISO 639 code, says which abbreviations do not end one. For one
    that sentencex does not know it takes a related language, or English.
    """
    return [
        _stripped(text, start, end)
        for start, end in _cuts(text, language)
        if text[start:end].strip()
    ]


def _cuts(text: str, language: str) -> Iterator[Range]:
    start = end = 0
    text = text.translate(_PLAIN_SPACE)
    for sentence in segment(language, text):
        # What the segmenter leaves out between two sentences goes to the later one.
        at = text.find(sentence, end)
        if at < 0:
            continue
        end = at + len(sentence)
        yield start, end
        start = end
    yield start, len(text)


def _stripped(text: str, start: int = 0, end: int | None = None) -> Range:
    """A range, by default the whole text, without the white space around it."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())


#: A sentence, or a part of a long one, as first character, the one after the last, and tokens.
_Unit = tuple[int, int, int]
_WORD = re.compile(r"\S+")

# A token is seldom longer than this; where it is, a part is only shorter than it could be.
_CHARACTERS_A_TOKEN = 8

# How far the next cut is looked for, so that a text without spaces is not read to its end for each.
_WINDOW_A_TOKEN = 16


def split_passages(
    texts: Sequence[str],
    count: Count,
    limit: int = 144,
    language: str = "en",
    titles: Sequence[int] | None = None,
) -> list[list[Range]]:
    """Cut documents into consecutive passages of at most ``limit`` tokens, counted on the passage
    itself: the character ranges of each.

    Sentences are grouped greedily. One that is too long by itself is cut between words, and a word
    that is too long (a text without spaces) between characters. No character but white space is
    lost, the order is kept, and no passage begins or ends with white space; a blank text has no
    passage.

    Args:
        texts: the documents.
        count: tokens of a text, those included that a tokenizer adds to every text.
        limit: the most tokens of a passage. A single character of more tokens stands alone.
        language: of the sentences, see :func:`sentence_ranges`.
        titles: for each text the number of characters at its start that are a title, and so a
            sentence of their own; none by default.

    Source: Wu et al., 2023 (Query-as-context Pre-training), section 4.1; published code groups one
    sentence too many.
    """
    passages: list[list[Range]] = [[] for _ in texts]
    long: list[int] = []
    for i, tokens in enumerate(count([text.strip() for text in texts])):
        if tokens > limit:
            long.append(i)
        elif texts[i].strip():
            passages[i] = [_stripped(texts[i])]
    sentences = [_sentences(texts[i], titles[i] if titles else 0, language) for i in long]
    [added] = count([""])
    groups: list[tuple[int, list[_Unit]]] = []
    for i, units in zip(
        long, _units([texts[i] for i in long], sentences, count, limit), strict=True
    ):
        groups += [(i, group) for group in _grouped(units, limit, added)]
    lengths = count([texts[i][group[0][0] : group[-1][1]] for i, group in groups])
    for (i, group), tokens in zip(groups, lengths, strict=True):
        fits = [group] if tokens <= limit else _regrouped(texts[i], group, count, limit)
        passages[i] += [(units[0][0], units[-1][1]) for units in fits]
    return passages


def fitting_prefix(text: str, count: Count, limit: int) -> str:
    """The longest prefix of a text, up to a word's end where there is one, of at most ``limit``
    tokens.
    """
    start, end = _stripped(text)
    return text[start : _cut(text, start, end, count, limit)[0]] if start < end else ""


def _sentences(text: str, title: int, language: str) -> list[Range]:
    head = [_stripped(text, 0, title)] if text[:title].strip() else []
    return head + [
        (title + start, title + end) for start, end in sentence_ranges(text[title:], language)
    ]


def _units(
    texts: Sequence[str], sentences: Sequence[list[Range]], count: Count, limit: int
) -> Iterator[list[_Unit]]:
    """For each text its sentences with their tokens, those that are too long in parts."""
    flat = [
        text[start:end]
        for text, found in zip(texts, sentences, strict=True)
        for start, end in found
    ]
    lengths = iter(count(flat))
    for text, found in zip(texts, sentences, strict=True):
        units: list[_Unit] = []
        for start, end in found:
            tokens = next(lengths)
            units += (
                [(start, end, tokens)]
                if tokens <= limit
                else _parts(text, start, end, count, limit)
            )
        yield units


def _grouped(units: Sequence[_Unit], limit: int, added: int) -> Iterator[list[_Unit]]:
    """Greedy groups whose estimated tokens fit: the sum of their units, added tokens counted
    once.
    """
    group: list[_Unit] = []
    tokens = added
    for unit in units:
        own = unit[2] - added
        if group and tokens + own > limit:
            yield group
            group, tokens = [], added
        group.append(unit)
        tokens += own
    if group:
        yield group


def _regrouped(text: str, group: list[_Unit], count: Count, limit: int) -> Iterator[list[_Unit]]:
    """A group that joined is longer than the sum of its units, cut into groups that were
    measured.
    """
    while group:
        fitting = (
            n
            for n in range(len(group) - 1, 1, -1)
            if count([text[group[0][0] : group[n - 1][1]]])[0] <= limit
        )
        taken = next(fitting, 1)
        yield group[:taken]
        group = group[taken:]
        if group and count([text[group[0][0] : group[-1][1]]])[0] <= limit:
            yield group
            return


def _parts(text: str, start: int, end: int, count: Count, limit: int) -> Iterator[_Unit]:
    """A sentence that is too long, cut into parts that fit."""
    while start < end:
        cut, tokens = _cut(text, start, end, count, limit)
        yield start, cut, tokens
        following = _WORD.search(text, cut, end)
        start = following.start() if following else end


def _cut(text: str, start: int, end: int, count: Count, limit: int) -> tuple[int, int]:
    """Where the first part of a range ends, and its tokens: after a word if any fits, else in the
    first.
    """
    window = min(end, start + _WINDOW_A_TOKEN * limit)
    ends = [match.end() for match in islice(_WORD.finditer(text, start, window), limit + 1)]
    if len(ends) > 1 and ends[-1] == window < end:
        ends.pop()  # its word may go on
    fit = _last_fitting(text, start, ends, count, limit)
    if fit is None:
        most = min(ends[0], start + _CHARACTERS_A_TOKEN * limit)
        fit = _last_fitting(text, start, range(start + 1, most), count, limit)
    return fit or (start + 1, count([text[start : start + 1]])[0])


def _last_fitting(
    text: str, start: int, ends: Sequence[int], count: Count, limit: int
) -> tuple[int, int] | None:
    """The last of ascending ends up to which the text fits, by bisection, and its tokens, if any
    does.
    """

    def tokens(end: int) -> int:
        return count([text[start:end]])[0]

    fitting = bisect_right(ends, limit, key=tokens)
    return (ends[fitting - 1], tokens(ends[fitting - 1])) if fitting else None


log = logging.getLogger(__name__)
_COUNTS = "passages_per_document.npy"
_CHUNK = 1000


class PassageReader:
    """Splits documents by :func:`split_passages`, and keeps all passages or a random sample."""

    def __init__(
        self, documents: Documents, text_format: TextFormat, count: Count, limit: int, language: str
    ) -> None:
        self.documents, self.text_format = documents, text_format
        self.count, self.limit, self.language = count, limit, language
        self._sample: tuple[Ints, Ints] | None = None

    def draw(self, size: int, seed: int, folder: Path) -> None:
        """Keep a uniform random sample of ``size`` passages of the corpus from now on. Reads the
        corpus once, to count passages, unless another process has left the counts in ``folder``.
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
        """The passages of documents, and counts: documents, those without text, passages, those
        left out.
        """
        found = self._split(rows)
        kept = list(filter(self._is_kept, found))
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
        ranges = split_passages(
            texts, self.count, self.limit, self.language, list(map(len, titles))
        )
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
        at = np.searchsorted(chosen, place)
        return bool(at < len(chosen) and chosen[at] == place)
