"""ReSTTest: buckets partition queries, and every test query is held out once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from beir_cocodr.errors import InputError
from beir_cocodr.resampling.resttest import query_buckets, resttest


@given(st.integers(2, 6), st.integers(0, 2**32 - 1), st.integers(4, 60), st.integers(4, 40))
def test_every_query_is_held_out_once(buckets, seed, trains, tests):
    rng = np.random.default_rng(seed)
    train, test = rng.integers(buckets, size=trains), rng.integers(buckets, size=tests)
    assume(len(np.unique(test)) == buckets)
    assume(len(np.unique(train)) > 1)
    result = resttest(train, test, buckets)
    assert [one.bucket for one in result[::2]] == list(range(1, buckets + 1))
    judged, extrapolated, held_out = Counter(), Counter(), Counter()
    for one, far in zip(result[::2], result[1::2], strict=True):
        assert (one.regime, far.regime) == ("interpolation", "extrapolation")
        assert one.train is far.train
        assert one.bucket == far.bucket
        inside = set(range(trains)) - set(one.train.tolist())
        assert all(train[row] == one.bucket - 1 for row in inside)
        assert all(train[row] != one.bucket - 1 for row in one.train)
        held_out.update(inside)
        assert sorted([*one.test, *far.test]) == list(range(tests))
        # What is extrapolation has no training query of its bucket; what is interpolation has all
        # of them.
        assert set(test[far.test]) == {one.bucket - 1}
        assert one.bucket - 1 not in test[one.test]
        extrapolated.update(far.test.tolist())
        judged.update(one.test.tolist())
    assert held_out == Counter(range(trains))
    assert extrapolated == Counter(range(tests))
    assert judged == Counter(dict.fromkeys(range(tests), buckets - 1))


def blobs(counts: list[tuple[int, int]], seed: int = 0):
    """Return directions in groups of training and test queries, and the groups."""
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    parts = []
    for side in (0, 1):
        groups = np.repeat(np.arange(len(counts)), [pair[side] for pair in counts])
        # Lengths differ within a group: only directions may count.
        lengths = rng.uniform(0.1, 50, size=(len(groups), 1))
        vectors = (centres[groups] + 0.05 * rng.normal(size=(len(groups), 8))) * lengths
        parts += [vectors.astype(np.float32), groups]
    return parts


@pytest.mark.parametrize("seed", range(3))
def test_buckets_are_groups_of_training_and_test_queries(seed):
    train, train_groups, test, test_groups = blobs([(30, 4), (12, 9), (25, 3), (18, 6)], seed)
    train_buckets, test_buckets = query_buckets(train, test, 4, seed)
    pairs = set(zip([*train_groups, *test_groups], [*train_buckets, *test_buckets], strict=True))
    assert len(pairs) == 4
    assert {int(bucket) for _, bucket in pairs} == {0, 1, 2, 3}
    again = query_buckets(train, test, 4, seed)
    np.testing.assert_array_equal(again[0], train_buckets)
    np.testing.assert_array_equal(again[1], test_buckets)


def test_a_bucket_without_training_queries_is_extrapolation_too():
    result = resttest(np.array([0, 0, 1]), np.array([0, 1, 2]), 3)
    assert result[5].train.tolist() == [0, 1, 2]
    assert result[5].test.tolist() == [2]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([1, 1, 1], [0, 1], "no training queries .*bucket 2 of 2"),
        ([0, 1, 1], [1, 1], "bucket 1 of 2 .*no test queries"),
        ([0, 1, 1], [0, 0], "bucket 1 of 2 .*all test queries"),
    ],
)
def test_a_bucket_that_leaves_nothing_is_refused(train, test, message):
    with pytest.raises(InputError, match=message):
        resttest(np.array(train), np.array(test), 2)


def test_too_many_buckets_are_refused():
    vectors = np.eye(3, dtype=np.float32)
    with pytest.raises(InputError, match=r"4 buckets .*3 .*--buckets"):
        query_buckets(vectors, vectors, 4)
