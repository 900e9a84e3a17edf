"""The likelihood of a query after a document is what the language model's own loss says."""

from __future__ import annotations

import logging
import shutil

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.label_free.estimates import estimate_pair, features
from beir_cocodr.evaluation.label_free.estimators import LIKELIHOOD
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.likelihood_reader import load_likelihood_reader
from beir_cocodr.evaluation.label_free.written_questions import QuestionOptions
from beir_cocodr.retrieval.resources import Resources


@pytest.fixture(scope="module")
def documents(beir_folder):
    return load_collection(beir_folder, labels="none").documents


@pytest.fixture(scope="module")
def reader(tiny_gpt2):
    return load_likelihood_reader(QuestionOptions(f"hf:{tiny_gpt2}", device="cpu"))


@pytest.fixture(scope="module")
def starting_gpt2(tiny_gpt2, tmp_path_factory):
    """Return the folder of the same model with a tokenizer that starts texts with a token."""
    folder = tmp_path_factory.mktemp("starting") / "gpt2"
    shutil.copytree(tiny_gpt2, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, bos_token="<|endoftext|>")
    start = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{tokenizer.bos_token} $A", special_tokens=[start]
    )
    tokenizer.save_pretrained(folder)
    return folder


def mean_log_likelihood(reader, document, query):
    """Return minus the host's loss of the query's tokens, read alone and so without padding."""

    def ids(text):
        return reader.tokenizer(text, add_special_tokens=False)["input_ids"]

    prompt = ids("Passage: ") + ids(document)[:160] + ids("\nQuestion about the passage:")
    asked = ids(f" {query}")
    labels = [-100] * len(prompt) + asked
    with torch.no_grad():
        output = reader.model(
            input_ids=torch.tensor([prompt + asked]), labels=torch.tensor([labels])
        )
    return -float(output.loss)


def test_scores_are_mean_log_probabilities(reader, documents, caplog):
    queries = ["what is it", "a longer query of some words"]
    pools = [np.arange(11), np.array([5, 2])]
    with caplog.at_level(logging.INFO):
        scores = reader.read(queries, pools, documents)
    assert "reads 13 documents for 2 queries (about 2,100 tokens)" in caplog.text
    for query, pool, given in zip(queries, pools, scores, strict=True):
        expected = []
        for document in documents.take(pool):
            text = f"{document['title']} {document['text']}".strip()
            expected.append(10 * mean_log_likelihood(reader, text, query))
        np.testing.assert_allclose(given, expected, rtol=1e-4)


def test_nothing_is_read_twice(tiny_gpt2, documents, caplog, monkeypatch):
    """A second reader, as of a run that follows a killed one, reads only what is new."""
    queries = ["never asked before", "nor was this"]
    options = QuestionOptions(f"hf:{tiny_gpt2}", device="cpu")
    [before] = load_likelihood_reader(options).read(queries[:1], [np.array([1, 4])], documents)
    again = load_likelihood_reader(options)
    counts = []
    means = again._means
    monkeypatch.setattr(
        again, "_means", lambda query, read: counts.append(len(read)) or means(query, read)
    )
    with caplog.at_level(logging.INFO):
        both = again.read(queries, [np.array([4, 1, 0]), np.array([2])], documents)
    assert counts == [1, 1]
    assert "reads 2 documents for 2 queries" in caplog.text
    assert both[0][:2].tolist() == before[::-1].tolist()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert again.read(queries[:1], [np.array([1, 4])], documents)[0].tolist() == before.tolist()
    assert counts == [1, 1]
    assert "reads" not in caplog.text


@pytest.mark.parametrize("content", ["{", "[]", '{"a": NaN}', '{"a": "b"}', ""])
def test_a_damaged_file_of_the_cache_is_read_again(reader, documents, content):
    arguments = ["damaged afterwards"], [np.array([2, 3])], documents
    [before] = reader.read(*arguments)
    reader._cache.put("damaged afterwards", content)
    [after] = reader.read(*arguments)
    assert after.tolist() == before.tolist()
    assert len(reader._known("damaged afterwards")) == 2


def test_scores_that_are_no_numbers_are_not_kept(tiny_gpt2, documents, monkeypatch):
    reader = load_likelihood_reader(QuestionOptions(f"hf:{tiny_gpt2}", device="cpu"))
    monkeypatch.setattr(reader, "_means", lambda query, read: np.full(len(read), np.nan))
    [scores] = reader.read(["overflown"], [np.array([0])], documents)
    assert np.isnan(scores).all()
    assert reader._cache.get("overflown") is None


def test_another_precision_is_another_reading(tiny_gpt2, documents):
    options = QuestionOptions(f"hf:{tiny_gpt2}", device="cpu")
    folders = {load_likelihood_reader(options, bf16=bf16)._cache.folder for bf16 in (False, True)}
    assert len(folders) == 2


def test_a_model_that_starts_its_texts_with_a_token_gets_it(reader, starting_gpt2):
    """Models such as Gemma and Llama were only trained on texts that start with it."""
    assert reader._start == []
    started = load_likelihood_reader(QuestionOptions(f"hf:{starting_gpt2}", device="cpu"))
    bos = started.tokenizer.bos_token_id
    assert started._start == [bos]
    query, document = started._ids(" a query"), started._ids("a document of words")
    between = started._ids("\nQuestion about the passage:")
    prompt = [bos, *started._ids("Passage: "), *document, *between]
    ids = torch.tensor([prompt + query])
    with torch.no_grad():
        labels = torch.tensor([[-100] * len(prompt) + query])
        loss = started.model(input_ids=ids, labels=labels).loss
    assert started._means(query, [document]) == pytest.approx([-float(loss)], rel=1e-4)


def test_an_empty_query_tells_nothing(reader, documents):
    assert reader._means([], [[1, 2], [3]]).tolist() == [0, 0]


def test_bfloat16_is_nearly_the_same(reader, tiny_gpt2, documents):
    options = QuestionOptions(f"hf:{tiny_gpt2}", device="cpu")
    rounded = load_likelihood_reader(options, bf16=True)
    arguments = ["what is rounded"], [np.arange(4)], documents
    [exact] = reader.read(*arguments)
    [given] = rounded.read(*arguments)
    assert not np.array_equal(exact, given)
    np.testing.assert_allclose(given, exact, rtol=0.02)


def test_servers_and_encoder_decoders_do_not_tell_likelihoods(tiny_t5, caplog):
    for name in ("http://localhost:1#m", f"hf:{tiny_t5}"):
        with caplog.at_level(logging.INFO):
            assert load_likelihood_reader(QuestionOptions(name, device="cpu")) is None
        assert f"{name} does not tell how likely queries are" in caplog.text


def test_a_comparison_reads_what_models_rank_first(documents, reader, tmp_path, monkeypatch):
    resources = Resources(documents, tmp_path)
    gatherer = Gatherer(resources, ["bm25"], samples=20)
    queries = {f"q{number}": f"words of query {number}" for number in range(12)}
    assert gatherer.gather(queries).pooled is None
    monkeypatch.setitem(gatherer.__dict__, "_reader", reader)
    evidence = gatherer.gather(queries)
    assert LIKELIHOOD in features(evidence, "bm25", "bm25")
    assert evidence.pooled.queries.tolist() == list(range(12))
    few = dict(list(queries.items())[:9])
    assert gatherer.gather(few).pooled is None
    assert gatherer.gather({}).pooled is None


def test_likelihood_counts_once_the_calibration_is_fitted_with_it(documents, reader, tmp_path):
    gatherer = Gatherer(Resources(documents, tmp_path), ["bm25"], samples=20)
    gatherer.__dict__["_reader"] = reader
    evidence = gatherer.gather({f"q{number}": f"query {number}" for number in range(12)})
    remarks = {}
    for known in (["crops and titles"], ["crops and titles", LIKELIHOOD]):
        estimates = estimate_pair(evidence, "bm25", "bm25", known)
        [estimate] = [one for one in estimates if one.estimator == LIKELIHOOD]
        remarks[len(known)] = estimate.remark
        assert estimate.queries == 12
        assert estimate.difference == 0
    assert remarks == {1: "the calibration does not count it", 2: ""}
