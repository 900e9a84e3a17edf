"""From estimates to verdicts, and the answers where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graded import calibrated_by_crops, model_by_crops
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beir_cocodr.evaluation.calibration import (
    Calibration,
    DifferenceModel,
    KindPrior,
    PairFeatures,
    Precedent,
    Reach,
)
from beir_cocodr.evaluation.few_labels import NORMAL
from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.evaluation.label_free.contamination import Contamination
from beir_cocodr.evaluation.label_free.estimates import LEXICAL, MIDDLE, estimate_pair, features
from beir_cocodr.evaluation.label_free.estimators import CROPS, WITH_BM25
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.pseudo_queries import PseudoQueries
from beir_cocodr.evaluation.label_free.verdict import (
    CORPUS_ALONE,
    DIFFERENT_KINDS,
    GIVEN_QUERIES,
    MISLED,
    NEW_KIND,
    Rule,
    as_their_twins,
    best_of,
    decide,
    expected_values,
    rank_by_lead,
    undefeated_first,
)
from beir_cocodr.evaluation.results import Likeness
from beir_cocodr.models.spec import FUSIONS, Fusion, ModelSpec, calibration_kind

NOTHING = PseudoQueries([], np.zeros(0, np.int64), None, {})
QUERIES = {str(i): "words" for i in range(40)}
OPPOSITE = {
    "better": "worse",
    "worse": "better",
    "cannot tell": "cannot tell",
    "no difference": "no difference",
}


def kinds(models):
    return {name: calibration_kind(ModelSpec.parse(name)) for name in models}


def evidence(models, size=40, seed=0):
    rng = np.random.default_rng(seed)
    quality = {name: rng.random() for name in models}
    scores = [
        {name: (rng.random(size) < quality[name]) * rng.random(size) for name in models}
        for _ in "ab"
    ]
    lists = {name: np.stack([rng.permutation(60)[:20] for _ in range(size)]) for name in models}
    return Evidence(*scores, lists, {}, QUERIES, True, NOTHING, NOTHING, {}, kinds=kinds(models))


FUSED = Precedent(25, 21, 0.05)


def calibrated(deviation=0.05, widening=0.1):
    """Crops tell the difference, and fusions are better than encoders in 21 of 25 collections."""
    model = DifferenceModel(
        slopes={CROPS: 1.0, LEXICAL: 0.2, MIDDLE: 0.1},
        noise=np.diag([deviation**2, 1.0, 1.0]).tolist(),
        priors={
            "bm25, dense": KindPrior(0.02, 0.3),
            "bm25, hybrid": KindPrior(0.06, 0.2),
            "dense, dense": KindPrior(0.0, 0.2),
            "dense, hybrid": KindPrior(0.05, 0.1, precedent=FUSED),
        },
        others=KindPrior(0.0, 0.3),
        floor=0.0,
        freedom=1e9,
        widening=widening,
        reaches=[Reach(0.0, 1.645, 1.645)],
    )
    return Calibration(["c"], [], {}, "2026-01-01", {GIVEN_QUERIES: model, CORPUS_ALONE: model})


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([("x", "y"), ("x", "bm25"), ("hybrid:x", "y")]))
def test_exchanging_the_models_turns_the_verdict_round(seed, pair):
    a, b = pair
    seen = evidence(dict.fromkeys([a, b, "bm25"]), seed=seed)
    first, second = (decide(seen, *names, calibrated()) for names in ((a, b), (b, a)))
    for one, other in zip(first.estimates, second.estimates, strict=True):
        assert (one.wins, one.ties, one.losses) == (other.losses, other.ties, other.wins)
        assert one.effect == pytest.approx(-other.effect)
        assert one.sign == -other.sign
    assert first.verdict == OPPOSITE[second.verdict]
    assert first.turned().verdict == second.verdict
    assert first.estimate == pytest.approx(-second.estimate, abs=1e-12)
    assert first.turned().interval == pytest.approx(second.interval)
    assert first.distance == pytest.approx(second.distance)
    assert first.probability == pytest.approx(1 - second.probability)


def with_lead(lead, b="y"):
    """Evidence in which crops alone differ, on lists without a common document."""
    models = ["x", b, "bm25"]
    crops = {"x": np.zeros(40), b: np.full(40, lead), "bm25": np.zeros(40)}
    lists = {
        name: np.tile(np.arange(20) + 20 * number, (40, 1)) for number, name in enumerate(models)
    }
    return replace(evidence(models), crops=crops, lists=lists)


@pytest.mark.parametrize(
    ("lead", "deviation", "distance", "verdict"),
    [
        (0.5, 0.1, 0.0, "better"),
        (-0.5, 0.1, 0.0, "worse"),
        (0.1, 0.1, 0.0, "cannot tell"),
        (0.004, 0.003, 0.0, "no difference"),
        (0.004, 0.006, 0.0, "cannot tell"),  # up to 0.014, beyond the margin of 0.01
        (-0.004, 0.006, 0.0, "cannot tell"),
        (0.5, 0.1, 10.0, "cannot tell"),  # so far away that the interval is wide
    ],
)
def test_the_interval_decides(lead, deviation, distance, verdict):
    calibration = replace(
        calibrated_by_crops(),
        models={GIVEN_QUERIES: replace(model_by_crops(deviation), floor=0.0)},
    )
    found = decide(with_lead(lead), "x", "y", calibration, Likeness({}, [], distance))
    deviation *= 1 + 0.1 * distance**2
    assert found.distance == 1
    assert found.verdict == verdict
    assert found.estimate == pytest.approx(lead, rel=1e-3)
    assert found.interval == pytest.approx((lead - 1.645 * deviation, lead + 1.645 * deviation))
    assert found.probability == pytest.approx(stats.norm.cdf(lead / deviation), abs=1e-3)


def test_a_verdict_joins_the_prior_of_its_kinds_with_the_features():
    seen = evidence(["x", "hybrid:x", "bm25"])
    calibration = calibrated()
    found = decide(seen, "x", "hybrid:x", calibration, Likeness({}, [], 1.5))
    values = features(seen, "x", "hybrid:x")
    pair = PairFeatures(("dense", "hybrid"), values, found.distance, 1.5)
    expected = calibration.models[GIVEN_QUERIES].predict(pair)
    assert (found.estimate, found.interval) == (expected.mean, expected.interval)
    assert (found.prior_share, found.probability) == (expected.prior_share, expected.chance)
    assert found.precedent == FUSED
    assert f"{expected.prior_share:.0%} of the estimate is what usually wins" in found.reason


def test_without_evidence_the_better_bet_is_what_usually_wins():
    few = evidence(["x", "hybrid:x", "bm25"], size=4)
    lists = {name: rows[:0] for name, rows in few.lists.items()}
    few = replace(few, lists=lists, queries={})
    found = decide(few, "x", "hybrid:x", calibrated())
    assert (found.verdict, found.rule, found.prior_share) == ("cannot tell", "prior", 1)
    assert "no estimator applies" in found.reason
    seen = decide(evidence(["x", "hybrid:x", "bm25"], size=4), "x", "hybrid:x", calibrated())
    assert seen.answer.startswith(
        "No verdict from this corpus; hybrid:x is the better bet: in 21 of 25 labelled collections "
        "it was better, by 0.05 on average (chance "
    )
    assert seen.turned().answer == seen.answer


def test_an_answer_against_what_usually_wins_says_so():
    found = decide(evidence(["x", "hybrid:x", "bm25"]), "x", "hybrid:x", calibrated())
    against = replace(found, verdict="cannot tell", probability=0.2, estimate=-0.04)
    assert "; x is the better bet here, on the evidence of this corpus: in only 4 of 25" in (
        against.answer
    )
    neither = replace(against, probability=0.52)
    assert neither.answer.endswith("neither x nor hybrid:x is the better bet")
    worse = replace(against, verdict="worse", probability=0.01)
    assert worse.answer == (
        "x is better than hybrid:x: 0.040 nDCG@10 is expected, with a chance of 99%"
    )
    assert worse.turned().answer == worse.answer


@pytest.mark.parametrize(
    ("better", "average", "said"),
    [
        (23, 0.06, ": in 23 of 29 labelled collections it was better, by 0.06 on average ("),
        (
            12,
            0.06,
            ": in only 12 of 29 labelled collections it was better; on average over all 29, by "
            "0.06 (",
        ),
        (
            17,
            -0.06,
            " here, on the evidence of this corpus: in 17 of 29 labelled collections it was "
            "better; on average over all 29, 0.06 worse (",
        ),
        (
            6,
            -0.06,
            " here, on the evidence of this corpus: in only 6 of 29 labelled collections it was "
            "better, and 0.06 worse on average (",
        ),
    ],
)
def test_what_usually_wins_is_said_by_count_and_by_average(better, average, said):
    found = decide(evidence(["x", "hybrid:x", "bm25"]), "x", "hybrid:x", calibrated())
    precedent = Precedent(29, better, average)
    bet = replace(found, verdict="cannot tell", probability=0.8, precedent=precedent)
    assert f"hybrid:x is the better bet{said}" in bet.answer
    assert bet.turned().answer == bet.answer


def test_half_of_the_collections_are_no_minority():
    found = decide(evidence(["x", "hybrid:x", "bm25"]), "x", "hybrid:x", calibrated())
    for average in (0.06, -0.06):
        bet = replace(
            found, verdict="cannot tell", probability=0.8, precedent=Precedent(28, 14, average)
        )
        assert "in 14 of 28 labelled collections it was better" in bet.answer


@pytest.mark.parametrize("name", ["run:folder", "http://localhost/?q={query}"])
def test_nothing_is_decided_on_a_model_of_which_no_kind_is_known(name):
    seen = with_lead(0.5, name)
    pairs = [("x", name), ("x", "bm25"), (name, "bm25")]
    verdicts = [decide(seen, *pair, calibrated_by_crops()) for pair in pairs]
    for found in (verdicts[0], decide(seen, name, "x", calibrated_by_crops())):
        low, high = found.interval
        assert (found.verdict, found.rule) == ("cannot tell", "prior")
        assert f"it is not known what kind of model {name} is" in found.reason
        assert low <= 1e-9
        assert high >= -1e-9
    assert verdicts[0].better_bet == name
    expected = expected_values(["x", name, "bm25"], verdicts)
    assert expected.variances[0, 1] > 0.3**2 > expected.variances[0, 2]


@pytest.mark.parametrize("other", ["x", "bm25"])
def test_nothing_is_decided_on_a_reranked_model_by_queries_made_of_documents(other):
    name = "rerank:folder@bm25"
    seen = with_lead(0.5, name)
    calibration = calibrated_by_crops()
    found = decide(seen, other, name, calibration)
    assert (found.verdict, found.rule, found.better_bet) == ("cannot tell", "prior", name)
    assert f"but {name} is reranked by a cross-encoder" in found.reason
    low, high = found.interval
    assert low <= 1e-9 < high
    assert found.probability <= 0.95 + 1e-9
    # It is as wide as that of another new kind at least, by the factor that was measured.
    rule = Rule(seen, calibration)
    as_others = rule.model.predict(
        PairFeatures(
            rule.kinds(other, name), features(seen, other, name), rule.distance(other, name)
        )
    )
    assert rule.expected(other, name).deviation == pytest.approx(
        MISLED["reranked"] * as_others.deviation
    )
    # A calibration that was fitted to such models decides.
    model = calibration.models[GIVEN_QUERIES]
    priors = model.priors | {"dense, reranked": model.others, "bm25, reranked": model.others}
    known = replace(model, priors=priors)
    fitted = replace(calibration, models=calibration.models | {GIVEN_QUERIES: known})
    assert decide(seen, other, name, fitted).verdict == "better"


@pytest.mark.parametrize("name", ["splade:folder", "colbert:folder"])
def test_a_kind_that_the_calibration_has_not_is_judged_more_cautiously(name):
    seen = with_lead(0.5, name)
    intervals = {}
    for caution in (1.0, 1.2, 10.0):
        calibration = with_caution(caution)
        found = decide(seen, "x", name, calibration)
        intervals[caution] = found.interval
        assert found.verdict == ("cannot tell" if caution == 10 else "better")
        assert found.rule == "calibrated"
        assert found.reason.endswith(f"; the calibration has no models of the kind of {name}")
        assert f"verdicts on {NEW_KIND} (given queries) are right is not known" in found.trust
        assert decide(seen, "x", "bm25", calibration) == decide(
            seen, "x", "bm25", with_caution(1.0)
        )
    widths = {caution: high - low for caution, (low, high) in intervals.items()}
    assert widths[1.2] == pytest.approx(1.2 * widths[1.0])
    assert sum(intervals[1.2]) == pytest.approx(sum(intervals[1.0]))


def with_caution(caution):
    """Return a calibration that widens the intervals of kinds that it does not have."""
    calibration = calibrated_by_crops()
    model = replace(calibration.models[GIVEN_QUERIES], others_caution=caution)
    return replace(calibration, models={GIVEN_QUERIES: model})


def test_what_judgements_start_from_is_the_interval_without_them():
    """An interval with two reaches is joined by the normal distribution that has it."""
    model = calibrated().models[GIVEN_QUERIES]
    model = replace(model, reaches=[Reach(0.0, 2.0, 2.0), Reach(1.0, 1.2, 2.8)])
    calibration = replace(calibrated(), models={GIVEN_QUERIES: model})
    found = decide(with_lead(0.2, "hybrid:x"), "x", "hybrid:x", calibration)
    low, high = found.interval
    assert found.verdict == "better"
    assert high - found.estimate > 2 * (found.estimate - low)
    expected = expected_values(["x", "hybrid:x"], [found])
    mean = expected.mean[1] - expected.mean[0]
    half_width = NORMAL * np.sqrt(expected.variances[0, 1])
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))


def test_nothing_is_decided_by_what_usually_wins_alone():
    prior = KindPrior(0.5, 0.05)
    model = replace(model_by_crops(deviation=10.0), priors={"dense, hybrid": prior})
    calibration = replace(calibrated_by_crops(), models={GIVEN_QUERIES: model})
    found = decide(with_lead(0.3, "hybrid:x"), "x", "hybrid:x", calibration)
    assert (found.verdict, found.rule) == ("cannot tell", "prior")
    assert found.prior_share > 0.99
    assert found.interval[0] == pytest.approx(0)
    assert found.better_bet == "hybrid:x"


def test_two_that_rank_alike_do_not_differ_however_far_the_collection_is():
    seen = evidence(["x", "bm25"])
    for part in (seen.crops, seen.generated, seen.lists, seen.kinds):
        part["y"] = part["x"]
    found = decide(seen, "x", "y", calibrated(), Likeness({}, ["documents"], 99.0))
    assert (found.verdict, found.estimate, found.interval, found.distance) == (
        "no difference",
        0,
        (0, 0),
        0,
    )
    nothing = {name: np.full_like(rows, -1) for name, rows in seen.lists.items()}
    assert decide(replace(seen, lists=nothing), "x", "y", calibrated()).verdict == "cannot tell"
    few = replace(
        seen,
        crops=dict.fromkeys(seen.crops, np.zeros(3)),
        generated=dict.fromkeys(seen.crops, np.zeros(3)),
    )
    lists = {name: rows[:3] for name, rows in few.lists.items()}
    few = replace(few, lists=lists, queries={"1": "a"})
    assert decide(few, "x", "y", calibrated()).verdict == "cannot tell"


def test_a_lead_that_was_rehearsed_is_no_evidence():
    seen = evidence(["x", "y", "bm25"])
    behind, ahead = sorted(("x", "y"), key=lambda name: seen.crops[name].mean())
    assert features(seen, behind, ahead)[CROPS] > 0
    trained = replace(seen, contamination=Contamination(spans=frozenset([ahead])))
    assert CROPS not in features(trained, behind, ahead)
    trained = replace(seen, contamination=Contamination(spans=frozenset([behind])))
    assert features(trained, behind, ahead)[CROPS] > 0


def test_rank_distance_by_hand():
    ranked = np.array([[4, 7, 1], [4, 7, 1], [4, 7, -1]])
    other = np.array([[4, 7, 1], [5, 6, 2], [4, -1, -1]])
    assert rank_distance(ranked, other) == pytest.approx(
        [0, 1, (1 / np.log2(3)) / (1 + 1 / np.log2(3))]
    )
    assert rank_distance(ranked[:, :0], other[:, :0]).tolist() == [0, 0, 0]


def with_scores(crops, generated):
    """Estimates of y against x, which lists say nothing about."""
    lists = {name: np.tile(np.arange(20), (len(crops[0]), 1)) for name in ("x", "y", "bm25")}
    models = dict(zip("xy", crops, strict=True)), dict(zip("xy", generated, strict=True))
    return estimate_pair(
        Evidence(
            *models, lists, {}, QUERIES, True, NOTHING, NOTHING, {}, kinds=kinds(["x", "y", "bm25"])
        ),
        "x",
        "y",
    )


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


def test_agreement_with_bm25_is_no_evidence_between_kinds():
    seen = evidence(["x", "bm25", "hybrid:x", "y"])
    mixed = {found.estimator: found for found in estimate_pair(seen, "x", "hybrid:x")}
    alike = {found.estimator: found for found in estimate_pair(seen, "x", "y")}
    assert not mixed[WITH_BM25].applies
    assert mixed[WITH_BM25].effect == 0
    assert alike[WITH_BM25].applies
    assert mixed[CROPS].applies
    names = ("bm25", "hybrid:x", "rrf:x", "feedback:x", "a/b", "irds:x", "splade:x")
    expected = ["bm25", "hybrid", "hybrid", "feedback", "dense", "dense", "learned sparse"]
    assert [kinds([name])[name] for name in names] == expected


def test_a_fusion_of_ones_own_is_judged_by_the_kind_in_its_row(monkeypatch):
    row = Fusion("somewhere:Mine", "a fusion", calibration_kind="hybrid")
    monkeypatch.setitem(FUSIONS, "mine", row)
    known = decide(with_lead(0.5, "mine:x"), "x", "mine:x", calibrated_by_crops())
    assert (known.verdict, known.rule) == ("better", "calibrated")
    assert known.family == DIFFERENT_KINDS
    monkeypatch.setitem(FUSIONS, "mine", replace(row, calibration_kind="of its own"))
    other = decide(with_lead(0.5, "mine:x"), "x", "mine:x", calibrated_by_crops())
    assert other.family == NEW_KIND
    monkeypatch.setitem(FUSIONS, "mine", replace(row, calibration_kind=None))
    unknown = decide(with_lead(0.5, "mine:x"), "x", "mine:x", calibrated_by_crops())
    assert (unknown.verdict, unknown.rule) == ("cannot tell", "prior")


def test_ranking_by_lead_sorts_by_wins_and_keeps_the_order_of_ties():
    def pairs(*scores):
        return dict(zip([("x", "y"), ("x", "z"), ("y", "z")], scores, strict=True))

    assert rank_by_lead("xyz", pairs(0.5, 0.3, -0.9)) == ["y", "z", "x"]
    assert rank_by_lead("xyz", pairs(0, 0, 0)) == ["x", "y", "z"]


def test_the_first_of_a_ranking_is_expected_to_lose_against_none():
    seen = evidence(["x", "hybrid:x", "bm25"])
    names = [("x", "hybrid:x"), ("x", "bm25"), ("hybrid:x", "bm25")]
    pairs = [decide(seen, a, b, calibrated()) for a, b in names]
    chances = (0.2, 0.3, 0.9)  # x is the better bet against both
    bets = [replace(one, probability=p) for one, p in zip(pairs, chances, strict=True)]
    assert undefeated_first(["bm25", "x", "hybrid:x"], bets) == ["x", "bm25", "hybrid:x"]
    circle = [replace(one, probability=p) for one, p in zip(pairs, (0.9, 0.1, 0.9), strict=True)]
    assert undefeated_first(["bm25", "x", "hybrid:x"], circle) == ["bm25", "x", "hybrid:x"]


def test_a_model_that_ranks_as_another_has_its_verdicts():
    """Crops are no evidence for the fusion that was fitted on them, and it ranks as the other."""
    models = ["x", "hybrid:x", "fitted", "bm25"]
    crops = {"x": np.zeros(40), "hybrid:x": np.full(40, 0.5), "fitted": np.full(40, 0.6)}
    crops["bm25"] = np.zeros(40)
    lists = {name: np.tile(np.arange(20) + 20 * row, (40, 1)) for row, name in enumerate(models)}
    lists["fitted"] = lists["hybrid:x"]
    known = replace(
        evidence(["x", "hybrid:x", "bm25"]),
        crops=crops,
        lists=lists,
        kinds={"x": "dense", "hybrid:x": "hybrid", "fitted": None, "bm25": "bm25"},
    )
    calibration = calibrated_by_crops()
    before = [
        decide(known, a, b, calibration)
        for a, b in (
            ("x", "hybrid:x"),
            ("fitted", "x"),
            ("hybrid:x", "fitted"),
            ("x", "bm25"),
            ("bm25", "fitted"),
            ("hybrid:x", "bm25"),
        )
    ]
    assert [pair.rule for pair in before].count("prior") == 2
    after = as_their_twins(before)
    by_models = {(pair.a, pair.b): pair for pair in after}
    turned = by_models["fitted", "x"]
    twin = by_models["x", "hybrid:x"].turned()
    assert turned.verdict == twin.verdict == "worse"
    assert (turned.estimate, turned.interval) == (twin.estimate, twin.interval)
    assert turned.reason.endswith("fitted ranks as hybrid:x")
    assert turned.estimates == before[1].estimates
    assert by_models["bm25", "fitted"].verdict == by_models["hybrid:x", "bm25"].turned().verdict
    assert [by_models[key] for key in (("x", "bm25"), ("hybrid:x", "fitted"))] == [
        before[3],
        before[2],
    ]
    values = dict.fromkeys(models, 0.0)
    for pair in after:
        values[pair.a] -= pair.estimate
        values[pair.b] += pair.estimate
    assert values["fitted"] == pytest.approx(values["hybrid:x"])


def test_no_chance_is_certain_and_the_closest_rival_is_named():
    verdicts = [
        decide(with_lead(0.5), a, b, calibrated_by_crops())
        for a, b in (("x", "y"), ("x", "bm25"), ("y", "bm25"))
    ]
    surest = replace(verdicts[0], probability=0.9996)
    assert surest.answer.endswith("with a chance of more than 99%")
    best = best_of(["y", "x", "bm25"], verdicts)
    closest = min(
        (pair for pair in verdicts if "y" in (pair.a, pair.b)),
        key=lambda pair: max(pair.probability, 1 - pair.probability),
    )
    rival = closest.a if closest.b == "y" else closest.b
    assert best.reason.startswith(
        f"y has the highest expected nDCG@10 of 3 models. Against {rival}, the closest: "
    )
    assert best.is_bet
    assert not replace(best, probability=0.54).is_bet
