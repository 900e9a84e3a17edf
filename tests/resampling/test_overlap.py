"""Overlap of labels and queries, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.resampling.overlap import (
    duplicate_queries,
    label_overlap,
    nearest_by_words,
    word_sets,
)

TRAIN = {"t1": {"a": 1, "b": 1}, "t2": {"c": 2, "x": 0}, "t3": {"d": 1}}
TEST = {
    "q1": {"a": 3, "b": 3, "z": 3},  # two of grade 3
    "q2": {"c": 3, "d": 2, "z": 1},  # one of grade 3, two of grade 2
    "q3": {"a": 1, "b": 1, "y": 3},  # two of grade 1
    "q4": {"x": 3, "z": 3},  # judged irrelevant in training
    "q5": {"d": 2, "y": 1},  # one of grade 2
    "q6": {"z": 0},  # nothing relevant at all
}


def rows(minimum: int) -> dict[int, int]:
    result = [row for row in label_overlap(TRAIN, TEST) if row.minimum == minimum]
    assert all(row.queries == 6 for row in result)
    assert all(row.share == row.overlapping / 6 for row in result)
    return {row.grade: row.overlapping for row in result}


def test_label_overlap_by_both_rules_at_every_grade_by_hand():
    assert rows(1) == {3: 2, 2: 3, 1: 4}
    assert list(rows(1)) == [3, 2, 1]
    assert rows(2) == {3: 1, 2: 2, 1: 3}
    assert [row.share for row in label_overlap(TRAIN, TEST)] == [
        1 / 3,
        1 / 2,
        2 / 3,
        1 / 6,
        1 / 3,
        1 / 2,
    ]
    assert [row.minimum for row in label_overlap(TRAIN, TEST)] == [1, 1, 1, 2, 2, 2]


def test_grades_are_those_of_the_test_judgements():
    assert [row.grade for row in label_overlap({}, {"q": {"a": 4, "b": 2, "c": 0, "d": -1}})] == [
        4,
        2,
    ] * 2
    assert label_overlap(TRAIN, {"q": {"a": 0}}) == []


judged = st.dictionaries(
    st.sampled_from("uvw"),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(-1, 3)),
    max_size=3,
)


@given(judged, judged)
def test_label_overlap_equals_that_of_a_loop(train, test):
    for row in label_overlap(train, test):
        expected = 0
        for passages in test.values():
            shared = 0
            for passage, grade in passages.items():
                shared += grade >= row.grade and any(
                    result.get(passage, 0) > 0 for result in train.values()
                )
            expected += shared >= row.minimum
        assert row.overlapping == expected


QUERIES = {
    "t1": "What is the capital of France?",
    "t2": "the capital of France",
    "t3": "running shoes",
    "t4": "the of a",
    "t5": "python 3 installed",
    "t6": "RUNNING  shoes ",
}


def result(tests: dict[str, str]):
    return duplicate_queries(
        QUERIES, tests, *word_sets(list(QUERIES.values()), list(tests.values()))
    )


def test_repeated_queries_by_hand():
    pairs = result(
        {
            "same": "the Capital of  france",
            "stems": "shoe, run",
            "stop words only": "a the of",
            "a number": "install python 2",
            "an order": "3 python installs",
            "more": "running shoes for women",
            "nothing": "?!",
        }
    )
    assert pairs.exact == {"same": ["t2"]}
    # "what" is no stop word of the list that BM25 uses.
    assert pairs.near == {"stems": ["t3", "t6"], "an order": ["t5"]}
    assert pairs.among({"t2", "t3"}, {"same", "stems"}) == (1, 1)
    assert pairs.among({"t5"}, {"same", "stems", "more"}) == (0, 0)


def test_a_repeated_text_is_not_a_near_duplicate_too():
    pairs = result({"q": "running shoes"})
    assert (pairs.exact, pairs.near) == ({"q": ["t3", "t6"]}, {})


texts = st.lists(
    st.lists(st.sampled_from("ant bee cat dog eel".split())).map(" ".join), min_size=1, max_size=9
)


@given(texts, texts)
def test_nearest_by_words_equals_a_double_loop(train, test):
    scores, nearest = nearest_by_words(*word_sets(train, test))
    for i, text in enumerate(test):
        words = set(text.split())
        similarity = [
            len(words & set(other.split())) / len(words | set(other.split()))
            if words and other
            else 0.0
            for other in train
        ]
        assert scores[i] == pytest.approx(max(similarity))
        assert nearest[i] == (int(np.argmax(similarity)) if max(similarity) else -1)
