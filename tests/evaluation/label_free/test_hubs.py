"""How often what a model finds for a query is found for other queries as well."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.label_free.contamination import Contamination
from beir_cocodr.evaluation.label_free.estimates import estimate_pair, features
from beir_cocodr.evaluation.label_free.estimators import SPECIFICITY
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.hubs import Specificity, shared_with_others
from beir_cocodr.retrieval.resources import Resources

ESTIMATOR = Specificity(SPECIFICITY)


@pytest.fixture(scope="module")
def gathered(beir_folder, tiny_cosine, tmp_path_factory):
    collection = load_collection(beir_folder)
    resources = Resources(collection.documents, tmp_path_factory.mktemp("resources"))
    gatherer = Gatherer(resources, ["bm25", str(tiny_cosine)], samples=20, collection=collection)
    return gatherer.gather(collection.queries)


@pytest.fixture
def evidence(gathered):
    """Evidence of a model that finds a document of its own for each query, and of one with hubs."""
    rng = np.random.default_rng(0)
    own = np.arange(12 * 10).reshape(12, 10)
    hubs = np.stack([rng.permutation(10) for _ in range(12)])
    return replace(
        gathered,
        lists={"own": own, "hubs": hubs, "bm25": own},
        crop_lists={"own": own, "hubs": own, "bm25": own},
        queries={str(number): "a query" for number in range(12)},
        real=True,
        contamination=Contamination(),
        answered={},
    )


def rankings(queries):
    """Return rankings of few documents, some of which have no result at the end."""
    row = st.lists(st.integers(0, 25), min_size=0, max_size=12, unique=True)
    return st.lists(row, min_size=queries, max_size=queries).map(
        lambda rows: np.array([[*row, *[-1] * (12 - len(row))] for row in rows])
    )


def brute_force(rows):
    """Ask every sample of nine other queries, and average over samples and first documents."""
    probabilities = []
    for query, row in enumerate(rows):
        first = [document for document in row[:2] if document >= 0]
        others = [number for number in range(len(rows)) if number != query]
        samples = list(itertools.combinations(others, 9))
        found = [
            any(document in rows[number][:10] for number in sample)
            for document in first
            for sample in samples
        ]
        probabilities.append(np.mean(found) if first else 1.0)
    return probabilities


@settings(max_examples=20, deadline=None)
@given(st.integers(10, 12).flatmap(rankings))
def test_all_samples_of_other_queries_are_counted(rows):
    assert shared_with_others(rows) == pytest.approx(brute_force(rows.tolist()))


@settings(max_examples=20, deadline=None)
@given(rankings(14))
def test_the_number_of_queries_does_not_matter_on_average(rows):
    """The mean over all sets of eleven of the fourteen queries is that of all fourteen."""
    sets = [
        shared_with_others(rows[list(numbers)]).mean()
        for numbers in itertools.combinations(range(14), 11)
    ]
    assert np.mean(sets) == pytest.approx(shared_with_others(rows).mean())


def test_own_documents_are_not_shared_and_hubs_are():
    own = np.arange(20 * 10).reshape(20, 10)
    assert not shared_with_others(own).any()
    assert shared_with_others(np.tile(own[:1], (20, 1))).tolist() == [1.0] * 20
    assert shared_with_others(np.full((20, 10), -1)).tolist() == [1.0] * 20
    # A document at the eleventh rank of another query is not counted.
    beyond = np.hstack([own, np.roll(own[:, :1], 1, axis=0)])
    assert not shared_with_others(beyond).any()


def test_a_model_with_hubs_is_less_specific(evidence):
    first, second = ESTIMATOR.scores(evidence, "hubs", "own")
    assert (first == 0).all()
    assert (second == 1).all()
    values = ESTIMATOR.features(evidence, "hubs", "own")
    assert values == {SPECIFICITY: pytest.approx(math.log(1.2 / 0.2))}
    turned = ESTIMATOR.features(evidence, "own", "hubs")
    assert turned[SPECIFICITY] == pytest.approx(-values[SPECIFICITY])
    # Half of what holds for crops as well, each of another document, does not count.
    on_crops = replace(evidence, crop_lists=evidence.lists)
    half = ESTIMATOR.features(on_crops, "hubs", "own")
    assert half[SPECIFICITY] == pytest.approx(values[SPECIFICITY] / 2)


def test_specificity_needs_ten_real_queries_and_crops(evidence):
    assert ESTIMATOR.is_available(evidence)
    assert not ESTIMATOR.is_available(replace(evidence, real=False))
    few = {str(number): "a query" for number in range(9)}
    assert not ESTIMATOR.is_available(replace(evidence, queries=few))
    without = replace(evidence, crop_lists={"own": evidence.crop_lists["own"]})
    assert ESTIMATOR.features(without, "own", "hubs") == {}
    objection = ESTIMATOR.objection(without, "own", "hubs")
    assert objection == "hubs cannot be queried with held-out crops"
    few_crops = {name: rows[:9] for name, rows in evidence.crop_lists.items()}
    few = replace(evidence, crop_lists=few_crops)
    assert ESTIMATOR.objection(few, "own", "hubs") == "only 9 held-out crops, and 10 are needed"
    assert ESTIMATOR.features(few, "own", "hubs") == {}
    # Of a run, the queries that it answers count.
    answers = {"hubs": np.arange(12) < 9}
    assert ESTIMATOR.features(replace(evidence, answered=answers), "own", "hubs") == {}
    answers = {"hubs": np.arange(12) < 10}
    assert ESTIMATOR.features(replace(evidence, answered=answers), "own", "hubs")


@pytest.mark.parametrize("practice", ["spans", "generated", "terms"])
def test_training_on_the_corpus_makes_results_specific(evidence, practice):
    trained = replace(evidence, contamination=Contamination(**{practice: frozenset(["own"])}))
    assert "the leading model was" in ESTIMATOR.objection(trained, "hubs", "own")
    assert ESTIMATOR.features(trained, "hubs", "own") == {}
    # To be behind in spite of it is evidence.
    behind = replace(evidence, contamination=Contamination(**{practice: frozenset(["hubs"])}))
    assert ESTIMATOR.features(behind, "hubs", "own")


def test_a_comparison_has_the_rankings_for_crops(gathered, tiny_cosine):
    model = str(tiny_cosine)
    for name in ("bm25", model):
        assert gathered.crop_lists[name].shape == (len(gathered.crops[name]), 10)
    found = {
        name: (lists == gathered.crop_queries.rows[:, None]).any(axis=1)
        for name, lists in gathered.crop_lists.items()
    }
    for name, has_document in found.items():
        np.testing.assert_array_equal(has_document, gathered.crops[name] > 0)
    assert SPECIFICITY in features(gathered, "bm25", model)
    [estimate] = [
        one for one in estimate_pair(gathered, "bm25", model) if one.estimator == SPECIFICITY
    ]
    assert estimate.applies
    assert 0 <= estimate.a <= 1
