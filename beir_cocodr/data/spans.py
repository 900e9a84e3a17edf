"""What training sees of one document: spans, a window, a query cut from it, a damaged copy.

A span is some sentences, grouped up to a number of tokens. A damaged copy has lost words at random.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import itemgetter

import numpy as np

#: A sentence ends at a terminal mark followed by white space, at a CJK mark, or at a blank line.
_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|(?<=[。！？；])|\n\s*\n")
Range = tuple[int, int]


def span_ranges(
    text: str,
    offsets: Sequence[Range],
    span_tokens: int = 30,
    flush_probability: float = 0.0,
    rng: np.random.Generator | None = None,
) -> list[Range]:
    """Cut one text into consecutive spans of at most ``span_tokens`` tokens: token ranges that
    cover all of them.

    Sentences are grouped greedily; a span ends when the next sentence would make it too long, or at
    random after a sentence with ``flush_probability``. A sentence that is longer by itself is cut
    into windows of about equal size, at white space where there is any. A text of more than
    ``span_tokens`` tokens has at least two spans.

    Args:
        text: the document.
        offsets: (n,) character ranges of its tokens, without special tokens.
        span_tokens: the most tokens in a span (published code: 30).
        flush_probability: chance of an early end after each sentence (published code: 0.1).
        rng: needed with ``flush_probability``.

    Source: COCO-DR, section 4.1.

    Example:
        >>> import re
        >>> from beir_cocodr.data.spans import span_ranges
        >>> text = "Sort an array. The sort is stable. Ties keep their order."
        >>> tokens = [word.span() for word in re.finditer(r"[a-z]+|[.]", text, re.IGNORECASE)]
        >>> span_ranges(text, tokens, span_tokens=9)
        [(0, 9), (9, 14)]
    """
    spans: list[Range] = []
    begin = 0
    for sentence in _sentences(text, offsets):
        for start, end in _windows(offsets, *sentence, span_tokens):
            if end - begin > span_tokens:
                spans.append((begin, start))
                begin = start
        if rng is not None and flush_probability and rng.random() < flush_probability:
            spans.append((begin, sentence[1]))
            begin = sentence[1]
    if begin < len(offsets):
        spans.append((begin, len(offsets)))
    return spans


def _sentences(text: str, offsets: Sequence[Range]) -> Iterator[Range]:
    """Token ranges of the sentences, consecutive and covering all tokens."""
    start = 0
    for match in _SENTENCE_END.finditer(text):
        end = bisect_left(offsets, match.start(), start, key=itemgetter(0))
        if end > start:
            yield start, end
            start = end
    if start < len(offsets):
        yield start, len(offsets)


def _windows(offsets: Sequence[Range], start: int, end: int, span_tokens: int) -> Iterator[Range]:
    """A sentence in windows of about equal size, at most ``span_tokens`` each, at white space if
    possible.
    """
    while end - start > span_tokens:
        windows = -(-(end - start) // span_tokens)
        limit = start - (start - end) // windows
        cut = next(
            (at for at in range(limit, start, -1) if offsets[at][0] > offsets[at - 1][1]), limit
        )
        yield start, cut
        start = cut
    yield start, end


# Scripts that are written without spaces: Thai and Lao, Myanmar, Khmer, kana, Han.
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

#: A word: one character of such a script, a run of other letters and digits, or any other mark
#: alone.
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+|\S")
_ALONE = re.compile(rf"[{_SPACELESS}]")


def delete_words(text: str, ratio: float, rng: np.random.Generator) -> str:
    """``text`` without about ``ratio`` of its words, each deleted independently; one of them always
    stays.

    Needs no tokenizer and no language: where a script has no spaces, characters are deleted. What
    was not adjacent in the text stays apart by a space, except characters of such a script. TSDAE
    deletes with probability 0.6.

    Source: TSDAE (Wang et al., 2021), section 3.
    """
    words = list(_WORD.finditer(text))
    if not words:
        return text
    kept = rng.random(len(words)) >= ratio
    if not kept.any():
        kept[rng.integers(len(words))] = True
    made, end = "", None
    for word in compress(words, kept):
        made += word.group() if end is None else _between(text, end, word.start()) + word.group()
        end = word.end()
    return made


def _between(text: str, end: int, start: int) -> str:
    """What separates two kept words that end and start there."""
    if end == start:
        return ""
    dense = _ALONE.match(text[end - 1]) and _ALONE.match(text[start])
    return "" if dense and not any(map(str.isspace, text[end:start])) else " "


@dataclass(frozen=True)
class SpannedText:
    """A text with (n,) character ranges of its tokens and the token ranges of its consecutive
    spans, at least one; a view may have ``max_tokens``, special tokens and prompt not counted.
    """

    text: str
    offsets: Sequence[Range]
    ranges: Sequence[Range]
    max_tokens: int

    def cut(self, first: int, last: int) -> str:
        """The text from span ``first`` up to, but without, span ``last``; empty where there is
        none.
        """
        if first >= last:
            return ""
        return self.text[
            self.offsets[self.ranges[first][0]][0] : self.offsets[self.ranges[last - 1][1] - 1][1]
        ]

    def tokens(self, first: int, last: int) -> int:
        return self.ranges[last - 1][1] - self.ranges[first][0]


def span_pair(document: SpannedText, rng: np.random.Generator) -> tuple[str, str]:
    """Two different spans in random order, drawn without replacement (COCO); a single one is its
    own partner.
    """
    if len(document.ranges) == 1:
        return document.cut(0, 1), document.cut(0, 1)
    first, second = rng.choice(len(document.ranges), size=2, replace=False).tolist()
    return document.cut(first, first + 1), document.cut(second, second + 1)


def window(document: SpannedText, rng: np.random.Generator) -> tuple[str]:
    """The document, or consecutive spans of it that fit (Condenser, masked language modelling)."""
    return (document.cut(*draw_window(document, rng)),)


def twice(document: SpannedText, rng: np.random.Generator) -> tuple[str, str]:
    """One window two times: only dropout makes the two differ (SimCSE)."""
    (text,) = window(document, rng)
    return text, text


def inverse_cloze(
    document: SpannedText, rng: np.random.Generator, keep_query: float = 0.1
) -> tuple[str, str]:
    """One random span of a window of at least two as the query, the rest of the window as its
    passage (ICT); with probability ``keep_query`` the query stays there, so exact words count too.
    Source: Lee et al., 2019, section 3.
    """
    first, last = draw_window(document, rng, least=2)
    at = int(rng.integers(first, last))
    query = document.cut(at, at + 1)
    if rng.random() < keep_query:
        return query, document.cut(first, last)
    rest = [part for part in (document.cut(first, at), document.cut(at + 1, last)) if part]
    return query, " ".join(rest)


def damaged(
    document: SpannedText, rng: np.random.Generator, deletion: float = 0.6
) -> tuple[str, str]:
    """A window with words deleted, and the window (TSDAE)."""
    (text,) = window(document, rng)
    return delete_words(text, deletion, rng), text


def draw_window(document: SpannedText, rng: np.random.Generator, least: int = 1) -> Range:
    """A random run of consecutive spans of at most ``max_tokens`` tokens, but of ``least`` spans:
    first, last + 1.

    It grows from a random span to random sides until no neighbour fits, so that it is always about
    full. A document that fits is taken whole.
    """
    count = len(document.ranges)
    if document.tokens(0, count) <= document.max_tokens:
        return 0, count
    first = int(rng.integers(count))
    last = first + 1
    while True:
        larger = [(first - 1, last)] * (first > 0) + [(first, last + 1)] * (last < count)
        fitting = [
            wider
            for wider in larger
            if last - first < least or document.tokens(*wider) <= document.max_tokens
        ]
        if not fitting:
            return first, last
        first, last = fitting[int(rng.integers(len(fitting)))]
