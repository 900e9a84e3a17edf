"""The fit of the model of differences, and honest widths on families that are left out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fitting.counts import count_trust, reliability
from fitting.labelled_pairs import LabelledPairs
from fitting.left_out import (
    Predicted,
    calibrate,
    conformal_quantile,
    leave_families_out,
    leave_kinds_out,
    local_reaches,
    reach_with_further_family,
    weighted_quantile,
)
from fitting.moment_fit import fit
from fitting.overlap_bias import Lead, describe_leads, overlap_bias
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.calibration import (
    Calibration,
    ExpectedDifference,
    PairFeatures,
    Reach,
)
from beir_cocodr.evaluation.few_labels import NORMAL
from beir_cocodr.evaluation.label_free.verdict import (
    CORPUS_ALONE,
    DIFFERENT_KINDS,
    GIVEN_QUERIES,
    READ_QUERIES,
    SAME_KIND,
    Rule,
    load_calibration,
)

KINDS = ("bm25", "dense", "dense", "hybrid", "hybrid")


def planted(families=8, each=1, seed=0, noise=0.02, blind=()):
    """Collections on which fusions lead by 0.06 and dense encoders by 0.02, give or take, and of
    which one feature sees a share of 0.8; nothing is seen of some.
    """
    rng = np.random.default_rng(seed)
    collections = []
    for family in range(families):
        for number in range(each):
            lead = {
                "bm25": 0.0,
                "dense": rng.normal(0.02, 0.08),
                "hybrid": rng.normal(0.06, 0.05),
            }
            values = np.array([lead[kind] + 0.02 * rng.normal() for kind in KINDS])
            bias = np.array([0.1, 0.0, 0.0, 0.05, 0.05])
            seen = 0.8 * values + bias + noise * rng.normal(size=len(KINDS))
            places = [(i, j) for i in range(len(KINDS)) for j in range(i + 1, len(KINDS))]
            count = len(places)
            features = [{"x": float(seen[j] - seen[i])} for i, j in places]
            collections.append(
                LabelledPairs(
                    name=f"c{family}.{number}",
                    family=f"f{family}",
                    models=[(f"m{i}", f"m{j}") for i, j in places],
                    kinds=[(KINDS[i], KINDS[j]) for i, j in places],
                    features=[{}] * count if family in blind else features,
                    distances=np.full(count, 0.4),
                    differences=np.array([values[j] - values[i] for i, j in places]),
                    errors=np.full(count, 1e-3),
                    figures={"share": float(rng.random())},
                )
            )
    return collections


def test_the_fit_finds_what_was_planted():
    model = fit(planted(families=60))
    scale = model.scale(0.4)
    assert scale * model.priors["bm25, hybrid"].mean == pytest.approx(0.06, abs=0.025)
    assert scale * model.priors["bm25, dense"].deviation == pytest.approx(0.08, rel=0.3)
    assert model.priors["dense, dense"].mean == 0
    assert model.slopes["x"] == pytest.approx((0.8 + 0.3) / 1.3, abs=0.1)  # a ridge towards 1
    # What flatters BM25 is no evidence: of a fusion that leads as usual, the feature shows a lead
    # of 0.8 · 0.06 less 0.05.
    usual = PairFeatures(("bm25", "hybrid"), {"x": 0.8 * 0.06 - 0.05}, 0.4)
    assert model.predict(usual).mean == pytest.approx(0.06, abs=0.025)
    assert model.priors["bm25, hybrid"].precedent.collections == 60
    assert model.priors["bm25, hybrid"].precedent.better > 40


def test_collections_whose_queries_lose_words_say_little_about_the_noise():
    """Evidence that misleads where people ask in other words is no reason to doubt it elsewhere."""
    collections = planted(families=12)
    misled = []
    for pairs in planted(families=2, seed=9):
        features = [{"x": -3 * values["x"]} for values in pairs.features]
        misled.append(replace(pairs, family=f"misled {pairs.family}", features=features))
    known = [replace(pairs, lost_words=1.0) for pairs in misled]
    unknown = fit([*collections, *misled])
    doubted = fit([*collections, *known])
    alone = fit(collections)
    assert doubted.slopes["x"] == pytest.approx(alone.slopes["x"], abs=0.05)
    assert abs(unknown.slopes["x"] - alone.slopes["x"]) > 0.1
    assert doubted.noise[0][0] < 2 * alone.noise[0][0] < unknown.noise[0][0]


def test_collections_may_come_in_any_order():
    collections = planted(families=6, each=2)
    order = np.random.default_rng(1).permutation(len(collections))
    first, figures = calibrate(collections)
    second, others = calibrate([collections[row] for row in order])
    assert figures.keys() == others.keys()
    for pair, prior in first.priors.items():
        assert second.priors[pair].mean == pytest.approx(prior.mean)
        assert second.priors[pair].deviation == pytest.approx(prior.deviation)
        assert (
            second.priors[pair].precedent.better == prior.precedent.better if prior.precedent else 1
        )
    assert second.slopes == pytest.approx(first.slopes)
    for reach, other in zip(first.reaches, second.reaches, strict=True):
        assert vars(other) == pytest.approx(vars(reach))
    assert second.widening == first.widening


def test_what_is_told_of_a_kind_does_not_depend_on_its_labels_if_it_is_left_out():
    collections = planted(families=5)
    reported = leave_kinds_out(collections, collections)
    assert set(reported) == {"bm25", "dense", "hybrid"}
    changed = []
    for pairs in collections:
        has_fusion = np.array(["hybrid" in pair for pair in pairs.kinds])
        moved = np.where(has_fusion, pairs.differences + 5, pairs.differences)
        weak = [tuple(kind.replace("hybrid", "weak hybrid") for kind in k) for k in pairs.kinds]
        changed.append(replace(pairs, differences=moved, kinds=weak))
    again = leave_kinds_out(changed, changed)
    assert set(again) == set(reported)
    for before, after in zip(reported["hybrid"], again["hybrid"], strict=True):
        assert len(before.differences) == 7  # of ten pairs, all but those of the other three models
        assert after.expected == pytest.approx(before.expected)
        assert after.widths == pytest.approx(before.widths)
    for before, after in zip(reported["dense"], again["dense"], strict=True):
        assert after.expected != pytest.approx(before.expected)


def test_pairs_with_a_kind_that_was_not_fitted_are_judged_with_more_caution():
    model = fit(planted(families=5))
    del model.priors["bm25, dense"]  # the others have either kind
    caution = model.others_caution
    assert caution > 1
    careless = replace(model, others_caution=1.0)
    expected = {("bm25", "new"): caution, (None, "dense"): caution}
    expected |= {("hybrid", "bm25"): 1.0, ("bm25", "dense"): 1.0}
    for kinds, factor in expected.items():
        pair = PairFeatures(kinds, {"x": 0.3}, 0.4)
        found, other = model.predict(pair), careless.predict(pair)
        assert found.mean == pytest.approx(other.mean)
        # Clearness, and with it the reach of this fit, does not depend on the mean.
        assert found.below == pytest.approx(factor * other.below)
        assert found.above == pytest.approx(factor * other.above)


def test_turning_a_pair_changes_no_fit():
    collections = planted(families=5)
    turned = []
    for pairs in collections:
        turned.append(
            replace(
                pairs,
                models=[(b, a) for a, b in pairs.models],
                kinds=[(b, a) for a, b in pairs.kinds],
                features=[{"x": -values["x"]} for values in pairs.features],
                differences=-pairs.differences,
            )
        )
    first = fit(collections)
    second = fit(turned)
    assert second.slopes == pytest.approx(first.slopes)
    for pair, prior in first.priors.items():
        assert second.priors[pair].mean == pytest.approx(prior.mean, abs=1e-12)


def test_every_family_weighs_the_same_whatever_its_size():
    collections = planted(families=5)
    copies = [replace(collections[0], name=f"copy {number}") for number in range(7)]
    first = fit(collections)
    second = fit([*collections, *copies])
    assert second.slopes == pytest.approx(first.slopes)
    for pair, prior in first.priors.items():
        assert second.priors[pair].mean == pytest.approx(prior.mean)


def test_absent_evidence_is_left_out_and_answered_by_the_prior():
    collections = planted(families=8, blind=(2,))
    predicted = {one.pairs.family: one for one in leave_families_out(collections)}
    assert all(difference.prior_share == 1 for difference in predicted["f2"].differences)
    assert all(difference.prior_share < 1 for difference in predicted["f3"].differences)


def test_intervals_cover_families_that_were_left_out():
    counts = {"pairs": 0, "covered": 0, "decided": 0, "right": 0}
    for seed in range(3):
        counted = count_trust(leave_families_out(planted(families=12, seed=seed)))
        counts = {name: count + counted[name] for name, count in counts.items()}
    assert 0.85 <= counts["covered"] / counts["pairs"] <= 1
    assert counts["right"] >= 0.97 * counts["decided"] > 0


def test_no_label_of_a_family_has_a_part_in_its_own_predictions():
    collections = planted(families=6)
    turned = [
        replace(pairs, differences=-pairs.differences) if pairs.family == "f0" else pairs
        for pairs in collections
    ]
    changed = False
    for one, other in zip(leave_families_out(collections), leave_families_out(turned), strict=True):
        if one.pairs.family == "f0":
            assert one.differences == other.differences
        else:
            changed = changed or one.differences != other.differences
    assert changed


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(0, 9), min_size=1, max_size=5), min_size=10, max_size=14))
def test_the_conformal_quantile_is_the_weighted_one_with_a_mass_at_infinity(scores):
    families = [f"f{number}" for number in range(len(scores))]
    arrays = [np.array(of_family) for of_family in scores]
    found = conformal_quantile(arrays, families)
    mass = {value: 0.0 for of_family in scores for value in of_family}
    for of_family in scores:
        for value in of_family:
            mass[value] += 1 / len(of_family) / (len(scores) + 1)

    def below(limit):
        return sum(share for value, share in mass.items() if value <= limit)

    assert below(found) >= 0.9 - 1e-6
    assert all(below(value) < 0.9 + 1e-6 for value in mass if value < found)


def test_with_few_families_the_quantile_is_the_largest_score():
    scores = [np.array([1.0, 2.0]), np.array([3.0]), np.array([0.5])]
    assert conformal_quantile(scores, ["a", "b", "c"]) == 3
    # Collections of one family share its weight.
    many = [np.array([1.0])] * 20
    families = [f"f{number}" for number in range(20)]
    assert conformal_quantile([*many, np.array([9.0])], [*families, "f0"]) == 1


def predictions(expected, differences, family="f"):
    """Return the predictions of pairs with estimates of the deviation 1."""
    count = len(expected)
    pairs = LabelledPairs(
        name=family,
        family=family,
        models=[("x", str(number)) for number in range(count)],
        kinds=[("dense", "dense")] * count,
        features=[{}] * count,
        distances=np.ones(count),
        differences=np.asarray(differences),
        errors=np.full(count, 1e-6),
    )
    return Predicted(pairs, [ExpectedDifference(mean, 1.0, 1.0, 0.5) for mean in expected])


def test_reaches_are_those_of_differences_around_estimates_as_clear():
    """Planted: on the side of 0 differences lie half as far as on the other."""
    rng = np.random.default_rng(5)
    seen = []
    for family in range(3):
        expected = rng.uniform(-4, 4, size=20_000)
        noise = rng.normal(size=20_000)
        outward = np.where(noise > 0, noise, 0.5 * noise)
        seen.append(predictions(expected, expected + np.sign(expected) * outward, f"f{family}"))
    reaches = local_reaches(seen)
    assert [reach.clearness for reach in reaches] == [0, 1, 2]
    assert reaches[0].towards_zero == reaches[0].away
    for reach in reaches[1:]:
        assert reach.towards_zero == pytest.approx(NORMAL / 2, abs=0.03)
        assert reach.away == pytest.approx(NORMAL, abs=0.03)


def test_clear_estimates_have_a_reach_of_their_own():
    rng = np.random.default_rng(7)
    expected = np.concatenate([np.full(500, 0.1), np.full(500, 3.0)])
    noise = np.concatenate([rng.normal(size=500), np.abs(rng.normal(size=500))])
    unclear, _, clear = local_reaches([predictions(expected, expected + noise)])
    assert unclear.towards_zero == pytest.approx(NORMAL, abs=0.2)
    assert clear.towards_zero < 0.3
    assert clear.away > NORMAL


def test_turned_pairs_have_the_same_reaches():
    rng = np.random.default_rng(6)
    expected = rng.normal(size=300)
    differences = expected + rng.normal(size=300)
    turned = predictions(-expected, -differences)
    assert local_reaches([predictions(expected, differences)]) == local_reaches([turned])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-20, 20), st.integers(1, 9)), min_size=1, max_size=20, unique=True
    ),
    st.sampled_from([0.05, 0.5, 0.9, 0.95]),
)
def test_the_weighted_quantile_is_numpys(rows, share):
    values, weights = np.array(rows, float).T
    wanted = np.quantile(values, share, weights=weights, method="inverted_cdf")
    assert weighted_quantile(values, weights, share) == wanted


def test_the_reach_with_a_further_family_is_one_for_both_sides():
    seen = [predictions([1.0, -1.0], [1.0 + by, -1.0 - by], f"f{by}") for by in range(12)]
    assert reach_with_further_family(seen) == [Reach(0.0, 11.0, 11.0)]
    assert reach_with_further_family(seen[:10]) == [Reach(0.0, 9.0, 9.0)]


def test_counts_and_reliability_by_hand():
    expected = [0.1, -0.1, 0.05, 0.0, 0.1, 0.001]
    differences = np.array([0.1, 0.1, 0.005, 0.009, 0.02, 0.2])
    pairs = LabelledPairs(
        name="c",
        family="c",
        models=[("x", str(number)) for number in range(6)],
        kinds=[("dense", "dense")] * 6,
        features=[{}] * 6,
        distances=np.ones(6),
        differences=differences,
        errors=np.full(6, 1e-6),
    )
    predicted = Predicted(
        pairs, [ExpectedDifference(mean, 0.01 / NORMAL, 0.0165 / NORMAL, 0.5) for mean in expected]
    )
    counts = count_trust([predicted])
    wanted = {
        "collections": 1,
        "pairs": 6,
        "covered": 2,
        "decided": 4,
        "right": 3,
        "large": 3,
        "large_decided": 2,
        "very_large": 3,
        "very_large_decided": 2,
        "equal": 2,
        "equal_decided": 1,
        "no_difference": 0,
    }
    assert {name: counts[name] for name in wanted} == wanted
    assert count_trust([predicted], lambda kinds: kinds == ("bm25", "dense"))["pairs"] == 0
    rows = reliability([predicted])
    assert sum(row["pairs"] for row in rows) == pytest.approx(6, abs=1)
    counts = counts | {"collections": 2}
    nothing = counts | {"decided": 0, "right": 0}
    trust = {GIVEN_QUERIES: {SAME_KIND: counts}, CORPUS_ALONE: {SAME_KIND: nothing}}
    calibration = Calibration(["c1", "c2"], ["abc"], trust, "2026-01-01")
    statement = calibration.statement(GIVEN_QUERIES, SAME_KIND, "abc")
    for part in (
        f"For {SAME_KIND} (given queries), on 2 labelled collections, ",
        "in 2 of 6 pairs",
        "right in 3 of 4 decided",
        "it decided 2",
        "not an independent test",
    ):
        assert part in statement
    assert "no pair was decided" in calibration.statement(CORPUS_ALONE, SAME_KIND)


def test_an_interval_on_too_little_evidence_is_told_with_0_in_it():
    pairs = planted(families=3)[0].take(np.arange(10) < 2)
    sure = ExpectedDifference(0.1, 0.01, 0.02, prior_share=0.5)
    told = Predicted(pairs, [sure, replace(sure, prior_share=0.95)]).as_told()
    assert told.decided.tolist() == [True, False]
    assert told.differences[0] == sure
    assert told.lows[1] == pytest.approx(0)
    assert told.highs[1] == pytest.approx(0.2)  # as far on the other side


def test_the_bias_of_leads_by_hand():
    leads = [
        Lead("one family", 0.0, 0.1),
        Lead("one family", 0.0, 0.3),
        Lead("another", 0.2, 0.4),
        Lead("far", 1.0, -0.5),
    ]
    described = describe_leads(leads, usual=0.2)
    assert described["usual"]["collections"] == 3
    assert described["usual"]["value"] == pytest.approx((0.2 + 0.4) / 2)  # families weigh alike
    # Without one of two families, the mean is the other's.
    assert described["usual"]["error"] == pytest.approx(np.sqrt(1 / 2 * (0.1**2 + 0.1**2)))
    assert described["few"] == {"collections": 1, "value": pytest.approx(-0.5), "error": None}
    weights = np.sqrt([0.5, 0.5, 1, 1])
    slope = np.polyfit([0, 0, 0.2, 1], [0.1, 0.3, 0.4, -0.5], 1, w=weights)[0]
    assert described["slope"]["value"] == pytest.approx(slope)
    assert describe_leads([], usual=0.2)["few"]["value"] is None


def test_a_lead_is_of_the_second_use_over_the_first_however_a_pair_is_ordered():
    pairs = LabelledPairs(
        name="c",
        family="f",
        models=[("minilm", "bm25"), ("minilm", "other")],
        kinds=[("dense", "bm25"), ("dense", "dense")],
        features=[{"titles": -0.3}, {"titles": 0.9}],
        distances=np.ones(2),
        differences=np.array([-0.1, 0.0]),
        errors=np.ones(2),
    )
    uses = {"c": {"minilm": "dense", "bm25": "bm25", "other": "dense"}}
    biases = overlap_bias([pairs], uses, usual=0.2)
    assert biases["titles"]["bm25, dense"]["usual"]["value"] == pytest.approx(0.3 - 0.1)
    assert biases["titles"]["dense, hybrid@0.5"]["usual"]["collections"] == 0
    assert "held-out crops" not in biases


@pytest.mark.parametrize(
    ("real", "pooled", "given"),
    [
        (False, None, CORPUS_ALONE),
        (True, None, GIVEN_QUERIES),
        # The packaged calibration was not fitted with what a language model reads.
        (True, "read", GIVEN_QUERIES),
    ],
)
def test_trust_is_told_by_what_is_given(real, pooled, given):
    rule = Rule(SimpleNamespace(real=real, pooled=pooled), load_calibration())
    assert rule.given == given
    assert rule.model is rule.calibration.models[given]
    assert set(rule.calibration.trust) == set(rule.calibration.models)
    assert f"({given}), on 25 labelled" in rule.calibration.statement(given, DIFFERENT_KINDS)
    # Two encoders are of one kind: the calibration was fitted to two in the same uses.
    assert f"({given}), on 25 labelled" in rule.calibration.statement(given, SAME_KIND)
    alone = replace(rule.calibration, trust={given: {}})
    unknown = alone.statement(given, SAME_KIND)
    assert f"verdicts on models of one kind ({given}) are right is not known" in unknown


def test_what_a_language_model_reads_counts_in_a_calibration_that_was_fitted_with_it():
    packaged = load_calibration()
    models = packaged.models | {READ_QUERIES: packaged.models[GIVEN_QUERIES]}
    fitted = replace(packaged, models=models)
    read = Rule(SimpleNamespace(real=True, pooled="read"), fitted)
    unread = Rule(SimpleNamespace(real=True, pooled=None), fitted)
    assert (read.given, unread.given) == (READ_QUERIES, GIVEN_QUERIES)


def test_too_little_to_calibrate_on():
    with pytest.raises(InputError, match="two families"):
        fit(planted(families=1))


def test_calibration_files(tmp_path):
    packaged = load_calibration()
    # Of each as it was cut, and of those that were cut the whole one.
    assert len(packaged.collections) < len(packaged.corpora) <= 2 * len(packaged.collections)
    scipy = load_collection("apidocs/scipy").documents.content_hash
    [group, *_] = packaged.trust["given queries"]
    assert "not an independent test" in packaged.statement("given queries", group, scipy)
    assert "not an independent test" not in packaged.statement("given queries", group, "another")
    for model in packaged.models.values():
        assert model.knows("hybrid")
        assert np.linalg.eigvalsh(np.array(model.noise)).min() > 0
        assert model.widening > 0
    file = tmp_path / "calibration.json"
    packaged.write(file)
    assert Calibration.read(file) == packaged
