"""ReSTrain against brute force over random similarities, and invariants for any input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from beir_cocodr.errors import InputError
from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.restrain import restrain
from beir_cocodr.resampling.similarity import best_ranks


@dataclass
class Case:
    """Similarities (T, N) whose rows have no ties, and the full lists that sort them."""

    scores: np.ndarray
    lists: np.ndarray

    @property
    def queries(self) -> int:
        return self.scores.shape[1]

    def union(self, k: int) -> set[int]:
        """The k nearest of every test query, by sorting, one test query after the other."""
        outcome: set[int] = set()
        for row in self.scores:
            outcome |= set(sorted(range(len(row)), key=lambda query: -row[query])[:k])
        return outcome


@st.composite
def cases(draw) -> Case:
    tests, queries = draw(st.integers(1, 5)), draw(st.integers(8, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # A low rank lets test queries share neighbours, as real ones do.
    rank = draw(st.integers(1, 4))
    scores = rng.normal(size=(tests, rank)) @ rng.normal(size=(rank, queries))
    scores += 1e-6 * rng.normal(size=scores.shape)
    return Case(scores, np.argsort(-scores, axis=1))


def chosen(ranks, depth, **targets):
    given = {
        name: tuple(value) if isinstance(value, list) else value for name, value in targets.items()
    }
    return restrain(ranks, depth, RestrainOptions(**given))


def resampled(case: Case, depth: int | None = None, **targets):
    depth = depth or case.queries
    return chosen(best_ranks(case.lists[:, :depth], case.queries), depth, **targets)


@given(cases(), st.integers(1, 40))
def test_best_ranks_equal_those_of_a_double_loop(case, depth):
    depth = min(depth, case.queries)
    ranks = best_ranks(case.lists[:, :depth], case.queries)
    for query in range(case.queries):
        places = [int((row > row[query]).sum()) for row in case.scores]
        assert ranks[query] == min(*places, depth)


@settings(max_examples=200)
@given(
    cases(),
    st.sets(st.integers(1, 20), min_size=1, max_size=3),
    st.integers(0, 9),
    st.integers(0, 3),
)
def test_invariants_across_sizes(case, sizes, seed, extra):
    assume(2 * max(sizes) <= case.queries)
    chosen = sorted(sizes)
    try:
        k_most = max(outcome.k for outcome in resampled(case, sizes=chosen, seed=seed).sets)
        result = resampled(case, sizes=chosen, seed=seed, exclude_top=k_most + extra)
    except InputError:
        # Too few were left, as they are when test queries lie everywhere; a later test looks at
        # that.
        return
    outside = set(range(case.queries)) - case.union(result.exclude_top)
    assert result.pool == len(outside)
    before_in, before_out = set(), set()
    for size, outcome in zip(chosen, result.sets, strict=True):
        inside, drawn = set(outcome.interpolation.tolist()), set(outcome.extrapolation.tolist())
        assert outcome.size == size
        # Every interpolation query is among the k nearest of some test query, and all of those are
        # in.
        assert inside == case.union(outcome.k)
        # No other k comes nearer to the size.
        assert abs(len(inside) - size) == min(
            abs(len(case.union(k)) - size) for k in range(1, case.queries + 1)
        )
        assert drawn <= outside
        assert len(drawn) == len(outcome.extrapolation) == len(inside) == len(outcome.interpolation)
        assert list(outcome.interpolation) == sorted(inside)
        assert list(outcome.extrapolation) == sorted(drawn)
        assert before_in <= inside
        assert before_out <= drawn
        assert not drawn & inside
        before_in, before_out = inside, drawn
    # Disjoint from the largest interpolation set means disjoint from all.
    assert not before_out & before_in


@given(cases(), st.integers(1, 4), st.integers(0, 9))
def test_sets_by_k_and_from_short_lists_are_the_same(case, k, seed):
    try:
        long = resampled(case, ks=[k], seed=seed)
    except InputError:
        return
    [outcome] = long.sets
    assert (outcome.k, outcome.size, long.exclude_top) == (k, None, k)
    assert set(outcome.interpolation.tolist()) == case.union(k)
    # Nothing is read beyond the place that decides.
    [short] = resampled(case, depth=k, ks=[k], seed=seed).sets
    np.testing.assert_array_equal(short.interpolation, outcome.interpolation)
    np.testing.assert_array_equal(short.extrapolation, outcome.extrapolation)


def line(tests: int, queries: int) -> Case:
    """Test query t is nearest to training query t, then t + 1, and so on around."""
    lists = (np.arange(queries)[None] + np.arange(tests)[:, None]) % queries
    scores = -np.argsort(lists, axis=1).astype(float)
    return Case(scores, lists)


def test_an_example_by_hand():
    # Two test queries at 0 and 1 of a circle of 10: their k nearest are 0..k-1 and 1..k.
    result = resampled(line(2, 10), sizes=[3, 4], exclude_top=5)
    assert [outcome.interpolation.tolist() for outcome in result.sets] == [[0, 1, 2], [0, 1, 2, 3]]
    assert [outcome.k for outcome in result.sets] == [2, 3]
    assert result.pool == 4
    assert result.sets[1].extrapolation.tolist() == [6, 7, 8, 9]
    assert set(result.sets[0].extrapolation.tolist()) < {6, 7, 8, 9}


def test_the_smaller_of_two_equally_near_k_is_taken():
    # Three test queries far apart: the unions have 3, 6, 9, ... training queries.
    lists = np.stack([(np.arange(30) + start) % 30 for start in (0, 10, 20)])
    ranks = best_ranks(lists, 30)
    assert [chosen(ranks, 30, sizes=[size]).sets[0].k for size in (1, 4, 5, 6, 7, 8)] == [
        1,
        1,
        2,
        2,
        2,
        3,
    ]
    even = best_ranks(np.stack([(np.arange(30) + start) % 30 for start in (0, 15)]), 30)
    assert chosen(even, 30, sizes=[3]).sets[0].k == 1


def test_the_sample_is_uniform_and_seeded():
    ranks = best_ranks(line(1, 20).lists, 20)
    drawn = [
        tuple(chosen(ranks, 20, ks=[4], seed=seed).sets[0].extrapolation) for seed in range(400)
    ]
    assert drawn[7] == tuple(chosen(ranks, 20, ks=[4], seed=7).sets[0].extrapolation)
    counts = np.bincount(np.concatenate(drawn), minlength=20)
    assert not counts[:4].any()
    # 400 draws of 4 from 16: each is expected 100 times, with a standard deviation of 8.7.
    assert counts[4:].min() > 100 - 5 * 8.7
    assert counts[4:].max() < 100 + 5 * 8.7


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({}, "--size or .*--k"),
        ({"sizes": [2], "ks": [1]}, "not both"),
        ({"sizes": [0]}, "--size 0"),
        ({"ks": [-1]}, "--k -1"),
        ({"sizes": [3, 3]}, "twice"),
        ({"sizes": [6]}, "no training queries .*5"),
        ({"ks": [11]}, "10 training queries"),
        ({"ks": [3], "exclude_top": 2}, "--exclude-top 2 .*3"),
        ({"ks": [3], "exclude_top": 0}, "--exclude-top 0"),
        ({"ks": [9]}, "no training queries .*10 of 10 .*9"),
        ({"ks": [2], "exclude_top": 8}, "only 1 .*3"),
    ],
)
def test_impossible_targets_are_refused_in_one_line(targets, message):
    with pytest.raises(InputError, match=message) as error:
        resampled(line(2, 10), **targets)
    assert "\n" not in str(error.value)
