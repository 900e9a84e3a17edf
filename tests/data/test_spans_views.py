from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.data.spans import (
    SpannedText,
    damaged,
    draw_window,
    inverse_cloze,
    span_pair,
    span_ranges,
    twice,
    window,
)


def document(words: int, most: int, span_tokens: int = 5) -> SpannedText:
    """A word is a token, every third word ends a sentence, and no word comes twice."""
    text = " ".join(f"w{i}{'.' * (i % 3 == 2)}" for i in range(words))
    offsets, at = [], 0
    for word in text.split():
        offsets.append((at, at + len(word)))
        at += len(word) + 1
    return SpannedText(text, offsets, span_ranges(text, offsets, span_tokens), most)


@given(words=st.integers(1, 60), most=st.integers(5, 40), seed=st.integers(0, 100))
def test_a_window_is_a_run_of_whole_spans_that_fits_and_is_full(words, most, seed):
    made = document(words, most)
    (text,) = window(made, np.random.default_rng(seed))
    assert text in made.text
    length = len(text.split())
    assert length <= most
    starts = {made.cut(i, i + 1).split()[0] for i in range(len(made.ranges))}
    assert text.split()[0] in starts
    if words <= most:
        assert text == made.text
    else:
        assert length > most - 5  # another span of 5 words or fewer would not fit


def test_windows_reach_every_part_of_a_long_document():
    made = document(60, 12)
    drawn = [window(made, np.random.default_rng(seed))[0] for seed in range(400)]
    counts = Counter(word for text in drawn for word in text.split())
    assert set(counts) == set(made.text.split())
    # The first and the last word are seen about as often as those in the middle.
    assert min(counts.values()) > 0.2 * max(counts.values())


@given(words=st.integers(6, 60), most=st.integers(5, 40), seed=st.integers(0, 200))
def test_query_and_passage_of_the_inverse_cloze_make_up_a_window(words, most, seed):
    made = document(words, most)
    query, passage = inverse_cloze(made, np.random.default_rng(seed), keep_query=0.0)
    assert query in [made.cut(i, i + 1) for i in range(len(made.ranges))]
    both = query.split() + passage.split()
    assert passage
    assert len(set(both)) == len(both)
    numbers = sorted(int(word.strip("w.")) for word in both)
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    _, whole = inverse_cloze(made, np.random.default_rng(seed), keep_query=1.0)
    assert query in whole
    assert whole in made.text


def test_a_tenth_of_the_queries_stays_in_the_passage():
    made = document(40, 100)
    drawn = [inverse_cloze(made, np.random.default_rng(seed)) for seed in range(2000)]
    assert np.mean([query in passage for query, passage in drawn]) == pytest.approx(0.1, abs=0.025)
    assert len({query for query, _ in drawn}) == len(made.ranges)


def test_the_other_views_of_a_document():
    made = document(40, 12)
    first, second = span_pair(made, np.random.default_rng(0))
    assert first != second
    first, second = twice(made, np.random.default_rng(1))
    assert first == second == window(made, np.random.default_rng(1))[0]
    left, whole = damaged(made, np.random.default_rng(2), 0.5)
    assert whole == window(made, np.random.default_rng(2))[0]
    assert 0 < len(left) < len(whole)


def test_two_spans_are_taken_where_a_window_holds_but_one():
    made = document(10, 4)
    for seed in range(20):
        first, last = draw_window(made, np.random.default_rng(seed), least=2)
        assert 0 <= first < last - 1 < len(made.ranges)
