"""A few judged queries: closed forms, other tools' nDCG, and coverage however often one looks."""

from __future__ import annotations

import math

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from beir_cocodr.data.judgements import JudgedQuery, Judgements
from beir_cocodr.evaluation.few_labels import (
    NORMAL,
    Expected,
    FewLabels,
    JudgedGain,
    count_unjudged,
    describe_gain,
    half_width,
    held_out_gain,
    judge,
    more_queries,
    query_weights,
    sampled_ndcg,
)

DOCUMENTS = "abcdefghijklmnop"


@settings(deadline=None)
@given(
    st.permutations(DOCUMENTS),
    st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(-1, 3), min_size=1),
)
def test_where_all_is_judged_it_is_ndcg_as_trec_eval_has_it(found, grades):
    run = {"q": {document: float(-rank) for rank, document in enumerate(found)}}
    judged = {"q": {document: max(grade, 0) for document, grade in grades.items()}}
    [metric] = ir_measures.iter_calc([ir_measures.nDCG @ 10], judged, run)
    assert sampled_ndcg(found, grades, dict.fromkeys(grades, 1.0)) == pytest.approx(metric.value)


def test_a_document_that_was_drawn_stands_for_those_that_were_not():
    """Four relevant documents in a row, each drawn with probability 1/2: two that were drawn have
    the value of four.
    """
    discounts = 1 / np.log2(np.arange(2, 6))
    found = sampled_ndcg(list("abcd"), {"a": 1, "d": 1}, {"a": 0.5, "d": 0.5})
    assert found == pytest.approx(2 * (discounts[0] + discounts[3]) / discounts.sum())


@pytest.mark.parametrize("queries", [10, 30, 200])
def test_the_sequence_ends_where_the_mixture_of_likelihood_ratios_says(queries):
    """At its end, ∫ exp(λS − λ²V/2) dN(λ; 0, ρ²) is 1/α (Ville's inequality), by quadrature."""
    alpha, deviation = 0.1, 0.3
    rho = optimize.brentq(
        lambda rho: optimize.approx_fprime(
            [30.0], lambda t: width_at(t[0], rho) * math.sqrt(t[0]), 1e-6
        )[0],
        0.05,
        3,
    )
    total = queries * half_width(queries, deviation) / deviation  # S in units of the deviation
    ratio, _ = integrate.quad(
        lambda x: math.exp(x * total - x * x * queries / 2) * stats.norm.pdf(x, scale=rho),
        -9,
        9,
        points=[0, 0.3, 1],
    )
    assert ratio == pytest.approx(1 / alpha, rel=1e-3)


def width_at(t, rho, alpha=0.1):
    return math.sqrt(
        2 * (t * rho**2 + 1) / (t * rho) ** 2 * math.log(math.sqrt(t * rho**2 + 1) / alpha)
    )


def ever_missed(interval_of, runs=250, seed=5):
    """The share of runs in which an interval misses the mean at any of the looks, between 10 and
    300 queries.
    """
    rng, looks = np.random.default_rng(seed), np.unique(np.geomspace(10, 300, 40).astype(int))
    sizes = rng.gamma(0.5, 1.0, 400)
    population = np.where(
        rng.random(400) < 0.4, 0.0, np.clip(rng.normal(0.03, 0.2, 400) * (0.4 + sizes), -1, 1)
    )
    chances = 0.5 / 400 + 0.5 * sizes / sizes.sum()
    missed = 0
    for _ in range(runs):
        drawn = rng.choice(400, 300, p=chances)
        values, weights = population[drawn], 1 / chances[drawn]
        ends = (interval_of(values[:n], weights[:n]) for n in looks)
        missed += any(not low <= population.mean() <= high for low, high in ends)
    return missed / runs


def test_the_sequence_covers_however_often_one_looks_and_a_usual_interval_does_not():
    """Skewed, bounded differences with many ties, queries drawn unevenly; 250 runs, so up to 0.1 +
    2 × 0.019.
    """

    def usual(values, weights):
        shares = weights / weights.sum()
        mean = shares @ values
        width = NORMAL * math.sqrt(np.square(shares * (values - mean)).sum())
        return mean - width, mean + width

    assert (
        ever_missed(lambda values, weights: JudgedGain.of(values, weights, 0.5, 0.01).interval)
        <= 0.138
    )
    assert ever_missed(usual) > 0.3


@pytest.mark.parametrize("difference", [0.0, 0.004, 0.02, 0.08])
def test_how_many_more_is_the_first_number_that_settles_it(difference):
    found = more_queries(difference, 0.15, 12, 0.01)
    first = next(
        (
            n
            for n in range(12, 10_001)
            if half_width(n, 0.15) < difference or difference + half_width(n, 0.15) <= 0.01
        ),
        None,
    )
    assert found == (None if first is None else first - 12)


def test_of_two_models_the_estimate_is_the_mean_weighted_by_precision():
    rng = np.random.default_rng(3)
    scores = rng.random((25, 2))
    apart = 1 - np.eye(2)
    found = Expected(np.array([0.0, 0.1]), 0.03**2 * apart, 0.5 * apart)
    mean, deviation = found.posterior(scores, np.ones(25)).difference(0, 1)
    gaps = scores[:, 1] - scores[:, 0]
    # In ten of 34 parts the variance is the one that is expected: its size from all, its shape from
    # the distances.
    error = gaps.var(ddof=0) * 25
    usual = (error + 10 * 0.25**2 * 0.5) / 34
    error = (error + 10 * usual) / 34 / 25
    precisions = 1 / 0.03**2, 1 / error
    assert mean == pytest.approx(np.average([0.1, gaps.mean()], weights=precisions))
    assert deviation == pytest.approx(1 / math.sqrt(sum(precisions)))
    assert found.posterior(scores[:0], np.ones(0)).difference(0, 1) == pytest.approx((0.1, 0.03))


def test_queries_count_in_the_posterior_by_their_weights():
    """Queries that were likely to be drawn, and favour one model, count for less."""
    rng = np.random.default_rng(4)
    scores, weights = rng.random((25, 2)), 1 / rng.uniform(0.1, 1.0, 25)
    scores[weights < np.median(weights), 1] += 0.5
    variance = 0.2**2
    apart = 1 - np.eye(2)
    posterior = Expected(np.zeros(2), variance * apart, 0.5 * apart).posterior(scores, weights)
    mean, deviation = posterior.difference(0, 1)
    gaps = scores[:, 1] - scores[:, 0]
    average = np.average(gaps, weights=weights)
    influences = 25 * weights / weights.sum() * (gaps - average)
    usual = (np.square(influences).sum() + 10 * 0.25**2 * 0.5) / 34
    error = (np.square(influences).sum() + 10 * usual) / 34 / 25
    precisions = 1 / variance, 1 / error
    assert mean == pytest.approx(np.average([0.0, average], weights=precisions))
    assert deviation == pytest.approx(1 / math.sqrt(sum(precisions)))
    assert mean < gaps.mean() / 2


def test_choosing_among_equals_gains_nothing_on_queries_that_had_no_part_in_it():
    rng, missed, optimism = np.random.default_rng(11), 0, []
    nothing = Expected.nothing(8)
    for _ in range(40):
        scores = rng.random((30, 8))
        gain = held_out_gain(nothing, scores, np.ones(30), 0, 0.01)
        missed += not gain.interval[0] <= 0 <= gain.interval[1]
        optimism.append(scores.mean(axis=0).max() - scores[:, 0].mean())
    assert missed <= 4
    assert np.mean(optimism) > 0.05


def judgements(grades, **changes):
    queries = {
        query: JudgedQuery(found, dict.fromkeys(found, 1.0), **changes.get(query, {}))
        for query, found in grades.items()
    }
    return Judgements("f.tsv", queries)


def test_queries_weigh_by_the_inverse_of_their_probability():
    judged = judgements(
        {q: {"d": 1} for q in "abc"}, a={"probability": 0.1}, b={"probability": 0.4}
    )
    # 10, 2.5, and for the one that was not drawn their mean.
    assert query_weights(judged) == pytest.approx(np.array([10, 2.5, 6.25]) / 6.25)
    assert judged.drawn


def test_judging_says_what_is_better_and_counts_what_nobody_judged():
    grades = {f"q{i}": {"good": 1, "bad": 0} for i in range(40)}
    results = {
        "a": {query: [("bad", 2.0), ("good", 1.0), ("new", 0.5)] for query in grades},
        "b": {query: [("good", 2.0), ("bad", 1.0)] for query in grades},
    }
    found, posterior = judge(judgements(grades), results, Expected.nothing(2), "a", 0.01)
    gain = 1 - 1 / math.log2(3)
    assert (found.chosen, found.queries, found.documents, found.drawn) == ("b", 40, 80, False)
    assert found.pairs["a"]["b"].difference == pytest.approx(gain)
    assert found.pairs["a"]["b"].interval[0] > 0
    assert found.pairs["a"]["b"].more == 0
    assert 0.3 < posterior.difference(0, 1)[0] < gain
    assert found.unjudged == {"a": 1.0, "b": 0.0}
    assert count_unjudged(judgements(grades), {}) == 0
    # The first choice knows nothing and keeps the reference.
    assert found.held_out.difference == pytest.approx(gain * 39 / 40)
    assert any("not judged" in sentence for sentence in found.describe())


def test_a_held_out_gain_settles_nothing_because_no_verdict_rests_on_it():
    """Twenty queries, on which the choice gains 0.5 or 0.4: its interval excludes 0."""
    gains = np.tile([0.5, 0.4], 10)
    clear = JudgedGain.of(gains, np.ones(20), 0.5, 0.01)
    assert (clear.more, clear.interval[0] > 0) == (0, True)
    unclear = JudgedGain.of(np.tile([0.3, -0.2], 10), np.ones(20), 0.5, 0.01)
    assert unclear.more > 0
    for held_out, sign in ((clear, "+0.450"), (unclear, "+0.050")):
        found = FewLabels("f.tsv", 20, 40, {}, False, {"a": 0.0}, {}, "b", "a", held_out)
        [_, choice] = found.describe()
        assert f"had no part in it: {sign} on 20 judged queries alone (" in choice
        assert choice.endswith("however often one looks).")
        assert "settle" not in choice


def test_judged_queries_alone_never_contradict_the_verdict_on_a_pair():
    clear = JudgedGain.of(np.tile([0.5, 0.4], 10), np.ones(20), 0.5, 0.01)
    unclear = JudgedGain.of(np.tile([0.3, -0.2], 10), np.ones(20), 0.5, 0.01)
    assert describe_gain(clear, 20, is_decided=True).endswith(", settled")
    more = f"; about {unclear.more} more would settle it"
    assert describe_gain(unclear, 20, is_decided=False).endswith(more)
    for gain, is_decided in ((clear, False), (unclear, True)):
        assert "settle" not in describe_gain(gain, 20, is_decided=is_decided)


def test_below_ten_queries_there_is_no_interval():
    gain = JudgedGain.of(np.full(9, 0.5), np.ones(9), 1.0, 0.01)
    assert gain.interval is None
    assert gain.more >= 1
