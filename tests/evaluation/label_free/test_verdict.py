"""From estimates to verdicts, and what a calibration learns and claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_free_fitting import (
    LabelledPairs,
    count_trust,
    fit,
    leave_parents_out,
    predict,
    reliability,
)
from scipy import stats

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.evaluation.label_free.contamination import Contamination
from beir_cocodr.evaluation.label_free.estimates import LEXICAL, MIDDLE, estimate_pair, features
from beir_cocodr.evaluation.label_free.estimators import CROPS, WITH_BM25
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.pseudo_queries import PseudoQueries
from beir_cocodr.evaluation.label_free.verdict import (
    CORPUS_ALONE,
    GIVEN_QUERIES,
    SAME_KIND,
    decide,
    expected_values,
    load_calibration,
    rank_by_lead,
)
from beir_cocodr.evaluation.results import Calibration, DifferenceModel, Likeness
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


def calibrated(weights, within=0.0, floor=0.01, quantile=1.645):
    weights = {"is bm25": 0.0, "is hybrid": 0.0, "is feedback": 0.0} | weights
    model = DifferenceModel(
        weights, np.zeros((len(weights),) * 2).tolist(), within, floor, quantile
    )
    return Calibration(["c"], [], {}, "2026-01-01", {GIVEN_QUERIES: model, CORPUS_ALONE: model})


WEIGHTS = {CROPS: 0.3, LEXICAL: 0.2, MIDDLE: 0.1, "is bm25": -0.1, "is hybrid": 0.05}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([("x", "y"), ("x", "bm25"), ("hybrid:x", "y")]))
def test_exchanging_the_models_turns_the_verdict_round(seed, pair):
    a, b = pair
    seen = evidence(dict.fromkeys([a, b, "bm25"]), seed=seed)
    first, second = (decide(seen, *names, calibrated(WEIGHTS)) for names in ((a, b), (b, a)))
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


@pytest.mark.parametrize(
    ("lead", "deviation", "remarks", "verdict"),
    [
        (0.5, 0.1, [], "better"),
        (-0.5, 0.1, [], "worse"),
        (0.1, 0.1, [], "cannot tell"),
        (0.004, 0.003, [], "no difference"),
        (0.004, 0.006, [], "cannot tell"),  # up to 0.014, beyond the margin of 0.01
        (-0.004, 0.006, [], "cannot tell"),
        (0.5, 0.1, ["words a document"], "cannot tell"),
    ],
)
def test_the_interval_decides_and_not_where_the_collection_is_unlike(
    lead, deviation, remarks, verdict
):
    seen = evidence(["x", "y", "bm25"])
    crops = {"x": np.zeros(40), "y": np.full(40, lead), "bm25": np.zeros(40)}
    found = decide(
        replace(seen, crops=crops),
        "x",
        "y",
        calibrated({CROPS: 1.0}, 0, deviation),
        Likeness({}, remarks),
    )
    assert found.verdict == verdict
    assert found.estimate == pytest.approx(lead)
    assert found.interval == pytest.approx((lead - 1.645 * deviation, lead + 1.645 * deviation))
    assert found.probability == pytest.approx(stats.norm.cdf(lead / deviation))


@pytest.mark.parametrize("name", ["rerank:folder@bm25", "splade:folder", "colbert:folder"])
def test_nothing_is_decided_on_a_model_of_a_kind_that_the_calibration_has_not(name):
    seen = evidence(["x", name, "bm25"])
    crops = {"x": np.zeros(40), name: np.full(40, 0.5), "bm25": np.zeros(40)}
    model = calibrated({CROPS: 1.0}, 0, 0.1)
    for pair in (("x", name), (name, "x")):
        found = decide(replace(seen, crops=crops), *pair, model)
        assert (found.verdict, found.rule) == ("cannot tell", "unlike")
        assert name in found.reason
    expected = expected_values(replace(seen, crops=crops), ["x", "bm25", name], model)
    assert expected.variances[0, 2] > 0.5**2 / 2 > expected.variances[0, 1]


def test_two_that_rank_alike_do_not_differ_even_where_nothing_is_known_of_the_collection():
    seen = evidence(["x", "bm25"])
    for part in (seen.crops, seen.generated, seen.lists, seen.kinds):
        part["y"] = part["x"]
    found = decide(seen, "x", "y", calibrated(WEIGHTS), Likeness({}, ["documents"]))
    assert (found.verdict, found.estimate, found.interval, found.distance) == (
        "no difference",
        0,
        (0, 0),
        0,
    )
    few = replace(
        seen,
        crops=dict.fromkeys(seen.crops, np.zeros(3)),
        generated=dict.fromkeys(seen.crops, np.zeros(3)),
    )
    lists = {name: rows[:3] for name, rows in few.lists.items()}
    few = replace(few, lists=lists, queries={"1": "a"})
    assert decide(few, "x", "y", calibrated(WEIGHTS)).verdict == "cannot tell"


def test_a_prediction_is_that_of_a_linear_model_with_random_coefficients():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(2, 2))
    model = DifferenceModel({"f": 0.4, "g": -1.0}, (root @ root.T).tolist(), 0.2, 0.1, 1.645)
    mean, deviation = model.predict({"g": 0.5, "f": 2.0, "other": 9.0}, 0.25)
    drawn = (np.array([0.4, -1.0]) + rng.normal(size=(400_000, 2)) @ root.T) @ [2.0, 0.5]
    drawn += rng.normal(size=400_000) * np.sqrt(0.2**2 * 0.25 + 0.1**2)
    assert (mean, deviation) == pytest.approx((drawn.mean(), drawn.std()), rel=0.02)


def test_a_lead_that_was_rehearsed_is_no_evidence():
    seen = evidence(["x", "y", "bm25"])
    behind, ahead = sorted(("x", "y"), key=lambda name: seen.crops[name].mean())
    assert features(seen, behind, ahead)[CROPS] > 0
    trained = replace(seen, contamination=Contamination(spans=frozenset([ahead])))
    assert features(trained, behind, ahead)[CROPS] == 0
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
    expected = ["bm25", "hybrid", "hybrid", "feedback", "dense", "dense", None]
    assert [kinds([name])[name] for name in names] == expected


def test_a_fusion_of_ones_own_is_judged_by_the_kind_in_its_row(monkeypatch):
    row = Fusion("somewhere:Mine", "a fusion", calibration_kind="hybrid")
    monkeypatch.setitem(FUSIONS, "mine", row)
    seen = evidence(["x", "mine:x", "bm25"])
    crops = {"x": np.zeros(40), "mine:x": np.full(40, 0.5), "bm25": np.zeros(40)}
    known = decide(replace(seen, crops=crops), "x", "mine:x", calibrated({CROPS: 1.0}, 0, 0.1))
    assert (known.verdict, known.features["is hybrid"]) == ("better", 1)
    monkeypatch.setitem(FUSIONS, "mine", replace(row, calibration_kind="of its own"))
    seen = evidence(["x", "mine:x", "bm25"])
    other = decide(replace(seen, crops=crops), "x", "mine:x", calibrated({CROPS: 1.0}, 0, 0.1))
    assert (other.verdict, other.rule) == ("cannot tell", "unlike")


def test_kinds_are_features_that_turn_round():
    seen = evidence(["x", "y", "bm25"])
    assert features(seen, "x", "bm25")["is bm25"] == 1
    assert features(seen, "bm25", "x")["is bm25"] == -1
    assert features(seen, "x", "y")["is bm25"] == 0


def test_ranking_by_lead_sorts_by_wins_and_keeps_the_order_of_ties():
    def pairs(*scores):
        return dict(zip([("x", "y"), ("x", "z"), ("y", "z")], scores, strict=True))

    assert rank_by_lead("xyz", pairs(0.5, 0.3, -0.9)) == ["y", "z", "x"]
    assert rank_by_lead("xyz", pairs(0, 0, 0)) == ["x", "y", "z"]


def planted(parents=4, each=2, models=7, between=0.0, noise=0.02, seed=0):
    """Collections whose coefficient of the first feature is 0.5 or about that, and of the second
    0.
    """
    rng = np.random.default_rng(seed)
    made = []
    for parent in range(parents):
        slope = 0.5 + between * rng.normal()
        for number in range(each):
            values, wrong = rng.normal(size=(models, 2)), noise * rng.normal(size=models)
            places = [(i, j) for i in range(models) for j in range(i + 1, models)]
            x = np.array([values[j] - values[i] for i, j in places])
            true = slope * x[:, 0] + np.array([wrong[j] - wrong[i] for i, j in places])
            names = [(f"m{i}", f"m{j}") for i, j in places]
            errors, distances = np.full(len(x), 1e-3), np.ones(len(x))
            made.append(
                LabelledPairs(
                    f"c{parent}.{number}",
                    f"c{parent}",
                    names,
                    ["f", "g"],
                    x,
                    distances,
                    true,
                    errors,
                    300,
                )
            )
    return made


def test_the_fit_finds_what_was_planted():
    model = fit(planted())
    assert model.weights == pytest.approx({"f": 0.5, "g": 0.0}, abs=0.02)
    assert np.hypot(model.within, model.floor) == pytest.approx(0.02 * np.sqrt(2), rel=0.25)
    assert np.sqrt(model.covariance[0][0]) < 0.02
    vary = fit(planted(parents=16, each=1, between=0.2))
    assert np.sqrt(vary.covariance[0][0]) == pytest.approx(0.2, rel=0.4)


def test_intervals_cover_collections_that_were_left_out_as_often_as_they_claim():
    counts = count_trust(leave_parents_out(planted(parents=8, each=1, between=0.1, seed=3))[0])
    assert 0.8 <= counts["covered"] / counts["pairs"] <= 0.99
    assert counts["right"] >= 0.97 * counts["decided"] > 0
    assert counts["large_decided"] > counts["large"] / 2


def test_no_label_of_a_parent_has_a_part_in_its_own_predictions():
    collections = planted()
    turned = [
        replace(c, differences=-c.differences) if c.parent == "c0" else c for c in collections
    ]
    pairs = list(zip(leave_parents_out(collections)[0], leave_parents_out(turned)[0], strict=True))
    for one, other in pairs:
        if one.pairs.parent == "c0":
            assert np.array_equal(one.expected, other.expected)
            assert np.array_equal(one.deviations, other.deviations)
    assert any(not np.array_equal(one.expected, other.expected) for one, other in pairs)


def test_counts_and_reliability_by_hand():
    model = DifferenceModel({"f": 1.0}, [[0.0]], 0.0, 0.01, 1.645)
    given = np.array([0.1, -0.1, 0.05, 0.0, 0.1, 0.001])
    true = np.array([0.1, 0.1, 0.005, 0.009, 0.02, 0.2])
    pairs = LabelledPairs(
        "c",
        "c",
        [("x", str(i)) for i in range(6)],
        ["f"],
        given[:, None],
        np.ones(6),
        true,
        np.full(6, 1e-6),
        300,
    )
    counts = count_trust([predict(model, pairs)])
    wanted = {
        "pairs": 6,
        "covered": 2,
        "decided": 4,
        "right": 3,
        "large": 3,
        "large_decided": 2,
        "equal": 2,
    }
    assert {name: counts[name] for name in wanted} == wanted
    assert (counts["equal_decided"], counts["no_difference"]) == (1, 0)
    few = count_trust([predict(model, replace(pairs, queries=299))])
    assert few["equal"] == 0
    rows = reliability([predict(model, pairs)])
    assert sum(row["pairs"] for row in rows) == pytest.approx(6, abs=1)
    told = Calibration(["c1", "c2"], ["abc"], {SAME_KIND: counts}, "2026-01-01").statement(
        SAME_KIND, "abc"
    )
    for part in (
        "in 2 of 6 pairs",
        "right in 3 of 4 decided",
        "it decided 2",
        "not an independent test",
    ):
        assert part in told


def test_too_little_to_calibrate_on():
    with pytest.raises(InputError, match="three"):
        fit(planted(parents=2))


def test_calibration_files(tmp_path):
    found = load_calibration()  # the packaged one, which knows collections with queries and without
    assert {GIVEN_QUERIES, CORPUS_ALONE} <= found.models.keys()
    assert len(found.corpora) == len(found.collections)
    file = tmp_path / "calibration.json"
    found.write(file)
    assert Calibration.read(file) == found
