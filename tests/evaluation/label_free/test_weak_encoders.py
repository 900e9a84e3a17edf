"""An encoder that is far behind BM25 has kinds of its own; others keep theirs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.verdict import Rule, load_calibration
from beir_cocodr.evaluation.label_free.weak_encoders import mark_weak_encoders
from beir_cocodr.retrieval.resources import Resources


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder)


@pytest.fixture(scope="module")
def models(tiny_cosine):
    return ["bm25", str(tiny_cosine), f"hybrid:{tiny_cosine}"]


@pytest.fixture(scope="module")
def evidence(collection, models, tmp_path_factory):
    """Return evidence of an encoder with random weights, which finds little."""
    resources = Resources(collection.documents, tmp_path_factory.mktemp("resources"))
    return Gatherer(resources, models, samples=20).gather(collection.queries)


def with_crops(evidence, model, scores):
    """Return evidence in which a model's scores on all crops and titles are others."""
    crops = evidence.crops | {model: np.resize(scores, len(evidence.crops[model]))}
    further = {}
    for kind, searched in evidence.further.items():
        values = np.resize(scores, len(searched.scores[model]))
        further[kind] = replace(searched, scores=searched.scores | {model: values})
    return replace(evidence, crops=crops, further=further, margins={})


def test_uses_of_an_encoder_far_behind_bm25_are_kinds_of_their_own(evidence, models):
    bm25, alone, fusion = models
    encoders = dict(zip(models, (None, "tiny", "tiny"), strict=True))
    plain = replace(evidence, kinds={bm25: "bm25", alone: "dense", fusion: "hybrid"})
    behind = with_crops(with_crops(plain, bm25, [1.0]), alone, [0.5])
    weak = mark_weak_encoders(behind, encoders)
    assert weak.weak == {alone, fusion}
    assert weak.pair_kinds(bm25, alone) == ("bm25", "weak dense")
    assert weak.pair_kinds(fusion, alone) == ("weak hybrid", "weak dense")
    assert mark_weak_encoders(replace(behind, real=False), encoders).weak == frozenset()
    near = mark_weak_encoders(with_crops(with_crops(plain, bm25, [1.0]), alone, [0.95]), encoders)
    assert near.weak == frozenset()
    assert near.pair_kinds(bm25, alone) == ("bm25", "dense")


def test_of_two_encoders_none_has_a_kind_of_its_own(evidence, models):
    bm25, alone, other = models
    kinds = {bm25: "bm25", alone: "dense", other: "dense"}
    encoders = dict(zip(models, (None, "tiny", "another"), strict=True))
    both = replace(evidence, kinds=kinds, encoders=encoders, weak=frozenset({alone}))
    assert both.pair_kinds(alone, other) == ("dense", "dense")
    assert both.pair_kinds(bm25, alone) == ("bm25", "weak dense")
    assert both.pair_kinds(bm25, other) == ("bm25", "dense")


def test_a_calibration_without_weak_encoders_judges_them_as_others(evidence, models):
    bm25, alone, _ = models
    weak = replace(evidence, weak=frozenset({alone}))
    packaged = load_calibration()
    assert Rule(weak, packaged).kinds(bm25, alone) == ("bm25", "weak dense")
    model = packaged.models["given queries"]
    priors = {pair: prior for pair, prior in model.priors.items() if "weak" not in pair}
    older = replace(packaged, models={"given queries": replace(model, priors=priors)})
    assert Rule(weak, older).kinds(bm25, alone) == ("bm25", "dense")


def test_the_packaged_calibration_knows_weak_encoders():
    for name, model in load_calibration().models.items():
        for use in ("dense", "hybrid", "rm3"):
            assert model.knows(f"weak {use}") == (name != "corpus alone")
