"""Cross-encoders, sparse and multi-vector encoders against what their hosts compute."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import write_beir
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Transformer

from beir_cocodr import Searcher, load_collection
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.models.spec import EncoderOptions, ModelSpec, SearchOptions
from beir_cocodr.report.wording import short_names
from beir_cocodr.retrieval.late_interaction import LateInteraction, TokenSearch
from beir_cocodr.retrieval.resources import Resources


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return load_collection(write_beir(tmp_path_factory.mktemp("few") / "data", 24, 12))


@pytest.fixture(scope="module")
def tiny_colbert(tmp_path_factory, tiny_bert):
    torch.manual_seed(5)
    on = "token_embeddings"
    projection = Dense(
        32, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name=on
    )
    modules = [
        Transformer(str(tiny_bert)),
        projection,
        MultiVectorMask(),
        Normalize(module_input_name=on),
    ]
    folder = tmp_path_factory.mktemp("tiny-colbert")
    MultiVectorEncoder(modules=modules, similarity_fn_name="maxsim").save_pretrained(str(folder))
    return folder


def status(*command: object) -> object:
    with pytest.raises(SystemExit) as end:
        main([*map(str, command)])
    return end.value.code


@pytest.fixture
def get(collection, tmp_path):
    """A retriever by its name."""
    return lambda name, options=SearchOptions(): Resources(
        collection.documents, tmp_path, options
    ).ranker(name)


def texts(collection) -> list[str]:
    return [
        f"{document['title']} {document['text']}".strip()
        for document in collection.documents.values()
    ]


def check(ranking, expected: np.ndarray, atol: float = 1e-4) -> None:
    """(Q, N) scores, -inf where a document may not be found."""
    for row, (scores, rows) in enumerate(zip(ranking.scores, ranking.rows, strict=True)):
        found = rows >= 0
        wanted = np.sort(expected[row][np.isfinite(expected[row])])[::-1][: len(rows)]
        np.testing.assert_allclose(scores[found], wanted, atol=atol)
        np.testing.assert_allclose(scores[found], expected[row][rows[found]], atol=atol)


def candidates(get, collection, first: str, depth: int) -> np.ndarray:
    """(Q, N), 0 for what a first stage finds, -inf elsewhere."""
    mask = np.full((len(collection.queries), len(collection.documents)), -np.inf)
    for row, rows in enumerate(get(first).search(collection.queries, depth).rows):
        mask[row, rows[rows >= 0]] = 0
    return mask


@pytest.mark.parametrize("first", ["bm25", "hybrid@0.3:MODEL"])
def test_reranking_is_the_cross_encoders_order_of_what_the_model_finds(
    first, get, collection, tiny_cross, tiny_cosine
):
    first = first.replace("MODEL", str(tiny_cosine))
    found = get(f"rerank:{tiny_cross}@{first}")
    ranking, host = found.search(collection.queries, 200), CrossEncoder(str(tiny_cross))
    pairs = [(query, text) for query in collection.queries.values() for text in texts(collection)]
    raw = host.predict(pairs, activation_fn=torch.nn.Identity()).reshape(
        len(collection.queries), -1
    )
    check(ranking, raw + candidates(get, collection, first, 100))
    assert ranking.rows.shape == (12, 24)
    described = found.describe()
    assert (described["reranked"], described["first_stage"]["model"]) == (
        100,
        get(first).describe()["model"],
    )


def test_no_more_than_100_are_reranked(get, tiny_cross, collection, monkeypatch):
    found = get(f"rerank:{tiny_cross}@bm25")
    asked = []
    search = found.first.search
    monkeypatch.setattr(
        found.first, "search", lambda queries, top_k: asked.append(top_k) or search(queries, top_k)
    )
    found.search(collection.queries, 1_000)
    assert asked == [100]


def test_a_sparse_encoder_is_the_hosts_dot_product(get, collection, tiny_mlm):
    ranking, host = (
        get(f"splade:{tiny_mlm}").search(collection.queries, 48),
        SparseEncoder(str(tiny_mlm)),
    )
    queries = host.encode_query([*collection.queries.values()])
    scores = host.similarity(queries, host.encode_document(texts(collection))).float().numpy()
    check(ranking, np.where(scores > 0, scores, -np.inf), 1e-3)


def test_late_interaction_is_the_hosts_maxsim(get, collection, tiny_colbert):
    host = MultiVectorEncoder(str(tiny_colbert))
    queries, documents = (
        host.encode_query([*collection.queries.values()]),
        host.encode_document(texts(collection)),
    )
    scores = host.similarity(queries, documents).float().cpu().numpy()
    ranking = get(f"colbert:{tiny_colbert}").search(collection.queries, 20)
    check(ranking, scores + candidates(get, collection, "bm25", 1_000))
    everything = LateInteraction(str(tiny_colbert), collection.documents)
    check(everything.search(collection.queries, 20), scores)
    few = LateInteraction(str(tiny_colbert), collection.documents, SearchOptions(), get("bm25"), 3)
    check(few.search(collection.queries, 20), scores + candidates(get, collection, "bm25", 3))
    assert (few.search(collection.queries, 20).rows[:, 3:] == -1).all()


def test_token_search_finds_what_maxsim_over_all_documents_does(
    get, collection, tiny_colbert, tmp_path
):
    exact = get(f"colbert@all:{tiny_colbert}").search(collection.queries, 20)
    tokens = get(f"colbert@tokens:{tiny_colbert}")
    found = tokens.search(collection.queries, 20)
    np.testing.assert_allclose(found.scores, exact.scores, atol=1e-5)
    described = tokens.describe()
    assert (described["candidates"], described["recall"]) == (
        "tokens",
        {"recall@10": 1.0, "recall@100": 1.0, "queries": 10},
    )
    few = TokenSearch(
        str(tiny_colbert), collection.documents, SearchOptions(), depth=20, folder=tmp_path
    )
    nearly = few.search(collection.queries, 3)
    assert (nearly.rows >= 0).all()
    assert np.isin(nearly.scores.round(4), exact.scores.round(4)).mean() > 0.8
    assert few.describe()["recall"]["recall@10"] < 1.01


def test_tokens_are_encoded_once_for_a_model_and_a_corpus(
    collection, tiny_colbert, tmp_path, monkeypatch
):
    first = TokenSearch(str(tiny_colbert), collection.documents, folder=tmp_path)
    ranking = first.search(collection.queries, 5)
    again = TokenSearch(str(tiny_colbert), collection.documents, folder=tmp_path)
    monkeypatch.setattr(again, "vectors", None)
    np.testing.assert_array_equal(again.search(collection.queries, 5).rows, ranking.rows)
    every = LateInteraction(str(tiny_colbert), collection.documents, folder=tmp_path)
    monkeypatch.setattr(every, "vectors", None)
    assert every.search(collection.queries, 5).rows.shape == (12, 5)
    other = TokenSearch(
        str(tiny_colbert), collection.documents, SearchOptions(bf16=True), folder=tmp_path
    )
    assert other.tokens.folder != first.tokens.folder
    assert other.tokens.vectors.dtype == np.float16


def corpus(*texts: str) -> Documents:
    columns = {"id": map(str, range(len(texts))), "title": [""] * len(texts), "text": texts}
    table = pa.table(
        {name: pa.array(list(values), pa.large_string()) for name, values in columns.items()}
    )
    return Documents(table, f"{len(texts):064}")


def test_tokens_of_another_corpus_take_the_place_and_damage_is_seen(tiny_colbert, tmp_path):
    first = TokenSearch(
        str(tiny_colbert), corpus("supersonic flow", "a wing"), folder=tmp_path
    ).tokens
    larger = corpus("supersonic flow", "a wing", "heat transfer")
    second = TokenSearch(str(tiny_colbert), larger, folder=tmp_path).tokens
    assert (len(first), len(second), second.folder) == (2, 3, first.folder)
    with (second.folder / "vectors.bin").open("r+b") as file:
        file.write(b"damaged")
    with pytest.raises(InputError, match=r"vectors\.bin.*delete"):
        _ = TokenSearch(str(tiny_colbert), larger, folder=tmp_path).tokens


@pytest.mark.parametrize("kind", ["rerank", "splade", "colbert"])
def test_bfloat16_is_near_and_not_the_same(
    kind, get, collection, tiny_cross, tiny_mlm, tiny_colbert
):
    names = {
        "rerank": f"rerank:{tiny_cross}@bm25",
        "splade": f"splade:{tiny_mlm}",
        "colbert": f"colbert:{tiny_colbert}",
    }
    single, half = get(names[kind]), get(names[kind], SearchOptions(bf16=True))
    scores = [found.search(collection.queries, 48) for found in (single, half)]
    by_row = [np.take_along_axis(s.scores, np.argsort(s.rows, axis=1), axis=1) for s in scores]
    spread = by_row[0].max() - by_row[0].min()
    assert 0 < np.abs(by_row[0] - by_row[1]).max() < 0.2 * spread
    assert half.describe()["bf16"]
    assert "bf16" not in single.describe()
    assert SearchOptions(bf16=True).describe() != SearchOptions().describe()


def test_lengths_and_prompts_reach_the_hosts(get, collection, tiny_mlm):
    name = f"splade:{tiny_mlm}"
    own = get(name).search(collection.queries, 5).scores
    for given in (
        EncoderOptions(query_length=3),
        EncoderOptions(document_prompt="supersonic nozzle "),
    ):
        assert (
            np.abs(get(name, SearchOptions(given)).search(collection.queries, 5).scores - own).max()
            > 1e-3
        )
    with pytest.raises(InputError, match="query_length is 4000"):
        get(name, SearchOptions(EncoderOptions(query_length=4_000)))


def test_names_are_taken_apart_and_shortened():
    spec = ModelSpec.parse("rerank:cross-encoder/ms-marco@hybrid@0.3:models/mine")
    assert (spec.kind, spec.host, spec.first) == (
        "rerank",
        "cross-encoder/ms-marco",
        "hybrid@0.3:models/mine",
    )
    assert (spec.encoder, spec.prefix) == ("models/mine", "rerank:ms-marco@hybrid@0.3:")
    lucene = ModelSpec.parse("rerank:c@lucene-bm25")
    assert (lucene.first, lucene.encoder, lucene.prefix) == (
        "lucene-bm25",
        "bm25",
        "rerank:c@lucene-",
    )
    labels = ["rerank:a/c@bm25", "splade:a/b", "colbert:a/b"]
    assert [*file_names(labels).values()] == ["rerank-c-bm25", "splade-b", "colbert-b"]
    assert [*short_names(labels).values()] == ["rerank:c@bm25", "splade:b", "colbert:b"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rerank:CROSS", "CROSS-ENCODER@M"),
        ("rerank:@bm25", "CROSS-ENCODER@M"),
        ("splade:", "splade:M"),
        ("colbert:", "colbert:M"),
        ("rerank:CROSS@hybrid:", "hybrid:minilm"),
        ("rerank:DENSE@bm25", "classifier"),
        ("splade:DENSE", "random"),
        ("colbert:DENSE", "random"),
    ],
)
def test_names_and_models_that_are_something_else(
    name, message, beir_folder, tiny_cross, tiny_cosine, tmp_path, capsys
):
    name = name.replace("DENSE", str(tiny_cosine)).replace(":CROSS", f":{tiny_cross}")
    command = ("evaluate", "--dataset", beir_folder, "--model", name, "--output", tmp_path / "o")
    assert status(*command) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error


@pytest.mark.usefixtures("few_resamples")
def test_wherever_a_model_is_named(tiny_cross, tiny_mlm, tiny_colbert, tmp_path, capsys):
    folder = write_beir(tmp_path / "data", 24, 12)
    models = [f"rerank:{tiny_cross}@bm25", f"splade:{tiny_mlm}", f"colbert:{tiny_colbert}"]
    named = [word for model in models for word in ("--model", model)]
    output, common = tmp_path / "o", ("--dataset", folder)
    assert status("evaluate", *common, *named, "--output", output, "--bf16") == 0
    results = json.loads((output / "results.json").read_text())
    assert [*results["models"]] == models
    assert all(0 < found["measures"]["nDCG@10"] <= 1 for found in results["models"].values())
    assert status("report", output) == 0
    assert "colbert:" in (output / "report.html").read_text()
    assert (
        status(
            "compare", *common, *models, "--output", tmp_path / "c", "--no-labels", "--samples", 10
        )
        == 0
    )
    assert len(json.loads((tmp_path / "c" / "comparison.json").read_text())["pairs"]) == 3
    capsys.readouterr()
    assert status("search", *common, "--model", models[2], "--json", "wing flow") == 0
    assert json.loads(capsys.readouterr().out)
    for model in models:
        assert Searcher(folder, model).search("wing flow", 3)[0].rank == 1
