from __future__ import annotations

import pytest

from beir_cocodr.data.text import count_units, words


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
