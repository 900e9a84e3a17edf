"""Passes over a finished store: smoothing equals its matrix form, and terms are added without
encoding.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from beir_cocodr import FuseOptions, HybridEncoder, fuse, load_collection, load_encoder
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import SearchOptions, SmoothOptions
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.passes import smooth
from beir_cocodr.retrieval.store.record import REFIT_FILE, EncodeOptions, Refit
from beir_cocodr.retrieval.store.store import EmbeddingStore


@pytest.fixture(scope="module")
def place(beir_folder, tiny_cosine, tmp_path_factory) -> Path:
    """A hybrid encoder, its store and that of its dense part."""
    place = tmp_path_factory.mktemp("passes")
    encode(str(beir_folder), str(tiny_cosine), place / "dense", EncodeOptions(shard_size=20))
    options = FuseOptions(lexical="svd", bytes_per_document=2 * (32 + 24))
    fuse(str(beir_folder), str(tiny_cosine), place / "model", options, stores=[place / "dense"])
    encode(str(beir_folder), str(place / "model"), place / "store", EncodeOptions(shard_size=20))
    return place


@pytest.fixture(scope="module")
def model(place) -> HybridEncoder:
    return HybridEncoder(place / "model")


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def matrix_form(vectors: np.ndarray, parts: list[int], k: int, weight: float) -> np.ndarray:
    """(N, w) smoothed by V <- ((1 - l) I + l / k W) V, W the (N, N) graph of neighbours."""
    space = np.concatenate([unit(part) for part in np.split(vectors, parts, axis=1)], axis=1)
    likeness = space @ space.T
    np.fill_diagonal(likeness, -np.inf)
    graph = np.zeros_like(likeness)
    np.put_along_axis(graph, np.argsort(-likeness, axis=1)[:, :k], 1 / k, axis=1)
    smoothed: np.ndarray = ((1 - weight) * np.eye(len(vectors)) + weight * graph) @ vectors
    return smoothed


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_smoothing_is_its_matrix_form(kind, place, model, tiny_cosine, tmp_path):
    source = place / ("store" if kind == "hybrid" else "dense")
    encoder = model if kind == "hybrid" else load_encoder(tiny_cosine)
    smoothed = smooth(source, encoder, tmp_path / "smooth", SmoothOptions(3, 0.4)).load().numpy()
    vectors = EmbeddingStore.open(source).load().numpy().astype(float)
    np.testing.assert_allclose(
        smoothed, matrix_form(vectors, [32] if kind == "hybrid" else [], 3, 0.4), atol=1e-5
    )


def test_queries_are_divided_by_the_deviations_of_the_smoothed_parts(
    place, model, beir_folder, tmp_path
):
    """Each part of a score has the deviation of its weight over the smoothed documents."""
    store = smooth(place / "store", model, tmp_path / "smooth")
    collection = load_collection(beir_folder)
    queries, _ = store.queries(
        torch.from_numpy(model.encode_queries(list(collection.queries.values())))
    )
    documents = store.load()
    for part, share in ((slice(0, 32), 1 / 1.5), (slice(32, None), 0.5 / 1.5)):
        deviations = (queries[:, part] @ documents[:, part].T).std(dim=1, correction=0)
        np.testing.assert_allclose(deviations, share, rtol=1e-3)
    search = Resources(collection.documents, tmp_path, SearchOptions(stores=(tmp_path / "smooth",)))
    found = search.ranker(str(place / "model")).search(collection.queries, 5)
    expected = (queries @ documents.T).sort(dim=1, descending=True).values[:, :5]
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    assert (
        search.ranker(f"feedback:{place / 'model'}").search(collection.queries, 5).rows.shape
        == found.rows.shape
    )


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("smoothed", [False, True])
def test_what_is_tried_without_making_it_ranks_as_what_is_made(
    place, model, beir_folder, tiny_cosine, tmp_path, smoothed, feedback
):
    store = (
        smooth(place / "store", model, tmp_path / "smooth")
        if smoothed
        else EmbeddingStore.open(place / "store")
    )
    collection = load_collection(beir_folder)
    search = Resources(collection.documents, tmp_path, SearchOptions(stores=(store.folder,)))
    wanted = search.ranker(("feedback:" if feedback else "") + str(place / "model")).search(
        collection.queries, 10
    )
    settings = "0.5,r24" + ",smooth" * smoothed + ",feedback" * feedback
    plain = Resources(collection.documents, tmp_path / "plain")
    found = plain.ranker(f"vector@{settings}:{tiny_cosine}").search(collection.queries, 10)
    same = [len(np.intersect1d(*pair)) for pair in zip(found.rows, wanted.rows, strict=True)]
    assert np.mean(same) > 9.5


def test_truncated_bm25_of_full_rank_is_bm25(beir_folder, tiny_cosine, tmp_path):
    collection = load_collection(beir_folder)
    search = Resources(collection.documents, tmp_path)
    exact = search.ranker(f"hybrid@0.7:{tiny_cosine}").search(collection.queries, 10)
    found = search.ranker(f"vector@0.7:{tiny_cosine}").search(collection.queries, 10)
    np.testing.assert_allclose(found.scores, exact.scores, atol=1e-4)


def test_beyond_what_is_compared_exactly_an_index_finds_neighbours(place, model, tmp_path):
    pytest.importorskip("faiss")
    exact = smooth(place / "store", model, tmp_path / "exact").load()
    found = smooth(place / "store", model, tmp_path / "indexed", exact=10).load()
    assert torch.nn.functional.cosine_similarity(exact, found).mean() > 0.95


def test_terms_are_added_to_a_store_of_the_dense_part(place, beir_folder, tmp_path, capsys):
    arguments = ["encode", "--dataset", str(beir_folder), "--model", str(place / "model")]

    def run(*more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *more])
        return int(ended.value.code)

    assert run("--output", str(tmp_path / "added"), "--dense", str(place / "dense"), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["documents_encoded"] == 0
    assert report["refit"] == Refit.read(tmp_path / "added" / REFIT_FILE).describe()
    added, encoded = EmbeddingStore.open(tmp_path / "added"), EmbeddingStore.open(place / "store")
    assert added.record.identity == encoded.record.identity
    np.testing.assert_allclose(added.load(), encoded.load(), atol=1e-5)
    assert run("--output", str(tmp_path / "smooth"), "--smooth", str(tmp_path / "added")) == 0
    assert run("--output", str(tmp_path / "again"), "--smooth", str(tmp_path / "smooth")) == 2
    assert "smoothed already" in capsys.readouterr().err
    assert run("--output", str(tmp_path / "other"), "--dense", str(place / "store")) == 2
    assert "not fused" in capsys.readouterr().err
    assert (
        run(
            "--output",
            str(tmp_path / "other"),
            "--dense",
            str(place / "dense"),
            "--smooth",
            str(tmp_path),
        )
        == 2
    )
    assert "one of them" in capsys.readouterr().err


def test_a_smoothed_store_without_its_balance_is_an_error(place, model, tmp_path):
    smooth(place / "store", model, tmp_path / "smooth")
    (tmp_path / "smooth" / "balance.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"balance\.safetensors"):
        EmbeddingStore.open(tmp_path / "smooth").queries(
            torch.zeros(1, model.get_embedding_dimension())
        )
