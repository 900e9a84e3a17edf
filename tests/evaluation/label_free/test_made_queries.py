"""Leads on crops and titles at the margins of real queries, and when they are doubted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.label_free.contamination import Contamination
from beir_cocodr.evaluation.label_free.estimates import estimate_pair, features
from beir_cocodr.evaluation.label_free.estimators import CROPS, MADE, MATCHED, TITLES
from beir_cocodr.evaluation.label_free.evidence import ASKED
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.made_queries import MadeQueries
from beir_cocodr.evaluation.label_free.margins import lead_at, margins
from beir_cocodr.retrieval.resources import Resources

ESTIMATOR = MadeQueries(MADE)


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder)


@pytest.fixture(scope="module")
def gatherer(collection, tiny_cosine, tmp_path_factory):
    resources = Resources(collection.documents, tmp_path_factory.mktemp("resources"))
    models = ["bm25", str(tiny_cosine), f"hybrid:{tiny_cosine}"]
    return Gatherer(resources, models, samples=20, collection=collection)


@pytest.fixture(scope="module")
def evidence(gatherer, collection):
    return gatherer.gather(collection.queries)


def test_margins_by_hand():
    scores = np.array([[9.0, 7.0, 4.0, 1.0], [5.0, 2.0, 0.0, 0.0], [3.0, 3.0, 3.0, 3.0], [0.0] * 4])
    rows = np.array([[1, 2, 3, 4], [1, 2, -1, -1], [4, 3, 2, 1], [-1] * 4])
    assert margins(scores, rows).tolist() == [8, 3, 0, 0]
    assert margins(scores, rows, depth=3).tolist() == [5, 3, 0, 0]
    # A document that does not count moves the others up.
    dropped = np.where(rows == 1, -1, rows)
    assert margins(scores, dropped, depth=2).tolist() == [3, 0, 0, 0]


def test_the_lead_at_other_margins_is_that_of_a_ridge_regression():
    rng = np.random.default_rng(0)
    known = rng.normal(2.0, [0.5, 3.0, 1.0], size=(200, 3))
    leads = 0.3 * known[:, 0] - 0.1 * known[:, 1] + 0.2 * rng.normal(size=200)
    wanted = rng.normal([2.4, 0.0, 2.0], 0.1, size=(50, 3))
    spread = known.std(axis=0)
    ridge = Ridge(alpha=0.05 * 200).fit((known - known.mean(axis=0)) / spread, leads)
    expected = ridge.predict((wanted - known.mean(axis=0)) / spread).mean()
    assert lead_at(leads, known, wanted) == pytest.approx(expected)
    near = known[(np.abs(known - known.mean(axis=0)) < 2 * spread).all(axis=1)]
    expected = ridge.predict((near - known.mean(axis=0)) / spread).mean()
    assert lead_at(leads, known, near) == pytest.approx(expected)
    # Margins beyond three deviations say no more than those at three.
    far = lead_at(leads, known, np.full((5, 3), 1e9))
    assert far == pytest.approx(lead_at(leads, known, known.mean(axis=0) + np.full((5, 3), 9e3)))
    assert lead_at(leads, np.ones((200, 2)), np.zeros((3, 2))) == pytest.approx(leads.mean())


def test_margins_are_those_of_the_rankings(evidence, collection):
    assert evidence.margins.keys() == {CROPS, MATCHED, TITLES, ASKED}
    for name, ranking in evidence.rankings.items():
        expected = ranking.scores[:, 0] - ranking.scores[:, 9]
        counts = (ranking.rows[:, :10] >= 0).all(axis=1)
        assert counts.any()
        np.testing.assert_allclose(
            evidence.margins[ASKED][name][counts], expected[counts], atol=1e-5
        )
    for kind, scores in ((CROPS, evidence.crops), (TITLES, evidence.further[TITLES].scores)):
        for name, values in scores.items():
            assert evidence.margins[kind][name].shape == values.shape


def test_leads_are_taken_at_the_margins_of_real_queries(evidence, gatherer):
    for a, b in (("bm25", gatherer.models[1]), tuple(gatherer.models[1:])):
        first, second = ESTIMATOR.scores(evidence, a, b)
        sizes = [len(evidence.crops[a])]
        sizes += [len(evidence.further[kind].scores[a]) for kind in (MATCHED, TITLES)]
        assert len(first) == sum(sizes)
        level = np.mean([first.mean(), second.mean()])
        lead = ESTIMATOR.lead(evidence, a, b)
        value = features(evidence, a, b)[MADE]
        assert value == pytest.approx(lead * math.sqrt(0.5 / level))
        assert features(evidence, b, a)[MADE] == pytest.approx(-value)
        assert lead != pytest.approx((second - first).mean(), abs=1e-6)
        unseen = replace(evidence, margins={})
        assert ESTIMATOR.lead(unseen, a, b) == pytest.approx((second - first).mean())


def test_queries_that_a_model_practised_do_not_count(evidence, gatherer):
    encoder = gatherer.models[1]
    ahead = max(("bm25", encoder), key=lambda name: evidence.crops[name].mean())
    practised = replace(evidence, contamination=Contamination(spans=frozenset({ahead})))
    kinds = {kind.name for kind in ESTIMATOR.counting(evidence, "bm25", encoder)}
    kept = {kind.name for kind in ESTIMATOR.counting(practised, "bm25", encoder)}
    assert kinds == {CROPS, MATCHED, TITLES}
    assert CROPS not in kept
    nothing = replace(practised, further={})
    assert MADE not in features(nothing, "bm25", encoder)
    [estimate] = [
        estimate
        for estimate in estimate_pair(nothing, "bm25", encoder)
        if estimate.estimator == MADE
    ]
    assert not estimate.applies
    assert estimate.remark.startswith("the leading model was trained to find documents")


def test_words_that_real_queries_lose_are_counted(evidence, gatherer):
    lost = replace(evidence, held_words={"bm25": 0.4}, cut_words=0.6)
    assert lost.lost_words == pytest.approx(math.log(1.5))
    assert replace(lost, held_words={"bm25": 0.8}).lost_words == 0
    assert replace(lost, real=False).lost_words == 0
    assert replace(lost, cut_words=None).lost_words == 0
    # Crops as long as real queries are what real queries are compared with.
    assert 0 < evidence.cut_words <= 1
    assert gatherer.gather({}).lost_words == 0


def test_without_real_queries_no_crops_are_as_long_as_these(gatherer):
    alone = gatherer.gather({})
    kinds = [kind.name for kind in ESTIMATOR.counting(alone, "bm25", gatherer.models[1])]
    assert kinds == [CROPS, TITLES]
    assert ASKED not in alone.margins
