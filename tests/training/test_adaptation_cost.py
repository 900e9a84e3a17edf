"""The expected cost of an adaptation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from beir_cocodr import COCODR, FuseOptions, load_collection
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.vectors.vector_cache import VectorCache
from beir_cocodr.training import adaptation_cost as module
from beir_cocodr.training.adapt import AdaptationPlan, AdaptOptions
from beir_cocodr.training.adaptation_cost import (
    JUDGEMENT,
    PROBE,
    PlannedTraining,
    estimate,
    merging_seconds,
    probe,
    probe_teacher,
    training_bytes,
    training_seconds,
)
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions


@pytest.fixture
def model(tiny_bert):
    return COCODR(str(tiny_bert))


@pytest.fixture
def documents(beir_folder):
    return load_collection(str(beir_folder)).documents


def test_the_probe_scales_tokens_over_the_clock_to_documents(model, tmp_path, monkeypatch):
    ticks = iter([100.0, 104.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    # Every third document is long, and of the spaced ones that are encoded another share.
    texts = {f"{n}": "wing " * (40 if n % 3 == 0 else 4) for n in range(90)}
    documents = load_collection(texts, labels="none").documents
    lengths = [len(model.tokenizer(text.strip())["input_ids"]) for text in texts.values()]
    read = [lengths[row] for row in np.linspace(0, 89, PROBE).astype(int)]
    assert np.mean(read) != pytest.approx(np.mean(lengths), rel=0.01)
    assert probe(model, documents) == pytest.approx(sum(read) / 4 / np.mean(lengths))


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
    assert cost is not None
    pairs = sum(map(len, load_collection(str(beir_folder), "train").qrels.values()))
    epochs = 3 * round(2 * pairs / 4) * 4 * 3 / 10
    whole = {"base + source": epochs, "base + COCO": 12, "base + COCO + source": epochs}
    assert cost.seconds == pytest.approx(whole | {JUDGEMENT: 4 * len(documents) / 10})
    weights = sum(weight.nbytes for weight in model.parameters())
    assert cost.disk_bytes == (3 + 8) * weights + 4 * 4 * 32 * len(documents)
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


def test_training_reads_the_first_piece_of_a_document_and_judging_all(
    tiny_bert, documents, monkeypatch
):
    """What is saved with chunk pooling encodes documents whole, and is trained on their first
    pieces.
    """
    model = COCODR(str(tiny_bert), chunk_pooling="mean")
    rates = {"first": 10.0, "mean": 2.0}
    monkeypatch.setattr(module, "probe", lambda model, *_: rates[model.chunk_pooling])
    cost = estimate(
        [PlannedTraining("base + x", PretrainOptions.of(**BUDGET), 40)], model, documents
    )
    assert cost.seconds == pytest.approx(
        {"base + x": 3 * 5 * 4 * 2 / 10, JUDGEMENT: 2 * len(documents) / 2}
    )
    assert model.chunk_pooling == "mean"


def test_texts_whose_vectors_are_kept_cost_nothing(model, documents, monkeypatch):
    monkeypatch.setattr(module, "probe", lambda model, documents: 10.0)
    training = PlannedTraining("base + x", PretrainOptions.of(**BUDGET), 40)
    trained = replace(training, finished=True)
    before = estimate([training], model, documents)
    assert before.seconds[JUDGEMENT] == pytest.approx(2 * len(documents) / 10)
    assert estimate([trained], model, documents) is not None
    cache = VectorCache.of(model, documents)
    CorpusEncoder(model, documents, cache=cache).encode(np.arange(len(documents)))
    after = estimate([training], model, documents)
    assert after.seconds[JUDGEMENT] == pytest.approx(len(documents) / 10)
    assert estimate([trained], model, documents) is None


def test_cached_gradients_take_another_pass_and_hold_fewer_texts(model):
    whole = FinetuneOptions.of(**BUDGET)
    parts = replace(whole, mini_batch_size=1)
    seconds = [training_seconds(PlannedTraining("x", one, 40), 10.0, 7.0) for one in (whole, parts)]
    assert seconds[1] == pytest.approx(seconds[0] * 4 / 3)
    assert training_bytes(model, whole) == 4 * training_bytes(model, parts) > 0
    assert training_bytes(model, FuseOptions()) == 0


LISTS = {"positives": 1, "m_bm25": 1, "m_hard": 1}


def test_a_cross_encoder_scores_every_pair_of_the_lists(model, documents, tiny_cross, monkeypatch):
    rates = {"documents": 10.0, "pairs": 4.0}
    monkeypatch.setattr(module, "probe", lambda model, documents: rates["documents"])
    monkeypatch.setattr(module, "probe_teacher", lambda *arguments: rates["pairs"])
    options = DistillOptions.of(**BUDGET, **LISTS)
    training = PlannedTraining("base + x", options, 40, teacher=str(tiny_cross))
    alone = estimate([replace(training, teacher=None)], model, documents)
    cost = estimate([training], model, documents)
    pairs = 5 * 4 * 3
    assert cost.seconds["base + x"] - alone.seconds["base + x"] == pytest.approx(pairs / 4)
    assert cost.uncounted == ()


def test_the_probe_of_a_teacher_scores_pairs_over_the_clock(
    model, documents, tiny_cross, monkeypatch
):
    ticks = iter([100.0, 104.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    assert probe_teacher(str(tiny_cross), model, documents) == min(PROBE, len(documents)) / 4


@pytest.mark.parametrize(
    ("most_held_out", "documents", "texts"),
    [
        (10, 50_000, 10 + 10 * 101),
        (10, 48, 10 + 48),  # a small corpus is encoded once
        (500, 50_000, 40 + 40 * 101),  # there are no more queries
    ],
)
def test_merging_encodes_candidates_for_the_base_and_every_share(most_held_out, documents, texts):
    options = DistillOptions.of(**BUDGET, merge_on="crops", most_held_out=most_held_out)
    training = PlannedTraining("base + x", options, 40)
    assert merging_seconds(training, 10.0, documents) == pytest.approx(5 * texts / 10)
    unmerged = replace(training, options=replace(options, merge_on=None))
    assert merging_seconds(unmerged, 10.0, documents) == 0


def test_what_cannot_be_known_is_said(model, documents, beir_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "probe", lambda model, documents: 10.0)
    target = load_collection(beir_folder, labels="optional")
    settings = {"distill": DistillOptions.of(**BUDGET)}
    generation = GenerationOptions(per_passage=3, max_passages=20, filter_retriever="hybrid:minilm")
    options = AdaptOptions(stages="distill", generator="t5", generation=generation)
    plan = AdaptationPlan(target, None, settings, options, tmp_path)
    [training] = plan.trainings()
    assert training.examples == 60
    assert merging_seconds(training, 10.0, len(documents)) > 0  # on crops, if on nothing else
    said = str(estimate(plan.trainings(), model, documents, plan.wanted_queries()))
    for work in (
        "generating about 60 queries by t5 and filtering them by hybrid:minilm",
        "ranking for up to 20 lists by the teacher rm3 (base + distill)",
    ):
        assert work in said.partition("more time, which cannot be known before, goes into")[2]


def test_queries_that_are_there_are_counted_and_not_generated_again(beir_folder, tmp_path):
    target = load_collection(beir_folder, labels="optional")
    generation = GenerationOptions(per_passage=1, max_passages=5)
    record = generate_queries(target, "lexical", tmp_path / "there", generation)
    options = AdaptOptions(stages="distill", generated=tmp_path / "there")
    plan = AdaptationPlan(target, None, options.chosen(), options, tmp_path)
    assert plan.wanted_queries() is None
    assert plan.trainings()[0].examples == record.counts["queries"] < 20
