from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_beir

from beir_cocodr import COCODR, MRL, ExactSearch, Searcher, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import EvaluateOptions, evaluate
from beir_cocodr.evaluation.store_run import StoreSearchOptions, search
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.retrieval.store.encode import encode, encode_documents
from beir_cocodr.retrieval.store.passes import update
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.store.store_search import search_store
from beir_cocodr.retrieval.vectors.pool import Workers
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores

DOCUMENTS = 46


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A collection in which some documents are there twice, so that there are ties."""
    folder = write_beir(tmp_path_factory.mktemp("search") / "corpus", documents=DOCUMENTS - 10)
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    twins = [
        json.dumps(json.loads(line) | {"_id": f"twin-{i}"}) for i, line in enumerate(lines[:10])
    ]
    (folder / "corpus.jsonl").write_text("\n".join([*lines, *twins]) + "\n")
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory, folder, tiny_bert) -> Path:
    output = tmp_path_factory.mktemp("stores") / "dot"
    return made(folder, tiny_bert, output)


def made(folder: Path, model: Path, output: Path, shard_size: int = 16, **settings: Any) -> Path:
    names = ("query_length", "document_length", "title_separator")
    encoder = {name: settings.pop(name) for name in names if name in settings}
    encode(
        str(folder),
        str(model),
        output,
        EncodeOptions(shard_size, **settings),
        workers=Workers(threads=1),
        encoder=EncoderOptions(**encoder),
    )
    return output


def read(run: Path) -> dict[str, list[tuple[str, float]]]:
    results: dict[str, list[tuple[str, float]]] = {}
    for line in run.read_text().splitlines():
        query, zero, document, rank, score, _ = line.split()
        found = results.setdefault(query, [])
        found.append((document, float(score)))
        assert (zero, int(rank)) == ("Q0", len(found))
    return results


def assert_same(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    """The same scores to a tolerance, and the same order where scores are further apart than
    that.
    """
    left, right = read(one), read(other)
    assert list(left) == list(right)
    for query in left:
        scores = [np.array([score for _, score in run[query]]) for run in (left, right)]
        np.testing.assert_allclose(*scores, rtol=tolerance, atol=tolerance)
        gaps = np.abs(np.diff(scores[0])) > 2 * tolerance * np.abs(scores[0][1:]).clip(1)
        edges = [0, *(np.flatnonzero(gaps) + 1).tolist(), len(scores[0])]
        for start, stop in pairwise(edges[:-1]):  # the last tie may go on below the cut
            documents = [{d for d, _ in run[query][start:stop]} for run in (left, right)]
            assert documents[0] == documents[1]


@pytest.mark.parametrize("name", ["tiny_bert", "tiny_cosine"])
@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_the_run_is_that_of_evaluate(request, folder, tmp_path, name, policy):
    model = request.getfixturevalue(name)
    made(folder, model, tmp_path / "store")
    report = search(
        tmp_path / "store",
        str(folder),
        tmp_path / "ours.run",
        StoreSearchOptions(top_k=20, identical_ids=policy, threads=1),
    )
    evaluate(
        [str(model)],
        str(folder),
        output=tmp_path / "e",
        measures="R@20",
        options=EvaluateOptions(identical_ids=policy, top_k=20),
    )
    assert_same(tmp_path / "ours.run", next((tmp_path / "e").glob("*.run")))
    assert (report.queries, report.identical_ids, report.top_k) == (16, policy, 20)
    assert {len(found) for found in read(tmp_path / "ours.run").values()} == {20}


def test_ties_go_to_the_larger_id(folder, store, tmp_path):
    search(store, str(folder), tmp_path / "run", StoreSearchOptions(top_k=DOCUMENTS, threads=1))
    pairs = 0
    for found in read(tmp_path / "run").values():
        assert len(found) == DOCUMENTS
        places = {document: place for place, (document, _) in enumerate(found)}
        for i in range(10):
            twin, other = places[f"twin-{i}"], places[f"d{i}"]
            if found[twin][1] == found[other][1]:
                assert twin + 1 == other
                pairs += 1
    assert pairs > 0


def test_any_shard_size_gives_the_same(folder, store, tiny_bert, tmp_path):
    search(store, str(folder), tmp_path / "16.run", StoreSearchOptions(top_k=30, threads=1))
    for size in (1, 7, 500):
        made(folder, tiny_bert, tmp_path / str(size), size)
        search(
            tmp_path / str(size),
            str(folder),
            tmp_path / f"{size}.run",
            StoreSearchOptions(top_k=30, threads=1),
        )
        assert_same(tmp_path / "16.run", tmp_path / f"{size}.run")


def test_three_processes_write_the_bytes_of_one(folder, store, tmp_path):
    search(store, str(folder), tmp_path / "one.run", StoreSearchOptions(top_k=30, threads=1))
    report = search(
        store,
        str(folder),
        tmp_path / "three.run",
        StoreSearchOptions(top_k=30, processes=3, device="cpu", threads=1),
    )
    assert (tmp_path / "three.run").read_bytes() == (tmp_path / "one.run").read_bytes()
    assert report.devices == ["cpu"] * 3


def test_lengths_and_separator_are_those_of_the_store(folder, tiny_bert, tmp_path):
    """Queries of two tokens of text are nearly all alike; evaluate with the same options agrees."""
    options = {"query_length": 4, "document_length": 20, "title_separator": " | "}
    made(folder, tiny_bert, tmp_path / "store", **options)
    report = search(
        tmp_path / "store",
        str(folder),
        tmp_path / "ours.run",
        StoreSearchOptions(top_k=20, threads=1),
    )
    evaluate(
        [str(tiny_bert)],
        str(folder),
        output=tmp_path / "e",
        measures="R@20",
        search=SearchOptions(EncoderOptions(**options)),
        options=EvaluateOptions(top_k=20),
    )
    assert_same(tmp_path / "ours.run", next((tmp_path / "e").glob("*.run")))
    assert report.truncated_queries > 0.5


def test_queries_of_another_model_are_refused_and_a_moved_one_is_not(
    folder, store, tiny_bert, tiny_mlm, tmp_path
):
    with pytest.raises(InputError, match=r"weights \w{16} there, \w{16} now.*--model") as caught:
        search(store, str(folder), tmp_path / "run", StoreSearchOptions(model=str(tiny_mlm)))
    assert str(tiny_bert) in str(caught.value)
    assert not (tmp_path / "run").exists()
    moved = shutil.copytree(tiny_bert, tmp_path / "moved")
    search(
        store, str(folder), tmp_path / "moved.run", StoreSearchOptions(model=str(moved), threads=1)
    )
    search(store, str(folder), tmp_path / "here.run", StoreSearchOptions(threads=1))
    assert (tmp_path / "moved.run").read_bytes() == (tmp_path / "here.run").read_bytes()


def test_a_model_that_changed_in_its_place_is_refused(folder, tiny_bert, tmp_path):
    place = shutil.copytree(tiny_bert, tmp_path / "model")
    made(folder, place, tmp_path / "store")
    model = COCODR(place)
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    model.save_pretrained(str(place))
    with pytest.raises(InputError, match=r"weights \w{16} there"):
        search(tmp_path / "store", str(folder), tmp_path / "run")


def test_a_pooling_that_only_encode_was_given_is_found_or_asked_for(folder, tiny_bert, tmp_path):
    """Queries have the vectors of a saved model that pools in the same way."""
    store = tmp_path / "store"
    encode(str(folder), str(tiny_bert), store, encoder=EncoderOptions(pooling="mean"))
    search(store, str(folder), tmp_path / "bare.run", StoreSearchOptions(threads=1))
    COCODR(tiny_bert, pooling="mean").save_pretrained(str(tmp_path / "saved"))
    encode(str(folder), str(tmp_path / "saved"), tmp_path / "of-saved")
    saved = tmp_path / "saved.run"
    search(tmp_path / "of-saved", str(folder), saved, StoreSearchOptions(threads=1))
    columns = [
        [line.split()[:5] for line in run.read_text().splitlines()]
        for run in (saved, tmp_path / "bare.run")
    ]
    assert columns[0] == columns[1]
    with pytest.raises(InputError, match="has its weights and other modules: give --pooling"):
        Searcher(str(folder), str(tiny_bert), SearchOptions(stores=(store,)))
    with pytest.raises(InputError, match="with other modules; give --pooling as it was"):
        encode(str(folder), str(tiny_bert), store)
    with pytest.raises(InputError, match="with other modules; give --pooling as it was"):
        update(COCODR(tiny_bert), load_collection(folder).documents, store)


def test_another_corpus_and_bad_input_are_refused(folder, store, beir_folder, tmp_path):
    with pytest.raises(InputError, match=r"does not contain the corpus .*\w{16}.*\w{16}"):
        search(store, str(beir_folder), tmp_path / "run")
    with pytest.raises(InputError, match="no embeddings"):
        search(tmp_path / "nowhere", str(folder), tmp_path / "run")
    with pytest.raises(InputError, match=r"top_k .*0"):
        search(store, str(folder), tmp_path / "run", StoreSearchOptions(top_k=0))
    with pytest.raises(InputError, match="split 'tset'"):
        search(store, str(folder), tmp_path / "run", StoreSearchOptions(split="tset"))
    with pytest.raises(InputError, match=r"folder.*run file"):
        search(store, str(folder), tmp_path)
    with pytest.raises(InputError, match="policy"):
        search(store, str(folder), tmp_path / "run", StoreSearchOptions(identical_ids="sometimes"))
    incomplete = shutil.copytree(store, tmp_path / "incomplete")
    (incomplete / "shard-00002.safetensors").unlink()
    with pytest.raises(InputError, match="1 of 3 shards"):
        search(incomplete, str(folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_store_without_a_named_model_asks_for_it(folder, tiny_bert, tmp_path):
    encode_documents(COCODR(tiny_bert), load_collection(folder).documents, tmp_path / "store")
    with pytest.raises(InputError, match="which model"):
        search(tmp_path / "store", str(folder), tmp_path / "run")
    search(
        tmp_path / "store", str(folder), tmp_path / "run", StoreSearchOptions(model=str(tiny_bert))
    )


@pytest.fixture(scope="module")
def mrl(folder, two_layer_bert, tmp_path_factory) -> tuple[Path, np.ndarray]:
    """Return a saved model and its (Q, N) scores in float64."""
    model = MRL(str(two_layer_bert))
    saved = tmp_path_factory.mktemp("mrl") / "model"
    model.save_pretrained(str(saved))
    collection = load_collection(folder)
    queries = model.encode_queries(list(collection.queries.values())).astype(np.float64)
    documents = model.encode_corpus(list(collection.documents.values())).astype(np.float64)
    return saved, queries @ documents.T


@pytest.mark.parametrize(
    ("precision", "least"), [("fp32", 1.0), ("fp16", 0.99), ("bf16", 0.95), ("int8", 0.9)]
)
def test_mrl_is_found_in_any_precision_with_its_own_scores(folder, mrl, tmp_path, precision, least):
    """The best ten by brute force in float64, and their scores."""
    model, scores = mrl
    made(folder, model, tmp_path / "store", precision=precision)
    search(
        tmp_path / "store", str(folder), tmp_path / "run", StoreSearchOptions(top_k=10, threads=1)
    )
    collection, found = load_collection(folder), read(tmp_path / "run")
    ids = list(collection.documents)
    shared = []
    for row, query in zip(scores, collection.queries, strict=True):
        best = {ids[i] for i in np.argsort(-row)[:10]}
        shared.append(len(best & {document for document, _ in found[query]}) / 10)
        own = np.array([row[ids.index(document)] for document, _ in found[query]])
        error = np.abs(own - [score for _, score in found[query]]).max() / row.std()
        assert error < {"fp32": 1e-4, "fp16": 2e-3, "bf16": 2e-2, "int8": 0.1}[precision]
    assert np.mean(shared) >= least - (0.02 if precision == "fp32" else 0.0)


def test_products_that_overflow_name_document_and_query(folder, store, tmp_path):
    opened = EmbeddingStore.open(store)
    vectors = torch.zeros(3, 32)
    vectors[1] = 1e38 * torch.sign(opened.rows(np.array([27]))[0])
    with pytest.raises(NonFiniteScores, match=r"'d\d+'.*'b'"):
        search_store(opened, ["a", "b", "c"], vectors, 5)
    vectors[2, 0] = float("nan")
    with pytest.raises(NonFiniteScores, match="query 'c':"):
        search_store(opened, ["a", "b", "c"], vectors, 5)


@pytest.mark.parametrize("form", [dict, lambda documents: documents])
def test_exact_search_keeps_its_embeddings_in_a_store(folder, tiny_bert, tmp_path, form):
    """The interface of BEIR's search; the second one encodes nothing, and results are as without a
    store.
    """
    model, collection = COCODR(tiny_bert), load_collection(folder)
    queries = {"d3": "wing flow", **collection.queries}  # one query with the id of a document
    plain = ExactSearch(model).search(form(collection.documents), queries, 7, "dot")
    for _ in range(2):
        stored = ExactSearch(model, store=tmp_path / "store").search(
            form(collection.documents), queries, 7, "dot"
        )
        assert list(stored) == list(plain)
        for query, found in plain.items():
            # Two documents of one text are as good as each other, but for rounding.
            assert [id.replace("twin-", "d") for id in stored[query]] == [
                id.replace("twin-", "d") for id in found
            ]
            np.testing.assert_allclose(
                list(stored[query].values()), list(found.values()), rtol=1e-5
            )
        times = [path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()]
    assert "d3" not in stored["d3"]
    ExactSearch(model, store=tmp_path / "store").search(
        form(collection.documents), queries, 7, "dot"
    )
    assert [path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()] == times


def test_exact_search_refuses_a_store_of_something_else(folder, beir_folder, tiny_bert, tmp_path):
    model = COCODR(tiny_bert)
    search_ = ExactSearch(model, store=tmp_path / "store")
    search_.search(load_collection(folder).documents, {"q": "wing"}, 3, "dot")
    with pytest.raises(InputError, match=r"corpus \w{16}"):
        search_.search(load_collection(beir_folder).documents, {"q": "wing"}, 3, "dot")

    class Other:
        similarity_fn_name = "dot"

    with pytest.raises(InputError, match="Other"):
        ExactSearch(Other(), store=tmp_path / "store").search(
            {"d": {"text": "x"}}, {"q": "wing"}, 3, "dot"
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_the_same(folder, store, tmp_path):
    search(store, str(folder), tmp_path / "cpu.run", StoreSearchOptions(top_k=30, device="cpu"))
    search(store, str(folder), tmp_path / "gpu.run", StoreSearchOptions(top_k=30, device="cuda"))
    assert_same(tmp_path / "cpu.run", tmp_path / "gpu.run")
