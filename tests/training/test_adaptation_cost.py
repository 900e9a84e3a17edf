"""The expected cost of an adaptation."""

from __future__ import annotations

import pytest

from beir_cocodr import COCODR, FuseOptions, load_collection
from beir_cocodr.training import adaptation_cost as module
from beir_cocodr.training.adapt import AdaptationPlan, AdaptOptions
from beir_cocodr.training.adaptation_cost import (
    JUDGEMENT,
    PROBE,
    PlannedTraining,
    estimate,
    probe,
    training_seconds,
)
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions


@pytest.fixture
def model(tiny_bert):
    return COCODR(str(tiny_bert))


@pytest.fixture
def documents(beir_folder):
    return load_collection(str(beir_folder)).documents


def test_the_probe_counts_documents_over_the_clock(model, documents, monkeypatch):
    ticks = iter([100.0, 104.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    assert probe(model, documents) == PROBE / 4


BUDGET = {"max_steps": 5, "batch_size": 4}


@pytest.mark.parametrize(
    ("options", "texts", "searches"),
    [
        (PretrainOptions.of(**BUDGET), 5 * 4 * 2, 0),
        (PretrainOptions(epochs=2, batch_size=4), 20 * 4 * 2, 0),
        (FinetuneOptions.of(**BUDGET, negatives=3), 5 * 4 * 5, 0),
        (FinetuneOptions.of(**BUDGET, episodes=2), 15 * 4 * 3, 2),
        (FinetuneOptions.of(**BUDGET, stages=2), 10 * 4 * 3, 1),
        (
            DistillOptions.of(**BUDGET, positives=1, m_bm25=1, m_hard=1, refresh_steps=2),
            5 * 4 * 4,
            3,
        ),
    ],
)
def test_time_is_texts_forward_and_backward_and_the_corpus_for_every_search(
    options, texts, searches
):
    training = PlannedTraining("base + x", options, 40)
    seconds = training_seconds(training, 10.0, 7.0)
    assert seconds == pytest.approx(3 * texts / 10 + searches * 7)


def test_fusing_costs_its_sample():
    for sample, seconds in ((16, 1.6), (1_000, 7)):
        training = PlannedTraining("base + fuse", FuseOptions(sample=sample), 40)
        assert training_seconds(training, 10.0, 7.0) == seconds


def test_what_is_left_of_an_adaptation(model, documents, beir_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "probe", lambda model, documents: 10.0)
    target = load_collection(beir_folder, labels="optional")
    source = load_collection(beir_folder, "train")
    settings = {
        "coco": PretrainOptions.of(**BUDGET),
        "finetune": FinetuneOptions(epochs=2, batch_size=4, negatives=1),
    }
    plan = AdaptationPlan(target, source, settings, AdaptOptions(), tmp_path)
    cost = estimate(plan.trainings(), model, documents)
    pairs = sum(map(len, load_collection(str(beir_folder), "train").qrels.values()))
    epochs = 3 * round(2 * pairs / 4) * 4 * 3 / 10
    whole = {"base + source": epochs, "base + COCO": 12, "base + COCO + source": epochs}
    assert cost.seconds == pytest.approx(whole | {JUDGEMENT: 4 * len(documents) / 10})
    weights = sum(weight.nbytes for weight in model.parameters())
    assert cost.disk_bytes == (3 + 8) * weights
    assert cost.memory_bytes > 4 * weights
    for there in (
        "estimate from a probe",
        "about",
        "disk",
        "memory",
        "base + COCO 12 seconds",
        "10 documents a second",
    ):
        assert there in str(cost)
