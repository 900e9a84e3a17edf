from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import sentences
from sentence_transformers import SentenceTransformer

from beir_cocodr import COCODR, MRL, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder

ROWS = np.arange(40)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Documents:
    """40 documents from one word to far beyond the length that is read, one of them empty."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("mixed") / "corpus.jsonl"
    texts = [
        sentences(rng, i % 4, int(rng.integers(1, 14)), int(rng.integers(1, 15))) for i in range(39)
    ]
    with path.open("w") as file:
        for i, text in enumerate(["", *texts]):
            title = " ".join(text.split()[:2]) if i % 3 else ""
            file.write(json.dumps({"_id": f"d{i}", "title": title, "text": text}) + "\n")
    return load_collection(path, labels="none").documents


def joined(documents: Documents) -> list[str]:
    return [f"{d['title']} {d['text']}".strip() for d in documents.values()]


class Watched(COCODR):
    """Notes the shape of every batch; has memory for only so many texts of any length."""

    room: int | None = None

    def forward(self, input: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        self.__dict__.setdefault("shapes", []).append(tuple(input["input_ids"].shape))
        if self.room is not None and len(input["input_ids"]) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(input, **kwargs)


@pytest.mark.parametrize("budget", [1, 100, 700, 100_000])
@pytest.mark.parametrize("folder", ["tiny_bert", "tiny_cosine"])
def test_vectors_are_those_of_the_host_whatever_the_budget(
    request, mixed, folder, budget, tmp_path
):
    path = request.getfixturevalue(folder)
    model = COCODR(path)
    vectors = CorpusEncoder(model, mixed, budget).encode(ROWS)
    model.save_pretrained(str(tmp_path))
    expected = SentenceTransformer(str(tmp_path)).encode_document(joined(mixed))
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-4)


def test_rows_come_in_the_order_that_is_asked_for(tiny_bert, mixed):
    encoder = CorpusEncoder(COCODR(tiny_bert), mixed, 300)
    rows = np.random.default_rng(0).permutation(40)[:17]
    counts: list[int] = []
    vectors = encoder.encode(rows, counts.append)
    np.testing.assert_allclose(vectors, encoder.encode(ROWS)[rows], atol=1e-4)
    assert sum(counts) == 17


def test_mrl_gives_its_flattened_documents(tiny_bert, mixed):
    model = MRL(str(tiny_bert))
    vectors = CorpusEncoder(model, mixed, 300).encode(ROWS)
    np.testing.assert_allclose(vectors, model.encode_document(joined(mixed)), rtol=1e-4, atol=1e-4)


def test_cosine_models_without_a_normalising_module_give_unit_vectors(tiny_bert, mixed):
    model = COCODR(tiny_bert)
    plain = CorpusEncoder(model, mixed).encode(ROWS)
    model.similarity_fn_name = "cosine"
    unit = CorpusEncoder(model, mixed).encode(ROWS)
    np.testing.assert_allclose(
        unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6
    )


def test_batches_keep_to_the_budget_and_waste_little(tiny_bert, mixed):
    model = Watched(tiny_bert)
    model.shapes.clear()  # of the text that loading tries
    CorpusEncoder(model, mixed, 700).encode(ROWS)
    tokens = sum(
        len(ids)
        for ids in model.tokenizer(joined(mixed), truncation=True, max_length=128)["input_ids"]
    )
    padded = [texts * length for texts, length in model.shapes]
    assert max(padded) <= 700
    assert sum(texts for texts, _ in model.shapes) == 40
    assert sum(padded) < 1.3 * tokens
    assert [length for _, length in model.shapes] == sorted(
        (s[1] for s in model.shapes), reverse=True
    )


@pytest.mark.parametrize("budget", [40 * 128, 40 * 128 - 1, 700])
def test_documents_are_tokenised_once_but_for_the_first_of_a_batch(
    tiny_bert, mixed, budget, tokenised_texts
):
    model = Watched(tiny_bert)
    model.shapes.clear()  # of the text that loading tries
    calls = tokenised_texts(model.tokenizer)
    CorpusEncoder(model, mixed, budget).encode(ROWS)
    fits_into_one = budget == 40 * 128
    assert sum(map(len, calls)) == 40 + (0 if fits_into_one else len(model.shapes))
    assert model.document_tokens is None


@pytest.mark.parametrize("room", [1, 3, 8])
def test_batches_are_halved_until_they_fit_and_stay_small(tiny_bert, mixed, room, caplog):
    expected = CorpusEncoder(COCODR(tiny_bert, pooling="cls"), mixed).encode(ROWS)
    model = Watched(tiny_bert, pooling="cls")
    model.room = room
    encoder = CorpusEncoder(model, mixed, 100_000)
    with caplog.at_level(logging.WARNING):
        vectors = encoder.encode(ROWS)
    np.testing.assert_allclose(vectors, expected, atol=1e-4)
    failed = [texts for texts, _ in model.shapes if texts > room]
    assert failed[:2] == [40, 20]
    assert len(caplog.records) == len(failed) <= 6  # not once for every batch
    assert "--token-budget" in caplog.text
    model.shapes.clear()
    encoder.encode(ROWS)
    assert all(texts <= room for texts, _ in model.shapes)


def test_a_single_text_that_does_not_fit_is_named(tiny_bert, mixed):
    model = Watched(tiny_bert)
    model.room = 0
    with pytest.raises(InputError, match=r"document 'd\d+' .*CUDA out of memory"):
        CorpusEncoder(model, mixed).encode(ROWS)


def test_other_errors_of_a_model_are_left_alone(tiny_bert, mixed):
    def fail(*args: Any, **kwargs: Any) -> dict[str, Any]:
        raise RuntimeError("index out of range in self")

    model = COCODR(tiny_bert)
    model.forward = fail
    with pytest.raises(RuntimeError, match="index out of range"):
        CorpusEncoder(model, mixed).encode(ROWS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_names_its_document(tiny_bert, tmp_path, value):
    """One word has a broken embedding, and one document has the word."""
    path = tmp_path / "corpus.jsonl"
    texts = ["wing flow", "library index", "wing treaty flow", "circuit"]
    path.write_text(
        "".join(json.dumps({"_id": f"x{i}", "text": t}) + "\n" for i, t in enumerate(texts))
    )
    model = COCODR(tiny_bert)
    with torch.no_grad():
        word = model.tokenizer.convert_tokens_to_ids("treaty")
        model.transformers_model.get_input_embeddings().weight[word] = value
    documents = load_collection(path, labels="none").documents
    with pytest.raises(InputError, match="document 'x2'"):
        CorpusEncoder(model, documents).encode(np.arange(4))


def test_bf16_runs_the_model_in_bfloat16(tiny_bert, mixed):
    """Close to float32, and not the same."""
    exact = CorpusEncoder(COCODR(tiny_bert), mixed).encode(ROWS)
    rough = CorpusEncoder(COCODR(tiny_bert), mixed, backend="bf16").encode(ROWS)
    cosines = (exact * rough).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(rough, axis=1)
    assert cosines.min() > 0.99
    assert np.abs(exact - rough).max() > 1e-4


def test_texts_are_taken_a_batch_at_a_time(tiny_bert, mixed):
    taken: list[int] = []

    class Counting(Documents):
        def take(self, rows: Any) -> list[dict[str, str]]:
            taken.append(len(rows))
            return super().take(rows)

    documents = Counting(mixed.table, mixed.content_hash)
    CorpusEncoder(COCODR(tiny_bert), documents, 700).encode(ROWS)
    assert taken[0] == 40  # lengths, in windows of 1,024
    assert max(taken[1:]) < 40


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_to_1e_4(tiny_bert: Path, mixed):
    cpu = CorpusEncoder(COCODR(tiny_bert, device="cpu"), mixed).encode(ROWS)
    gpu = CorpusEncoder(COCODR(tiny_bert, device="cuda"), mixed).encode(ROWS)
    np.testing.assert_allclose(gpu, cpu, atol=1e-4)


def test_zero_embeddings_are_counted_and_the_first_is_named(tiny_bert, mixed, caplog):
    class Blind(COCODR):
        def encode_corpus(self, corpus, *arguments, **options):
            vectors = super().encode_corpus(corpus, *arguments, **options)
            zero = torch.tensor([document["_id"] in ("d3", "d7") for document in corpus])
            return vectors.masked_fill(zero[:, None], 0.0)

    with caplog.at_level(logging.WARNING):
        CorpusEncoder(Blind(str(tiny_bert)), mixed).encode(ROWS)
    assert "2 of 40 documents have a zero embedding, the first is 'd3'" in caplog.text
