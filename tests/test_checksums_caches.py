"""Every file of every cache, damaged in every way: the results stay, and a line says so."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import write_beir

from beir_cocodr import load_collection, load_encoder
from beir_cocodr.data.apidocs import apidocs_folder
from beir_cocodr.data.text import TextFormat
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.query_context import load_query_context
from beir_cocodr.io import cache_folder
from beir_cocodr.resampling.similarity import QueryEncoder, query_embeddings
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.training.hard_negatives.bm25_negatives import bm25_negatives
from beir_cocodr.training.hard_negatives.mined_negatives import mine_negatives
from beir_cocodr.training.options import MiningOptions
from beir_cocodr.training.pretraining.context_keys import load_keys
from beir_cocodr.training.pretraining.document_views import token_counts
from beir_cocodr.training.pretraining.token_places import TokenPlaces


def flipped(file: Path, rng: np.random.Generator) -> None:
    content = bytearray(file.read_bytes())
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)


def cut(file: Path, rng: np.random.Generator) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(rng.integers(len(content)))])


def zeroed(file: Path, rng: np.random.Generator) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def removed(file: Path, rng: np.random.Generator) -> None:
    file.unlink()


@pytest.fixture(scope="module")
def beir_folder(tmp_path_factory) -> Path:
    """Write a collection of a few documents, as all work is done again after every damage."""
    return write_beir(tmp_path_factory.mktemp("beir") / "tiny", documents=12, queries=4)


DAMAGES = [flipped, cut, zeroed, removed]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def assert_survives(
    root: Path, work: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Damage each file that some work keeps, in each way, and compare what the work gives then."""
    expected = work()
    pristine = root.with_name("pristine")
    shutil.copytree(root, pristine, symlinks=True)
    files = sorted(
        path for path in pristine.rglob("*") if path.is_file() and path.suffix != ".lock"
    )
    assert files, "the work keeps nothing"
    for file in files:
        for number, damage in enumerate(DAMAGES):
            shutil.rmtree(root)
            shutil.copytree(pristine, root, symlinks=True)
            damage(root / file.relative_to(pristine), np.random.default_rng(number))
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                again = work()
            where = f"{damage.__name__} {file.relative_to(pristine)}"
            assert again == expected, where
            assert len(caplog.messages) <= 2, (where, caplog.messages)
            is_gone = damage is removed
            assert caplog.messages or is_gone, where


def test_a_converted_corpus(cache, beir_folder, tmp_path, caplog):
    folder = tmp_path / "beir"
    shutil.copytree(beir_folder, folder)

    def work() -> object:
        documents = load_collection(folder).documents
        return [documents[id] for id in documents]

    assert_survives(cache / "corpora", work, caplog)


def test_the_content_of_files(cache, tmp_path, caplog):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("# Wings\n\nThe wing of an aircraft makes lift.")
    load_collection(notes, labels="none")
    changes = iter(range(1_000_000))

    def work() -> object:  # the corpus is read anew, and a.md taken from the cache
        (notes / "b.txt").write_text(f"Note {next(changes)}")
        documents = load_collection(notes, labels="none").documents
        return [documents[id] for id in documents if id.startswith("a.md")]

    assert_survives(cache / "files", work, caplog)


def test_an_index_of_bm25(cache, beir_folder, caplog):
    collection = load_collection(beir_folder)

    def work() -> object:
        index = BM25(collection.documents)
        index.keep(cache_folder("bm25"))
        return index.search(collection.queries, 5).results(collection.documents)

    assert_survives(cache / "bm25", work, caplog)


def test_negatives_of_bm25(cache, beir_folder, caplog):
    collection = load_collection(beir_folder)

    def work() -> object:
        pools = bm25_negatives(collection, TextFormat(), depth=5, seed=1)
        return {query: rows.tolist() for query, rows in pools.items()}

    assert_survives(cache / "bm25", work, caplog)


def test_counts_of_tokens(cache, beir_folder, tiny_cosine, caplog):
    documents = load_collection(beir_folder).documents
    model = load_encoder(tiny_cosine)
    assert_survives(cache / "token-counts", lambda: token_counts(documents, model).tolist(), caplog)


def test_places_of_tokens(cache, beir_folder, tiny_cosine, caplog):
    documents = load_collection(beir_folder).documents
    model = load_encoder(tiny_cosine)

    def work() -> object:
        places = TokenPlaces(documents, model)
        places.complete(token_counts(documents, model)[:, 0])
        return [places.of(row).tolist() for row in range(len(documents))]

    assert_survives(cache / "token-places", work, caplog)


def test_embeddings_of_queries(cache, beir_folder, tiny_cosine, caplog):
    queries = load_collection(beir_folder).queries
    encoder = QueryEncoder(str(tiny_cosine))

    def work() -> object:
        return query_embeddings(encoder, queries).load().tolist()

    assert_survives(cache / "query_embeddings", work, caplog)


def test_queries_as_context(cache, beir_folder, tmp_path, caplog):
    generate_queries(beir_folder, "lexical", tmp_path / "queries")
    assert_survives(
        cache / "query-context", lambda: load_query_context(tmp_path / "queries")[:], caplog
    )


def test_keys_of_queries_as_context(cache, beir_folder, tmp_path, caplog):
    generate_queries(beir_folder, "lexical", tmp_path / "queries")

    def work() -> object:
        return load_keys(load_query_context(tmp_path / "queries")).tolist()

    assert_survives(cache / "query-context", work, caplog)


def test_mined_negatives(cache, beir_folder, tiny_cosine, tmp_path, caplog):
    collection = load_collection(beir_folder)
    model = load_encoder(tiny_cosine)
    options = MiningOptions(depth=10, keep=3)

    def work() -> object:
        mined = mine_negatives(collection, model, tmp_path / "mining", options, key={"a": 1})
        return mined.rows.tolist(), mined.embeddings.tolist(), json.dumps(mined.counts)

    assert_survives(tmp_path / "mining", work, caplog)


def test_the_embedded_collection(cache, monkeypatch, caplog):
    # A part of NumPy is read in a moment, and is read again after every damage.
    part = Path(np.__file__).parent / "fft"
    monkeypatch.setattr("beir_cocodr.data.apidocs._source_root", lambda domain: part)

    def work() -> object:
        folder = apidocs_folder("numpy")
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return [path.read_bytes() for path in files if path.parent.name != "checksums"]

    assert_survives(cache / "apidocs", work, caplog)
