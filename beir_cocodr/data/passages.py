"""Passages of documents: whole sentences, up to a number of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from beir_cocodr.data.sentences import Range, sentence_ranges
from beir_cocodr.data.token_counts import Count

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
    """Cut documents into consecutive passages of at most ``limit`` tokens, counted on the passage itself.

    Sentences are grouped greedily. One that is too long by itself is cut between words, and a word that is
    too long (a text without spaces) between characters. No character but white space is lost, the order is
    kept, and no passage begins or ends with white space; a blank text has no passage.

    Args:
        texts: the documents.
        count: tokens of a text, those included that a tokenizer adds to every text.
        limit: the most tokens of a passage. A single character of more tokens stands alone.
        language: of the sentences, see :func:`sentence_ranges`.
        titles: for each text the number of characters at its start that are a title, and so a sentence of
            their own; none by default.

    Returns:
        For each text the character ranges of its passages.

    Source: Wu et al., 2023 (Query-as-context Pre-training), section 4.1; the published code groups one
    sentence too many.
    """
    passages: list[list[Range]] = [[] for _ in texts]
    long: list[int] = []
    for i, tokens in enumerate(count([text.strip() for text in texts])):
        if tokens > limit:
            long.append(i)
        elif texts[i].strip():
            passages[i] = [_whole(texts[i])]
    sentences = [_sentences(texts[i], titles[i] if titles else 0, language) for i in long]
    [added] = count([""])
    groups: list[tuple[int, list[_Unit]]] = []
    for i, units in zip(long, _units([texts[i] for i in long], sentences, count, limit), strict=True):
        groups += [(i, group) for group in _grouped(units, limit, added)]
    lengths = count([texts[i][group[0][0] : group[-1][1]] for i, group in groups])
    for (i, group), tokens in zip(groups, lengths, strict=True):
        fits = [group] if tokens <= limit else _regrouped(texts[i], group, count, limit)
        passages[i] += [(units[0][0], units[-1][1]) for units in fits]
    return passages


def fitting_prefix(text: str, count: Count, limit: int) -> str:
    """The longest prefix of a text, up to a word's end where there is one, of at most ``limit`` tokens."""
    start, end = _whole(text)
    return text[start : _cut(text, start, end, count, limit)[0]] if start < end else ""


def _whole(text: str) -> Range:
    return len(text) - len(text.lstrip()), len(text.rstrip())


def _sentences(text: str, title: int, language: str) -> list[Range]:
    head = [_whole(text[:title])] if text[:title].strip() else []
    return head + [(title + start, title + end) for start, end in sentence_ranges(text[title:], language)]


def _units(
    texts: Sequence[str], sentences: Sequence[list[Range]], count: Count, limit: int
) -> Iterator[list[_Unit]]:
    """For each text its sentences with their tokens, those that are too long in parts."""
    flat = [text[start:end] for text, found in zip(texts, sentences, strict=True) for start, end in found]
    lengths = iter(count(flat))
    for text, found in zip(texts, sentences, strict=True):
        units: list[_Unit] = []
        for start, end in found:
            tokens = next(lengths)
            units += [(start, end, tokens)] if tokens <= limit else _parts(text, start, end, count, limit)
        yield units


def _grouped(units: Sequence[_Unit], limit: int, added: int) -> Iterator[list[_Unit]]:
    """Greedy groups whose estimated tokens fit: the sum of their units, added tokens counted once."""
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
    """A group that joined is longer than the sum of its units, cut into groups that were measured."""
    while group:
        taken = next(
            (
                n
                for n in range(len(group) - 1, 1, -1)
                if count([text[group[0][0] : group[n - 1][1]]])[0] <= limit
            ),
            1,
        )
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
    """Where the first part of a range ends, and its tokens: after a word if any fits, else in the first."""
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
    """The last of ascending ends up to which the text fits, by bisection, and its tokens, if any does."""
    best = None
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        [tokens] = count([text[start : ends[middle]]])
        if tokens <= limit:
            best, low = (ends[middle], tokens), middle + 1
        else:
            high = middle
    return best
