from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from beir_cocodr.analysis.shift import QUERY_TYPES, query_type, query_type_counts, weighted_jaccard


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("what is a wing", "what"),
        ("When did it start", "when"),
        ("WHO", "who"),
        ("how-to guide", "how"),
        ("where?", "where"),
        ("why not", "why"),
        ("which one", "which"),
        ("what's new", "what"),
        ('  "What is it?"', "what"),
        ("whatever it takes", "declarative"),
        ("whose is it", "declarative"),
        ("tell me what it is", "declarative"),
        ("isn't it", "declarative"),
        ("shall I go", "yes/no"),
        ("small cell lung cancer", "declarative"),
        ("may I go", "declarative"),
        ("1 what", "declarative"),
        ("什么 is", "declarative"),
        ("", "declarative"),
        ("?!", "declarative"),
    ],
)
def test_the_first_word_decides(query, expected):
    assert query_type(query) == expected


def test_every_word_of_the_papers_list_opens_a_yes_no_question():
    listed = "is/was/are/were/do/does/did/have/has/had/should/can/could/would/am"
    assert {query_type(f"{word} it so") for word in listed.split("/")} == {"yes/no"}


def test_counts_have_all_nine_types_in_order():
    counts = query_type_counts(["what is it", "is it", "it is", "it was", "when was it"])
    assert len(QUERY_TYPES) == 9
    assert list(counts) == list(QUERY_TYPES)
    assert {name: n for name, n in counts.items() if n} == {
        "what": 1,
        "when": 1,
        "yes/no": 1,
        "declarative": 2,
    }


@given(st.lists(st.text(max_size=12), min_size=1, max_size=30))
def test_every_query_has_exactly_one_type(queries):
    counts = query_type_counts(queries)
    assert sum(counts.values()) == len(queries)
    shares = np.array([*counts.values()]) / len(queries)
    assert shares.sum() == pytest.approx(1, abs=1e-12)


def test_weighted_jaccard_by_hand():
    # Shares 3/4, 1/4, 0 and 1/4, 1/4, 1/2: minima 1/2, maxima 3/2.
    assert weighted_jaccard(np.array([3, 1, 0]), np.array([10, 10, 20])) == pytest.approx(
        1 / 3, abs=1e-15
    )
    assert weighted_jaccard(np.array([1, 0]), np.array([0, 7])) == 0
    assert weighted_jaccard(np.array([5.0, 5.0]), np.array([0.1, 0.1])) == 1


counts = st.lists(st.integers(0, 1000), min_size=1, max_size=12)


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(*[st.lists(st.integers(0, 999), min_size=n, max_size=n)] * 2)
    )
)
def test_weighted_jaccard_is_symmetric_and_1_only_for_equal_shares(pair):
    first, second = (np.array(side) for side in pair)
    assume(first.any() and second.any())
    result = weighted_jaccard(first, second)
    assert 0 <= result <= 1
    assert result == weighted_jaccard(second, first)
    assert weighted_jaccard(first, first) == 1
    assert weighted_jaccard(first, 7 * first) == pytest.approx(1, abs=1e-12)
    # Minima and maxima of two distributions sum to 2, so one of the sums gives the other.
    shared = np.minimum(first / first.sum(), second / second.sum()).sum()
    assert result == pytest.approx(shared / (2 - shared), abs=1e-12)
    order = np.random.default_rng(0).permutation(len(first))
    assert weighted_jaccard(first[order], second[order]) == result
    if (first * second.sum() != second * first.sum()).any():
        assert result < 1
