from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.data.spans import SpannedText, count_sentences, span_pair, span_ranges

WORD = st.sampled_from(
    ["flow", "wing", "boundary", "heat.", "layer!", "of", "a", "drag?", "shock;", "数据。", "x" * 9]
)


def offsets(text: str) -> list[tuple[int, int]]:
    """Character ranges of pieces of at most three letters, as a subword tokenizer would give
    them.
    """
    ranges, at = [], 0
    for word in text.split():
        at = text.index(word, at)
        ranges += [(at + i, min(at + i + 3, at + len(word))) for i in range(0, len(word), 3)]
        at += len(word)
    return ranges


def split_spans(text: str, tokens: list[tuple[int, int]], *settings: object) -> list[str]:
    return [
        text[tokens[first][0] : tokens[last - 1][1]]
        for first, last in span_ranges(text, tokens, *settings)
    ]


@given(
    words=st.lists(WORD, min_size=1, max_size=80), limit=st.integers(1, 30), seed=st.integers(0, 5)
)
def test_spans_cover_the_text_in_order_and_keep_to_the_limit(words, limit, seed):
    text = " ".join(words)
    tokens = offsets(text)
    spans = split_spans(text, tokens, limit, 0.1, np.random.default_rng(seed))
    assert "".join("".join(spans).split()) == "".join(words)
    assert all(len(offsets(span)) >= 1 for span in spans)
    at = 0
    for span in spans:
        start = text.index(span, at)
        at = start + len(span)
        assert sum(start <= begin < at for begin, _ in tokens) <= limit
    assert len(tokens) <= limit or len(spans) >= 2


def test_sentences_are_grouped_until_the_next_would_pass_the_limit():
    text = "aa bb cc. dd ee. ff gg hh ii. jj."
    tokens = [(m, m + 2) for m in (0, 3, 6, 10, 13, 17, 20, 23, 26, 30)]
    assert split_spans(text, tokens, 5) == ["aa bb cc. dd ee", "ff gg hh ii. jj"]


def test_text_without_sentence_marks_is_cut_into_windows_at_white_space():
    text = " ".join(f"w{i:02d}" for i in range(70))
    spans = split_spans(text, offsets(text), 30)
    assert [len(span.split()) for span in spans] == [24, 23, 23]


def test_a_random_flush_makes_more_spans_and_is_reproducible():
    text = "aa. " * 40
    tokens = [(4 * i, 4 * i + 3) for i in range(40)]
    assert len(split_spans(text, tokens, 30)) == 2
    drawn = [split_spans(text, tokens, 30, 0.5, np.random.default_rng(7)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) > 2


@given(count=st.integers(2, 9), seed=st.integers(0, 1000))
def test_a_pair_is_two_different_spans(count, seed):
    spans = [str(i) for i in range(count)]
    places = [(i, i + 1) for i in range(count)]
    first, second = span_pair(
        SpannedText("".join(spans), places, places, count), np.random.default_rng(seed)
    )
    assert first != second
    assert {first, second} <= set(spans)


@pytest.mark.parametrize("limit", [4, 11, 30])
def test_more_tokens_than_a_span_has_are_two_spans(wordpiece, limit):
    texts = [
        "",
        "wing",
        "supersonic boundary",
        "the wing of a plate . " * 3,
        "turbulent " * 20,
        "flow " * 31,
        "wing " * limit + "\u200b",
    ]
    for text in texts:
        tokens = wordpiece(text, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        assert len(tokens) <= limit or len(split_spans(text, tokens, limit)) >= 2


def test_a_sentence_that_is_too_long_stays_whole_if_asked():
    """The released code flushes before a sentence that would pass the limit, and never cuts one."""
    long = " ".join(["word"] * 20) + "."
    text = f"Aa bb. {long} Cc dd. Ee. {long}"
    tokens = offsets(text)
    ranges = span_ranges(text, tokens, 9, whole_sentences=True)
    spans = [text[tokens[first][0] : tokens[last - 1][1]] for first, last in ranges]
    assert spans == ["Aa bb.", long, "Cc dd. Ee.", long]
    cut = split_spans(text, tokens, 9)
    assert len(cut) > len(spans)
    assert span_ranges(long, offsets(long), 9, whole_sentences=True) == [(0, len(offsets(long)))]


def test_sentences_are_counted_as_they_are_split():
    assert count_sentences("One. Two! Three? 数据。四。") == 5
    assert count_sentences("  \n\n  no mark at all  ") == 1
    assert count_sentences("") == 0
