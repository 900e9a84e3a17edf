"""The prompt of a judge, and the grade in what it answers."""

import pytest

from beir_cocodr.evaluation.judge.prompt import (
    MOST_CHARACTERS,
    document_text,
    grading_prompt,
    is_refusal,
    parse_grade,
)


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        ("Grade: 2", 2),
        ("**Grade: 3**", 3),
        ("grade - 0.", 0),
        ("  1\n", 1),
        ("##final score: 2", 2),
        ("Grade: 2/3", 2),
        ("Grade 0 would be wrong here, as it answers.\nGrade: 3", 3),
        ("<think>Perhaps Grade: 0? No.</think>Grade: 3", 3),
        ("Perhaps Grade: 0? No.</think>3", 3),
        ("Grade-1", 1),
        ("- 1", 1),
    ],
)
def test_the_last_grade_of_an_answer_counts(answer, grade):
    assert parse_grade(answer) == grade


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "The document is relevant.",
        "Grade: 4",
        "Grade: 23",
        "Grade: 2.5",
        "Grade: 1,5",
        "Grade: -",
        "Grade: -1",
        "-1",
        "<think>Grade 3 would need an answer. It might be grade: 2 but let me",
        "17",
        "The query has 3 words.",
    ],
)
def test_an_answer_without_a_grade_of_the_scale_has_none(answer):
    assert parse_grade(answer) is None


def test_a_refusal_is_told_from_other_answers():
    assert is_refusal("I'm sorry, but I cannot assess this document.")
    assert is_refusal("I’m sorry.")
    assert not is_refusal("It is relevant.")


def test_the_prompt_has_query_and_document_whatever_they_spell_out():
    prompt = grading_prompt("what is {document}", "a {query} and {braces}")
    assert prompt.count("what is {document}") == 1
    assert prompt.count("a {query} and {braces}") == 1
    for grade in range(4):
        assert f"\n{grade}: " in prompt


def test_a_long_document_is_cut_and_a_title_comes_first():
    assert document_text({"title": "T", "text": "x"}) == ("T\nx", False)
    text, is_cut = document_text({"title": "", "text": "y" * (MOST_CHARACTERS + 1)})
    assert (len(text), is_cut) == (MOST_CHARACTERS, True)
    assert document_text({"title": " ", "text": ""}) == ("", False)
