"""Whether a collection is like those of a calibration."""

from __future__ import annotations

import pytest

from beir_cocodr.evaluation.label_free.likeness import compare_figures, text_figures

RANGES = {
    "documents": (100.0, 2000.0),
    "words a document": (40.0, 400.0),
    "share of plain Latin letters": (0.98, 1.0),
}


def test_figures_by_hand():
    found = text_figures(7, ["two words", "four words and Ümläut"], ["a b c"])
    assert found == {
        "documents": 7,
        "words a document": 3,
        "words a query": 3,
        "share of plain Latin letters": pytest.approx(24 / 26),
    }
    assert "words a query" not in text_figures(1, ["text"], [])
    assert text_figures(0, [], [])["words a document"] == 0


def test_what_lies_outside_is_named_with_the_range():
    alike = {
        "documents": 15_000.0,
        "words a document": 500.0,
        "share of plain Latin letters": 0.95,
        "new": 9.0,
    }
    assert compare_figures(alike, RANGES).remarks == []
    [size] = compare_figures(alike | {"documents": 1e6}, RANGES).remarks
    assert "documents" in size
    assert "2e+03" in size
    remarks = compare_figures(
        {"words a document": 3.0, "share of plain Latin letters": 0.1}, RANGES
    ).remarks
    assert len(remarks) == 2
    assert compare_figures({}, RANGES).remarks == []
