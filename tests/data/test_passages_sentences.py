"""Sentences against what a reader would say, and against the text they come from."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.data import passages as sentences
from beir_cocodr.data.passages import sentence_ranges

# The ideographic space is the last of Unicode's white space.
SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()]
TEXT = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from([*SPACES, *".!?。।؟\"'()"]))
)


@settings(deadline=None)
@given(
    TEXT,
    st.sampled_from(["en", "de", "ja", "zh", "ar", "hi", "hy", "my", "am", "no such language"]),
)
def test_nothing_but_white_space_is_lost_and_the_order_is_kept(text, language):
    ranges = sentence_ranges(text, language)
    kept = [c for start, end in ranges for c in text[start:end] if not c.isspace()]
    assert kept == [c for c in text if not c.isspace()]
    assert all(start < end for start, end in ranges)
    assert all(text[start:end] == text[start:end].strip() for start, end in ranges)
    assert all(first[1] <= second[0] for first, second in pairwise(ranges))


@pytest.mark.parametrize(
    ("language", "parts"),
    [
        ("en", ["Dr. Smith went to Washington.", "He said it rained 3.5 mm.", "Did it?"]),
        ("ja", ["今日は天気がいい。", "明日は雨だ！", "本当？"]),
        ("zh", ["你好。", "我是学生。"]),
        ("ar", ["هل هذا سؤال؟", "نعم هذا سؤال."]),
        ("hi", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("de", ["Das ist z. B. ein Satz.", "Und noch einer!"]),
    ],
)
def test_sentences_of_many_scripts(language, parts):
    between = "" if language in ("ja", "zh") else " "
    text = between.join(parts)
    assert [text[start:end] for start, end in sentence_ranges(text, language)] == parts


def test_the_marks_of_other_scripts_end_sentences_without_naming_the_language():
    text = "本当？はい。यह एक वाक्य है। نعم؟ Ja."
    assert len(sentence_ranges(text)) == 5


def test_wide_white_space_behind_a_mark_stops_nothing():
    # Each of these panicked in sentencex 1.0.32, as every white space of several bytes is liable
    # to.
    for text in ("I\u2028.]a» ?B", "]1?;\nI\u3000.:x", "!?\u1680\u2029 \u2003 a!"):
        assert sentence_ranges(text)
    wide = {ord(space) for space in SPACES if ord(space) > 0x7F}
    assert wide == set(sentences._PLAIN_SPACE)
