"""Summary and rest of one text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beir_cocodr.data.apidocs.summaries import (
    MAX_QUERY_WORDS,
    MIN_PASSAGE_WORDS,
    MIN_QUERY_WORDS,
    fold,
    split_docstring,
)

BODY = "The rest explains at length what happens, " * 5


@pytest.mark.parametrize(
    ("opening", "summary"),
    [
        ("Sum of all elements.\n\n", "Sum of all elements."),
        ("Sum of all\n    elements.\n\n", "Sum of all elements."),
        ("Sum of all elements. ", "Sum of all elements."),
        ("Sum of elements, e.g. of an array. ", "Sum of elements, e.g. of an array."),
        ("Sum of elements (see Fig. 2 of J. Doe). ", "Sum of elements (see Fig. 2 of J. Doe)."),
        ("Sum of elements up to 2.5 units. ", "Sum of elements up to 2.5 units."),
        ("Sum of all elements, that is::\n\n", "Sum of all elements, that is"),
        (
            "abs(input: Tensor, *, out=None) -> Tensor\n\nSum of all elements.\n\n",
            "Sum of all elements.",
        ),
        ("f(a,\n  b=(1, 2)) -> (x, y)\n\nSum of all elements.\n\n", "Sum of all elements."),
        ("f(a)\nf(a, b)\nSum of all elements.\n\n", "Sum of all elements."),
        (
            "\n    f($self, /)\n    --\n\n    f()\n\n    Sum of all elements.\n\n    ",
            "Sum of all elements.",
        ),
        ("f(x) is the sum of all. ", "f(x) is the sum of all."),
        (
            "\n    .. warning::\n        Unstable.\n\n    Sum of all elements.\n\n    ",
            "Sum of all elements.",
        ),
        ("Sum of :func:`~a.b.elements` and ``x``.\n\n", "Sum of elements and x."),
        ("Sum of :math:`x < y` over `links <https://a.b>`_.\n\n", "Sum of x < y over links."),
        ("Sum of all elements\nParameters\n----------\n", "Sum of all elements"),
        ("Sum of all elements\n>>> total(1)\n1\n", "Sum of all elements"),
    ],
)
def test_summary(opening: str, summary: str) -> None:
    outcome = split_docstring(opening + BODY)
    assert isinstance(outcome, tuple)
    assert outcome[0] == summary
    assert BODY.strip() in outcome[1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no summary"),
        ("Parameters\n----------\nx : " + BODY, "no summary"),
        ("Args:\n    x: " + BODY, "no summary"),
        (">>> f(1)\n" + BODY, "no summary"),
        ("f(x) -> y", "no summary"),
        ("See below.\n\n" + BODY, "short summary"),
        (f"{'word ' * (MAX_QUERY_WORDS + 1)}.\n\n" + BODY, "long summary"),
        ("Sum of all elements.\n\nShort.", "short passage"),
        ("Deprecated alias of sum.\n\n" + BODY, "deprecated"),
        (
            "Sum of all elements.\n\n    .. deprecated:: 1.2\n        Use sum.\n\n    " + BODY,
            "deprecated",
        ),
        (
            "Sum of all elements.\n\nReturns the\nSUM  of all elements. " + BODY,
            "summary in passage",
        ),
        ("Sum of all \ud800 elements.\n\n" + BODY, "not Unicode"),
    ],
)
def test_reasons_for_leaving_out(text: str, reason: str) -> None:
    assert split_docstring(text) == reason


def test_a_deprecated_parameter_does_not_make_the_object_deprecated() -> None:
    section = "Parameters\n    ----------\n    x : int\n\n    .. deprecated:: 1.2\n\n    "
    assert isinstance(split_docstring(f"Sum of all elements.\n\n    {section}{BODY}"), tuple)


def test_marks_of_the_passage() -> None:
    text = f"""Sum of all elements.

    {BODY}

    .. note:: Kept words.
    .. versionadded:: 1.3
    .. [1] A reference.

    Parameters
    ----------
    %(shared)s
    x : :class:`~pkg.Array`
        Entries::

            1, 2
    """
    outcome = split_docstring(text)
    assert isinstance(outcome, tuple)
    passage = outcome[1]
    assert passage.startswith(BODY.strip())
    rest = passage.removeprefix(BODY.strip()).strip()
    assert rest == (
        "Kept words.\n\n[1] A reference.\n\nParameters\nx : Array\n    Entries:\n\n        1, 2"
    )


@given(st.text(alphabet="ab \n.:`~=->()[]<{}%*", max_size=120).map(lambda text: text + BODY))
def test_any_text_gives_a_usable_pair_or_a_reason(text: str) -> None:
    outcome = split_docstring(text)
    if isinstance(outcome, str):
        assert outcome
        return
    query, passage = outcome
    assert query == " ".join(query.split())
    assert MIN_QUERY_WORDS <= len(query.split()) <= MAX_QUERY_WORDS
    assert len(passage.split()) >= MIN_PASSAGE_WORDS
    assert " ".join(query.split()) not in " ".join(passage.split())


@given(st.text())
@example("a .")
def test_folding_twice_changes_nothing(text: str) -> None:
    assert fold(fold(text)) == fold(text)
