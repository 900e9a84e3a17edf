"""The study of encoders that are left out of the calibration."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from collecting.systems import System
from fitting.judged_collections import JudgedCollection, is_undamaged, is_with_new_kind
from fitting.labelled_pairs import LabelledPairs
from fitting.left_out import Predicted
from verdict_encoders import PACKAGED, STATIC, Part, consistent, forms, parts_of, weak_encoders

from beir_cocodr.evaluation.calibration import ExpectedDifference
from beir_cocodr.evaluation.label_free.estimators import MADE
from beir_cocodr.evaluation.label_free.verdict import GIVEN_QUERIES

NAMES = ("bm25", "minilm", STATIC)
PAIRS = [("bm25", "minilm"), ("bm25", STATIC), ("minilm", STATIC)]


def collection(leads):
    """Three systems of which BM25 is ahead or behind on crops and titles by these leads."""
    systems = {name: System.parse(name) for name in NAMES}
    pairs = LabelledPairs(
        name="c",
        family="f",
        models=PAIRS,
        kinds=[(systems[a].kind, systems[b].kind) for a, b in PAIRS],
        features=[{MADE: lead} for lead in leads],
        distances=np.full(3, 0.5),
        differences=np.zeros(3),
        errors=np.ones(3),
    )
    searched = SimpleNamespace(name="c", systems=systems)
    return JudgedCollection(searched, {GIVEN_QUERIES: pairs}, {})


def predicted(means, deviations):
    differences = []
    for mean, deviation in zip(means, deviations, strict=True):
        differences.append(ExpectedDifference(mean, deviation, 2 * deviation, 0.5))
    return Predicted(collection((0.0, 0.0, 0.0)).pairs[GIVEN_QUERIES], differences)


def test_inconsistent_means_become_those_of_least_squares():
    """Pairs ab, ac, bc of equal weight: the contradiction is shared equally among the three."""
    joined = consistent(predicted((1.0, 1.0, 1.0), (0.2, 0.2, 0.2)))
    assert joined.expected == pytest.approx([2 / 3, 4 / 3, 2 / 3])


def test_a_sure_pair_keeps_its_mean():
    joined = consistent(predicted((1.0, 1.0, 1.0), (0.002, 2.0, 2.0)))
    assert joined.expected == pytest.approx([1.0, 1.5, 0.5], abs=1e-3)


def test_consistent_means_stay():
    before = predicted((0.1, 0.4, 0.3), (0.1, 0.2, 0.5))
    after = consistent(before)
    assert after.expected == pytest.approx(before.expected)
    assert after.widths == pytest.approx(before.widths)


def test_an_encoder_far_behind_bm25_is_weak():
    assert weak_encoders(collection((-0.14, -0.16, -0.3))) == {STATIC}
    assert weak_encoders(collection((0.2, 0.1, -0.3))) == frozenset()


def test_pairs_are_divided_by_encoders_and_named_by_kind(monkeypatch):
    one = collection((0.1, -0.2, -0.3))
    monkeypatch.setattr(JudgedCollection, "counted", lambda self, regime: self.pairs[regime])
    parts = {part.encoders: part for part in parts_of(one, weak_encoders, is_counted=True)}
    assert {name: part.fitted.models for name, part in parts.items()} == {
        "minilm": PAIRS[:1],
        "glove": PAIRS[1:2],
        "glove and minilm": PAIRS[2:],
    }
    kinds = [part.counted.kinds[0] for part in parts.values()]
    assert kinds == [("bm25", "dense"), ("bm25", "other dense"), ("dense", "other dense")]
    assert one.pairs[GIVEN_QUERIES].kinds[1] == ("bm25", "dense")
    marked = replace(one.pairs[GIVEN_QUERIES], kinds=[("bm25", "weak dense")] * 3)
    again = replace(one, pairs={GIVEN_QUERIES: marked})
    by_encoder = {part.encoders: part for part in parts_of(again, weak_encoders, is_counted=True)}
    assert by_encoder["minilm"].fitted.kinds == [("bm25", "dense")]
    assert by_encoder["glove"].fitted.kinds == [("bm25", "other dense")]
    [only_fitted, *_] = parts_of(one, weak_encoders, is_counted=False)
    assert only_fitted.counted is None


def test_an_encoder_that_is_left_out_is_judged_by_the_others_alone():
    titles = {form.title: form for form in forms() if form.kinds == PACKAGED}
    assert "MiniLM, MPNet and E5" in titles
    assert titles["MPNet and E5"].judged == {"minilm"}
    for form in forms():
        if len(form.fitted) == 2:
            assert not form.fitted & form.judged
    part = Part("glove and minilm", None, object())
    assert titles["MiniLM"].judges(part)
    assert not titles["MPNet and E5"].judges(part)
    assert titles["MPNet and E5"].judges(replace(part, encoders="minilm"))
    assert not titles["MPNet and E5"].judges(replace(part, encoders="minilm", counted=None))


def test_pairs_with_a_new_kind_are_those_of_one_such_model_and_a_counted_one():
    names = ["bm25", "minilm", "hybrid@0.2:minilm", "hybrid@0.5:minilm", "minilm/bits-4"]
    names += ["rm3@0.5:mpnet", "splade:small", "colbert:tokens"]
    systems = {name: System.parse(name) for name in names}
    is_compared = is_with_new_kind(SimpleNamespace(systems=systems))
    compared = {pair for pair in itertools.combinations(names, 2) if is_compared(*pair)}
    known = ("bm25", "minilm", "hybrid@0.5:minilm", "rm3@0.5:mpnet")
    new = ("splade:small", "colbert:tokens")
    assert compared == set(itertools.product(known, new))
    is_fitted = is_undamaged(SimpleNamespace(systems=systems))
    assert not any(is_fitted(*pair) for pair in compared)
