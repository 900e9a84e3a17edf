"""Embeddings in files: what BEIR's encode_and_retrieve asks for."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from beir.retrieval.evaluation import EvaluateRetrieval

from beir_cocodr import COCODR, ExactSearch, load_collection, load_encoder
from beir_cocodr.errors import InputError


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder)


@pytest.fixture
def search(tiny_cosine) -> ExactSearch:
    return ExactSearch(load_encoder(tiny_cosine), corpus_chunk_size=20, show_progress_bar=False)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("corpus.*.pkl"))


def test_files_give_what_search_gives(search, collection, tmp_path):
    corpus, queries = collection.documents, collection.queries
    search.encode(corpus, queries, tmp_path)
    assert len(files(tmp_path)) == 3  # 48 documents, 20 a file
    found = search.search_from_files(tmp_path / "queries.pkl", files(tmp_path)[::-1], 10)
    expected = search.search(corpus, queries, 10)
    assert {query: list(hits) for query, hits in found.items()} == {
        query: list(hits) for query, hits in expected.items()
    }
    for query, hits in found.items():
        assert hits == pytest.approx(expected[query], abs=1e-5)


def test_beirs_evaluation_calls_both(search, collection, tmp_path):
    retriever = EvaluateRetrieval(search, [1, 10])
    settings = {
        "encode_output_path": str(tmp_path),
        "query_filename": "q.pkl",
        "corpus_filename": "part-*.bin",
    }
    found = retriever.encode_and_retrieve(collection.documents, collection.queries, **settings)
    assert found.keys() == collection.queries.keys()
    assert {file.name for file in tmp_path.iterdir()} == {
        "q.pkl",
        "part-0.bin",
        "part-1.bin",
        "part-2.bin",
    }


def test_what_is_there_is_kept_and_what_is_missing_is_made(
    search, collection, tmp_path, monkeypatch
):
    search.encode(collection.documents, collection.queries, tmp_path)
    files(tmp_path)[1].unlink()
    before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    search.encode(collection.documents, collection.queries, tmp_path)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert len(files(tmp_path)) == 3
    search.encode(collection.documents, collection.queries, tmp_path, overwrite=True)
    assert all(file.stat().st_mtime_ns > time for file, time in before.items())


def test_other_models_texts_and_lengths_do_not_pass_for_the_same(
    search, collection, tiny_bert, tiny_cosine, tmp_path
):
    corpus, queries = collection.documents, collection.queries
    search.encode(corpus, queries, tmp_path)
    others = [COCODR(tiny_bert), load_encoder(tiny_cosine)]
    others[1][0].query_length = 7
    for other in others:
        with pytest.raises(InputError, match=r"queries\.pkl .*overwrite=True"):
            ExactSearch(other, corpus_chunk_size=20).encode(corpus, queries, tmp_path)
    changed = dict(corpus.items()) | {"d3": {"title": "", "text": "another text"}}
    with pytest.raises(InputError, match=r"corpus\.0\.pkl .*documents"):
        search.encode(changed, queries, tmp_path)
    ExactSearch(others[0], corpus_chunk_size=20, show_progress_bar=False).encode(
        corpus, queries, tmp_path / "o", query_filename="q"
    )
    with pytest.raises(InputError, match=r"different encodings"):
        search.search_from_files(tmp_path / "o" / "q", files(tmp_path), 5)


def test_a_model_that_cannot_be_told_apart_is_encoded_anew_or_not_at_all(
    collection, tiny_cosine, tmp_path
):
    class Wrapped:
        def __init__(self, model):
            self.encode_queries, self.encode_corpus = model.encode_queries, model.encode_corpus

    search = ExactSearch(Wrapped(load_encoder(tiny_cosine)), show_progress_bar=False)
    search.encode(collection.documents, collection.queries, tmp_path)
    found = search.search_from_files(tmp_path / "queries.pkl", files(tmp_path), 5)
    assert {len(hits) for hits in found.values()} == {5}
    with pytest.raises(InputError, match="overwrite=True"):
        search.encode(collection.documents, collection.queries, tmp_path)


def test_a_folder_that_cannot_be_made_is_named(search, collection, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"file/below cannot be the output folder"):
        search.encode(collection.documents, collection.queries, tmp_path / "file" / "below")


def test_files_that_are_not_ours_or_do_not_fit(search, collection, tmp_path):
    search.encode(collection.documents, collection.queries, tmp_path)
    queries, found = tmp_path / "queries.pkl", files(tmp_path)
    with pytest.raises(InputError, match="3 files of documents, but 2 are here"):
        search.search_from_files(queries, found[:2], 5)
    with pytest.raises(InputError, match="3 files of documents, but 0 are here"):
        search.search_from_files(queries, [], 5)
    bad = tmp_path / "beirs.pkl"
    bad.write_bytes(pickle.dumps((np.zeros((1, 4)), ["a"])))
    with pytest.raises(InputError, match=r"beirs\.pkl .*pickles"):
        search.search_from_files(bad, found, 5)
    with pytest.raises(InputError, match=r"missing\.pkl"):
        search.search_from_files(tmp_path / "missing.pkl", found, 5)
    found[0].write_bytes(found[0].read_bytes()[:-200])
    with pytest.raises(InputError, match=r"corpus\.0\.pkl"):
        search.search_from_files(queries, found, 5)
    with pytest.raises(InputError, match=r"corpus\.pkl.*\*"):
        search.encode(
            collection.documents, collection.queries, tmp_path, corpus_filename="corpus.pkl"
        )
