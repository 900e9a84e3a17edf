from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from beir_cocodr.evaluation.measures import holm, interval, paired_tests


def two(a, b):
    scores = {"a": {"m": np.asarray(a, float)}, "b": {"m": np.asarray(b, float)}}
    [test] = paired_tests(scores, {"question": [("a", "b")]})
    return test


def test_randomisation_p_equals_the_enumeration_of_all_signs():
    rng = np.random.default_rng(0)
    difference = rng.normal(0.2, 0.5, size=10)
    means = [abs(np.mean(difference * signs)) for signs in itertools.product([1, -1], repeat=10)]
    exact = np.mean([mean >= abs(difference.mean()) - 1e-12 for mean in means])
    assert two(np.zeros(10), difference).randomization_p == pytest.approx(exact, abs=1e-9)


def test_t_test_is_two_tailed_and_paired():
    rng = np.random.default_rng(1)
    a, b = rng.random(40), rng.random(40)
    difference = b - a
    t = difference.mean() / (difference.std(ddof=1) / np.sqrt(40))
    test = two(a, b)
    assert test.t_p == pytest.approx(2 * stats.t.sf(abs(t), 39))
    assert test.difference == pytest.approx(difference.mean())
    assert (test.wins, test.ties, test.losses) == (
        (difference > 0).sum(),
        0,
        (difference < 0).sum(),
    )


def test_interval_is_close_to_the_normal_one_and_reproducible():
    values = np.random.default_rng(2).normal(0.5, 0.2, size=400)
    low, high = interval(values)
    half = 1.96 * values.std(ddof=1) / 20
    assert (low, high) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=0.1 * half
    )
    assert interval(values) == (low, high)


def test_all_ties_one_query_and_a_constant_difference():
    same = two([0.1, 0.5], [0.1, 0.5])
    assert (same.t_p, same.randomization_p, same.difference) == (1.0, 1.0, 0.0)
    one = two([0.1], [0.5])
    assert (one.t_p, one.randomization_p, one.interval, one.t_p_holm) == (None, None, None, None)
    assert two([0.5] * 5, [0.75] * 5).t_p == 0.0


def test_holm_on_an_example_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, None, 0.5]) == [1.0, None, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_the_step_down_procedure_rejects(p):
    corrected = holm(p)
    for level in (0.01, 0.05, 0.2):
        rejected, order = set(), np.argsort(p, kind="stable")
        for rank, i in enumerate(order):
            if p[i] * (len(p) - rank) > level:
                break
            rejected.add(int(i))
        assert {i for i, value in enumerate(corrected) if value <= level} == rejected
    assert all(value >= before for value, before in zip(corrected, p, strict=True))


def test_families_are_corrected_apart():
    rng = np.random.default_rng(3)
    scores = {name: {"m": rng.random(20)} for name in "abc"}
    one, two_, three = paired_tests(
        scores, {"first": [("a", "b"), ("a", "c")], "second": [("a", "b")]}
    )
    assert three.t_p_holm == three.t_p == one.t_p
    smaller, larger = sorted([one, two_], key=lambda test: test.t_p)
    assert smaller.t_p_holm == pytest.approx(min(1, 2 * smaller.t_p))
    assert larger.t_p_holm >= smaller.t_p_holm
    assert larger.t_p_bonferroni == pytest.approx(min(1, 2 * larger.t_p))
    assert three.t_p_bonferroni == three.t_p


def test_an_interval_is_of_the_percentile_bootstrap():
    """One hit in four queries: a resampled mean is a quarter of a Binomial(4, 1/4) count, whose
    2.5% and 97.5% quantiles are 0 and 3. The basic bootstrap would mirror them at the mean.
    """
    quantiles = stats.binom(4, 1 / 4).ppf([0.025, 0.975]) / 4
    assert quantiles.tolist() == [0, 0.75]
    assert interval(np.array([0.0, 0.0, 1.0, 0.0])) == tuple(quantiles)
