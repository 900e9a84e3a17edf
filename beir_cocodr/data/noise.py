"""Noise on texts: words deleted at random."""

from __future__ import annotations

import re

import numpy as np

# Scripts that are written without spaces: Thai and Lao, Myanmar, Khmer, kana, Han.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
#: A word: one character of such a script, a run of other letters and digits, or any other mark alone.
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+|\S")
_ALONE = re.compile(rf"[{_SPACELESS}]")


def delete_words(text: str, ratio: float, rng: np.random.Generator) -> str:
    """``text`` without about ``ratio`` of its words, each deleted independently; one of them always stays.

    Needs no tokenizer and no language: where a script has no spaces, characters are deleted. What was not
    adjacent in the text stays apart by a space, except characters of such a script.

    Args:
        text: any text; one without words is returned as it is.
        ratio: probability of deleting a word (TSDAE: 0.6).

    Source: TSDAE (Wang et al., 2021), section 3.
    """
    words = list(_WORD.finditer(text))
    if not words:
        return text
    kept = rng.random(len(words)) >= ratio
    if not kept.any():
        kept[rng.integers(len(words))] = True
    made, end = "", None
    for word, stays in zip(words, kept, strict=True):
        if not stays:
            continue
        if end is not None:
            made += _between(text, end, word.start())
        made, end = made + word.group(), word.end()
    return made


def _between(text: str, end: int, start: int) -> str:
    """What separates two kept words that end and start there."""
    if end == start:
        return ""
    dense = _ALONE.match(text[end - 1]) and _ALONE.match(text[start])
    return "" if dense and not any(map(str.isspace, text[end:start])) else " "
