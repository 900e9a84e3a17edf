"""Encoders behind an endpoint, served by a real server on this machine over a tiny real BERT."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from beir_cocodr import Searcher, compare, evaluate, load_encoder
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.endpoints import KEY_VARIABLE
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.compare import CompareOptions
from beir_cocodr.http_requests import ServerError
from beir_cocodr.models.endpoint_encoder import Pieces
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from tests.http_servers import Asked, Reply, serving


def status(arguments):
    """Run a command, and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


class Embeddings:
    """A server of ``/v1/embeddings`` over a sentence-transformers model, loaded on its own."""

    def __init__(self, folder):
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(str(folder), device="cpu")
        self.texts = []

    def __call__(self, asked: Asked):
        assert asked.path == "/v1/embeddings"
        texts = asked.content["input"]
        self.texts += texts
        vectors = self.model.encode(texts, show_progress_bar=False).tolist()
        data = [{"index": row, "embedding": vector} for row, vector in enumerate(vectors)]
        return {"object": "list", "data": data, "model": asked.content["model"]}


@pytest.fixture(scope="module")
def embeddings(clean):
    return Embeddings(clean)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_it_ranks_as_the_same_model_loaded_here(distinct, clean, embeddings):
    with serving(embeddings) as server:
        remote = f"endpoint:{server.url}/v1#tiny"
        uses = ["", "hybrid:", "rm3:", "feedback:"]
        models = [f"{use}{encoder}" for use in uses for encoder in (remote, clean)]
        record = evaluate(models, str(distinct))
    measures = [record.models[model].measures for model in models]
    for there, here in zip(measures[::2], measures[1::2], strict=True):
        assert there == pytest.approx(here, abs=1e-6)
    retrieval = record.models[remote].retrieval
    assert retrieval["similarity"] == "cosine"
    assert retrieval["dimensions"] == embeddings.model.get_embedding_dimension()


def test_it_is_compared_without_labels_as_the_same_model(distinct, clean, embeddings):
    with serving(embeddings) as server:
        remote = f"endpoint:{server.url}#tiny"
        options = CompareOptions(labels=False, samples=20)
        record = compare([remote, clean, "bm25"], str(distinct), options=options)
    pairs = {(pair.a, pair.b): pair for pair in record.pairs}
    same = pairs[remote, clean]
    assert same.verdict == "no difference"
    crops, here = (
        next(one for one in pairs[model, "bm25"].estimates if one.estimator == "held-out crops")
        for model in (remote, clean)
    )
    assert crops.difference == pytest.approx(here.difference)
    # The corpus, then only the documents that lose a crop.
    texts = [document["text"] for document in load_collection(distinct).documents.values()]
    assert all(embeddings.texts.count(text) >= 1 for text in texts)


def test_its_uses_are_compared_by_judged_queries_as_those_of_the_same_model(
    distinct, clean, embeddings, tmp_path
):
    qrels = load_collection(distinct).qrels
    lines = [f"{query}\t0\t{id}\t1\n" for query in list(qrels)[:12] for id in qrels[query]]
    (tmp_path / "judged.tsv").write_text("".join(lines))
    options = CompareOptions(samples=10, judgements=tmp_path / "judged.tsv")
    with serving(embeddings) as server:
        remote = f"endpoint:{server.url}#tiny"
        there = compare(remote, str(distinct), options=options)
    here = compare(clean, str(distinct), options=options)
    assert there.models == [name.replace(clean, remote) for name in here.models]
    assert list(there.few_labels.values.values()) == pytest.approx(
        list(here.few_labels.values.values()), abs=1e-6
    )


def test_a_store_is_written_once_and_read(distinct, clean, embeddings, tmp_path):
    with serving(embeddings) as server:
        remote = f"endpoint:{server.url}#tiny"
        store = tmp_path / "store"
        command = ["encode", "--dataset", str(distinct), "--model", remote, "--output", str(store)]
        assert status(command) == 0
        before = len(server.asked)
        options = SearchOptions(stores=(store,))
        record = evaluate(remote, str(distinct), search=options)
        documents = load_collection(distinct).documents
        texts = [text for asked in server.asked[before:] for text in asked.content["input"]]
        # Queries, the probe of the server and one document, by which the store is checked.
        assert len(texts) == 40 + 2
        assert record.models[remote].measures == pytest.approx(
            evaluate(clean, str(distinct)).models[clean].measures
        )
        hits = Searcher(documents_of(documents), remote).search("wing drag")
        assert [hit.id for hit in hits] == [
            hit.id for hit in Searcher(documents_of(documents), clean).search("wing drag")
        ]


def documents_of(documents):
    return {id: document["text"] for id, document in documents.items()}


def test_a_model_that_changed_behind_the_url_is_noticed(distinct, clean, damaged, tmp_path):
    answers = {"now": Embeddings(clean)}
    with serving(lambda asked: answers["now"](asked)) as server:
        remote = f"endpoint:{server.url}#tiny"
        store = tmp_path / "store"
        command = ["encode", "--dataset", str(distinct), "--model", remote, "--output", str(store)]
        assert status(command) == 0
        answers["now"] = Embeddings(damaged)
        with pytest.raises(InputError, match=r"store.*has changed.*encode again"):
            evaluate(remote, str(distinct), search=SearchOptions(stores=(store,)))


def test_prompts_and_lengths_are_options_as_of_any_encoder(embeddings):
    with serving(embeddings) as server:
        name = f"endpoint:{server.url}#tiny"
        options = EncoderOptions(
            query_prompt="query: ",
            document_prompt="passage: ",
            document_length=6,
            title_separator=" | ",
        )
        model = load_encoder(name, options)
        model.encode_queries(["wing drag of a body"])
        model.encode_corpus([{"title": "wing", "text": "drag of a body at rest"}])
    sent = [text for asked in server.asked[1:] for text in asked.content["input"]]
    assert sent == ["query: wing drag of a body", "passage: wing | drag"]
    assert model.text_format.document_length == 6


@pytest.mark.parametrize(
    ("text", "pieces"),
    [("wing drag", 2), ("aerodynamic.", 4), ("机翼的升力", 5), ("  a  b ", 2), ("", 0)],
)
def test_a_piece_is_about_a_token(text, pieces):
    assert len(Pieces()([text])["input_ids"][0]) == pieces


def test_the_key_is_sent_and_written_nowhere(distinct, embeddings, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TINY_KEY", "hidden-key")
    with serving(embeddings) as server:
        remote = f"endpoint:{server.url}#tiny?key=TINY_KEY"
        store = tmp_path / "store"
        assert (
            status(
                ["encode", "--dataset", str(distinct), "--model", remote, "--output", str(store)]
            )
            == 0
        )
        evaluate(
            remote,
            str(distinct),
            output=tmp_path / "judged",
            search=SearchOptions(stores=(store,)),
        )
    assert {asked.headers["Authorization"] for asked in server.asked} == {"Bearer hidden-key"}
    assert "hidden-key" not in caplog.text
    written = 0
    for folder, _, files in os.walk(tmp_path):
        for file in files:
            assert b"hidden-key" not in Path(folder, file).read_bytes()
            written += 1
    assert written > 5
    monkeypatch.delenv("TINY_KEY")
    with pytest.raises(InputError, match="TINY_KEY is not set"):
        load_encoder(remote)


def test_a_server_that_is_down_is_one_line_and_status_2(distinct, capsys, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with serving(lambda asked: Reply(500)) as server:
        name = f"endpoint:{server.url}#tiny"
    code = status(["evaluate", "--dataset", str(distinct), "--model", name, "--output", "out"])
    assert code == 2
    assert f"{server.url}/v1/embeddings cannot be reached" in capsys.readouterr().err


def test_another_dimension_is_noticed(embeddings):
    vectors = [[0.5, 0.5], [1.0]]
    with serving(lambda asked: {"data": [{"index": 0, "embedding": vectors.pop(0)}]}) as server:
        model = load_encoder(f"endpoint:{server.url}#tiny")
        with pytest.raises(ServerError, match="1 dimensions, and of 2 before"):
            model.encode_queries(["a"])


def test_vectors_that_are_not_finite_name_the_document(distinct, tmp_path):
    def answer(asked):
        bad = float("nan") if len(asked.content["input"]) > 1 else 1.0
        return {
            "data": [
                {"index": row, "embedding": [bad, 1.0]}
                for row in range(len(asked.content["input"]))
            ]
        }

    with (
        serving(answer) as server,
        pytest.raises(InputError, match="NaN or infinite embedding of documents 'd"),
    ):
        evaluate(f"endpoint:{server.url}#tiny", str(distinct))


def test_many_texts_are_sent_in_batches_and_come_back_in_order(embeddings, clean):
    texts = [f"wing {number}" for number in range(100)]
    with serving(embeddings) as server:
        model = load_encoder(f"endpoint:{server.url}#tiny")
        vectors = model.encode_queries(texts, batch_size=100)
    sizes = sorted(len(asked.content["input"]) for asked in server.asked[1:])
    assert sizes == [4, 32, 32, 32]
    here = load_encoder(clean).encode_queries(texts)
    np.testing.assert_allclose(vectors, here, atol=1e-6)


def test_a_batch_that_the_server_finds_too_large_is_sent_in_halves(embeddings, clean):
    """Text embeddings inference refuses more texts than --max-client-batch-size."""

    def answer(asked: Asked):
        texts = asked.content["input"]
        if len(texts) > 8 or "too long" in texts[0]:
            return Reply(413, b'{"error": "batch size 32 > maximum allowed batch size 8"}')
        return embeddings(asked)

    texts = [f"wing {number}" for number in range(40)]
    with serving(answer) as server:
        model = load_encoder(f"endpoint:{server.url}#tiny")
        vectors = model.encode_queries(texts, batch_size=40)
        with pytest.raises(ServerError, match="413"):
            model.encode_queries(["too long"])
    here = load_encoder(clean).encode_queries(texts)
    np.testing.assert_allclose(vectors, here, atol=1e-6)


def test_it_cannot_be_trained():
    from beir_cocodr.training.start import load_start

    with pytest.raises(InputError, match="no weights here that could be trained"):
        load_start("endpoint:http://127.0.0.1:1#tiny", EncoderOptions(), seed=1)


def test_the_settings_of_the_record_name_the_server(embeddings):
    with serving(embeddings) as server:
        model = load_encoder(f"endpoint:{server.url}#tiny")
    assert json.dumps(model[0].get_config_dict()) == json.dumps(
        {"url": f"{server.url}/v1", "model": "tiny", "dimension": 32}
    )


def test_how_tokens_are_pooled_is_the_business_of_the_server(embeddings):
    refused = pytest.raises(InputError, match="pooling mean is for a checkpoint")
    with serving(embeddings) as server, refused:
        load_encoder(f"endpoint:{server.url}#tiny", EncoderOptions(pooling="mean"))
