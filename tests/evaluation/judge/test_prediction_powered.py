"""Means by labels and a judge: closed forms, and simulated judges of a known kappa.

The simulation is that of benchmarks/judge.py, which has more of it.
"""

from __future__ import annotations

import numpy as np
import pytest
from judge import holds, measure_fixed, measure_sequence, simulate
from scipy import stats

from beir_cocodr.evaluation.few_labels import JudgedGain, usual_variance
from beir_cocodr.evaluation.judge.prediction_powered import (
    Labelled,
    confidence_sequence,
    disjoint_mean,
    power_mean,
)
from beir_cocodr.evaluation.judge.settlement import verdict_of


@pytest.fixture(scope="module")
def sample():
    rng = np.random.default_rng(3)
    judged = rng.normal(size=120)
    human = 0.7 * judged[:30] + rng.normal(size=30)
    return human, judged


def test_the_estimate_is_that_of_the_formula(sample):
    human, judged = sample
    n, size = len(human), len(judged)
    tuning = np.cov(human, judged[:n])[0, 1] / judged.var(ddof=1)
    joined = power_mean(Labelled(human, judged[:n], judged))
    assert joined.tuning == pytest.approx(tuning)
    assert joined.difference == pytest.approx(
        human.mean() + tuning * (judged.mean() - judged[:n].mean())
    )
    # Two numbers are fitted to the labelled queries: the mean and the tuning.
    residuals = human - tuning * judged[:n]
    variance = (1 / n - 1 / size) * residuals.var(ddof=1) * (n - 1) / (n - 2)
    variance += human.var(ddof=1) / size
    assert joined.deviation**2 == pytest.approx(variance)
    half = stats.t.ppf(0.95, n - 1) * variance**0.5
    assert joined.interval == pytest.approx((joined.difference - half, joined.difference + half))
    assert joined.correlation == pytest.approx(np.corrcoef(human, judged[:n])[0, 1])
    alone = stats.t.interval(0.9, n - 1, human.mean(), stats.sem(human))
    assert joined.alone_interval == pytest.approx(alone)
    assert joined.worth == pytest.approx(human.var(ddof=1) / variance)


def test_a_judge_of_no_opinion_leaves_the_labels_as_they_are(sample):
    human, _ = sample
    joined = power_mean(Labelled(human, np.zeros(30), np.zeros(120)))
    assert (joined.tuning, joined.correlation) == (0, 0)
    assert joined.difference == joined.labels_alone == pytest.approx(human.mean())


def test_a_judge_that_would_widen_the_interval_counts_for_nothing():
    rng = np.random.default_rng(11)
    counted = 0
    for _ in range(200):
        human = rng.normal(size=15)
        judged = rng.normal(size=300)  # knows nothing of the labels
        joined = power_mean(Labelled(human, judged[:15], judged))
        (low, high), alone = joined.interval, joined.alone_interval
        assert high - low <= alone[1] - alone[0] + 1e-12
        assert joined.worth >= 15
        if joined.tuning == 0:
            assert joined.interval == alone
            counted += 1
    assert 50 < counted < 200


def test_equal_weights_are_no_weights(sample):
    human, judged = sample
    plain = Labelled(human, judged[:30], judged)
    weighted = Labelled(human, judged[:30], judged, np.full(30, 7.0))
    residuals = human - judged[:30]
    assert weighted.variance(residuals) == pytest.approx(plain.variance(residuals))
    assert confidence_sequence(weighted) == pytest.approx(confidence_sequence(plain))


def test_all_queries_labelled_leave_nothing_to_the_judge(sample):
    human, judged = sample
    joined = power_mean(Labelled(human, judged[:30], judged[:30]))
    assert joined.difference == pytest.approx(human.mean())
    assert joined.worth == pytest.approx(30)


def test_fewer_than_ten_labels_give_no_interval(sample):
    human, judged = sample
    joined = power_mean(Labelled(human[:9], judged[:9], judged))
    assert joined.interval is joined.sequence is joined.alone_interval is None
    assert power_mean(Labelled(human[:1], judged[:1], judged)).deviation is None


def test_few_labels_without_a_difference_do_not_settle_that_there_is_none(sample):
    """Ten ties are no proof of a tie, two thousand are one."""
    _, judged = sample
    settled = {}
    for count in (10, 100, 2000):
        everything = np.tile(judged, 30)
        ties = Labelled(np.zeros(count), everything[:count], everything, usual=0.05)
        joined = power_mean(ties)
        low, high = joined.sequence
        assert low == pytest.approx(-high)
        assert joined.interval[0] < 0 < joined.interval[1]
        settled[count] = verdict_of((low, high), margin=0.01)
        # Judged queries by themselves are as careful.
        alone = JudgedGain.of(np.zeros(count), np.ones(count), 0.05 / usual_variance(1.0), 0.01)
        assert high == pytest.approx(alone.interval[1])
    assert settled == {10: "cannot tell", 100: "cannot tell", 2000: "no difference"}


def test_the_judge_has_to_grade_every_labelled_query(sample):
    human, judged = sample
    with pytest.raises(ValueError, match="every labelled query"):
        Labelled(human, judged[:29], judged)


def test_the_disjoint_form_is_that_of_the_formula(sample):
    human, judged = sample
    n, others = 30, judged[30:]
    mean, variance, tuning = disjoint_mean(human, judged[:n], others)
    covariance = np.cov(human, judged[:n])[0, 1]
    assert tuning == pytest.approx(covariance / ((1 + n / 90) * judged.var(ddof=1)))
    assert mean == pytest.approx((human - tuning * judged[:n]).mean() + tuning * others.mean())
    of_labels = (human - tuning * judged[:n]).var(ddof=1) / n
    assert variance == pytest.approx(of_labels + tuning**2 * judged.var(ddof=1) / 90)


def test_the_tuning_of_a_sequence_does_not_look_ahead(sample):
    """A label changes the estimate by its own term alone: later ones are weighted by it, too."""
    human, judged = sample
    before = confidence_sequence(Labelled(human, judged[:30], judged))
    changed = human.copy()
    changed[-1] += 3
    after = confidence_sequence(Labelled(changed, judged[:30], judged))
    assert sum(after) / 2 - sum(before) / 2 == pytest.approx(3 / 30)


@pytest.mark.parametrize("kappa", [0.2, 0.6, 0.8])
@pytest.mark.parametrize("labelled", [20, 50])
def test_intervals_hold_and_a_judge_saves_labels(kappa, labelled):
    rng = np.random.default_rng([labelled, round(10 * kappa)])
    figures = measure_fixed(rng, simulate(rng, 20_000, kappa), labelled, 500)
    # The nominal 90%; 500 draws vary by 1.3 points.
    assert figures["holds"] >= 0.86
    assert figures["width_ratio"] <= 1
    if kappa >= 0.6:
        assert figures["labels_needed"] <= 0.8


def test_a_sequence_holds_at_every_look():
    rng = np.random.default_rng(5)
    figures = measure_sequence(rng, simulate(rng, 20_000, 0.6), 40)
    assert figures["holds_at_every_look"] >= 0.8  # 90% promised, 40 draws vary by 5 points
    assert figures["width_at_50"] < figures["width_at_50_labels_alone"]


def test_intervals_without_the_correction_would_not_hold():
    """The judge's own mean is biased, and its own interval misses: the correction is what holds."""
    rng = np.random.default_rng(6)
    simulated = simulate(rng, 20_000, 0.4)
    rows = rng.integers(0, 20_000, (200, 500))
    held = []
    for row in rows:
        mean, error = simulated.judged[row].mean(), stats.sem(simulated.judged[row])
        held.append(holds((mean - 1.65 * error, mean + 1.65 * error), simulated.truth))
    assert np.mean(held) < 0.5
