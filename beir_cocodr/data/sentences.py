"""Sentences of a text in any language."""

from __future__ import annotations

from collections.abc import Iterator

from sentencex import segment

Range = tuple[int, int]
"""First character, and the one after the last."""

# sentencex panics after a mark that is followed by white space of several bytes; one character stands for
# another here, so that places in the text stay what they are.
_SPACES = (0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x202F, 0x205F, 0x3000)
_PLAIN_SPACE = dict.fromkeys(_SPACES, " ") | {0x85: "\n", 0x2029: "\n"}


def sentence_ranges(text: str, language: str = "en") -> list[Range]:
    """The sentences of a text as character ranges, by Wikimedia's sentencex.

    Together they hold every character that is not white space, once and in order; none begins or ends with
    white space. The marks that end sentences are known for all scripts whatever the language is; the language
    says which abbreviations do not end one.

    Args:
        text: any text.
        language: an ISO 639 code; for one that sentencex does not know it takes a related language, or
            English.
    """
    return [_stripped(text, start, end) for start, end in _cuts(text, language) if text[start:end].strip()]


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


def _stripped(text: str, start: int, end: int) -> Range:
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
