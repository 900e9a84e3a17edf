"""The gate on search engines over HTTP and on objects with ``search``, sound and faulty ones."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from conftest import COMMON, TOPICS, completed

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.gate import GateOptions, gate
from beir_cocodr.evaluation.gate_record import GateRecord
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.retrieval.bm25 import BM25
from tests.http_servers import Asked, serving

DOCUMENTS = 120
# Enough queries of each kind for every fault below to be noticed.
OPTIONS = GateOptions(samples=60)
PREFIX = EncoderOptions(query_prompt="query: ")
NOT_WORSE, WORSE, BAD_INPUT = 0, 1, 2


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Path:
    """120 documents that repeat four words of their own, and 30 queries for these words."""
    folder = tmp_path_factory.mktemp("engines") / "corpus"
    folder.mkdir()
    rng = np.random.default_rng(5)
    vocabulary = [word for topic in TOPICS for word in topic]
    documents, queries = [], []
    for number in range(DOCUMENTS):
        own = rng.choice(vocabulary, 4, replace=False)
        words = [str(rng.choice(own if rng.random() < 0.6 else COMMON)) for _ in range(48)]
        sentences = [" ".join(words[start : start + 12]) + " ." for start in range(0, 48, 12)]
        document = {"_id": f"d{number}", "title": "", "text": " ".join(sentences)}
        documents.append(json.dumps(document))
        if number % 4 == 0:
            queries.append(json.dumps({"_id": f"q{number}", "text": " ".join(own)}))
    (folder / "corpus.jsonl").write_text("\n".join(documents) + "\n")
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    return folder


@pytest.fixture(scope="module")
def documents(collection) -> Documents:
    return load_collection(str(collection), labels="optional").documents


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep no answer of an earlier engine at the same port."""
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))


class Engine:
    """BM25 over an index of its own, whose documents may bear the ids of others, or be lost."""

    def __init__(self, documents: Documents, fault: str = "") -> None:
        self.documents = documents
        self.bm25 = BM25(documents)
        ids = documents.ids(range(len(documents)))
        self.served = dict(zip(ids, ids, strict=True))
        tenth = ids[::10]
        if fault == "shuffled":
            self.served |= dict(zip(tenth, [*tenth[1:], tenth[0]], strict=True))
        elif fault == "truncated":
            for id in ids[-len(tenth) :]:
                del self.served[id]
        elif fault == "deleted":  # what the collection no longer has under these ids
            self.served |= {id: f"deleted-{id}" for id in tenth}

    def search(self, queries: dict[str, str], top_k: int) -> dict[str, dict[str, float]]:
        ranking = self.bm25.search(queries, DOCUMENTS)
        answers = {}
        for query, hits in ranking.results(self.documents).items():
            served = [(self.served[id], score) for id, score in hits if id in self.served]
            answers[query] = dict(served[:top_k])
        return answers

    def __call__(self, asked: Asked) -> list[dict[str, str]]:
        """Answer over HTTP."""
        query = parse_qs(urlsplit(asked.path).query)
        return [{"id": id} for id in self.search({"q": query["q"][0]}, int(query["k"][0]))["q"]]


def url_of(engine: Engine, stack: ExitStack) -> str:
    """Start a server of an engine, and return the name of the engine."""
    server = stack.enter_context(serving(engine))
    return f"{server.url}/search?q={{query}}&k={{top_k}}"


def distances(record: GateRecord) -> list[float]:
    return [figures.distance for figures in record.evidence]


def test_engines_over_http_with_one_index_end_with_0(collection, documents):
    with ExitStack() as stack:
        old, new = (url_of(Engine(documents), stack) for _ in range(2))
        record = gate(old, new, str(collection), options=OPTIONS)
        words = ["gate", old, new, "--dataset", str(collection), "--samples", "60"]
        done = completed(main, words)
    assert (record.decision, record.old, record.new) == ("not worse", old, new)
    assert distances(record) == pytest.approx([0, 0, 0])
    assert record.unknown == {"old": 0, "new": 0}
    assert record.missing == {"old": None, "new": None}  # an engine cannot be asked for all
    kinds = [figures.kind for figures in record.evidence]
    assert kinds == ["spans of documents", "generated queries", "queries of the collection"]
    assert done.returncode == NOT_WORSE
    assert f"{new} is not worse than {old}" in done.stdout


@pytest.mark.parametrize("fault", ["shuffled", "truncated", "deleted"])
def test_a_faulty_engine_ends_with_1(collection, documents, fault):
    with ExitStack() as stack:
        old = url_of(Engine(documents), stack)
        new = url_of(Engine(documents, fault), stack)
        record = gate(old, new, str(collection), options=OPTIONS)
        repaired = gate(new, old, str(collection), options=OPTIONS)
        words = ["gate", old, new, "--dataset", str(collection), "--samples", "60"]
        assert completed(main, words).returncode == WORSE
    assert record.decision == "worse", record.paragraph
    assert repaired.decision == "not worse", repaired.paragraph
    # The same engine as an object in Python.
    objects = (Engine(documents), Engine(documents, fault))
    of_objects = gate(*objects, str(collection), options=OPTIONS)
    assert of_objects.decision == "worse", of_objects.paragraph
    assert of_objects.estimate == pytest.approx(record.estimate, abs=0.001)  # other ties


def test_what_an_engine_has_and_the_collection_lacks_takes_a_rank_and_is_counted(
    collection, documents
):
    with ExitStack() as stack:
        url = url_of(Engine(documents, "deleted"), stack)
        for new in (url, Engine(documents, "deleted")):
            record = gate(Engine(documents), new, str(collection), options=OPTIONS)
            assert record.unknown["old"] == 0
            assert 0.05 < record.unknown["new"] < 0.2
            assert "are documents that the collection does not have" in record.paragraph


def test_an_engine_against_the_model_that_it_serves(collection, documents):
    with ExitStack() as stack:
        url = url_of(Engine(documents), stack)
        for new in (url, Engine(documents)):
            record = gate("bm25", new, str(collection), options=OPTIONS)
            assert record.decision == "not worse"
            assert distances(record) == pytest.approx([0, 0, 0])
        damaged = Engine(documents, "shuffled")
        assert gate("bm25", damaged, str(collection), options=OPTIONS).decision == "worse"
        # A run that the engine answered before it was changed.
        run = Engine(documents).search(
            load_collection(str(collection), labels="optional").queries, 10
        )
        assert gate(run, url, str(collection), options=OPTIONS).decision == "not worse"


class Bags:
    """An encoder known by BEIR's methods alone: counts of words, some of which it may not know."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def encode_queries(self, queries: list[str], **settings: object) -> np.ndarray:
        counts = [[text.split().count(word) for word in self.words] for text in queries]
        return np.array(counts, np.float32)

    def encode_corpus(self, corpus: list[dict[str, str]], **settings: object) -> np.ndarray:
        return self.encode_queries([document["text"] for document in corpus])


def test_two_objects_of_one_class_are_two_models(collection):
    words = [word for topic in TOPICS for word in topic]
    old, new = Bags(words), Bags(words[::2])
    assert gate(old, new, str(collection), options=OPTIONS).decision == "worse"
    assert gate(old, Bags(words), str(collection), options=OPTIONS).decision == "not worse"


def test_an_engine_that_cannot_be_judged_ends_with_2(collection, documents):
    with serving(lambda asked: {"error": "no index"}) as server:
        url = f"{server.url}/search?q={{query}}"
        done = completed(main, ["gate", "bm25", url, "--dataset", str(collection)])
    assert done.returncode == BAD_INPUT
    assert "correct the path of the ids" in done.stderr.splitlines()[-1]
    with serving(lambda asked: [{"id": 7}]) as server:
        url = f"{server.url}/search?q={{query}}"
        with pytest.raises(InputError, match=r"100% of the results of NEW \(http.*its own numbers"):
            gate("bm25", url, str(collection), options=OPTIONS)

    # Neither an empty index nor ids that are elsewhere pass for an engine that lost nothing.
    with serving(lambda asked: []) as server:
        url = f"{server.url}/search?q={{query}}"
        with pytest.raises(InputError, match=r"OLD \(http.*returned no document for any of"):
            gate(url, url, str(collection), options=OPTIONS)
    with serving(lambda asked: [{"docid": "d1"}]) as server:
        url = f"{server.url}/search?q={{query}}"
        with pytest.raises(InputError, match=r"none of 60 results for 60 queries has"):
            gate("bm25", url, str(collection), options=OPTIONS)
        with pytest.raises(InputError, match=r"NEW.*the engine reads texts itself"):
            gate("bm25", url, str(collection), options=replace(OPTIONS, new=PREFIX))
        both = SearchOptions(encoder=EncoderOptions(query_length=3))
        with pytest.raises(InputError, match=r"OLD.*query_length.*reads texts itself.*--set-new"):
            gate(url, "bm25", str(collection), options=OPTIONS, search=both)

    class Silent:
        def search(self, queries, top_k):
            return None

    with pytest.raises(InputError, match=r"Silent\.search returned None"):
        gate("bm25", Silent(), str(collection), options=OPTIONS)
    with pytest.raises(InputError, match=r"NEW cannot be loaded with query_prompt"):
        gate("bm25", Engine(documents), str(collection), options=replace(OPTIONS, new=PREFIX))
