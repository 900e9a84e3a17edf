"""Feedback of a hybrid encoder against numpy over all documents, and its invariants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr import FuseOptions, HybridEncoder, fuse, load_collection
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.provenance import read_record
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid import hybrid_feedback
from beir_cocodr.retrieval.hybrid.fusion import Hybrid
from beir_cocodr.retrieval.hybrid.hybrid_feedback import HybridFeedback
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions


@pytest.fixture(scope="module")
def folder(beir_folder, tiny_cosine, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid") / "model"
    options = FuseOptions(lexical="svd+hash", bytes_per_document=2 * (32 + 40))
    fuse(str(tiny_cosine), str(beir_folder), output=folder, options=options)
    return folder


@pytest.fixture(scope="module")
def model(folder) -> HybridEncoder:
    return HybridEncoder(folder)


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder)


@pytest.fixture
def feedback(folder, collection, tmp_path) -> HybridFeedback:
    ranker = Resources(collection.documents, tmp_path).ranker(f"feedback:{folder}")
    assert isinstance(ranker, HybridFeedback)
    return ranker


def z_score(scores: np.ndarray) -> np.ndarray:
    return (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)


def oracle(
    model: HybridEncoder, texts: list[str], documents: list[dict[str, str]], weight: float
) -> np.ndarray:
    """Return the (Q, N) scores of the formula, from texts, in float64 and without a shortcut."""
    head = model.head
    dense = model.encode_corpus(documents)[:, : head.dimension].astype(np.float64)
    terms = head.features([model.text_format.document(document) for document in documents])
    lexical = head.lexical(terms, "document").double().numpy()  # x_d, neither centred nor scaled
    parts = model.encode_query_parts(texts).double().numpy()
    w = head.bm25_weight
    fused = z_score(parts[:, : head.dimension] @ dense.T)
    fused = fused + w * z_score(parts[:, head.dimension : -1] @ lexical.T)
    lengths = np.linalg.norm(lexical, axis=1, keepdims=True)
    directions = np.where(lengths > 0, lexical / np.where(lengths > 0, lengths, 1), 0)
    joint = np.concatenate([dense, directions], axis=1)
    joint -= joint.mean(axis=0)
    best = np.argsort(-fused, axis=1, kind="stable")[:, :3]
    towards = joint[best].mean(axis=1)
    return (fused + weight * z_score(towards @ joint.T)) / (1 + w)


def test_feedback_is_its_formula(feedback, model, collection):
    texts = list(collection.queries.values())
    documents = list(collection.documents.values())
    expected = oracle(model, texts, documents, 0.5)
    ranking = feedback.search(collection.queries, 10)
    for row, scores, of_query in zip(ranking.rows, ranking.scores, expected, strict=True):
        np.testing.assert_allclose(of_query[row], np.sort(of_query)[::-1][:10], atol=1e-3)
        # A constant of the query, the means of the z-scores, is not part of the dot product.
        np.testing.assert_allclose(np.diff(scores), np.diff(of_query[row]), atol=1e-3)


def test_lengths_of_lexical_parts_count_in_the_fusion_alone(feedback, model):
    """A document ten times as heavy in all its terms has the same direction."""
    width = model.head.dimension
    raw = torch.rand(4, 40)
    mean = model.head.mean
    stored = torch.cat([torch.rand(4, width), (raw - mean) * model.head.scale], dim=1)
    heavier = torch.cat([stored[:, :width], (10 * raw - mean) * model.head.scale], dim=1)
    directions = feedback._widen(stored)[:, -40:]
    torch.testing.assert_close(feedback._widen(heavier)[:, -40:], directions)
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(feedback._widen(stored)[:, : width + 40], stored)


def test_a_document_without_known_terms_has_no_direction(feedback, model):
    vector = torch.from_numpy(model.encode_document(["", "zzz"]))
    assert vector[:, model.head.dimension :].any()  # centring moves it
    widened = feedback._widen(vector)
    assert not widened[:, -40:].any()


def test_without_weight_it_is_the_hybrid_encoder(feedback, folder, collection, tmp_path):
    feedback.weight = 0.0
    plain = Resources(collection.documents, tmp_path / "plain").ranker(str(folder))
    expected = plain.search(collection.queries, 20)
    ranking = feedback.search(collection.queries, 20)
    np.testing.assert_allclose(ranking.scores, expected.scores, atol=1e-5)


@given(weight=st.floats(0.01, 20), documents=st.integers(1, 5))
def test_best_documents_move_up_the_more_the_larger_the_weight(weight, documents, small_feedback):
    """Among the first search's best, feedback's own similarity decides as its weight grows."""
    small_feedback.documents = documents
    query = {"q": "wing flow shock"}
    small_feedback.weight = weight
    moved = small_feedback.move(query)
    small_feedback.weight = 2 * weight
    doubled = small_feedback.move(query)
    small_feedback.weight = 0.0
    unmoved = small_feedback.move(query)
    torch.testing.assert_close(doubled - unmoved, 2 * (moved - unmoved), rtol=1e-3, atol=1e-4)
    deviation = (small_feedback.embeddings.load() @ (moved - unmoved).T).std(correction=0)
    w = small_feedback.model.head.bm25_weight
    assert float(deviation) == pytest.approx(weight / (1 + w), rel=1e-3)


@pytest.fixture(scope="module")
def small_feedback(folder, collection, tmp_path_factory) -> HybridFeedback:
    resources = Resources(collection.documents, tmp_path_factory.mktemp("small"))
    ranker = resources.ranker(f"feedback:{folder}")
    assert isinstance(ranker, HybridFeedback)
    return ranker


def test_large_vectors_are_widened_as_they_are_read(feedback, folder, collection, tmp_path):
    expected = feedback.search(collection.queries, 10)
    ranker = Resources(collection.documents, tmp_path / "large").ranker(f"feedback:{folder}")
    ranker.dense.prepare()
    ranker.dense.in_memory = 0
    ranking = ranker.search(collection.queries, 10)
    assert type(ranker.embeddings).__name__ == "MappedEmbeddings"
    np.testing.assert_array_equal(ranking.rows, expected.rows)


def test_a_sample_of_a_large_corpus_gives_the_deviations(feedback, collection, monkeypatch):
    every = feedback.move(collection.queries)
    monkeypatch.setattr(hybrid_feedback, "_SAMPLE", len(collection.documents) // 2)
    some = HybridFeedback(feedback.dense).move(collection.queries)
    similarity = torch.nn.functional.cosine_similarity(every, some, dim=1)
    assert 0.9 < float(similarity.min()) < 1 - 1e-6


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_stores_of_hybrid_encoders_serve_feedback_as_they_are(
    precision, feedback, folder, beir_folder, collection, tmp_path
):
    """Nothing is stored for feedback, so that folders from before it serve it, too."""
    store = tmp_path / precision
    encode(str(beir_folder), str(folder), store, EncodeOptions(precision=precision))
    options = SearchOptions(stores=(store,))
    ranker = Resources(collection.documents, tmp_path / "work", options).ranker(
        f"feedback:{folder}"
    )
    expected = feedback.search(collection.queries, 5)
    ranking = ranker.search(collection.queries, 5)
    tolerance = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.2}[precision]
    np.testing.assert_allclose(ranking.scores, expected.scores, atol=tolerance)


def test_one_document_is_found(folder, tmp_path):
    alone = load_collection({"d": {"title": "", "text": "wing flow"}}, labels="none")
    ranker = Resources(alone.documents, tmp_path).ranker(f"feedback:{folder}")
    ranking = ranker.search({"q": "wing"}, 5)
    assert ranking.rows.tolist() == [[0]]
    assert np.isfinite(ranking.scores).all()


def test_best_documents_may_come_from_the_exact_fusion(feedback, model, folder, collection):
    bm25 = BM25(collection.documents)
    exact = HybridFeedback(feedback.dense, bm25)
    parts = model.encode_query_parts(list(collection.queries.values()))
    base = Resources(collection.documents, folder).ranker(read_record(folder).base)
    dense = parts[:, :32].contiguous()
    expected = Hybrid(base, bm25, 0.5).rank(collection.queries, dense, 3).rows
    first = model.join(parts)
    np.testing.assert_array_equal(exact._best(collection.queries, parts, first), expected)
    assert exact.search(collection.queries, 5).rows.shape == (len(collection.queries), 5)


def test_the_verdict_takes_it_for_an_expanded_fusion(folder, collection, tmp_path):
    resources = Resources(collection.documents, tmp_path)
    name = f"feedback:{folder}"
    kind = Gatherer._kind(type("G", (), {"resources": resources})(), name, resources.ranker(name))
    assert kind == "rm3"
