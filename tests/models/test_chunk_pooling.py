"""Whole documents as one vector, against the vectors of their pieces."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr import (
    COCODR,
    MRL,
    EncoderOptions,
    FuseOptions,
    HybridEncoder,
    fuse,
    load_collection,
    load_encoder,
)
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.models.chunk_pooling import DocumentPieces
from beir_cocodr.retrieval.store.encode import encode_documents
from beir_cocodr.retrieval.store.encoding_cost import _pieces_per_document
from beir_cocodr.retrieval.store.store import EmbeddingStore

LENGTH = 16
WORDS = "wing flow shock library index journal the of a pressure heat body number speed".split()
LONG = " ".join(WORDS[number % len(WORDS)] for number in range(60))
SHORT = "wing flow"

#: Document length, kind of encoder, and whether reading documents whole is proposed.
PROPOSALS = [(8, "cosine", True), (24, "cosine", False), (8, "mrl", False)]


@pytest.fixture(scope="module")
def model(tiny_cosine) -> COCODR:
    return COCODR(tiny_cosine, document_length=LENGTH, chunk_pooling="first+mean")


@pytest.fixture(scope="module")
def plain(tiny_cosine) -> COCODR:
    return COCODR(tiny_cosine, document_length=LENGTH)


def run(command: str, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([command, *arguments])
    return int(ended.value.code or 0)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("way", ["mean", "first+mean"])
def test_a_vector_is_that_of_the_pieces_by_hand(way, tiny_cosine, plain):
    model = COCODR(tiny_cosine, document_length=LENGTH, chunk_pooling=way)
    pieces = model.pieces([LONG])
    vectors = unit(plain.encode_document(pieces.texts).astype(np.float64))
    mean = np.average(vectors, axis=0, weights=pieces.tokens)
    expected = mean if way == "mean" else vectors[0] + mean
    np.testing.assert_allclose(model.encode_document(LONG), unit(expected), atol=1e-5)


def test_a_document_that_fits_keeps_its_vector(model, plain):
    texts = [SHORT, "", "shock"]
    np.testing.assert_allclose(
        model.encode_document(texts), unit(plain.encode_document(texts)), atol=1e-6
    )


def test_queries_are_read_as_before(model, plain):
    np.testing.assert_array_equal(model.encode_query([LONG]), plain.encode_query([LONG]))


def test_the_end_of_a_document_counts(model, plain):
    other = LONG + " zebra"
    assert np.allclose(plain.encode_document(LONG), plain.encode_document(other))
    assert not np.allclose(model.encode_document(LONG), model.encode_document(other), atol=1e-4)
    assert model.truncated_share([LONG], "document") == 0
    assert plain.truncated_share([LONG], "document") == 1


def test_pieces_fit_and_hold_every_token(model):
    pieces = model.pieces([LONG])
    ids = model.tokenizer(LONG, add_special_tokens=False)["input_ids"]
    lengths = [len(model.tokenizer(piece)["input_ids"]) for piece in pieces.texts[1:]]
    assert max(lengths) <= LENGTH
    assert sum(pieces.tokens) >= len(ids)
    start = 0
    end = len(" ".join(WORDS[: LENGTH - 2]))
    for piece in pieces.texts[1:]:
        start = LONG.index(piece, start + 1)
        assert start <= end + 1  # nothing lies between two pieces
        end = start + len(piece)
    assert LONG.endswith(pieces.texts[-1])
    assert all(text.split()[0] in WORDS for text in pieces.texts)  # each begins with a word


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    way=st.sampled_from(["mean", "first+mean"]),
)
def test_equal_pieces_give_their_own_vector(counts, way):
    """The mean of what is alike is the same, whatever the weights."""
    rows = [torch.full((count, 3), float(number)) for number, count in enumerate(counts)]
    tokens = list(range(1, sum(counts) + 1))
    pooled = DocumentPieces([""] * sum(counts), tokens, counts).pool(torch.cat(rows), way)
    expected = torch.arange(len(counts)).float()[:, None].expand(-1, 3)
    torch.testing.assert_close(pooled, expected)


def test_it_is_saved_with_the_model(model, tmp_path):
    model.save(str(tmp_path / "saved"))
    again = load_encoder(tmp_path / "saved")
    assert again.text_format.chunk_pooling == "first+mean"
    np.testing.assert_array_equal(again.encode_document(LONG), model.encode_document(LONG))
    plain = load_encoder(tmp_path / "saved", EncoderOptions(chunk_pooling="first"))
    assert "chunk_pooling" not in plain.text_format.as_dict()


def test_a_store_tells_both_apart_and_says_its_pieces(
    tiny_cosine, beir_folder, tmp_path, capsys, caplog
):
    """The line before encoding has the number of pieces; the same folder is then refused."""
    caplog.set_level("INFO")
    options = ["--dataset", str(beir_folder), "--model", str(tiny_cosine), "--document-length", "8"]
    store = tmp_path / "store"
    whole = [*options, "--output", str(store), "--chunk-pooling", "mean"]
    assert run("encode", *whole) == 0
    assert "pieces altogether" in caplog.text
    assert EmbeddingStore.open(store).record.identity["chunk_pooling"] == "mean"
    assert run("encode", *options, "--output", str(store)) == 2
    assert "chunk_pooling" in capsys.readouterr().err
    assert run("encode", *options, "--output", str(tmp_path / "first")) == 0
    first = EmbeddingStore.open(tmp_path / "first")
    assert "chunk_pooling" not in first.record.identity
    assert not torch.equal(first.load(), EmbeddingStore.open(store).load())


@pytest.mark.parametrize(("length", "kind", "is_proposed"), PROPOSALS)
def test_reading_whole_documents_is_proposed_where_they_have_many_pieces(
    length, kind, is_proposed, tiny_cosine, tiny_bert, beir_folder, tmp_path, caplog
):
    """Most documents are cut in each case, and an MRL cannot read them whole."""
    caplog.set_level("INFO")
    documents = load_collection(beir_folder).documents
    if kind == "mrl":
        model = MRL(tiny_bert, document_length=length)
    else:
        model = COCODR(tiny_cosine, document_length=length)
    store = encode_documents(model, documents, tmp_path / "store")
    counts = DocumentPieces.of(
        [model.text_format.document(document) for document in documents.values()],
        model.tokenizer,
        length,
    ).counts
    assert min(counts) > 1
    assert (np.mean(counts) > 10) == (length == 8)
    assert "100% of these are cut to the document length" in caplog.text
    said = f"a document has {np.mean(counts):.0f} pieces of that length on average"
    assert (said in caplog.text) == is_proposed
    assert ("--chunk-pooling first+mean" in caplog.text) == is_proposed
    assert len(store.load()) == len(documents)


def test_pieces_beyond_the_beginning_of_a_huge_document_are_not_tokenised(tiny_cosine, monkeypatch):
    model = COCODR(tiny_cosine, document_length=LENGTH)
    huge = "wing " * 100_000
    tokenised = []
    of = DocumentPieces.of

    def spy(texts, *arguments):
        tokenised.extend(texts)
        return of(texts, *arguments)

    monkeypatch.setattr(DocumentPieces, "of", spy)
    pieces = _pieces_per_document(model, [SHORT, huge])
    assert max(map(len, tokenised)) < len(huge) / 10
    assert pieces == pytest.approx((1 + 100_000 / (LENGTH - 2)) / 2, rel=0.1)


def test_a_store_of_whole_documents_is_updated_by_text(tiny_cosine, tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    texts = {"a": LONG, "b": SHORT}
    command = ["--dataset", str(corpus), "--model", str(tiny_cosine), "--output"]
    command += [str(tmp_path / "store"), "--chunk-pooling", "mean", "--document-length", "16"]
    for added in ({}, {"c": f"{LONG} speed"}):
        texts |= added
        lines = [json.dumps({"_id": name, "text": text}) for name, text in texts.items()]
        corpus.write_text("".join(f"{line}\n" for line in lines))
        assert run("encode", *command, *(["--update"] if added else [])) == 0
    model = COCODR(tiny_cosine, document_length=16, chunk_pooling="mean")
    expected = model.encode_document(list(texts.values()))
    np.testing.assert_allclose(
        EmbeddingStore.open(tmp_path / "store").load().numpy(), expected, atol=1e-5
    )


def test_a_hybrid_encoder_pools_its_dense_part_alone(tiny_cosine, beir_folder, tmp_path):
    options = EncoderOptions(chunk_pooling="first+mean", document_length=8)
    fuse(
        str(tiny_cosine),
        str(beir_folder),
        output=tmp_path / "fused",
        options=FuseOptions(lexical="svd", bytes_per_document=128),
        encoder=options,
    )
    hybrid = HybridEncoder(tmp_path / "fused")
    vectors = hybrid.encode_document([LONG, SHORT])
    dense = load_encoder(tiny_cosine, options).encode_document([LONG, SHORT])
    np.testing.assert_allclose(vectors[:, :32], dense, atol=1e-5)
    lexical = hybrid.head.document_part([LONG, SHORT]).numpy()
    np.testing.assert_allclose(vectors[:, 32:], lexical, atol=1e-5)


def test_what_cannot_be_pooled_is_refused(tiny_cosine):
    with pytest.raises(InputError, match=r"chunk_pooling.*first\+mean"):
        COCODR(tiny_cosine, chunk_pooling="max")
    with pytest.raises(InputError, match="--chunk-pooling"):
        MRL(tiny_cosine, k=3, chunk_pooling="mean")
