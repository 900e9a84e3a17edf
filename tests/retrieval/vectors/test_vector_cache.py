"""Vectors of earlier commands: what is known is not encoded, and no result changes for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import exit_code, sentences
from sentence_transformers import SentenceTransformer

from beir_cocodr import (
    AdaptOptions,
    CompareOptions,
    PretrainOptions,
    Searcher,
    adapt,
    compare,
    evaluate,
    fuse,
    load_collection,
    load_encoder,
)
from beir_cocodr.models.checkpoints.loading import weights_sha256
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import EncoderOptions, FuseOptions, SearchOptions
from beir_cocodr.retrieval.vectors import corpus_encoder
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.retrieval.vectors.vector_cache import CachedEmbeddings, VectorCache
from beir_cocodr.serve.session import Session

pytestmark = pytest.mark.usefixtures("few_resamples")


@contextmanager
def counted(weights: str | None = None) -> Iterator[list[str]]:
    """Yield the documents that are encoded inside, by any encoder or that of these weights."""
    encoded: list[str] = []
    original = SentenceTransformer.encode

    def encode(self, inputs, *rest, **settings):
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        is_check = texts == ["a"]  # that a model which was loaded gives finite vectors
        is_document = settings.get("task") == "document" and not is_check
        if is_document and weights in (None, weights_sha256(self)):
            encoded.extend(texts)
        return original(self, inputs, *rest, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceTransformer, "encode", encode)
        yield encoded


def run_try(corpus: Path, model: str, output: Path) -> None:
    session = Session(str(corpus), ["bm25", model], output / "judged", samples=8)
    session._load(session.columns[model])
    assert session.columns[model].state == "ready", session.columns[model].remark
    session.comparison.remove_files()


def run_search(corpus: Path, model: str, output: Path) -> None:
    Searcher(corpus, f"hybrid:{model}").search("wing in a turbulent flow")


def run_compare(corpus: Path, model: str, output: Path) -> None:
    compare(["bm25", model], corpus, options=CompareOptions(samples=8, labels=False))


def run_fuse(corpus: Path, model: str, output: Path) -> None:
    fuse(model, corpus, output=output / "fused", options=FuseOptions(probes=4))


def run_evaluate(corpus: Path, model: str, output: Path) -> None:
    evaluate([model, f"hybrid:{model}"], corpus, measures="nDCG@10", output=output / "judged")


def run_adapt(corpus: Path, model: str, output: Path) -> None:
    coco = PretrainOptions(max_steps=1, batch_size=2, span_tokens=8)
    options = AdaptOptions(stages="coco", stage_options={"coco": coco})
    adapt(model, corpus, output=output / "adapted", options=options)


COMMANDS = {
    "try": run_try,
    "search": run_search,
    "compare": run_compare,
    "fuse": run_fuse,
    "evaluate": run_evaluate,
    "adapt": run_adapt,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_keeps_what_it_encodes(beir_folder, tiny_mlm, tmp_path, command):
    documents = load_collection(beir_folder).documents
    encoder = load_encoder(tiny_mlm)
    corpus = {encoder.text_format.document(document) for document in documents.values()}
    with counted(weights_sha256(encoder)) as encoded:
        COMMANDS[command](beir_folder, str(tiny_mlm), tmp_path)
    assert corpus <= set(encoded)
    assert VectorCache.of(encoder, documents).count_missing(documents) == 0


def test_no_command_encodes_what_is_known(beir_folder, tiny_mlm, tmp_path):
    documents = load_collection(beir_folder).documents
    encoder = load_encoder(tiny_mlm)
    corpus = {encoder.text_format.document(document) for document in documents.values()}
    cache = VectorCache.of(encoder, documents)
    CorpusEncoder(encoder, documents, cache=cache).encode(np.arange(len(documents)))
    base = weights_sha256(encoder)
    for command, run in COMMANDS.items():
        with counted(base) as encoded:
            run(beir_folder, str(tiny_mlm), tmp_path / command)
        # Crops are cut out of documents for the first comparison; a probe measures the time of a
        # training that is still to come.
        if command not in ("compare", "adapt"):
            assert encoded == [], command
        if command == "compare":
            assert not set(encoded) & corpus
    for again in ("compare", "try"):
        with counted(base) as encoded:
            COMMANDS[again](beir_folder, str(tiny_mlm), tmp_path / f"{again} again")
        assert encoded == [], again


@pytest.mark.parametrize("name", ["", "hybrid:", "rm3:", "feedback:"])
def test_runs_are_the_same_to_the_byte_with_and_without_the_cache(
    beir_folder, tiny_cosine, tmp_path, monkeypatch, name
):
    def run(folder: str) -> bytes:
        evaluate({"m": f"{name}{tiny_cosine}"}, beir_folder, output=tmp_path / folder)
        return (tmp_path / folder / "m.run").read_bytes()

    cold = run("cold")
    warm = run("warm")
    monkeypatch.setenv("BEIR_COCODR_VECTORS", "off")
    with counted() as encoded:
        assert run("off") == cold == warm
    assert len(encoded) == 48


def folder_of_files(folder: Path, count: int = 12) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(count):
        (folder / f"{number}.txt").write_text(sentences(rng, number % 4, 1 + number % 5))
    return folder


def test_of_a_changed_folder_only_new_texts_are_encoded(tiny_cosine, tmp_path):
    folder = folder_of_files(tmp_path / "files")
    Searcher(folder, str(tiny_cosine)).prepare()
    (folder / "3.txt").unlink()
    (folder / "new.txt").write_text("A treaty of the parliament.")
    with counted() as encoded:
        searcher = Searcher(folder, str(tiny_cosine))
        searcher.prepare()
    assert [text for text in encoded if "treaty of the parliament" not in text] == []
    assert len(encoded) == 1
    expected = load_encoder(tiny_cosine).encode_corpus(searcher.documents.take([*range(12)]))
    vectors = searcher._resources.dense(str(tiny_cosine)).embeddings.load()
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"document_length": 8}, {"document_prompt": "text: "}, {"title_separator": " | "}],
)
def test_other_settings_are_another_encoder(beir_folder, tiny_cosine, options):
    evaluate(str(tiny_cosine), beir_folder)
    with counted() as encoded:
        evaluate(str(tiny_cosine), beir_folder, search=SearchOptions(EncoderOptions(**options)))
    assert len(encoded) == 48


@pytest.mark.parametrize("kind", ["", "feedback:"])
def test_documents_in_bfloat16_are_those_of_autocast_and_are_kept_beside_the_others(
    beir_folder, tiny_cosine, tmp_path, kind
):
    documents = load_collection(beir_folder).documents
    model = load_encoder(tiny_cosine)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model.encode_corpus([*documents.values()], convert_to_tensor=True).float()
    name = str(tiny_cosine)
    if kind:
        fuse(name, beir_folder, output=tmp_path / "fused", options=FuseOptions(probes=4))
        name = f"feedback:{tmp_path / 'fused'}"

    def vectors(bf16: bool) -> torch.Tensor:
        searcher = Searcher(beir_folder, name, options=SearchOptions(bf16=bf16))
        searcher.prepare()
        dense = searcher._resources.dense(searcher._spec)
        return dense.embeddings.load()[:, : expected.shape[1]]

    exact = vectors(bf16=False)
    with counted() as encoded:
        rounded = vectors(bf16=True)
    assert len(encoded) == 48
    torch.testing.assert_close(F.normalize(rounded), F.normalize(expected), atol=1e-2, rtol=0)
    assert not torch.equal(rounded, exact)
    with counted() as encoded:
        assert torch.equal(vectors(bf16=True), rounded)
        assert torch.equal(vectors(bf16=False), exact)
    assert encoded == []


def test_queries_that_are_cut_elsewhere_change_no_document(beir_folder, tiny_cosine):
    evaluate(str(tiny_cosine), beir_folder)
    with counted() as encoded:
        evaluate(
            str(tiny_cosine), beir_folder, search=SearchOptions(EncoderOptions(query_length=6))
        )
    assert encoded == []


def test_a_large_corpus_is_read_from_the_cache_as_it_is_needed(beir_folder, tiny_cosine, tmp_path):
    documents = load_collection(beir_folder).documents
    model = load_encoder(tiny_cosine)
    vectors = []
    for in_memory in (1, 1 << 20):
        dense = Dense(model, documents, tmp_path / str(in_memory))
        dense.cache = VectorCache.of(model, documents)
        dense.in_memory = in_memory
        vectors.append(dense.embeddings.load())
        assert isinstance(dense.embeddings, CachedEmbeddings) == (in_memory == 1)
        rows = np.array([5, 0, 5])
        assert torch.equal(dense.embeddings.rows(rows), vectors[-1][rows])
    assert torch.equal(*vectors)
    assert not list(tmp_path.iterdir())


def test_texts_that_were_cut_are_counted_though_they_are_known(tiny_cosine, monkeypatch):
    corpus = {"a": "word " + " " * 20_000 + "wing", "b": "a wing"}
    triple = corpus, {"q": "wing"}, {"q": {"b": 1}}
    for _ in range(2):
        record = evaluate({"m": str(tiny_cosine)}, triple)
        assert record.models["m"].retrieval["texts_cut"] == 1


def encode_and_die(corpus: Path, model: str) -> None:
    """Encode batch by batch, and kill the process in the middle."""
    encoder = load_encoder(model)
    documents = load_collection(corpus).documents
    batches = []
    forward = CorpusEncoder._forward

    def forward_or_die(self, rows):
        batches.append(len(rows))
        if len(batches) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(self, rows)

    CorpusEncoder._forward = forward_or_die
    cache = VectorCache.of(encoder, documents)
    CorpusEncoder(encoder, documents, 256, cache=cache).encode(np.arange(len(documents)))


def test_a_killed_encoding_goes_on_after_its_last_batch_with_the_same_vectors(
    beir_folder, tiny_cosine
):
    encoder = load_encoder(tiny_cosine)
    documents = load_collection(beir_folder).documents
    rows = np.arange(len(documents))
    expected = CorpusEncoder(encoder, documents, 256).encode(rows)
    lengths, _ = CorpusEncoder(encoder, documents, 256)._tokenise(rows)
    sizes = [len(batch) for batch in corpus_encoder.token_batches(lengths, 256)]
    assert len(sizes) > 5
    assert exit_code(encode_and_die, beir_folder, str(tiny_cosine)) == -signal.SIGKILL
    with counted() as encoded:
        cache = VectorCache.of(encoder, documents)
        vectors = CorpusEncoder(encoder, documents, 256, cache=cache).encode(rows)
    assert len(encoded) == len(documents) - sum(sizes[:3])
    np.testing.assert_array_equal(vectors, expected)


def test_damaged_vectors_are_encoded_again(beir_folder, tiny_cosine, vectors_of_the_test_alone):
    evaluate(str(tiny_cosine), beir_folder)
    [file] = vectors_of_the_test_alone.glob("*/*/vectors")
    content = bytearray(file.read_bytes())
    content[32 * 4 * 7 + 3] ^= 0x55
    file.write_bytes(content)
    with counted() as encoded:
        evaluate(str(tiny_cosine), beir_folder)
    assert len(encoded) == 1


def test_the_cache_of_a_corpus_in_memory_is_known_by_its_content(tiny_cosine):
    corpus = {"a": "A wing.", "b": "A library."}
    queries = {"q": "wing"}
    evaluate(str(tiny_cosine), (corpus, queries, {"q": {"a": 1}}))
    with counted() as encoded:
        evaluate(str(tiny_cosine), (corpus | {"c": "A valve."}, queries, {"q": {"a": 1}}))
    assert encoded == ["A valve."]


def test_an_encoder_of_another_class_has_no_cache(beir_folder, tiny_cosine):
    class Shouting(COCODR):
        def encode_document(self, inputs, **settings):
            return super().encode_document([text.upper() for text in inputs], **settings)

    documents = load_collection(beir_folder).documents
    assert VectorCache.of(Shouting(str(tiny_cosine)), documents) is None
    assert VectorCache.of(COCODR(str(tiny_cosine)), documents) is not None
