"""Ids of ir_datasets: its own handlers over local files; what it ships is looked up, never
downloaded.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ir_datasets
import pytest
from ir_datasets.datasets.beir import BeirDocs, BeirQrels, BeirQueries, BeirTitleDoc
from ir_datasets.formats import GenericQuery, JsonlDocs, TrecQrels, TsvDocs, TsvQueries
from ir_datasets.util import Download, LocalDownload, RequestsDownload

from beir_cocodr.data.collection import load_collection, resolve_source
from beir_cocodr.data.irds_source import IrdsSource, available_splits, is_registered, suggestion
from beir_cocodr.data.validation import validate
from beir_cocodr.errors import InputError

numbers = itertools.count()

#: What ir_datasets ships; other tests register ids of their own when they run.
SHIPPED = list(ir_datasets.registry)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "irds"))
    monkeypatch.setenv("IR_DATASETS_DL_TRIES", "1")


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, str], LocalDownload]:
    def write(name: str, content: str) -> LocalDownload:
        (tmp_path / name).write_text(content)
        return LocalDownload(tmp_path / name)

    return write


def register(**datasets: Any) -> str:
    """Register ids below a name that no other test has; ``main`` is the name itself."""
    name = f"toy-{next(numbers)}"
    for below, dataset in datasets.items():
        ir_datasets.registry.register(name if below == "main" else f"{name}/{below}", dataset)
    return name


class Thesis(NamedTuple):
    """Neither title nor text: what ir_datasets composes is the text."""

    doc_id: str
    heading: str
    body: str

    def default_text(self) -> str:
        return f"{self.heading}: {self.body}"


class Function(NamedTuple):
    """No text by any name, as in codesearchnet."""

    doc_id: str
    title: str
    path: str
    stars: int
    code: str


class LooseQrel(NamedTuple):
    """Grades as ir_datasets read them from a table, as in codesearchnet/challenge."""

    query_id: str
    doc_id: str
    relevance: str


class DocumentAsQuery(NamedTuple):
    query_id: str
    doc_id: str


class Topic(NamedTuple):
    query_id: str
    keywords: str
    description: str

    def default_text(self) -> str:
        return self.keywords


@pytest.fixture
def split_id(file: Callable[[str, str], LocalDownload]) -> str:
    docs = TsvDocs(file("docs.tsv", "d1\tlift\nd2\tdrag\nd3\tnaïve\n"))
    queries = TsvQueries(file("queries.tsv", "q1\twing\nq2\tair\nq3\tnobody judged it\n"))
    train = TrecQrels(file("train.qrels", "q2 0 d2 1\n"), {})
    test = TrecQrels(file("test.qrels", "q1 0 d1 2\nq1 0 gone 1\nq9 0 d1 1\n"), {})
    return register(
        main=ir_datasets.Dataset(docs, queries),
        train=ir_datasets.Dataset(docs, queries, train),
        test=ir_datasets.Dataset(docs, queries, test),
    )


def test_a_split_of_an_id(split_id: str, tmp_path: Path) -> None:
    test = load_collection(f"irds:{split_id}")
    assert {id: document["text"] for id, document in test.documents.items()} == {
        "d1": "lift",
        "d2": "drag",
        "d3": "naïve",
    }
    assert (test.queries, test.qrels, test.split) == (
        {"q1": "wing"},
        {"q1": {"d1": 2, "gone": 1}},
        "test",
    )
    assert test.counts == {"qrels for unknown documents": 1, "qrels for unknown queries": 1}
    assert test.name == f"irds:{split_id}"
    train = load_collection(f"irds:{split_id}", "train")
    assert (train.queries, train.qrels, train.split) == ({"q2": "air"}, {"q2": {"d2": 1}}, "train")
    assert load_collection(f"irds:{split_id}/train").qrels == train.qrels
    assert len(list((tmp_path / "cache" / "corpora").glob("*.arrow"))) == 1
    assert available_splits(split_id) == ["test", "train"]


def test_a_missing_split_names_the_others(split_id: str) -> None:
    with pytest.raises(InputError, match=r"'dev' .*test, train"):
        load_collection(f"irds:{split_id}", "dev")
    optional = load_collection(f"irds:{split_id}", "dev", labels="optional")
    assert (len(optional.queries), optional.qrels, optional.split) == (3, {}, None)
    with pytest.raises(InputError, match=r"'train' .*'test'"):
        load_collection(f"irds:{split_id}/test", "train")


def test_documents_without_a_field_text(
    tmp_path: Path, file: Callable[[str, str], LocalDownload]
) -> None:
    records = [
        {"doc_id": "a", "heading": "On wings", "body": "lift"},
        {"doc_id": "b", "heading": "", "body": ""},
    ]
    theses = JsonlDocs(file("docs.jsonl", "\n".join(map(json.dumps, records))), doc_cls=Thesis)
    topics = TsvQueries(file("queries.tsv", "q1\tshort\tlong\n"), query_cls=Topic)
    name = register(
        main=ir_datasets.Dataset(theses, topics, TrecQrels(file("qrels", "q1 0 a 1\n"), {}))
    )
    collection = load_collection(f"irds:{name}")
    assert dict(collection.documents) == {
        "a": {"title": "", "text": "On wings: lift"},
        "b": {"title": "", "text": ": "},
    }
    assert collection.queries == {"q1": "short"}
    assert collection.split == name


class LooseQrels(ir_datasets.formats.BaseQrels):
    def __init__(self, *grades: str) -> None:
        self.grades = grades

    def qrels_iter(self) -> Iterator[LooseQrel]:
        return (LooseQrel("q1", f"f{number}", grade) for number, grade in enumerate(self.grades))


def test_documents_and_queries_without_any_text(file: Callable[[str, str], LocalDownload]) -> None:
    docs = TsvDocs(
        file("docs.tsv", "f0\tSort\ta/b.py\t3\tdef sort\nf1\t\tc.py\t1\tx\n"), doc_cls=Function
    )
    queries = TsvQueries(file("queries.tsv", "q1\tsorting\n"))
    name = register(
        main=ir_datasets.Dataset(docs, queries, LooseQrels("1", "0")),
        loose=ir_datasets.Dataset(docs, queries, LooseQrels("1", "0.5")),
        linking=ir_datasets.Dataset(
            docs,
            TsvQueries(file("linking.tsv", "q1\tf0\n"), query_cls=DocumentAsQuery),
            LooseQrels("1"),
        ),
    )
    collection = load_collection(f"irds:{name}")
    # Every field of a tab-separated file is a string, the stars too.
    assert dict(collection.documents) == {
        "f0": {"title": "Sort", "text": "a/b.py 3 def sort"},
        "f1": {"title": "", "text": "c.py 1 x"},
    }
    assert collection.counts == {"texts joined from fields": 2}
    assert collection.qrels == {"q1": {"f0": 1, "f1": 0}}
    with pytest.raises(InputError, match=r":2: .*'0.5' .*integer"):
        load_collection(f"irds:{name}/loose")
    with pytest.raises(InputError, match="no text"):
        load_collection(f"irds:{name}/linking")


def test_beirs_own_handlers(file: Callable[[str, str], LocalDownload]) -> None:
    documents = [
        {"_id": "d1", "title": "Wings", "text": "lift"},
        {"_id": "d2", "title": "", "text": "drag"},
    ]
    docs = BeirDocs(
        "toy", file("corpus.jsonl", "\n".join(map(json.dumps, documents))), BeirTitleDoc
    )
    queries = BeirQueries(
        "toy", file("queries.jsonl", '{"_id": "q", "text": "wing"}\n'), GenericQuery
    )
    qrels = BeirQrels(file("test.tsv", "query-id\tcorpus-id\tscore\nq\td1\t1\n"), {})
    collection = load_collection(f"irds:{register(main=ir_datasets.Dataset(docs, queries, qrels))}")
    assert dict(collection.documents) == {
        "d1": {"title": "Wings", "text": "lift"},
        "d2": {"title": "", "text": "drag"},
    }
    assert (collection.queries, collection.qrels) == ({"q": "wing"}, {"q": {"d1": 1}})


def test_a_file_that_changes_is_read_again(file: Callable[[str, str], LocalDownload]) -> None:
    name = register(main=ir_datasets.Dataset(TsvDocs(file("docs.tsv", "d\tone\n"))))
    assert load_collection(f"irds:{name}", labels="none").documents["d"]["text"] == "one"
    file("docs.tsv", "d\ttwo\n")
    assert load_collection(f"irds:{name}", labels="none").documents["d"]["text"] == "two"


def test_documents_without_a_file_are_never_stale() -> None:
    class InMemory(ir_datasets.formats.BaseDocs):
        text = "one"

        def docs_iter(self) -> Any:
            return iter([ir_datasets.formats.GenericDoc("d", self.text)])

    docs = InMemory()
    name = register(main=ir_datasets.Dataset(docs))
    assert load_collection(f"irds:{name}", labels="none").documents["d"]["text"] == "one"
    docs.text = "two"
    assert load_collection(f"irds:{name}", labels="none").documents["d"]["text"] == "two"


def test_defects_are_refused_and_listed(file: Callable[[str, str], LocalDownload]) -> None:
    docs = TsvDocs(file("docs.tsv", "d1\tlift\nd 2\tdrag\nd1\tagain\n"))
    queries = TsvQueries(file("queries.tsv", "q1\twing\nq1\n"))
    qrels = TrecQrels(file("qrels", "q1 0 d1 1.0\n"), {})
    name = register(main=ir_datasets.Dataset(docs, queries, qrels))
    found = {(defect.kind, defect.line, defect.id) for defect in validate(f"irds:{name}")}
    assert {
        ("white space in ids", 2, "d 2"),
        ("duplicate ids", 3, "d1"),
        ("unreadable file", 1, None),
        ("unreadable file", None, None),
    } <= found
    with pytest.raises(InputError, match=rf"irds:{name}:2: .*'d 2' .*white space"):
        load_collection(f"irds:{name}")


def test_an_empty_corpus_and_missing_parts(file: Callable[[str, str], LocalDownload]) -> None:
    empty = register(main=ir_datasets.Dataset(TsvDocs(file("docs.tsv", ""))))
    with pytest.raises(InputError, match="empty"):
        load_collection(f"irds:{empty}", labels="none")
    with pytest.raises(InputError, match="no queries"):
        load_collection(f"irds:{empty}")
    no_docs = register(main=ir_datasets.Dataset(TsvQueries(file("queries.tsv", "q\tx\n"))))
    with pytest.raises(InputError, match="no documents"):
        load_collection(f"irds:{no_docs}", labels="none")
    assert {defect.kind for defect in validate(f"irds:{no_docs}")} == {"missing file"}
    assert {defect.kind for defect in validate(f"irds:{no_docs}", "test")} == {
        "missing file",
        "missing split",
    }


def test_a_failing_download_is_one_line(tmp_path: Path) -> None:
    # Port 9 of the machine itself: nobody listens there, and no network is needed to find out.
    closed = Download(
        [RequestsDownload("http://127.0.0.1:9/docs.tsv")], cache_path=str(tmp_path / "docs.tsv")
    )
    name = register(main=ir_datasets.Dataset(TsvDocs(closed)))
    with pytest.raises(InputError, match=rf"irds:{name}: .*docs") as caught:
        load_collection(f"irds:{name}", labels="none")
    assert "IR_DATASETS_HOME" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_ids_get_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"'beir/scifcat'.*beir/scifact"):
        load_collection("irds:beir/scifcat")
    assert "did you mean" not in suggestion("nothing like any of them")
    assert not is_registered("nonesuch")


@pytest.mark.parametrize(
    ("name", "split", "expected", "found"),
    [
        ("scifact", "test", "irds:beir/scifact/test", "test"),
        ("scifact", "train", "irds:beir/scifact/train", "train"),
        ("scifact", "dev", "irds:beir/scifact", None),
        ("arguana", "test", "irds:beir/arguana", "test"),
        ("arguana", "train", "irds:beir/arguana", None),
        ("quora", "dev", "irds:beir/quora/dev", "dev"),
        ("webis-touche2020/v2", "test", "irds:beir/webis-touche2020/v2", "test"),
        ("cqadupstack/android", "test", "irds:beir/cqadupstack/android", "test"),
        ("irds:beir/arguana", "train", "irds:beir/arguana", None),
        ("irds:beir/nfcorpus/dev", "test", "irds:beir/nfcorpus/dev", "dev"),
        ("irds:vaswani", "test", "irds:vaswani", "vaswani"),
        (
            "irds:msmarco-passage/dev/small",
            "test",
            "irds:msmarco-passage/dev/small",
            "msmarco-passage/dev/small",
        ),
    ],
)
def test_names_lead_to_ids_without_a_download(
    name: str, split: str, expected: str, found: str | None
) -> None:
    source = resolve_source(name, split)
    assert isinstance(source, IrdsSource)
    assert (source.documents_file, source.split) == (expected, found)
    identifier = expected.removeprefix("irds:").removesuffix(f"/{split}")
    assert source.key() == (
        "ir_datasets",
        ir_datasets.docs_parent_id(identifier),
        ir_datasets.__version__,
    )


def test_every_shipped_id_resolves_without_a_download() -> None:
    assert len(SHIPPED) > 500
    for known in SHIPPED:
        source = resolve_source(f"irds:{known}", "test")
        if ir_datasets.load(known).has_docs():
            key = source.key()
            assert key is not None, known
            assert key[0] == "ir_datasets", known
