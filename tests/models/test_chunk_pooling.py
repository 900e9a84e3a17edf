"""Whole documents as one vector, against the vectors of their pieces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import quantize_embeddings

from beir_cocodr import (
    COCODR,
    MRL,
    DistillOptions,
    EncoderOptions,
    FuseOptions,
    HybridEncoder,
    distill,
    fuse,
    load_collection,
    load_encoder,
)
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.models.chunk_pooling import DocumentPieces
from beir_cocodr.retrieval.store.encode import encode, encode_documents
from beir_cocodr.retrieval.store.encoding_cost import _pieces_per_document
from beir_cocodr.retrieval.store.store import EmbeddingStore

LENGTH = 16
WORDS = "wing flow shock library index journal the of a pressure heat body number speed".split()
LONG = " ".join(WORDS[number % len(WORDS)] for number in range(60))
SHORT = "wing flow"

#: Document length, kind of encoder, and whether reading documents whole is proposed.
PROPOSALS = [(8, "cosine", True), (24, "cosine", False), (8, "mrl", False)]


#: Arguments of the host that say in which form it returns vectors.
FORMS = [
    {"precision": "int8"},
    {"precision": "uint8", "convert_to_tensor": True},
    {"precision": "binary", "truncate_dim": 16},
    {"precision": "ubinary", "convert_to_numpy": False},
    {"precision": None, "truncate_dim": 8},
    {"truncate_dim": 8, "normalize_embeddings": True},
    {"convert_to_numpy": False},
    {"convert_to_tensor": True},
]

#: Arguments that a hybrid encoder refuses, as its parts belong to one score.
CORRUPTING = [{"precision": "int8"}, {"truncate_dim": 8}, {"normalize_embeddings": True}]


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


def assert_alike(vectors: object, expected: object) -> None:
    """Rounding may move a code of int8 by one."""
    assert type(vectors) is type(expected)
    rows, wanted = ([np.asarray(row) for row in of] for of in (vectors, expected))
    assert [row.dtype for row in rows] == [row.dtype for row in wanted]
    atol = 1 if rows[0].dtype.kind in "iu" else 1e-6
    np.testing.assert_allclose(np.array(rows, float), np.array(wanted, float), atol=atol)


@pytest.mark.parametrize("form", FORMS)
def test_documents_of_one_piece_have_the_form_that_the_host_gives_them(form, model, tiny_cosine):
    host = SentenceTransformer(str(tiny_cosine))
    texts = [SHORT, "shock", "library index journal", "heat body"]
    expected = host.encode_document(texts, **form)
    assert_alike(model.encode_document(texts, **form), expected)
    names = ["batch_size", "show_progress_bar", "output_value", "precision", "convert_to_numpy"]
    names += ["convert_to_tensor", "device", "normalize_embeddings", "truncate_dim"]
    usual = {"batch_size": 2, "show_progress_bar": False, "output_value": "sentence_embedding"}
    usual |= {"precision": "float32", "convert_to_numpy": True, "convert_to_tensor": False}
    by_place = [(usual | form).get(name) for name in names]
    assert_alike(model.encode_document(texts, None, None, *by_place), expected)


def test_vectors_are_truncated_and_quantised_after_pieces_are_pooled(model, tiny_cosine):
    texts = [LONG, SHORT, f"{SHORT} {LONG}"]
    pooled = model.encode_document(texts)
    codes = model.encode_document(texts, precision="int8")
    np.testing.assert_array_equal(codes, quantize_embeddings(pooled, precision="int8"))
    truncated = model.encode_document(texts, truncate_dim=8)
    np.testing.assert_array_equal(truncated, pooled[:, :8])
    of_model = COCODR(
        tiny_cosine, document_length=LENGTH, chunk_pooling="first+mean", truncate_dim=8
    )
    np.testing.assert_allclose(of_model.encode_document(texts), truncated, atol=1e-6)


def test_a_form_without_meaning_for_pooled_vectors_is_refused(model):
    for output in ("token_embeddings", None):
        with pytest.raises(InputError, match=f"output_value {output}.*chunk_pooling first"):
            model.encode_document([LONG], output_value=output)
    with pytest.raises(InputError, match=r"unknown precision 'int4'.*ubinary"):
        model.encode_document([LONG], precision="int4")


def test_pieces_leave_room_for_the_prompt_in_force(tiny_cosine):
    """A prompt that is given, or named, cuts pieces as one that the encoder has."""
    prompts = {"wide": "of the heat body number "}
    settings = {"document_length": LENGTH, "chunk_pooling": "first+mean"}
    expected = COCODR(tiny_cosine, document_prompt=prompts["wide"], **settings)
    vectors = expected.encode_document([LONG])
    model = COCODR(tiny_cosine, prompts=prompts, **settings)
    given = model.encode_document([LONG], prompt=prompts["wide"])
    np.testing.assert_allclose(given, vectors, atol=1e-6)
    named = model.encode_document([LONG], "wide")
    np.testing.assert_allclose(named, vectors, atol=1e-6)
    without = COCODR(tiny_cosine, **settings).encode_document([LONG])
    np.testing.assert_allclose(expected.encode_document([LONG], prompt=""), without, atol=1e-6)


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


def test_what_cannot_pool_drops_a_saved_setting_and_says_so(model, tmp_path, caplog):
    """An argument wins over what was saved, so that it is either taken or refused."""
    caplog.set_level("INFO")
    saved = tmp_path / "whole"
    model.save(str(saved))
    assert MRL(saved, k=3).text_format.chunk_pooling == "first"
    [line] = [text for text in caplog.messages if "chunk pooling" in text]
    assert f"{saved} was saved with chunk pooling first+mean" in line
    assert "vectors of MRL" in line
    caplog.clear()
    assert MRL(saved, k=3, chunk_pooling="first").text_format.chunk_pooling == "first"
    assert not [text for text in caplog.messages if "chunk pooling" in text]
    with pytest.raises(InputError, match="--chunk-pooling"):
        MRL(saved, k=3, chunk_pooling="mean")


def test_an_mrl_is_distilled_from_an_encoder_that_reads_whole_documents(
    model, beir_folder, tmp_path
):
    model.save(str(tmp_path / "whole"))
    options = DistillOptions(student="mrl", max_steps=1, batch_size=2, m_bm25=2, held_out=0)
    distill(
        str(tmp_path / "whole"),
        str(beir_folder),
        teacher="bm25",
        output=tmp_path / "mrl",
        options=options,
    )
    student = load_encoder(tmp_path / "mrl")
    assert isinstance(student, MRL)
    assert student.text_format.chunk_pooling == "first"


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
    assert "give --chunk-pooling mean" in capsys.readouterr().err
    assert run("encode", *options, "--output", str(tmp_path / "first")) == 0
    first = EmbeddingStore.open(tmp_path / "first")
    assert "chunk_pooling" not in first.record.identity
    assert not torch.equal(first.load(), EmbeddingStore.open(store).load())


#: Commands that read a store, with what each needs beside the collection and the store.
READERS = [
    ("encode", ["--output"]),
    ("search", ["wing flow", "--store"]),
    ("evaluate", ["--output", "judged", "--store"]),
    ("fuse", ["--output", "fused", "--store"]),
]


@pytest.fixture(scope="module")
def whole_store(tiny_cosine, beir_folder, tmp_path_factory) -> Path:
    store = tmp_path_factory.mktemp("whole") / "store"
    options = EncoderOptions(document_length=8, chunk_pooling="first+mean")
    encode(str(beir_folder), str(tiny_cosine), store, encoder=options)
    return store


@pytest.mark.parametrize(("command", "options"), READERS)
def test_a_store_names_the_chunk_pooling_that_a_command_lacks(
    command, options, whole_store, tiny_cosine, beir_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    given = ["--dataset", str(beir_folder), "--model", str(tiny_cosine), "--document-length", "8"]
    assert run(command, *given, *options, str(whole_store)) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{whole_store} was encoded with --chunk-pooling first+mean, not first" in last
    assert "give --chunk-pooling first+mean" in last
    assert "delete" not in last
    given += ["--chunk-pooling", "first+mean"]
    assert run(command, *given, *options, str(whole_store)) == 0


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


def write_corpus(path: Path, texts: dict[str, str]) -> None:
    lines = [json.dumps({"_id": name, "text": text}) for name, text in texts.items()]
    path.write_text("".join(f"{line}\n" for line in lines))


def test_a_store_of_whole_documents_is_updated_by_text(tiny_cosine, tmp_path, capsys):
    """An update reads documents as the store did, without the option or with the same one."""
    corpus = tmp_path / "corpus.jsonl"
    store = tmp_path / "store"
    texts = {"a": LONG, "b": SHORT}
    command = ["--dataset", str(corpus), "--model", str(tiny_cosine), "--output", str(store)]
    command += ["--document-length", "16"]
    write_corpus(corpus, texts)
    assert run("encode", *command, "--chunk-pooling", "mean") == 0
    model = COCODR(tiny_cosine, document_length=16, chunk_pooling="mean")
    for added, option in (("c", []), ("d", ["--chunk-pooling", "mean"])):
        texts[added] = f"{LONG} speed {added}"
        write_corpus(corpus, texts)
        assert run("encode", *command) == 2
        assert "update it to this corpus with --update" in capsys.readouterr().err
        assert run("encode", *command, "--update", *option) == 0
        vectors = EmbeddingStore.open(store).load().numpy()
        expected = model.encode_document(list(texts.values()))
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert run("encode", *command, "--update", "--chunk-pooling", "first") == 2
    said = capsys.readouterr().err
    assert "was encoded with --chunk-pooling mean, which --update keeps" in said
    assert "leave --chunk-pooling first out" in said


@pytest.fixture(scope="module")
def fused(tiny_cosine, beir_folder, tmp_path_factory) -> Path:
    """A hybrid encoder that reads whole documents."""
    output = tmp_path_factory.mktemp("hybrid") / "fused"
    fuse(
        str(tiny_cosine),
        str(beir_folder),
        output=output,
        options=FuseOptions(lexical="svd", bytes_per_document=128),
        encoder=EncoderOptions(chunk_pooling="first+mean", document_length=8),
    )
    return output


@pytest.mark.parametrize("change", CORRUPTING)
@pytest.mark.parametrize("way", ["first", "first+mean"])
def test_a_hybrid_encoder_refuses_what_changes_its_vectors(way, change, fused):
    hybrid = HybridEncoder(fused, chunk_pooling=way)
    [name] = change
    for texts in (LONG, [LONG, SHORT]):
        with pytest.raises(InputError, match=f"{name}.* would corrupt the vectors of a hybrid"):
            hybrid.encode_document(texts, **change)


@pytest.mark.parametrize("form", [{}, {"precision": "int8"}, {"convert_to_tensor": True}])
def test_no_documents_have_what_the_host_returns_for_them(form, model, tiny_cosine):
    expected = SentenceTransformer(str(tiny_cosine)).encode_document([], **form)
    for vectors in (model.encode_document([], **form), model.encode_corpus([], **form)):
        assert type(vectors) is type(expected)
        assert vectors.shape == expected.shape == (0,)


def test_no_documents_have_no_vectors_of_a_hybrid_encoder(fused):
    for way in ("first", "first+mean"):
        hybrid = HybridEncoder(fused, chunk_pooling=way)
        assert hybrid.encode_document([]).shape == hybrid.encode_corpus([]).shape == (0,)


def test_a_hybrid_encoder_takes_texts_from_any_iterable(fused):
    hybrid = HybridEncoder(fused)
    vectors = hybrid.encode_document([LONG, SHORT])
    for texts in ((text for text in (LONG, SHORT)), np.array([LONG, SHORT])):
        rows = hybrid.encode_document(texts, convert_to_numpy=False)
        np.testing.assert_allclose(torch.stack(rows).numpy(), vectors, atol=1e-6)


def test_a_hybrid_encoder_pools_its_dense_part_alone(fused, tiny_cosine):
    hybrid = HybridEncoder(fused)
    vectors = hybrid.encode_document([LONG, SHORT])
    options = EncoderOptions(chunk_pooling="first+mean", document_length=8)
    dense = load_encoder(tiny_cosine, options).encode_document([LONG, SHORT])
    np.testing.assert_allclose(vectors[:, :32], dense, atol=1e-5)
    lexical = hybrid.head.document_part([LONG, SHORT]).numpy()
    np.testing.assert_allclose(vectors[:, 32:], lexical, atol=1e-5)


def test_what_cannot_be_pooled_is_refused(tiny_cosine):
    with pytest.raises(InputError, match=r"chunk_pooling.*first\+mean"):
        COCODR(tiny_cosine, chunk_pooling="max")
    with pytest.raises(InputError, match="--chunk-pooling"):
        MRL(tiny_cosine, k=3, chunk_pooling="mean")
