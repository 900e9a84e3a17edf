"""Our models in BEIR's classes, and our search in BEIR's evaluation."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from beir.datasets.data_loader import GenericDataLoader
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalExactSearch
from beir_cocodr.plugins.beir import (
    COCODR,
    MRL,
    ExactSearch,
    ModelSearch,
    evaluator,
    load,
    load_encoder,
    score_function,
)
from conftest import exit_code

from beir_cocodr import FuseOptions, evaluate, fuse
from beir_cocodr.errors import InputError

K = [1, 5, 20]


@pytest.fixture(scope="module")
def beirs(beir_folder):
    return GenericDataLoader(str(beir_folder)).load(split="test")


@pytest.fixture(scope="module", params=["bare", "cosine", "mrl"])
def model(request, tiny_bert, tiny_cosine):
    if request.param == "mrl":
        return MRL(str(tiny_bert))
    return COCODR(tiny_bert) if request.param == "bare" else load_encoder(tiny_cosine)


def test_models_go_into_beirs_classes_unchanged(model, beirs):
    corpus, queries, qrels = beirs
    retriever = EvaluateRetrieval(
        DenseRetrievalExactSearch(model, show_progress_bar=False),
        K,
        score_function=score_function(model),
    )
    expected = retriever.evaluate(qrels, retriever.retrieve(corpus, queries), K)
    ours = evaluator(model, K, show_progress_bar=False)
    found = ours.evaluate(qrels, ours.retrieve(corpus, queries), K)
    assert found == expected
    assert 0 < found[0]["NDCG@20"] < 1


@pytest.mark.parametrize("prefix", ["", "hybrid:", "feedback:"])
def test_uses_of_a_model_have_our_figures_in_beirs_evaluation(
    prefix, beir_folder, beirs, tiny_cosine, tmp_path
):
    """Feedback is that of a hybrid encoder, the others are of a plain one."""
    folder = tiny_cosine
    if prefix == "feedback:":
        folder = tmp_path / "fused"
        options = FuseOptions(lexical="hash", bytes_per_document=144)
        fuse(str(tiny_cosine), str(beir_folder), output=folder, options=options)
    name = f"{prefix}{folder}"
    corpus, queries, qrels = beirs
    retriever = EvaluateRetrieval(ModelSearch(name), K)
    found, *_ = retriever.evaluate(qrels, retriever.retrieve(corpus, queries), K)
    ours = evaluate({"m": name}, str(beir_folder), measures="nDCG@5 nDCG@20").models["m"].measures
    for k in (5, 20):
        assert found[f"NDCG@{k}"] == pytest.approx(ours[f"nDCG@{k}"], abs=1e-5)
    assert 0 < found["NDCG@20"] < 1


def test_the_similarity_is_the_models_own(tiny_bert, tiny_cosine):
    assert score_function(COCODR(tiny_bert)) == "dot"
    assert score_function(load_encoder(tiny_cosine)) == "cos_sim"
    assert evaluator(tiny_cosine).score_function == "cos_sim"
    assert evaluator(str(tiny_bert)).score_function == "dot"
    with pytest.raises(InputError, match="similarity None"):
        score_function(object())


def test_defaults_are_beirs():
    class Model:
        similarity_fn_name = "dot"

        def encode(self, texts):
            raise AssertionError("nothing is searched")

    ours, theirs = evaluator(Model()), EvaluateRetrieval()
    assert (ours.k_values, ours.top_k) == (theirs.k_values, theirs.top_k)
    assert isinstance(ours.retriever, ExactSearch)


def test_load_is_what_beirs_loader_gives(beir_folder, beirs):
    corpus, queries, qrels = load(beir_folder)
    assert dict(corpus) == beirs[0]
    assert (queries, qrels) == beirs[1:]


def test_a_store_gives_the_same_and_is_read_the_second_time(
    tiny_cosine, beirs, tmp_path, monkeypatch
):
    corpus, queries, _ = beirs
    expected = evaluator(tiny_cosine, K, show_progress_bar=False).retrieve(corpus, queries)
    first = evaluator(tiny_cosine, K, store=tmp_path / "store", show_progress_bar=False)
    results = first.retrieve(corpus, queries)
    assert [list(found) for found in results.values()] == [
        list(found) for found in expected.values()
    ]
    encoder = load_encoder(tiny_cosine)
    monkeypatch.setattr(
        encoder, "encode_corpus", lambda *args, **kwargs: pytest.fail("encoded again")
    )
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "store").rglob("*.npy")}
    again = evaluator(encoder, K, store=tmp_path / "store", show_progress_bar=False)
    assert again.retrieve(corpus, queries) == results
    assert files
    assert files == {file: file.stat().st_mtime_ns for file in (tmp_path / "store").rglob("*.npy")}


def _import_beside_beir() -> None:
    for name in [
        name for name in sys.modules if name.startswith(("beir.", "beir_cocodr.plugins.beir"))
    ]:
        del sys.modules[name]
    evaluation = import_module("beir.retrieval.evaluation")
    search = import_module("beir.retrieval.search.dense.exact_search")
    looked_at = (evaluation, search, evaluation.EvaluateRetrieval, search.DenseRetrievalExactSearch)
    before = [dict(vars(one)) for one in looked_at]
    import_module("beir_cocodr.plugins.beir")
    assert [dict(vars(one)) for one in looked_at] == before


@pytest.mark.parametrize(
    ("corpus", "queries", "message"),
    [
        ({"d\ud800": {"text": "wing"}}, {"q1": "wing"}, r"document 'd\\ud800' .*at position 1"),
        ({"d1": {"text": "wing \ud800"}}, {"q1": "wing"}, "document 'd1' .*at position 5"),
        ({"d1": {"text": "wing"}}, {"q\ud800": "wing"}, r"query id 'q\\ud800' .*at position 1"),
        ({"d1": {"text": "wing"}}, {"q1": "wing \ud800"}, "query 'q1' .*at position 5"),
    ],
)
def test_an_unpaired_surrogate_is_named_with_its_position(corpus, queries, message):
    with pytest.raises(InputError, match=message):
        ModelSearch("bm25").search(corpus, queries, 1)


def test_importing_leaves_beir_as_it_was():
    assert exit_code(_import_beside_beir) == 0
