"""Which model of an ablation may be recommended, by the tests of a labelled evaluation."""

from __future__ import annotations

import numpy as np

from beir_cocodr.evaluation.chains import MODES, Chain
from beir_cocodr.evaluation.measures import paired_tests
from beir_cocodr.evaluation.recommendation import (
    COCO_FIRST,
    STAGE,
    ablation_families,
    recommend,
)
from beir_cocodr.evaluation.results import EvaluationRecord, ModelResult, Recommendation


def test_each_stage_more_is_asked_about():
    families = ablation_families([Chain(), Chain(("COCO",)), Chain(("QC",)), Chain(("COCO", "QC"))])
    assert (families[COCO_FIRST][0], families[STAGE][0]) == (
        ("base + QC", "base + COCO + QC"),
        ("base + COCO", "base + COCO + QC"),
    )
    assert all(label != "base" for family in (COCO_FIRST, STAGE) for label, _ in families[family])


SOURCE, BOTH = Chain(("source",)), Chain(("COCO", "source"))
ENCODERS = [Chain(), SOURCE, BOTH]


def evaluated(by_chain: dict[Chain, np.ndarray], encoders: list[Chain]) -> EvaluationRecord:
    """Make the record of an ablation from chain to (50,) scores of queries in one measure."""
    scores = {"bm25": np.zeros(50)} | {chain.label: v for chain, v in by_chain.items()}
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
    tests = paired_tests(by_measure, ablation_families(encoders))
    return EvaluationRecord(
        dataset="d", split="test", documents=1, queries=50, models=models, comparisons=tests
    )


def recommended(base: np.ndarray, source: np.ndarray, both: np.ndarray) -> Recommendation:
    """Recommend from an ablation in which each encoder has about the same scores in every mode."""
    scores = {
        encoder.used(mode): values + 0.001 * MODES.index(mode)
        for encoder, values in zip(ENCODERS, (base, source, both), strict=True)
        for mode in MODES
    }
    return recommend(evaluated(scores, ENCODERS), ENCODERS)


RNG = np.random.default_rng(0)
BASE, NOISE = RNG.random(50), RNG.normal(0, 0.02, 50)


def test_training_that_pays_is_recommended_and_coco_that_hurts_is_said():
    found = recommended(base=BASE, source=BASE + 0.2 + NOISE, both=BASE + 0.1 - NOISE)
    assert found.model.startswith("base + source")
    assert found.verdict == "better"
    assert any("COCO hurt" in reason for reason in found.reasons)


def test_training_that_hurts_is_not_recommended():
    found = recommended(base=BASE, source=BASE - 0.2 + NOISE, both=BASE - 0.1 + NOISE)
    assert found.model.split(",")[0] == "base"
    assert found.verdict == "worse"


def test_differences_that_cannot_be_told_leave_the_base():
    wild = RNG.normal(0, 0.5, 50)
    wild -= wild.mean()
    found = recommended(base=BASE, source=BASE + wild, both=BASE - wild)
    assert found.model.split(",")[0] == "base"
    assert found.verdict == "cannot tell"
    assert any("COCO did not help measurably" in reason for reason in found.reasons)


def test_a_chain_whose_training_was_not_better_is_never_recommended():
    """Fusion helps base and trained encoder alike, so the trained one leads by chance alone."""
    scores = {}
    wild = RNG.normal(0, 0.3, 50)
    for mode in MODES:
        base = BASE + (0.0 if mode == "alone" else 0.3) + NOISE
        scores[Chain().used(mode)] = base
        scores[SOURCE.used(mode)] = base + 0.01 + wild - wild.mean()
    record = evaluated(scores, [Chain(), SOURCE])
    best = max(record.models, key=lambda label: record.models[label].measures["m"])
    assert best.startswith("base + source, ")
    against_base = {(test.a, test.b): test.verdict for test in record.comparisons}
    assert against_base["base", best] == "better"
    found = recommend(record, [Chain(), SOURCE])
    assert found.model in {f"base, {mode}" for mode in MODES[1:]}
    assert found.verdict == "cannot tell"
