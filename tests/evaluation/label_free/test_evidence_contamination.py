"""Contamination: the parts of the judging corpus that models were trained on, by their records."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from beir_cocodr import FuseOptions, HybridEncoder, fuse
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.contamination import Contamination, find_contamination
from beir_cocodr.evaluation.label_free.estimates import (
    estimate_pair,
    features,
    held_out_crops,
)
from beir_cocodr.evaluation.label_free.estimators import CROPS
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.held_out_queries import hold_out_crops
from beir_cocodr.evaluation.label_free.pseudo_queries import lexical_queries
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.spec import ModelSpec
from beir_cocodr.provenance import (
    GENERATED_QUERIES,
    SPANS,
    TERMS,
    TrainingRecord,
    collection_provenance,
    read_record,
    write_record,
)
from beir_cocodr.records import CollectionProvenance
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.training.held_out import labelled_provenance


@pytest.fixture(scope="module")
def documents(beir_folder):
    return load_collection(beir_folder, labels="none").documents


@pytest.fixture(scope="module")
def generated(beir_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated") / "queries"
    generate_queries(beir_folder, "lexical", folder, GenerationOptions(seed=7))
    return folder


def encoders(models):
    return {name: ModelSpec.parse(name).encoder for name in models}


def model(folder, stage, shown, parent=None, rehearsed=()):
    folder.mkdir()
    write_record(
        folder, TrainingRecord(stage, "x", rehearsed=rehearsed, seen=tuple(shown), parent=parent)
    )
    return str(folder)


def test_spans_of_the_same_corpus_count_also_those_of_an_ancestor(beir_folder, documents, tmp_path):
    shown = [collection_provenance(load_collection(beir_folder, labels="none"), queries=False)]
    coco = model(tmp_path / "coco", "coco", shown, rehearsed=(SPANS,))
    child = model(tmp_path / "child", "finetune", [], read_record(coco))
    other = model(
        tmp_path / "other", "coco", [replace(shown[0], corpus_sha256="another")], None, (SPANS,)
    )
    masked = model(tmp_path / "mlm", "mlm", shown)
    own = model(tmp_path / "own", "an objective of one's own", shown, rehearsed=(SPANS,))
    names = [coco, child, f"hybrid:{coco}", other, masked, own, "bm25", "some/hub-name"]
    found = find_contamination(encoders(names), documents.content_hash)
    assert found.spans == {coco, child, f"hybrid:{coco}", own}
    assert found.generated == set()
    assert not found.has("anything")


def test_generated_queries_are_known_by_their_text(beir_folder, documents, generated, tmp_path):
    shown = [labelled_provenance(load_collection(generated, "train"))]
    plain = collection_provenance(load_collection(beir_folder, "train"), queries=True)
    qgen = model(tmp_path / "qgen", "finetune", shown, rehearsed=(GENERATED_QUERIES,))
    real = model(tmp_path / "real", "finetune", [plain])
    found = find_contamination(encoders([qgen, real, f"feedback:{qgen}"]), documents.content_hash)
    assert (found.spans, found.generated) == (set(), {qgen, f"feedback:{qgen}"})
    texts = [
        json.loads(line)["text"] for line in (generated / "queries.jsonl").read_text().splitlines()
    ]
    assert all(found.has(text) and found.has(f"  {text.upper()}\n") for text in texts)
    assert not any(found.has(text + " and more") for text in texts)


def test_queries_that_were_trained_on_are_left_out_and_counted(documents, generated, tmp_path):
    shown = [labelled_provenance(load_collection(generated, "train"))]
    trained = model(tmp_path / "m", "finetune", shown, rehearsed=(GENERATED_QUERIES,))
    found = find_contamination(encoders([trained]), documents.content_hash)
    texts = {
        json.loads(line)["text"] for line in (generated / "queries.jsonl").read_text().splitlines()
    }
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
    free = lexical_queries(documents, tmp_path / "a", size=48, seed=8)
    made = lexical_queries(documents, tmp_path / "b", size=48, seed=8, is_known=found.has)
    assert texts & set(free.texts)  # another seed alone makes some of the same queries
    assert not texts & set(made.texts)
    assert made.counts["queries_trained_on"] == len([text for text in free.texts if text in texts])
    assert sum(made.counts.values()) - made.counts["documents_looked_at"] + len(made.texts) == len(
        documents
    )
    free_crops, _ = hold_out_crops(documents, tmp_path / "c", size=48, seed=8)
    crops, _ = hold_out_crops(documents, tmp_path / "d", size=48, seed=8, is_known=found.has)
    contamination = [text for text in free_crops.texts if found.has(text)]
    assert contamination
    assert crops.texts == [text for text in free_crops.texts if text not in contamination]
    assert crops.counts["queries_trained_on"] == len(contamination)
    assert len(crops.rows) == len(np.unique(crops.rows)) == len(crops.texts)


def test_a_folder_that_is_gone_is_said_and_a_broken_one_refused(documents, tmp_path, caplog):
    shown = CollectionProvenance(
        str(tmp_path / "gone"), corpus_sha256=documents.content_hash, generation={}
    )
    gone = model(tmp_path / "m", "qc", [shown], rehearsed=(GENERATED_QUERIES,))
    with caplog.at_level(logging.WARNING):
        assert find_contamination(encoders([gone]), documents.content_hash).generated == {gone}
    assert "gone/queries.jsonl no longer exists" in caplog.text
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "queries.jsonl").write_text('{"_id": "1", "text": "x"}\n{"_id": "2"}\n')
    with pytest.raises(InputError, match=r"queries.jsonl:2 .*query"):
        find_contamination(encoders([gone]), documents.content_hash)


def secretive_corpus(folder, documents=40):
    """Documents of two sentences whose words occur nowhere else."""
    folder.mkdir()
    lines = []
    for number in range(documents):
        sentences = [
            " ".join(f"{part}{number}x{word}" for word in range(12)).capitalize() + "."
            for part in ("alder", "birch")
        ]
        text = " ".join(sentences)
        lines.append(json.dumps({"_id": f"d{number}", "title": "", "text": text}))
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_what_fuse_was_fitted_on_counts_as_seen(tiny_cosine, tmp_path):
    folder = secretive_corpus(tmp_path / "corpus")
    fused = str(tmp_path / "fused")
    fuse(str(tiny_cosine), str(folder), output=fused, options=FuseOptions(lexical="svd"))
    exact = f"hybrid:{tiny_cosine}"
    collection = load_collection(folder, labels="none")
    resources = Resources(collection.documents, tmp_path)
    resources.name_specs(
        {"loaded": ModelSpec("loaded", "dense", "loaded", loaded=HybridEncoder(fused))}
    )
    gatherer = Gatherer(resources, [exact, fused, "loaded"], samples=40)
    evidence = gatherer.gather({})
    # The words of a crop are nowhere in what is searched, so only the fit can know its document.
    assert evidence.crops[exact].mean() < 0.3 < 0.9 < evidence.crops[fused].mean()
    for model in (fused, "loaded"):
        crops = estimate_pair(evidence, exact, model)[0]
        assert crops.estimator == CROPS
        assert not crops.applies
        assert "fitted on the documents" in crops.remark
        assert CROPS not in features(evidence, exact, model)
        assert CROPS not in features(evidence, model, exact)
    # vector:M is fitted anew on the documents without their crops.
    fitted = Gatherer(resources, [exact, f"vector:{tiny_cosine}"], samples=40).gather({})
    assert fitted.crops[f"vector:{tiny_cosine}"].mean() < 0.3
    assert estimate_pair(fitted, exact, f"vector:{tiny_cosine}")[0].applies


def test_a_fusion_of_an_earlier_state_of_the_corpus_counts_too(beir_folder, documents, tmp_path):
    seen = collection_provenance(load_collection(beir_folder, labels="none"), queries=False)
    before = replace(seen, corpus_sha256="what it was")
    fused = model(tmp_path / "fused", "fuse", [before], rehearsed=(TERMS,))
    unsaid = model(tmp_path / "unsaid", "fuse", [seen])  # as the first versions wrote it
    both = encoders([fused, unsaid])
    assert find_contamination(both, documents.content_hash).terms == {unsaid}
    assert find_contamination(both, documents.content_hash, seen.dataset).terms == {fused, unsaid}


def test_training_by_spans_does_not_excuse_a_fit(tmp_path):
    seen = Contamination(spans=frozenset(["spans"]), terms=frozenset(["fitted"]))
    crops = {"spans": np.zeros(20), "fitted": np.ones(20)}
    evidence = SimpleNamespace(crops=crops, contamination=seen)
    estimator = held_out_crops(CROPS)
    assert "fitted" in estimator.objection(evidence, "spans", "fitted")
    behind = SimpleNamespace(
        crops={"spans": np.ones(20), "fitted": np.zeros(20)}, contamination=seen
    )
    assert "spans" in estimator.objection(behind, "spans", "fitted")
