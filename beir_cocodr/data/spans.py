"""Spans of a document: sentences grouped up to a number of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

#: A sentence ends at a terminal mark followed by white space, at a CJK mark, or at a blank line.
_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|(?<=[。！？；])|\n\s*\n")

Range = tuple[int, int]


def split_spans(
    text: str,
    offsets: Sequence[Range],
    span_tokens: int = 30,
    flush_probability: float = 0.0,
    rng: np.random.Generator | None = None,
) -> list[str]:
    """Cut one text into consecutive spans of at most ``span_tokens`` tokens.

    Sentences are grouped greedily; a span ends when the next sentence would make it too long, or at random
    after a sentence with ``flush_probability``. A sentence that is longer by itself is cut into windows of
    about equal size, at white space where there is any. A text of more than ``span_tokens`` tokens has at
    least two spans.

    Args:
        text: the document.
        offsets: (n,) character ranges of its tokens, without special tokens.
        span_tokens: the most tokens in a span (published code: 30).
        flush_probability: chance of an early end after each sentence (published code: 0.1).
        rng: needed with ``flush_probability``.

    Source: COCO-DR, section 4.1.
    """
    ranges = span_ranges(text, offsets, span_tokens, flush_probability, rng)
    return [text[offsets[first][0] : offsets[last - 1][1]] for first, last in ranges]


def span_ranges(
    text: str,
    offsets: Sequence[Range],
    span_tokens: int = 30,
    flush_probability: float = 0.0,
    rng: np.random.Generator | None = None,
) -> list[Range]:
    """The spans of :func:`split_spans` as token ranges, consecutive and covering all tokens."""
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


def draw_pair(spans: Sequence[str], rng: np.random.Generator) -> tuple[str, str]:
    """Two different spans in random order, drawn without replacement."""
    first, second = rng.choice(len(spans), size=2, replace=False)
    return spans[int(first)], spans[int(second)]


def has_two_spans(texts: Sequence[str], tokenizer: Any, span_tokens: int = 30) -> np.ndarray:
    """(N,) bool: which texts have more than ``span_tokens`` tokens, and so at least two spans.

    With 0 it tells which texts have any token, and so a span at all.
    """
    tokens = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    return np.fromiter((len(ids) > span_tokens for ids in tokens), bool, len(texts))


def _sentences(text: str, offsets: Sequence[Range]) -> Iterator[Range]:
    """Token ranges of the sentences, consecutive and covering all tokens."""
    start = 0
    for match in _SENTENCE_END.finditer(text):
        end = start
        while end < len(offsets) and offsets[end][0] < match.start():
            end += 1
        if end > start:
            yield start, end
            start = end
    if start < len(offsets):
        yield start, len(offsets)


def _windows(offsets: Sequence[Range], start: int, end: int, span_tokens: int) -> Iterator[Range]:
    """A sentence in windows of about equal size, at most ``span_tokens`` each, at white space if possible."""
    while end - start > span_tokens:
        windows = -(-(end - start) // span_tokens)
        limit = start - (start - end) // windows
        cut = next((at for at in range(limit, start, -1) if offsets[at][0] > offsets[at - 1][1]), limit)
        yield start, cut
        start = cut
    yield start, end
