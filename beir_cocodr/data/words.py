"""The words of a text in any language, without a dictionary."""

from __future__ import annotations

import regex

# Scripts that put no space between words.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_RUN = regex.compile(rf"[{_UNSPACED}]+|[\p{{L}}\p{{M}}\p{{N}}_--[{_UNSPACED}]]+", regex.VERSION1)
_IS_UNSPACED = regex.compile(rf"[{_UNSPACED}]")
_UNIT = regex.compile(rf"[{_UNSPACED}]|[\p{{L}}\p{{M}}\p{{N}}_--[{_UNSPACED}]]+|[^\s]", regex.VERSION1)


def words(text: str) -> list[str]:
    """The words of a text, lowercased, in order, as often as they stand there.

    A word is a run of letters, marks and digits. In scripts that put no space between words (Chinese,
    Japanese but for katakana, Thai, Lao, Khmer, Burmese) it is every pair of neighbouring characters, as in
    Lucene's CJK analysis.
    """
    found: list[str] = []
    for run in _RUN.findall(text.lower()):
        if len(run) > 2 and _IS_UNSPACED.match(run):
            found += [run[i : i + 2] for i in range(len(run) - 1)]
        else:
            found.append(run)
    return found


def count_units(text: str) -> int:
    """How many words, characters of scripts without spaces, and punctuation marks a text has.

    About what a subword tokenizer makes of it, without one: from below, as long words count once.
    """
    return len(_UNIT.findall(text))
