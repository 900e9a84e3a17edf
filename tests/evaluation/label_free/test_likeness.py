"""The likeness of a collection to those of a calibration."""

from __future__ import annotations

import math

import pytest

from beir_cocodr.evaluation.calibration import Spread
from beir_cocodr.evaluation.label_free.likeness import (
    compare_figures,
    spread_figures,
    text_figures,
    unlikeness,
)

SPREADS = {
    "documents": Spread(math.log(1000), 0.5),
    "share of plain Latin letters": Spread(0.9, 0.1),
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


def test_a_spread_is_weighted_and_of_logarithms_for_counts():
    figures = [{"documents": 100.0}, {"documents": 10_000.0, "share": 0.5}]
    spreads = spread_figures(figures, [3.0, 1.0])
    log_mean = (3 * math.log(100) + math.log(10_000)) / 4
    assert spreads["documents"].mean == pytest.approx(log_mean)
    variance = (3 * (math.log(100) - log_mean) ** 2 + (math.log(10_000) - log_mean) ** 2) / 4
    assert spreads["documents"].deviation == pytest.approx(math.sqrt(variance))
    assert spreads["share"] == Spread(0.5, 0.1)  # one collection says nothing of the spread


def test_the_distance_is_the_root_mean_square_of_deviations():
    figures = {"documents": 1000 * math.exp(1.5), "share of plain Latin letters": 0.8}
    assert unlikeness(figures, SPREADS) == pytest.approx(math.sqrt((3**2 + 1**2) / 2))
    assert unlikeness({}, SPREADS) == 0


def test_unusual_figures_are_named_with_what_is_usual():
    usual = {"documents": 1_500.0, "share of plain Latin letters": 0.95, "new": 9.0}
    assert compare_figures(usual, SPREADS).remarks == []
    far = compare_figures(usual | {"documents": 1e6}, SPREADS)
    [size] = far.remarks
    assert "documents 1e+06, there mostly 368 to 2.72e+03" in size
    assert far.distance > compare_figures(usual, SPREADS).distance
    assert compare_figures({}, SPREADS).remarks == []
