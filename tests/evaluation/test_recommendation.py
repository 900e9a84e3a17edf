"""Which model of an ablation may be recommended, by the tests of a labelled evaluation."""

from __future__ import annotations

import numpy as np

from beir_cocodr.evaluation.measures import compare
from beir_cocodr.evaluation.recommendation import COCO, MODES, STAGE, ablation_families, recommend
from beir_cocodr.evaluation.results import EvaluationRecord, ModelResult


def test_each_stage_more_is_asked_about():
    families = ablation_families(["base", "base + COCO", "base + QC", "base + COCO + QC"])
    assert (families[COCO][0], families[STAGE][0]) == (
        ("base + QC", "base + COCO + QC"),
        ("base + COCO", "base + COCO + QC"),
    )
    assert all(label != "base" for family in (COCO, STAGE) for label, _ in families[family])


def evaluated(scores: dict[str, np.ndarray]) -> EvaluationRecord:
    """Make the record of an ablation from label to (50,) scores of queries in one measure."""
    encoders = [label for label in scores if "," not in label and label != "bm25"]
    by_measure = {label: {"m": values} for label, values in scores.items()}
    models = {
        label: ModelResult(
            model=label,
            measures={"m": float(values.mean())},
            intervals={"m": None},
            queries=50,
            queries_without_results=0,
            run="",
        )
        for label, values in scores.items()
    }
    tests = compare(by_measure, ablation_families(encoders))
    return EvaluationRecord(
        dataset="d", split="test", documents=1, queries=50, models=models, comparisons=tests
    )


def results(**figures: np.ndarray) -> EvaluationRecord:
    """Make the record of an ablation in which each encoder has the same scores in every mode."""
    labels = {"base": "base", "source": "base + source", "both": "base + COCO + source"}
    scores = {"bm25": np.zeros(50)}
    for key, values in figures.items():
        for mode in MODES:
            scores[labels[key] + mode] = values + 0.001 * len(mode)
    return evaluated(scores)


RNG = np.random.default_rng(0)
BASE, NOISE = RNG.random(50), RNG.normal(0, 0.02, 50)


def test_training_that_pays_is_recommended_and_coco_that_hurts_is_said():
    found = recommend(results(base=BASE, source=BASE + 0.2 + NOISE, both=BASE + 0.1 - NOISE))
    assert found.model.startswith("base + source")
    assert found.verdict == "better"
    assert any("COCO hurt" in reason for reason in found.reasons)


def test_training_that_hurts_is_not_recommended():
    found = recommend(results(base=BASE, source=BASE - 0.2 + NOISE, both=BASE - 0.1 + NOISE))
    assert found.model.split(",")[0] == "base"
    assert found.verdict == "worse"


def test_differences_that_cannot_be_told_leave_the_base():
    wild = RNG.normal(0, 0.5, 50)
    found = recommend(
        results(base=BASE, source=BASE + wild - wild.mean(), both=BASE - wild + wild.mean())
    )
    assert found.model.split(",")[0] == "base"
    assert found.verdict == "cannot tell"
    assert any("COCO did not help measurably" in reason for reason in found.reasons)


def test_a_chain_whose_training_was_not_better_is_never_recommended():
    """Fusion helps base and trained encoder alike, so the trained one leads by chance alone."""
    scores = {"bm25": np.zeros(50)}
    wild = RNG.normal(0, 0.3, 50)
    for mode in MODES:
        scores[f"base{mode}"] = BASE + 0.3 * bool(mode) + NOISE
        scores[f"base + source{mode}"] = scores[f"base{mode}"] + 0.01 + wild - wild.mean()
    record = evaluated(scores)
    best = max(record.models, key=lambda label: record.models[label].measures["m"])
    assert best.startswith("base + source, ")
    against_base = {(test.a, test.b): test.verdict for test in record.comparisons}
    assert against_base["base", best] == "better"
    recommended = recommend(record)
    assert recommended.model in {f"base{mode}" for mode in MODES if mode}
    assert recommended.verdict == "cannot tell"
