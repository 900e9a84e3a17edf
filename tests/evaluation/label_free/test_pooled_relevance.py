"""The relevance of what rankings have first: its definition, and what readers are asked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.label_free.pooled_relevance import (
    MOST_READ,
    POOL_DEPTH,
    PooledScores,
    read_pools,
)

RANKING = st.permutations(range(12)).map(lambda rows: rows[:7])


class Lengths:
    """A reader whose score depends on the row and the length of the query; it notes what it reads.

    A document's row is its score.
    """

    def __init__(self):
        self.read_pairs = []

    def read(self, queries, pools, documents):
        for query, pool in zip(queries, pools, strict=True):
            self.read_pairs += [(query, row) for row in pool.tolist()]
        return [pool / 10 + len(query) for query, pool in zip(queries, pools, strict=True)]


@pytest.fixture(scope="module")
def documents(beir_folder):
    return load_collection(beir_folder, labels="none").documents


def gain_by_hand(ranking, other, scores):
    """Return the discounted relevance of the first five, from the definition."""
    pool = set(ranking[:5]) | set(other[:5])
    total = sum(math.exp(scores[row]) for row in pool)
    gain = 0.0
    for rank, row in enumerate(ranking[:5], start=1):
        gain += math.exp(scores[row]) / total / math.log2(rank + 1)
    return gain


@given(RANKING, RANKING, st.lists(st.floats(-30, 30), min_size=12, max_size=12))
def test_gains_are_those_of_the_definition(first, second, scores):
    rows = np.arange(12)[None, :]
    pooled = PooledScores(np.array([1]), rows, np.array([scores]))
    lists = [np.array([[-1] * 7, ranking]) for ranking in (first, second)]
    [gain], [other] = pooled.gains(*lists)
    assert gain == pytest.approx(gain_by_hand(first, second, scores))
    assert other == pytest.approx(gain_by_hand(second, first, scores))
    assert 0 <= gain <= 1
    assert pooled.gains(*reversed(lists)) == ([other], [gain])


@given(RANKING, st.integers(-5, 5))
def test_a_constant_of_a_query_changes_nothing(ranking, constant):
    rows = np.arange(12)[None, :]
    scores = np.linspace(0, 3, 12)[None, :]
    lists = np.array([ranking]), np.array([ranking[::-1]])
    expected = PooledScores(np.array([0]), rows, scores).gains(*lists)
    moved = PooledScores(np.array([0]), rows, scores + constant).gains(*lists)
    np.testing.assert_allclose(moved, expected)


def test_rankings_without_results_gain_nothing():
    empty = np.full((2, 3), -1)
    pooled = PooledScores(np.array([0, 1]), empty, np.zeros((2, 3)))
    first, second = pooled.gains(empty, empty)
    assert first.tolist() == second.tolist() == [0, 0]


def test_the_first_documents_of_all_models_are_read_once(documents):
    rankings = [
        np.array([[0, 1, 2, 3, 4, 5], [5, -1, -1, -1, -1, -1]]),
        np.array([[2, 1, 6, 7, 8, 9], [-1] * 6]),
    ]
    reader = Lengths()
    pooled = read_pools(reader, ["one", "three"], rankings, documents)
    assert sorted(reader.read_pairs) == [
        *(("one", row) for row in [0, 1, 2, 3, 4, 6, 7, 8]),
        ("three", 5),
    ]
    assert pooled.rows[0].tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    assert pooled.rows[1].tolist() == [5, *[-1] * 7]
    assert pooled.scores[0].tolist() == [row / 10 + 3 for row in pooled.rows[0]]


def test_a_query_for_which_nothing_is_found_is_not_read(documents):
    reader = Lengths()
    pooled = read_pools(reader, ["one", "three"], [np.array([[-1], [5]])], documents)
    assert reader.read_pairs == [("three", 5)]
    assert pooled.rows.tolist() == [[-1], [5]]


def test_of_many_queries_evenly_spaced_ones_are_read(documents):
    count = 3 * MOST_READ
    queries = [f"query {number}" for number in range(count)]
    pooled = read_pools(Lengths(), queries, [np.zeros((count, 1), np.int64)], documents)
    assert len(pooled.queries) == MOST_READ
    assert pooled.queries[[0, -1]].tolist() == [0, count - 1]
    assert set(np.diff(pooled.queries).tolist()) <= {2, 3, 4}
    first, second = pooled.gains(*[np.zeros((count, 1), np.int64)] * 2)
    assert first.tolist() == second.tolist() == [1.0] * MOST_READ
    assert POOL_DEPTH == 5
