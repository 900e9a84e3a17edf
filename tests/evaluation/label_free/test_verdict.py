"""From estimates to verdicts, and what a calibration learns and claims."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_free_fitting import LabelledPair, count_trust, fit_threshold, fit_weights, leave_one_out

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.estimates import CROPS, ESTIMATORS, GENERATED, WITH_BM25, estimate_pair, kind
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.pseudo_queries import PseudoQueries
from beir_cocodr.evaluation.label_free.verdict import (
    DIFFERENT_KINDS,
    SAME_KIND,
    choose,
    decide,
    features,
    load_calibration,
    probability,
)
from beir_cocodr.evaluation.records import Calibration

NOTHING = PseudoQueries([], np.zeros(0, np.int64), None, {})
OPPOSITE = {"better": "worse", "worse": "better", "cannot tell": "cannot tell"}


def evidence(models, size=40, seed=0):
    rng = np.random.default_rng(seed)
    quality = {name: rng.random() for name in models}
    scores = [{name: (rng.random(size) < quality[name]) * rng.random(size) for name in models} for _ in "ab"]
    lists = {name: np.stack([rng.permutation(60)[:20] for _ in range(size)]) for name in models}
    return Evidence(scores[0], scores[1], lists, {}, {}, True, NOTHING, NOTHING, {})


def calibrated(weights, threshold=0.7):
    return Calibration(weights, threshold, ["c"], [], {}, "2026-01-01")


WEIGHTS = dict.fromkeys(ESTIMATORS, 3.0) | {"is bm25": -1.0, "is hybrid": 2.0, "is feedback": 1.0}


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from([("x", "y"), ("x", "bm25"), ("hybrid:x", "y")]),
    st.sampled_from([None, calibrated(WEIGHTS)]),
)
def test_exchanging_the_models_turns_the_verdict_round(seed, pair, calibration):
    a, b = pair
    seen = evidence(dict.fromkeys([a, b, "bm25"]), seed=seed)
    forth, back = estimate_pair(seen, a, b), estimate_pair(seen, b, a)
    for one, other in zip(forth, back, strict=True):
        assert (one.wins, one.ties, one.losses) == (other.losses, other.ties, other.wins)
        assert one.effect == pytest.approx(-other.effect)
        assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))
        assert one.sign == -other.sign
    first, second = decide(forth, a, b, calibration), decide(back, b, a, calibration)
    assert first.verdict == OPPOSITE[second.verdict]
    assert first.turned().verdict == second.verdict
    assert first.score == pytest.approx(-second.score)


@pytest.mark.parametrize("calibration", [None, calibrated(WEIGHTS, 0.55)])
def test_models_that_are_the_same_cannot_be_told_apart(calibration):
    seen = evidence(["x", "bm25"])
    seen = replace(
        seen,
        crops=seen.crops | {"y": seen.crops["x"]},
        generated=seen.generated | {"y": seen.generated["x"]},
        lists=seen.lists | {"y": seen.lists["x"]},
    )
    estimates = estimate_pair(seen, "x", "y")
    assert all(found.ties == found.queries and found.effect == 0 for found in estimates)
    found = decide(estimates, "x", "y", calibration)
    assert found.verdict == "cannot tell"
    assert found.score == 0


def with_scores(crops, generated):
    """Estimates of y against x, which lists say nothing about."""
    lists = {name: np.tile(np.arange(20), (len(crops[0]), 1)) for name in ("x", "y", "bm25")}
    models = dict(zip("xy", crops, strict=True)), dict(zip("xy", generated, strict=True))
    return estimate_pair(Evidence(*models, lists, {}, {}, True, NOTHING, NOTHING, {}), "x", "y")


def test_estimates_by_hand():
    first, second = np.zeros(12), np.array([1.0] * 6 + [0.0] * 4 + [-0.5] * 2)
    crops, *_ = with_scores((first, second), (first, first))
    assert (crops.wins, crops.ties, crops.losses, crops.queries) == (6, 4, 2, 12)
    assert crops.difference == pytest.approx(5 / 12)
    assert crops.effect == pytest.approx((5 / 12) / second.std(ddof=1))
    assert crops.interval[0] < 5 / 12 < crops.interval[1]


def test_a_constant_difference_has_the_largest_effect_and_few_queries_none():
    zeros, ones = np.zeros(12), np.ones(12)
    crops, generated, *_ = with_scores((zeros, ones), (zeros[:3], ones[:3]))
    assert (crops.effect, crops.sign) == (2, 1)
    assert (generated.effect, generated.sign, generated.applies) == (0, 0, False)
    assert "10 are needed" in generated.remark
    [single, *_] = with_scores((zeros[:1], ones[:1]), (zeros, zeros))
    assert (single.interval, single.sign) == (None, 0)
    [none, *_] = with_scores((zeros[:0], ones[:0]), (zeros, zeros))
    assert (none.a, none.difference, none.queries) == (None, None, 0)


def test_votes_need_two_and_none_against():
    zeros, ones = np.zeros(12), np.ones(12)

    def vote(crops, generated):
        return decide(with_scores((zeros, crops), (zeros, generated)), "x", "y", None).verdict

    assert vote(ones, ones) == "better"
    assert vote(-ones, -ones) == "worse"
    assert vote(ones, zeros) == "cannot tell"
    assert vote(ones, -ones) == "cannot tell"


def test_agreement_with_bm25_is_no_evidence_between_kinds():
    seen = evidence(["x", "bm25", "hybrid:x", "y"])
    mixed = {found.estimator: found for found in estimate_pair(seen, "x", "hybrid:x")}
    alike = {found.estimator: found for found in estimate_pair(seen, "x", "y")}
    assert not mixed[WITH_BM25].applies
    assert mixed[WITH_BM25].effect == 0
    assert alike[WITH_BM25].applies
    assert mixed[CROPS].applies
    assert [kind(name) for name in ("bm25", "hybrid:x", "rrf:x", "feedback:x", "a/b", "irds:x")] == [
        "bm25", "hybrid", "hybrid", "feedback", "dense", "dense",
    ]  # fmt: skip


def test_kinds_are_features_that_turn_round():
    estimates = estimate_pair(evidence(["x", "bm25"]), "x", "bm25")
    assert features(estimates, "x", "bm25")["is bm25"] == 1
    assert features(estimates, "bm25", "x")["is bm25"] == -1
    assert features(estimates, "x", "y")["is bm25"] == 0


def test_probability_is_logistic_and_does_not_overflow():
    assert probability({"f": 1.0}, {"f": 2.0, "absent": 9.0}) == pytest.approx(1 / (1 + np.exp(-2)))
    assert probability({"f": -1.0}, {"f": 1e6}) == 0
    assert probability({"f": 1.0}, {"f": 1e6}) == 1


def test_choose_sorts_by_wins_and_keeps_the_order_of_ties():
    def pairs(*scores):
        return dict(zip([("x", "y"), ("x", "z"), ("y", "z")], scores, strict=True))

    assert choose("xyz", pairs(0.5, 0.3, -0.9)) == ["y", "z", "x"]
    assert choose("xyz", pairs(0, 0, 0)) == ["x", "y", "z"]


def planted(collections=5, pairs=30, noise=0.0, seed=0):
    """Pairs whose truth is the sign of crops alone, but for some that are turned round."""
    rng = np.random.default_rng(seed)
    made = []
    for name in range(collections):
        for number in range(pairs):
            values = {CROPS: rng.normal(), GENERATED: rng.normal(), "is bm25": 0.0}
            truth = "better" if (values[CROPS] > 0) != (rng.random() < noise) else "worse"
            difference = 0.1 if truth == "better" else -0.1
            made.append(LabelledPair(f"c{name}", f"m{number}", "n", values, difference, truth))
    return made


def turned_round(pair):
    return replace(pair, truth=OPPOSITE[pair.truth], difference=-pair.difference)


def test_the_fit_is_that_of_scikit_learn_where_no_weight_is_held_at_zero():
    from sklearn.linear_model import LogisticRegression

    pairs = [
        replace(p, features={CROPS: p.features[CROPS], "is bm25": p.features[GENERATED]}) for p in planted(noise=0.2)
    ]
    x = np.array([list(p.features.values()) for p in pairs])
    scale = np.sqrt((x**2).mean(axis=0))
    host = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=10_000)
    host.fit(x / scale, [p.truth == "better" for p in pairs])
    assert list(fit_weights(pairs).values()) == pytest.approx(host.coef_[0] / scale, abs=1e-3)


def test_no_estimator_counts_against_the_model_that_it_favours():
    backwards = [replace(p, features={k: -v for k, v in p.features.items()}) for p in planted()]
    assert fit_weights(backwards)[CROPS] == 0
    assert fit_weights(planted())[CROPS] > 0


def test_models_that_are_about_as_good_keep_the_rule_from_deciding():
    """Their measured difference is a coin, and the estimates are as large as those of other pairs."""
    rng = np.random.default_rng(4)
    sure = planted()
    equal = [replace(p, difference=float(rng.choice([-0.01, 0.01])), truth="cannot tell") for p in planted(seed=9)]
    assert fit_threshold(sure + equal) > fit_threshold(sure)


def test_the_fit_finds_what_matters_and_is_right_about_collections_that_it_has_not_seen():
    weights = fit_weights(planted())
    assert weights[CROPS] > 2
    assert abs(weights[GENERATED]) < weights[CROPS] / 4
    assert weights["is bm25"] == 0
    counts = count_trust(leave_one_out(planted()))[SAME_KIND]
    assert counts["right"] > 10 * max(1, counts["wrong"])
    assert sum(counts.values()) == 150


def test_where_nothing_can_be_known_the_rule_keeps_quiet():
    counts = count_trust(leave_one_out(planted(noise=0.5)))[SAME_KIND]
    assert counts["cannot tell"] > 75
    assert fit_threshold(planted(noise=0.5)) > fit_threshold(planted())


def test_no_truth_of_a_collection_has_a_part_in_its_own_verdicts():
    pairs = planted()
    turned = [turned_round(p) if p.collection == "c0" else p for p in pairs]
    before, after = leave_one_out(pairs), leave_one_out(turned)
    own = [(one, other) for one, other in zip(before, after, strict=True) if one["collection"] == "c0"]
    assert own
    for one, other in own:
        assert (one["probability"], one["threshold"]) == (other["probability"], other["threshold"])
    wrong = count_trust([other for _, other in own])[SAME_KIND]
    right = count_trust([one for one, _ in own])[SAME_KIND]
    assert wrong["wrong"] == right["right"] > 0


def test_direction_of_a_pair_does_not_matter_to_the_fit():
    pairs = planted()
    turned = [replace(turned_round(p), features={k: -v for k, v in p.features.items()}) for p in pairs]
    assert fit_weights(turned) == pytest.approx(fit_weights(pairs), abs=1e-6)


def test_trust_by_hand():
    rows = [
        {"family": SAME_KIND, "verdict": verdict, "truth": truth}
        for verdict, truth in [
            ("better", "better"),
            ("worse", "better"),
            ("cannot tell", "better"),
            ("worse", "cannot tell"),
            ("cannot tell", "cannot tell"),
            ("cannot tell", "cannot tell"),
        ]
    ]
    trust = count_trust(rows)
    assert trust[SAME_KIND] == {"right": 1, "wrong": 1, "cannot tell": 1, "claimed": 1, "silent": 2}
    assert set(trust[DIFFERENT_KINDS].values()) == {0}
    told = Calibration({}, 0.8, ["c1", "c2"], ["abc"], trust, "2026-01-01").statement(SAME_KIND, "abc")
    assert "right in 1 of 2 pairs" in told
    assert "left 1 such pairs open" in told
    assert "of 3 pairs that labels cannot tell apart it decided 1" in told
    assert "no independent test" in told


def test_too_little_to_calibrate_on():
    with pytest.raises(InputError, match=r"three .*not 2"):
        leave_one_out(planted(collections=2))
    with pytest.raises(InputError, match="calibrate"):
        fit_weights([replace(p, truth="cannot tell") for p in planted()])


def test_calibration_files(tmp_path):
    load_calibration()  # the packaged one can be read, whatever it says
    file = tmp_path / "calibration.json"
    file.write_text('{"calibrated": false}')
    assert load_calibration(file) is None
    content = {"weights": {"f": 1.0}, "threshold": 0.8, "collections": [], "corpora": [], "trust": {}}
    file.write_text(json.dumps(content | {"calibrated": True, "date": "2026-01-01"}))
    assert load_calibration(file).threshold == 0.8
    for broken in ("{", "[]", json.dumps(content | {"calibrated": True})):
        file.write_text(broken)
        with pytest.raises(InputError, match="no calibration"):
            load_calibration(file)
