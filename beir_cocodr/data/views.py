"""What training sees of one document: two spans, a window, a query cut from it, a damaged copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from beir_cocodr.data.noise import delete_words
from beir_cocodr.data.spans import Range, draw_pair


@dataclass(frozen=True)
class SpannedText:
    """A text with the token ranges of its consecutive spans.

    Args:
        text: the document.
        offsets: (n,) character ranges of its tokens.
        ranges: token ranges of its spans, at least one.
        max_tokens: the most tokens that a view may have, special tokens and prompt not counted.
    """

    text: str
    offsets: Sequence[Range]
    ranges: Sequence[Range]
    max_tokens: int

    def cut(self, first: int, last: int) -> str:
        """The text from span ``first`` up to, but without, span ``last``; empty where there is none."""
        if first >= last:
            return ""
        return self.text[
            self.offsets[self.ranges[first][0]][0] : self.offsets[self.ranges[last - 1][1] - 1][1]
        ]

    def tokens(self, first: int, last: int) -> int:
        return self.ranges[last - 1][1] - self.ranges[first][0]


def span_pair(document: SpannedText, rng: np.random.Generator) -> tuple[str, str]:
    """Two different spans in random order (COCO)."""
    spans = [document.cut(i, i + 1) for i in range(len(document.ranges))]
    return draw_pair(spans, rng)


def window(document: SpannedText, rng: np.random.Generator) -> tuple[str]:
    """The document, or consecutive spans of it that fit (Condenser, masked language modelling)."""
    return (document.cut(*draw_window(document, rng)),)


def twice(document: SpannedText, rng: np.random.Generator) -> tuple[str, str]:
    """One window two times: only dropout tells the two apart (SimCSE)."""
    (text,) = window(document, rng)
    return text, text


def inverse_cloze(
    document: SpannedText, rng: np.random.Generator, keep_query: float = 0.1
) -> tuple[str, str]:
    """One random span of a window as the query, the rest of the window as its passage (ICT).

    Args:
        document: with at least two spans.
        keep_query: probability that the query stays in the passage, so that exact words count too.

    Source: Lee et al., 2019, section 3.
    """
    first, last = draw_window(document, rng, least=2)
    at = int(rng.integers(first, last))
    query = document.cut(at, at + 1)
    if rng.random() < keep_query:
        return query, document.cut(first, last)
    rest = [part for part in (document.cut(first, at), document.cut(at + 1, last)) if part]
    return query, " ".join(rest)


def damaged(document: SpannedText, rng: np.random.Generator, deletion: float = 0.6) -> tuple[str, str]:
    """A window with words deleted, and the window (TSDAE)."""
    (text,) = window(document, rng)
    return delete_words(text, deletion, rng), text


def draw_window(document: SpannedText, rng: np.random.Generator, least: int = 1) -> Range:
    """A random run of consecutive spans of at most ``max_tokens`` tokens, but of ``least`` spans.

    It grows from a random span to random sides until no neighbour fits, so that it is always about full. A
    document that fits is taken whole.

    Returns:
        The first span, and the one after the last.
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
