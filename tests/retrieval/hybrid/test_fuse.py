"""Fitting a hybrid encoder: with all components it is the exact fusion, and what is chosen is
chosen by agreement.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from beir_cocodr import FuseOptions, HybridEncoder, fuse, load_collection, load_encoder
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.errors import InputError
from beir_cocodr.models.hybrid_encoder import BY_LENGTH, over_deviation
from beir_cocodr.provenance import read_record
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid import hybrid_fit as module
from beir_cocodr.retrieval.hybrid.fusion import z_normalize
from beir_cocodr.retrieval.hybrid.hybrid_fit import TermCounts, spread
from beir_cocodr.retrieval.ranking import best_rows
from beir_cocodr.retrieval.store.encode import encode

EVERYTHING = FuseOptions(lexical="svd", bytes_per_document=100_000)


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder)


@pytest.fixture(scope="module")
def whole(beir_folder, tiny_cosine, tmp_path_factory) -> Path:
    """With as many components as BM25's weights have."""
    folder = tmp_path_factory.mktemp("fused") / "whole"
    fuse(str(tiny_cosine), str(beir_folder), output=folder, options=EVERYTHING)
    return folder


def exact(collection, encoder: str, weight: float) -> np.ndarray:
    """(Q, N) scores of the fusion, by brute force."""
    dense, texts = load_encoder(encoder), list(collection.queries.values())
    documents = dense.encode_corpus(list(collection.documents.values()), normalize_embeddings=True)
    scores = dense.encode_queries(texts, normalize_embeddings=True) @ documents.T
    bm25 = BM25(collection.documents)
    lexical = np.stack([bm25.scores(text) for text in texts])
    return (z_normalize(scores) + weight * z_normalize(lexical)) / (1 + weight)


def scores_of(model: HybridEncoder, collection) -> np.ndarray:
    queries = model.encode_queries(list(collection.queries.values()))
    return queries @ model.encode_corpus(list(collection.documents.values())).T


def test_a_file_without_queries_is_named(beir_folder, tiny_cosine, tmp_path, caplog):
    folder = tmp_path / "data"
    shutil.copytree(beir_folder, folder)
    (folder / "queries.jsonl").write_text("")
    fuse(str(tiny_cosine), str(folder), output=tmp_path / "fused", options=EVERYTHING)
    assert f"{folder / 'queries.jsonl'} contains no query" in caplog.text
    (folder / "queries.jsonl").unlink()
    fuse(str(tiny_cosine), str(folder), output=tmp_path / "again", options=EVERYTHING)
    assert f"{folder} has judgements, and no queries" in caplog.text


@pytest.mark.parametrize("weight", [0.5, 1.0, 3.0])
def test_with_all_components_it_is_the_fusion_to_rounding(
    collection, beir_folder, tiny_cosine, tmp_path, weight
):
    options = FuseOptions(lexical="svd", bytes_per_document=100_000, bm25_weight=weight)
    record = fuse(str(tiny_cosine), str(beir_folder), output=tmp_path / "fused", options=options)
    found = scores_of(HybridEncoder(tmp_path / "fused"), collection)
    wanted = exact(collection, str(tiny_cosine), weight)
    np.testing.assert_allclose(found - found.mean(axis=1, keepdims=True), wanted, atol=2e-4)
    assert record.details["agreement"] > 0.99
    ties = collection.documents.tie_ranks()
    for ours, theirs in zip(found, wanted, strict=True):
        rows, expected = best_rows(ours, ties, 10), best_rows(theirs, ties, 10)
        np.testing.assert_allclose(theirs[rows], theirs[expected], atol=1e-3)


def test_without_weight_it_is_the_dense_encoder(collection, beir_folder, tiny_cosine, tmp_path):
    fuse(
        str(tiny_cosine),
        str(beir_folder),
        output=tmp_path / "fused",
        options=FuseOptions(bm25_weight=0.0),
    )
    found = scores_of(HybridEncoder(tmp_path / "fused"), collection)
    np.testing.assert_allclose(
        found - found.mean(axis=1, keepdims=True),
        exact(collection, str(tiny_cosine), 0.0),
        atol=1e-4,
    )


def test_the_weight_may_follow_the_length_of_the_query(beir_folder, tiny_cosine, tmp_path):
    fuse(
        str(tiny_cosine),
        str(beir_folder),
        output=tmp_path / "fused",
        options=FuseOptions(weight_by_length=True),
    )
    model = HybridEncoder(tmp_path / "fused")
    parts = model.encode_query_parts(
        ["wing", "wing flow shock layer pressure drag", "wing " * 40, "the of"]
    )
    each, least, most = BY_LENGTH
    assert parts[:, -1].tolist() == pytest.approx([least, 6 * each, most, least])


@settings(max_examples=40, deadline=None)
@given(
    arrays(np.float32, (7, 4), elements=st.floats(-8, 8, width=32)),
    arrays(np.float32, 4, elements=st.floats(-8, 8, width=32)),
)
def test_a_query_is_divided_by_the_deviation_of_its_scores(documents, query):
    scores = documents.astype(float) @ query.astype(float)
    found = (
        over_deviation(torch.from_numpy(query)[None], torch.from_numpy(spread(documents)).float())[
            0
        ]
        .double()
        .numpy()
    )
    if scores.std() > 1e-3:
        np.testing.assert_allclose(found, query / scores.std(), rtol=2e-3, atol=1e-5)
    if (documents == documents[0]).all():
        assert not found.any(), "no deviation, no part"


def test_a_hashed_product_is_unbiased():
    """The mean over seeds of <h(x), h(y)> is <x, y>; buckets of many sizes stand in for seeds."""
    from beir_cocodr.models.hybrid_encoder import hash_terms

    rng = np.random.default_rng(0)
    terms = [f"term{i}" for i in range(60)]
    x, y = rng.random(60), rng.random(60)
    found = []
    for buckets in range(100, 500):
        numbers, signs = (part.numpy() for part in hash_terms(terms, buckets))
        left, right = np.zeros(buckets), np.zeros(buckets)
        np.add.at(left, numbers, signs * x)
        np.add.at(right, numbers, signs * y)
        found.append(left @ right)
    assert abs(np.mean(found) - x @ y) < 4 * np.std(found) / np.sqrt(len(found))
    assert np.std(found) > 0


@pytest.mark.parametrize("lexical", ["hash", "svd+hash"])
def test_what_svd_loses_is_hashed(collection, beir_folder, tiny_cosine, tmp_path, lexical):
    """With far more buckets than terms nothing is lost but what shares a bucket."""
    options = FuseOptions(lexical=lexical, bytes_per_document=2 * (32 + 60))
    record = fuse(str(tiny_cosine), str(beir_folder), output=tmp_path / "fused", options=options)
    assert record.details["kind"] == lexical
    found = scores_of(HybridEncoder(tmp_path / "fused"), collection)
    wanted = exact(collection, str(tiny_cosine), 0.5)
    assert (
        np.corrcoef((found - found.mean(axis=1, keepdims=True)).ravel(), wanted.ravel())[0, 1] > 0.9
    )


def test_kind_and_size_are_chosen_by_agreement_within_the_budget(
    beir_folder, tiny_cosine, tmp_path
):
    record = fuse(
        str(tiny_cosine),
        str(beir_folder),
        output=tmp_path / "fused",
        options=FuseOptions(bytes_per_document=2 * (32 + 24)),
    )
    tried = record.details["candidates"]
    assert {one["kind"] for one in tried} == {"svd", "hash", "svd+hash"}
    assert all(one["components"] + one["hashed"] <= 24 for one in tried)
    best = max(one["agreement"] for one in tried)
    assert record.details["agreement"] >= best - 0.01
    assert record.details["bytes_per_document"]["fp16"] <= 2 * (32 + 24)
    assert read_record(tmp_path / "fused").details == record.details


def test_terms_are_counted_as_bm25_counts_them(collection):
    analyze = Analyzer("english")
    texts = [f"{d['title']} {d['text']}" for d in collection.documents.values()]
    counts = TermCounts.of(iter(texts), analyze, 1000)
    by_hand = Counter(term for text in texts for term in set(analyze(text)))
    assert counts.frequencies == dict(by_hand)
    fewer = TermCounts.of(iter(texts), analyze, 5)
    assert list(fewer.frequencies) == list(counts.frequencies)[:5]
    assert fewer.left_out == len(by_hand) - 5
    assert 0 < fewer.left_out_share < 1


def test_a_large_vocabulary_is_not_looked_through_for_every_document():
    looks = []

    class Watched(Counter):
        def items(self):
            looks.append(len(self))
            return super().items()

    tally = module._Tally(documents_with=Watched())
    for number in range(400):
        for _ in range(2):  # no term stands once for long
            tally.add([f"term{number // 2}", f"term{number // 2 + 1}"], 50)
    assert len(looks) < 10


@pytest.mark.parametrize(
    "text", ["Return the sorted arrays, of np.ndarray_x!", "", "a I", "Ångström naïve 中文 x1"]
)
@pytest.mark.parametrize("name", ["english", "none"])
def test_the_analyzer_reads_as_the_host_does(text, name):
    import bm25s
    import Stemmer

    host = (
        {"stopwords": "english", "stemmer": Stemmer.Stemmer("english")}
        if name == "english"
        else {"stopwords": []}
    )
    [terms] = bm25s.tokenize(
        [text], **host, return_ids=False, show_progress=False, allow_empty=False
    )
    assert Analyzer(name)(text) == [term for term in terms if term]


def test_the_command_line_fuses_and_keeps_what_is_there(beir_folder, tiny_cosine, tmp_path, capsys):
    arguments = [
        "fuse",
        "--dataset",
        str(beir_folder),
        "--model",
        str(tiny_cosine),
        "--output",
        str(tmp_path / "fused"),
    ]

    def run(*more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *more])
        return int(ended.value.code)

    assert run("--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["stage"] == "fuse"
    assert 0 < record["agreement"] <= 1
    assert run() == 2
    assert "is not empty" in capsys.readouterr().err
    assert run("--resume") == 0
    assert "agreement" in capsys.readouterr().out
    assert run("--resume", "--bm25-weight", "1") == 2
    assert "options: bm25_weight" in capsys.readouterr().err


def test_what_cannot_be_fused_is_named(beir_folder, whole, tiny_cosine, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"HybridEncoder.*plain"):
        fuse(str(whole), str(beir_folder), output=tmp_path / "twice")
    with pytest.raises(InputError, match="no room for BM25"):
        fuse(
            str(tiny_cosine),
            str(beir_folder),
            output=tmp_path / "narrow",
            options=FuseOptions(bytes_per_document=64),
        )
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "1", "text": "!"}\n{"_id": "2", "text": "?"}\n')
    with pytest.raises(InputError, match="no document has a term"):
        fuse(str(tiny_cosine), str(corpus), output=tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
    store = tmp_path / "store"
    encode(str(beir_folder), str(whole), store)
    monkeypatch.setattr(module, "count_terms", None)  # which takes long, and is not begun
    with pytest.raises(InputError, match="no model here needs it"):
        fuse(
            str(tiny_cosine),
            str(beir_folder),
            output=tmp_path / "out",
            options=EVERYTHING,
            stores=[store],
        )


def test_queries_that_cannot_be_read_are_an_error_before_anything_is_encoded(
    beir_folder, tiny_cosine, tmp_path
):
    data = tmp_path / "data"
    shutil.copytree(beir_folder, data)
    (data / "queries.jsonl").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(InputError, match=r"queries\.jsonl"):
        fuse(str(tiny_cosine), str(data), output=tmp_path / "o")
    (data / "queries.jsonl").unlink()
    (data / "queries.jsonl").mkdir()
    with pytest.raises(InputError, match=r"queries\.jsonl.* not a file"):
        fuse(str(tiny_cosine), str(data), output=tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_objects_are_taken_at_the_door(beir_folder, tiny_cosine, tmp_path):
    """A loaded encoder and a collection make the same vectors as their names, and do not change."""
    options = FuseOptions(lexical="svd", sample=30, probes=4)
    fuse(str(tiny_cosine), beir_folder, output=tmp_path / "named", options=options)
    model = load_encoder(str(tiny_cosine))
    collection = load_collection(beir_folder, labels="none")
    record = fuse(model, collection, output=tmp_path / "loaded", options=options)
    assert Path(record.base) == Path(tiny_cosine)
    assert not isinstance(model, HybridEncoder)
    assert model.encode_query(["wing"]).shape == (1, 32)
    named, loaded = HybridEncoder(tmp_path / "named"), HybridEncoder(tmp_path / "loaded")
    np.testing.assert_array_equal(
        named.encode_document(["wing flow"]), loaded.encode_document(["wing flow"])
    )
    with pytest.raises(TypeError, match=r"write fuse\('minilm', 'apidocs/numpy', output='o'\)"):
        fuse("apidocs/numpy", "minilm", "o")
