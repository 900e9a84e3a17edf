"""The posterior that joins what usually wins with evidence, and its oracles."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beir_cocodr.evaluation.calibration import (
    DifferenceModel,
    ExpectedDifference,
    KindPrior,
    PairFeatures,
    Precedent,
    Reach,
)
from beir_cocodr.evaluation.label_free.verdict import (
    CORPUS_ALONE,
    GIVEN_QUERIES,
    load_calibration,
)

NOISE = [[0.02, 0.006, 0.0], [0.006, 0.03, -0.004], [0.0, -0.004, 0.05]]
PRIOR = KindPrior(
    mean=0.08,
    deviation=0.1,
    features={"crops": 0.2, "generated": -0.1},
    deviations={"crops": 0.05},
    precedent=Precedent(25, 21, 0.05),
)
DOUBTED = replace(PRIOR, deviations={"crops": 2 * 0.05})
DOUBLED = replace(PRIOR, deviations={"crops": math.sqrt(2) * 0.05})
MODEL = DifferenceModel(
    slopes={"crops": 0.9, "generated": 0.5, "agreement": -0.3},
    noise=NOISE,
    priors={"bm25, hybrid": PRIOR, "dense, dense": KindPrior(0.0, 0.07)},
    others=KindPrior(0.0, 0.2),
    floor=0.02,
    freedom=1e9,
    widening=0.1,
    reaches=[Reach(0.0, 1.9, 1.9)],
)
# The share by which a figure may be below another, if both are equal but for rounding.
ROUNDING = 1e-12
SEEN = {"crops": 0.11, "generated": 0.05, "agreement": 0.02}


def pair(features=SEEN, kinds=("bm25", "hybrid"), distance=0.3, unlikeness=0.0):
    return PairFeatures(kinds, features, distance, unlikeness)


@pytest.mark.parametrize("names", [["crops"], ["generated", "agreement"], list(SEEN)])
@pytest.mark.parametrize("unlikeness", [0.0, 2.0])
def test_the_posterior_is_the_conditional_of_the_joint_normal(names, unlikeness):
    features = {name: SEEN[name] for name in names}
    expected = MODEL.predict(pair(features, unlikeness=unlikeness))
    # Integrate the product of the prior and of the features' density over a fine grid.
    scale = 0.3 + 0.02
    widening = 1 + 0.1 * unlikeness**2
    rows = [list(MODEL.slopes).index(name) for name in names]
    slopes = np.array([MODEL.slopes[name] for name in names])
    unsure = [PRIOR.deviations.get(name, 0.0) ** 2 for name in names]
    noise = widening**2 * (np.array(NOISE)[np.ix_(rows, rows)] + np.diag(unsure))
    seen = np.array([SEEN[name] / scale for name in names])
    usual = np.array([PRIOR.features.get(name, 0.0) for name in names])
    grid = np.linspace(-2, 2, 20_001)
    density = stats.norm.pdf(grid, PRIOR.mean, np.sqrt(widening) * PRIOR.deviation)
    means = usual + np.outer(grid - PRIOR.mean, slopes)
    density *= stats.multivariate_normal.pdf(seen - means, np.zeros(len(names)), noise)
    density /= density.sum()
    mean = density @ grid
    deviation = np.sqrt(density @ (grid - mean) ** 2)
    assert expected.mean == pytest.approx(scale * mean, abs=1e-6)
    assert expected.deviation == pytest.approx(
        scale * deviation * 1.9 / stats.norm.ppf(0.95), rel=1e-4
    )
    assert expected.prior_share == pytest.approx(
        deviation**2 / (widening * PRIOR.deviation**2), rel=1e-3
    )


def test_without_evidence_the_answer_is_the_prior():
    expected = MODEL.predict(pair({"of another calibration": 0.4}))
    scale = 0.32
    assert expected.prior_share == 1
    assert expected.mean == scale * PRIOR.mean
    low, high = expected.interval
    assert (high - low) / 2 == pytest.approx(scale * PRIOR.deviation * 1.9)
    assert expected.chance == pytest.approx(stats.norm.cdf(expected.mean / expected.deviation))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3),
    st.sampled_from([("bm25", "hybrid"), ("dense", "dense"), ("bm25", "splade"), (None, "bm25")]),
    st.floats(0, 3),
)
def test_exchanging_the_models_turns_the_posterior(values, kinds, unlikeness):
    features = dict(zip(SEEN, values, strict=True))
    negated = {name: -value for name, value in features.items()}
    first = MODEL.predict(pair(features, kinds, unlikeness=unlikeness))
    second = MODEL.predict(pair(negated, kinds[::-1], unlikeness=unlikeness))
    assert second.mean == pytest.approx(-first.mean, abs=1e-12)
    assert second.deviation == pytest.approx(first.deviation)
    assert second.prior_share == pytest.approx(first.prior_share)
    assert second.chance == pytest.approx(1 - first.chance)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 50), min_size=2, max_size=6, unique=True))
def test_intervals_widen_and_the_answer_nears_the_prior_with_distance(distances):
    expected = [MODEL.predict(pair(unlikeness=distance)) for distance in sorted(distances)]
    for nearer, farther in pairwise(expected):
        assert farther.deviation >= nearer.deviation * (1 - ROUNDING)
        assert farther.prior_share >= nearer.prior_share * (1 - ROUNDING)
    far = MODEL.predict(pair(unlikeness=1e6))
    assert far.prior_share == pytest.approx(1)
    assert far.mean == pytest.approx(0.32 * PRIOR.mean)


def test_evidence_is_doubted_where_real_queries_lose_words():
    """Queries in other words than the documents are not imitated by what is cut out of these."""
    model = replace(MODEL, doubt=300.0, usual_loss=0.2)

    def expected(lost_words):
        return model.predict(replace(pair(), lost_words=lost_words))

    assert expected(0.0) == expected(0.2) == MODEL.predict(pair())
    # Documents of other characters than the queries raise as much doubt, and both add up.
    signs = replace(model, usual_nonletters=0.1)
    unlike = signs.predict(replace(pair(), nonletter_excess=0.2))
    assert vars(unlike) == pytest.approx(vars(expected(0.3)))
    both = signs.predict(replace(pair(), lost_words=0.2 + 0.3, nonletter_excess=0.1 + 0.4))
    assert both.prior_share == pytest.approx(expected(0.2 + 0.5).prior_share)
    assert model.predict(replace(pair(), nonletter_excess=0.9)) == MODEL.predict(pair())
    shares = [expected(lost).prior_share for lost in (0.2, 0.3, 0.5, 1.0, 100.0)]
    assert shares == sorted(set(shares))
    lost = expected(100.0)
    assert lost.prior_share == pytest.approx(1, abs=1e-3)
    assert lost.mean == pytest.approx(0.32 * PRIOR.mean, abs=1e-3)
    # A variance of the features that is 4 times as large is what a loss of 0.1 beyond means.
    noisy = replace(MODEL, noise=(4 * np.array(NOISE)).tolist(), priors={"bm25, hybrid": DOUBTED})
    assert expected(0.3).mean == pytest.approx(noisy.predict(pair()).mean)
    assert expected(0.3).deviation == pytest.approx(noisy.predict(pair()).deviation)


def test_features_of_few_queries_count_for_less():
    needed = dict.fromkeys(SEEN, 40.0)
    model = replace(MODEL, needed=needed)
    many = model.predict(replace(pair(), queries=10**9))
    assert vars(many) == pytest.approx(vars(MODEL.predict(pair())))
    # With as many queries as are needed, the variance of the noise is twice as large.
    noisy = replace(MODEL, noise=(2 * np.array(NOISE)).tolist(), priors={"bm25, hybrid": DOUBLED})
    few = model.predict(replace(pair(), queries=40))
    assert few.mean == pytest.approx(noisy.predict(pair()).mean)
    assert few.deviation == pytest.approx(noisy.predict(pair()).deviation)
    shares = [
        model.predict(replace(pair(), queries=count)).prior_share for count in (300, 100, 40, 10)
    ]
    assert shares == sorted(set(shares))
    # It says nothing of features that do not rest on these queries.
    assert MODEL.predict(replace(pair(), queries=10)) == MODEL.predict(pair())


def test_pairs_of_other_kinds_have_a_prior_without_direction():
    expected = MODEL.predict(pair({}, ("bm25", "splade")))
    assert (expected.mean, expected.prior_share, expected.chance) == (0, 1, 0.5)
    assert expected.deviation > MODEL.predict(pair({})).deviation
    assert MODEL.knows("hybrid")
    assert not MODEL.knows("splade")


def test_surprising_features_widen_the_interval_as_in_the_conditional_of_student_t():
    """The conditional scale of a multivariate t with ν degrees of freedom, in closed form."""
    model = replace(MODEL, freedom=4.0)
    names = list(SEEN)
    slopes = np.array([MODEL.slopes[name] for name in names])
    unsure = np.diag([PRIOR.deviations.get(name, 0.0) ** 2 for name in names])
    noise = np.array(NOISE) + unsure
    joint = noise + PRIOR.deviation**2 * np.outer(slopes, slopes)
    usual = np.array([PRIOR.features.get(name, 0.0) for name in names])
    for factor in (0.0, 1.0, 5.0):
        features = {name: 0.32 * (usual[n] + factor * 0.1) for n, name in enumerate(names)}
        shift = np.full(3, factor * 0.1)
        squares = shift @ np.linalg.solve(joint, shift)
        wide = model.predict(pair(features))
        normal = MODEL.predict(pair(features))
        assert wide.mean == pytest.approx(normal.mean)
        assert wide.deviation == pytest.approx(
            normal.deviation * np.sqrt((4 + squares) / (4 + 3)), rel=1e-6
        )
    assert model.predict(pair({})) == MODEL.predict(pair({}))


def test_several_pairs_are_predicted_as_each_by_itself():
    pairs = [pair(), pair({}), pair(kinds=("hybrid", "bm25")), pair(distance=0.5), pair()]
    assert MODEL.predict_all(pairs) == [MODEL.predict(one) for one in pairs]


@pytest.mark.parametrize("sign", [1, -1])
def test_an_interval_holds_0_where_nothing_may_be_decided(sign):
    sure = ExpectedDifference(sign * 0.1, 0.02, 0.02, 0.4)
    assert min(np.abs(sure.interval)) > 0
    assert sure.holding_zero().interval == pytest.approx(sorted((0, sign * 0.2)))
    open_interval = replace(sure, below=0.2, above=0.2)
    assert open_interval.holding_zero() == open_interval


def test_an_interval_reaches_as_far_as_differences_lie_from_estimates_as_clear():
    model = replace(MODEL, reaches=[Reach(0.0, 2.0, 2.0), Reach(1.0, 1.0, 3.0)])
    expected = model.predict(pair({}))
    # Without evidence the estimate is the prior's, 0.08 with the deviation 0.1: a clearness of 0.8.
    low, high = expected.interval
    assert low == pytest.approx(0.32 * (0.08 - 0.1 * 1.2))
    assert high == pytest.approx(0.32 * (0.08 + 0.1 * 2.8))
    turned = model.predict(pair({}, kinds=("hybrid", "bm25")))
    assert turned.interval == pytest.approx((-high, -low))
    assert turned.chance == pytest.approx(1 - expected.chance)


def test_an_estimate_on_the_other_side_of_0_has_the_deviation_of_that_side():
    estimate = ExpectedDifference(0.1, 0.02, 0.05, 0.4)
    assert estimate.moved(0.3) == ExpectedDifference(0.3, 0.02, 0.05, 0.4)
    assert estimate.moved(-0.3) == ExpectedDifference(-0.3, 0.05, 0.02, 0.4)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_interval_that_ends_at_0_leaves_a_chance_of_5_percent(sign):
    deviation = 0.1 / stats.norm.ppf(0.95)
    sides = (deviation, 0.9) if sign > 0 else (0.9, deviation)
    expected = ExpectedDifference(sign * 0.1, *sides, 0.4)
    assert min(np.abs(expected.interval)) == pytest.approx(0)
    assert expected.chance == pytest.approx(0.5 + sign * 0.45)


@pytest.mark.parametrize("name", [GIVEN_QUERIES, CORPUS_ALONE])
def test_a_clearer_estimate_is_further_from_0_with_its_whole_interval(name):
    reaches = load_calibration().models[name].reaches
    ends = [reach.clearness - reach.towards_zero for reach in reaches]
    assert len(reaches) > 1
    assert all(before < after for before, after in pairwise(ends))


@settings(max_examples=300, deadline=None)
@given(st.floats(-1, 1))
def test_an_interval_that_must_hold_0_does(mean):
    low, high = ExpectedDifference(mean, 1e-4, 1e-4, 0.4).holding_zero().interval
    assert low <= 0 <= high


def test_precedents_turn():
    assert PRIOR.precedent.turned() == Precedent(25, 4, -0.05)
    assert MODEL.prior("hybrid", "bm25").mean == -PRIOR.mean
    assert MODEL.prior("hybrid", "bm25").turned() == PRIOR
