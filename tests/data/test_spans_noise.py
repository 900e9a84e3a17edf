from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.data.spans import delete_words

rng = np.random.default_rng


def test_about_the_ratio_of_the_words_is_deleted_and_the_order_stays():
    words = [f"w{i}" for i in range(5000)]
    kept = delete_words(" ".join(words), 0.6, rng(0)).split()
    assert len(kept) == pytest.approx(2000, abs=150)
    numbers = [int(word[1:]) for word in kept]
    assert numbers == sorted(numbers)
    assert set(kept) <= set(words)


@pytest.mark.parametrize(
    "text", ["数据库系统的翼型流动" * 200, "ฉันรักภาษาไทย" * 200, "データベース" * 300]
)
def test_characters_are_deleted_where_a_script_has_no_spaces(text):
    left = delete_words(text, 0.6, rng(0))
    assert len(left) == pytest.approx(0.4 * len(text), rel=0.1)
    assert set(left) <= set(text)


@given(
    text=st.text(max_size=40), seed=st.integers(0, 50), ratio=st.sampled_from([0.0, 0.3, 0.6, 1.0])
)
def test_what_is_left_is_made_of_the_text_and_never_empty(text, seed, ratio):
    left = delete_words(text, ratio, rng(seed))
    assert bool(left.strip()) is bool(text.strip())
    rest = iter(text)
    assert all(character in rest for character in left if not character.isspace())  # a subsequence
    if ratio == 0.0:
        assert "".join(left.split()) == "".join(text.split())


def test_kept_words_run_together_only_where_they_did():
    found = {delete_words("a(b) c", 0.5, rng(seed)) for seed in range(200)}
    assert {"a(b) c", "a b c", "(b c", "a", "b) c"} <= found
    assert not any("ab" in text or "bc" in text for text in found)
    assert delete_words("  ", 0.6, rng(0)) == "  "
