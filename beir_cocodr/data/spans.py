"""Views of one document for training: spans, a window, a query cut from it, a damaged copy.

A span is some sentences, grouped up to a number of tokens. A damaged copy has lost words at random.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from beir_cocodr.arrays import Ints

#: A sentence ends at a terminal mark followed by white space, at a CJK mark, or at a blank line.
_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|(?<=[。！？；])|\n\s*\n")

Range = tuple[int, int]

#: The character ranges of tokens, as pairs or as an (n, 2) array.
Places = Sequence[Range] | Ints


def span_ranges(
    text: str,
    offsets: Places,
    span_tokens: int = 30,
    flush_probability: float = 0.0,
    rng: np.random.Generator | None = None,
    whole_sentences: bool = False,
) -> list[Range]:
    """Divide a text into consecutive spans of at most ``span_tokens`` tokens.

    Sentences are grouped greedily; a span ends when the next sentence would make it too long, or at
    random after a sentence with ``flush_probability``. A sentence that is too long by itself is
    divided into windows of about equal size, at white space where there is any. A text of more than
    ``span_tokens`` tokens has at least two spans.

    Args:
        text: the document.
        offsets: (n,) character ranges of its tokens, without special tokens.
        span_tokens: the most tokens of a span (published code: 30).
        flush_probability: chance of an early end after each sentence (published code: 0.1).
        rng: needed with ``flush_probability``.
        whole_sentences: keep a sentence that is too long by itself whole, as a longer span
            (published code). The spans are then no shorter than a sentence.

    Returns:
        The token ranges of the spans, which cover all tokens.

    Example:
        >>> import re
        >>> from beir_cocodr.data.spans import span_ranges
        >>> text = "Sort an array. The sort is stable. Ties keep their order."
        >>> tokens = [word.span() for word in re.finditer(r"[a-z]+|[.]", text, re.IGNORECASE)]
        >>> span_ranges(text, tokens, span_tokens=9)
        [(0, 9), (9, 14)]

    References:
        COCO-DR, section 4.1.
    """
    spans: list[Range] = []
    begin = 0
    for sentence_start, sentence_end in _sentences(text, offsets):
        windows: Iterable[Range] = [(sentence_start, sentence_end)]
        if not whole_sentences:
            windows = _windows(offsets, sentence_start, sentence_end, span_tokens)
        for start, end in windows:
            if end - begin > span_tokens and start > begin:
                spans.append((begin, start))
                begin = start
        if rng is not None and flush_probability and rng.random() < flush_probability:
            spans.append((begin, sentence_end))
            begin = sentence_end
    if begin < len(offsets):
        spans.append((begin, len(offsets)))
    return spans


def count_sentences(text: str) -> int:
    """Return the number of a text's sentences; blank ones do not count."""
    parts = _SENTENCE_END.split(text)
    return sum(bool(part.strip()) for part in parts)


def _sentences(text: str, offsets: Places) -> Iterator[Range]:
    """Stream the token ranges of the sentences, which cover all tokens."""
    ends = [match.start() for match in _SENTENCE_END.finditer(text)]
    first_characters = np.asarray(offsets).reshape(-1, 2)[:, 0]
    end_tokens = np.searchsorted(first_characters, ends)
    start = 0
    for end in end_tokens.tolist():
        if end > start:
            yield start, end
            start = end
    if start < len(offsets):
        yield start, len(offsets)


def _windows(
    offsets: Places,
    start: int,
    end: int,
    span_tokens: int,
) -> Iterator[Range]:
    """Divide a sentence into windows of about equal size, at white space if possible."""
    while end - start > span_tokens:
        count = -(-(end - start) // span_tokens)
        limit = start - (start - end) // count
        stop = limit
        for token in range(limit, start, -1):
            _, end_before = offsets[token - 1]
            if offsets[token][0] > end_before:
                stop = token
                break
        yield start, stop
        start = stop
    yield start, end


# Scripts that are written without spaces: Thai and Lao, Myanmar, Khmer, kana, Han.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
    "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)

#: A word: one character of such a script, a run of other letters and digits, or any other mark
#: alone.
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+|\S")
_IS_SPACELESS = re.compile(rf"[{_SPACELESS}]")


def delete_words(
    text: str,
    ratio: float,
    rng: np.random.Generator,
) -> str:
    """Delete about ``ratio`` of the words of a text, each independently; one always stays.

    This needs no tokenizer and no language: where a script has no spaces, characters are deleted.
    Words that were not adjacent in the text stay separated by a space, except characters of such a
    script. TSDAE deletes with probability 0.6.

    References:
        TSDAE (Wang et al., 2021), section 3.
    """
    words = list(_WORD.finditer(text))
    if not words:
        return text
    is_kept = rng.random(len(words)) >= ratio
    if not is_kept.any():
        is_kept[rng.integers(len(words))] = True
    parts = []
    end = None
    for word in compress(words, is_kept):
        if end is not None:
            parts.append(_separator(text, end, word.start()))
        parts.append(word.group())
        end = word.end()
    return "".join(parts)


def _separator(
    text: str,
    end: int,
    start: int,
) -> str:
    """Return what separates two kept words: one ends at ``end``, the next begins at ``start``."""
    if end == start:
        return ""
    neighbours = (text[end - 1], text[start])
    are_spaceless = all(_IS_SPACELESS.match(character) for character in neighbours)
    has_space = any(character.isspace() for character in text[end:start])
    if are_spaceless and not has_space:
        return ""
    return " "


@dataclass(frozen=True)
class SpannedText:
    """A text in spans.

    Attributes:
        text: the text.
        offsets: (n,) character ranges of its tokens.
        ranges: token ranges of its consecutive spans, at least one.
        max_tokens: the most tokens of a view, special tokens and prompt not counted.
    """

    text: str
    offsets: Places
    ranges: Sequence[Range]
    max_tokens: int

    def cut(self, first: int, last: int) -> str:
        """Return the text of the spans from ``first`` to before ``last``; "" where none is."""
        if first >= last:
            return ""
        first_token, _ = self.ranges[first]
        _, end_token = self.ranges[last - 1]
        start, _ = self.offsets[first_token]
        _, end = self.offsets[end_token - 1]
        return self.text[start:end]

    def tokens(self, first: int, last: int) -> int:
        """Return the number of tokens of the spans from ``first`` to before ``last``."""
        start, _ = self.ranges[first]
        _, end = self.ranges[last - 1]
        return end - start


def span_pair(
    document: SpannedText,
    rng: np.random.Generator,
) -> tuple[str, str]:
    """Draw two different spans in random order (COCO); a single span is its own partner."""
    count = len(document.ranges)
    if count == 1:
        text = document.cut(0, 1)
        return text, text
    first, second = rng.choice(count, size=2, replace=False).tolist()
    anchor = document.cut(first, first + 1)
    partner = document.cut(second, second + 1)
    return anchor, partner


def window(
    document: SpannedText,
    rng: np.random.Generator,
) -> tuple[str]:
    """Return the document, or consecutive spans of it that fit (Condenser, masked LM)."""
    first, last = draw_window(document, rng)
    return (document.cut(first, last),)


def twice(
    document: SpannedText,
    rng: np.random.Generator,
) -> tuple[str, str]:
    """Return one window two times: only dropout makes the two differ (SimCSE)."""
    (text,) = window(document, rng)
    return text, text


def inverse_cloze(
    document: SpannedText,
    rng: np.random.Generator,
    keep_query: float = 0.1,
) -> tuple[str, str]:
    """Draw a span of a window as the query, and the rest of the window as its passage (ICT).

    The window has at least two spans. With probability ``keep_query`` the query stays in the
    passage, so that exact words count too.

    References:
        Lee et al., 2019, section 3.
    """
    first, last = draw_window(document, rng, least=2)
    chosen = int(rng.integers(first, last))
    query = document.cut(chosen, chosen + 1)
    if rng.random() < keep_query:
        return query, document.cut(first, last)
    before = document.cut(first, chosen)
    after = document.cut(chosen + 1, last)
    passage = " ".join(part for part in (before, after) if part)
    return query, passage


def damaged(
    document: SpannedText,
    rng: np.random.Generator,
    deletion: float = 0.6,
) -> tuple[str, str]:
    """Return a window with words deleted, and the window (TSDAE)."""
    (text,) = window(document, rng)
    return delete_words(text, deletion, rng), text


def draw_window(
    document: SpannedText,
    rng: np.random.Generator,
    least: int = 1,
) -> Range:
    """Draw consecutive spans that fit, or ``least`` spans whatever their size.

    The window grows from a random span to random sides until no neighbour fits, so that it is
    always about full. A document that fits is taken whole.

    Returns:
        The first span, and the one after the last.
    """
    count = len(document.ranges)
    if document.tokens(0, count) <= document.max_tokens:
        return 0, count
    first = int(rng.integers(count))
    last = first + 1
    while True:
        larger = []
        if first > 0:
            larger.append((first - 1, last))
        if last < count:
            larger.append((first, last + 1))
        if last - first >= least:
            larger = [w for w in larger if document.tokens(*w) <= document.max_tokens]
        if not larger:
            return first, last
        drawn = int(rng.integers(len(larger)))
        first, last = larger[drawn]
