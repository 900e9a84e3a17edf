from __future__ import annotations

import pytest

from beir_cocodr.data.text import count_units, without_thoughts, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ångström's np_array, 3D!", ["ångström", "s", "np_array", "3d"]),
        ("हिन्दी शब्द", ["हिन्दी", "शब्द"]),  # vowel signs are marks, no letters
        ("안녕하세요 세계", ["안녕하세요", "세계"]),
        ("東京タワーへ行く", ["東京", "タワー", "へ行", "行く"]),
        ("你", ["你"]),
        ("ไทย", ["ไท", "ทย"]),
        ("…!?", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_units_count_marks_and_characters():
    assert count_units("Hello, world! 東京に。") == 8
    assert count_units(" \n") == 0


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("how to sort", "how to sort"),
        ("<think>\nA user\n</think>\n\nhow to sort", "\n\nhow to sort"),
        ("<think></think>how <think>or why?</think>to sort", "how to sort"),
        ("<think>A user", ""),  # cut off
        ("A user\n</think>how to sort", "how to sort"),  # begun in the prompt
        ("a < b", "a < b"),
    ],
)
def test_thoughts_are_no_part_of_an_answer(written, answer):
    assert without_thoughts(written) == answer
