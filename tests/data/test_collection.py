"""Loading: every accepted layout, every refusal with its place, and the cache."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beir.datasets.data_loader import GenericDataLoader
from conftest import process

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError

CORPUS = [
    {"_id": "d1", "title": "Wings", "text": "lift over drag"},
    {"_id": "d2", "title": "", "text": "naïve 翼"},
    {"_id": "d3", "title": "Only a title", "text": ""},
]
QUERIES = [
    {"_id": "q1", "text": "what is lift"},
    {"_id": "q2", "text": "not judged in test"},
    {"_id": "q3", "text": "wing in Chinese"},
]
HEADER = "query-id\tcorpus-id\tscore\n"
QRELS = HEADER + "q3\td2\t2\nq1\td1\t1\nq1\td3\t0\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    (root / "qrels").mkdir(parents=True)
    (root / "corpus.jsonl").write_text(lines(CORPUS))
    (root / "queries.jsonl").write_text(lines(QUERIES))
    (root / "qrels" / "test.tsv").write_text(QRELS)
    (root / "qrels" / "train.tsv").write_text(HEADER + "q2\td1\t1\n")
    return root


def test_is_beirs_triple(folder: Path) -> None:
    collection = load_collection(folder)
    corpus, queries, qrels = GenericDataLoader(str(folder)).load("test")
    assert dict(collection.documents) == corpus
    assert collection.queries == queries
    assert collection.qrels == qrels
    assert collection.split == "test"
    assert collection.name == str(folder)
    assert load_collection(str(folder), "train").queries == {"q2": "not judged in test"}


def test_gzipped_is_the_same(folder: Path) -> None:
    plain = load_collection(folder)
    for path in [folder / "corpus.jsonl", folder / "queries.jsonl", *folder.glob("qrels/*.tsv")]:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    zipped = load_collection(folder)
    assert zipped.documents.content_hash == plain.documents.content_hash
    assert (zipped.queries, zipped.qrels) == (plain.queries, plain.qrels)


def test_trec_qrels_are_the_same(folder: Path) -> None:
    beir = load_collection(folder)
    (folder / "qrels" / "test.tsv").write_text("q3 0 d2 2\nq1 Q0 d1 1\nq1\t0\td3\t0\n")
    assert load_collection(folder).qrels == beir.qrels


@pytest.mark.parametrize("labels", ["optionally", None, 1, ["none"], np.array(["none", "none"])])
def test_labels_that_are_no_choice_are_refused(folder: Path, labels: Any) -> None:
    with pytest.raises(InputError, match=r"unknown labels .*required, optional, none"):
        load_collection(folder, labels=labels)


def test_labels_optional_and_none(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    without = load_collection(folder, "dev", labels="optional")
    assert "has no split 'dev' (choose one of: test, train); all of its queries" in caplog.text
    assert (without.queries, without.qrels, without.split) == (
        {query["_id"]: query["text"] for query in QUERIES},
        {},
        None,
    )
    (folder / "qrels" / "dev.tsv").write_text("")
    with pytest.raises(InputError, match=r"dev\.tsv.* no query is judged"):
        load_collection(folder, "dev", labels="optional")
    (folder / "queries.jsonl").write_text("broken")
    nothing = load_collection(folder, labels="none")
    assert (nothing.queries, nothing.qrels, nothing.split) == ({}, {}, None)
    (folder / "queries.jsonl").unlink()
    dropped = load_collection(folder, labels="optional")
    assert (dropped.queries, dropped.qrels) == ({}, {})
    assert dropped.counts["qrels for unknown queries"] == 3
    (folder / "queries.jsonl").mkdir()
    with pytest.raises(InputError, match=r"queries\.jsonl.* not a file"):
        load_collection(folder, labels="optional")
    assert not load_collection(folder, labels="none").queries


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "a.jsonl",
            '{"id": "x", "contents": "one"}\n{"_id": "y", "text": "two", "title": "T"}',
            [("x", "", "one"), ("y", "T", "two")],
        ),
        ("a.tsv", "x\tone\ny\ttwo\n", [("x", "", "one"), ("y", "", "two")]),
        ("a.tsv", "x\tT\tone\ny\t\ttwo", [("x", "T", "one"), ("y", "", "two")]),
        ("a.tsv", 'id\ttext\nx\t"one\n', [("x", "", '"one')]),
        ("a.jsonl", '\ufeff{"_id": 7, "text": "one"}\r\n\n', [("7", "", "one")]),
    ],
)
def test_lone_corpus_files(
    tmp_path: Path, name: str, content: str, expected: list[tuple[str, ...]]
) -> None:
    plain, zipped = tmp_path / name, tmp_path / f"{name}.gz"
    plain.write_text(content, newline="")
    zipped.write_bytes(gzip.compress(content.encode()))
    for path in (plain, zipped):
        documents = load_collection(path, labels="optional").documents
        assert [
            tuple(document.values()) for document in documents.take(range(len(documents)))
        ] == expected
    with pytest.raises(InputError, match=r"corpus file .*no queries"):
        load_collection(plain)


def test_accepted_and_counted(folder: Path) -> None:
    (folder / "corpus.jsonl").write_text(
        '{"_id": "d1", "text": "same"}\r\n'
        '{"_id": "d2", "title": null, "text": "same"}\r\n'
        '{"_id": "d3", "title": "title", "text": null}\n'
        '{"_id": 4, "title": "", "text": "  "}\n'
        "\n"
        '{"_id": "q1", "title": "", "text": "same"}\n',
        newline="",
    )
    (folder / "qrels" / "test.tsv").write_text(
        HEADER + "q1\td1\t1\nq1\td1\t2\nq1\tgone\t1\nq9\td1\t1\nq9\tgone\t1\nq3\td2\t-1\n"
    )
    collection = load_collection(folder)
    assert collection.counts == {
        "CRLF": 2,
        "title null or absent": 2,
        "title-only documents": 1,
        "empty documents": 1,
        "integer ids": 1,
        "blank lines": 1,
        "duplicate texts": 2,
        "repeated judgements": 1,
        "qrels for unknown documents": 1,
        "qrels for unknown queries": 2,
        "query ids equal to document ids": 1,
    }
    assert collection.qrels == {"q1": {"d1": 2, "gone": 1}, "q3": {"d2": -1}}
    assert collection.documents["4"] == {"title": "", "text": "  "}
    assert collection.documents["d2"]["title"] == ""
    assert load_collection(folder).counts == collection.counts


GOOD = '{"_id": "d9", "text": "x"}\n'

REFUSED = [
    ("corpus.jsonl", GOOD + '{"_id": "d1", "text": "x"\n', r":2: broken JSON at column \d+"),
    ("corpus.jsonl", GOOD + '["d1"]\n', r":2: broken JSON: not an object"),
    ("corpus.jsonl", GOOD + "[" * 100_000 + "\n", r":2: broken JSON"),
    (
        "corpus.jsonl",
        GOOD.encode() + b'{"_id": "d1", "text": "caf\xe9"}\n',
        r":2: not UTF-8 at byte 27",
    ),
    ("corpus.jsonl", GOOD + '{"_id": "d1", "text": "\\ud800"}\n', r":2: .*half a character"),
    ("corpus.jsonl", GOOD + '{"text": "x"}\n', r":2: .*id"),
    ("corpus.jsonl", GOOD + '{"_id": null, "text": "x"}\n', r":2: .*id"),
    ("corpus.jsonl", GOOD + '{"_id": "", "text": "x"}\n', r":2: .*id"),
    ("corpus.jsonl", GOOD + '{"_id": 1.5, "text": "x"}\n', r":2: .*id .*decimal"),
    ("corpus.jsonl", GOOD + '{"_id": true, "text": "x"}\n', r":2: .*id .*boolean"),
    ("corpus.jsonl", GOOD + '{"_id": "a b", "text": "x"}\n', r":2: .*'a b' .*white space"),
    ("corpus.jsonl", GOOD + '{"_id": "a\\tb", "text": "x"}\n', r":2: .*'a\\tb' .*white space"),
    ("corpus.jsonl", GOOD + '{"_id": "a", "text": ["x"]}\n', r":2: .*text .*list"),
    ("corpus.jsonl", GOOD + '{"_id": "a", "title": 3, "text": "x"}\n', r":2: .*title .*number"),
    (
        "corpus.jsonl",
        GOOD + '{"_id": 1, "text": "x"}\n' + GOOD + '{"_id": "1", "text": "y"}\n',
        r"'d9' .*1 and 3, .*'1' .*2 and 4",
    ),
    ("corpus.jsonl", "", r"corpus.jsonl: empty"),
    ("corpus.jsonl", "\n \n", r"corpus.jsonl: empty"),
    ("corpus.jsonl", '{"_id": "a", "body": "x"}\n', r"field text, contents or title"),
    ("queries.jsonl", lines(QUERIES) + "{\n", r":4: .*JSON"),
    ("queries.jsonl", lines([*QUERIES, QUERIES[1]]), r"'q2' .*2 and 4"),
    ("queries.jsonl", lines([*QUERIES, {"_id": "a b", "text": ""}]), r":4: .*'a b' .*white space"),
    ("queries.jsonl", lines([{"_id": "other", "text": "x"}]), r"test.tsv: .*judged"),
    ("qrels/test.tsv", QRELS + "q1\td2\t1.0\n", r":5: .*'1.0' .*integer"),
    ("qrels/test.tsv", QRELS + "q1\td2\t\n", r":5: .*'' .*integer"),
    ("qrels/test.tsv", QRELS + "q1\td2\t1_0\n", r":5: .*'1_0' .*integer"),
    ("qrels/test.tsv", QRELS + "q1\td2\n", r":5: 2 columns .*3"),
    ("qrels/test.tsv", QRELS + "q1\td\t2\t1\n", r":5: 4 columns .*3"),
    ("qrels/test.tsv", QRELS + "q1\td 2\t1\n", r":5: .*'d 2' .*white space"),
    ("qrels/test.tsv", QRELS.encode() + b"q1\td\xff\t1\n", r":5: not UTF-8"),
    ("qrels/test.tsv", HEADER, r"test.tsv: .*judged"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED)
def test_refused_with_file_and_line(
    folder: Path, name: str, content: str | bytes, message: str
) -> None:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=message) as caught:
        load_collection(folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [left.name for left in (folder.parent / "cache").rglob("*.tmp")] == []


def test_missing_parts_say_what_there_is(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dev\.tsv: .*'dev' .*test, train"):
        load_collection(folder, "dev")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(InputError, match=r"queries\.jsonl: no"):
        load_collection(folder)
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"corpus\.jsonl: no"):
        load_collection(folder, labels="none")


@pytest.mark.parametrize(
    "dataset", ["nonesuch", Path("nonesuch"), "scifat", "apidocs/nonesuch", "irds:nonesuch"]
)
def test_unknown_collections_are_one_line(dataset: str | Path) -> None:
    with pytest.raises(InputError) as caught:
        load_collection(dataset)
    assert "\n" not in str(caught.value)
    assert repr(str(dataset).rpartition("/")[2].rpartition(":")[2]) in str(caught.value)


def test_an_empty_name_is_not_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="no name"):
        load_collection("")
    for split in ("", " "):
        with pytest.raises(InputError, match=r"split .* has no name"):
            load_collection(folder, split)
    assert len(load_collection(".").documents) == 3


def test_a_misspelt_beir_name_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"scifact"):
        load_collection("scifat")
    with pytest.raises(InputError, match=r"cqadupstack/android"):
        load_collection("cqadupstack")
    other = tmp_path / "corpus.xml"
    other.write_text("1,2")
    with pytest.raises(InputError, match=r"corpus\.xml.*no queries or qrels"):
        load_collection(other)


def test_damaged_gzip_is_refused(folder: Path) -> None:
    whole = gzip.compress((folder / "corpus.jsonl").read_bytes() * 50)
    (folder / "corpus.jsonl").unlink()
    for damaged in (whole[:-20], b"not gzip at all"):
        (folder / "corpus.jsonl.gz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"corpus\.jsonl\.gz: .*end"):
            load_collection(folder, labels="none")


def cached(tmp_path: Path) -> list[tuple[str, int]]:
    return sorted(
        (path.name, path.stat().st_ino) for path in (tmp_path / "cache" / "corpora").glob("*.arrow")
    )


def test_a_corpus_is_converted_once(folder: Path, tmp_path: Path) -> None:
    first = load_collection(folder)
    before = cached(tmp_path)
    link = tmp_path / "link"
    link.mkdir()
    (link / "corpus.jsonl").symlink_to(folder / "corpus.jsonl")
    assert load_collection(link, labels="none").documents.table.equals(first.documents.table)
    assert cached(tmp_path) == before
    assert len(before) == 1


def test_a_changed_corpus_is_read_again(folder: Path) -> None:
    path = folder / "corpus.jsonl"
    for word in ("lift", "LIFT", "sail"):
        path.write_text(path.read_text().replace("lift", word))
        assert load_collection(folder).documents["d1"]["text"] == f"{word} over drag"
        path.write_text(path.read_text().replace(word, "lift"))


def test_a_damaged_cache_is_made_again(folder: Path, tmp_path: Path) -> None:
    expected = load_collection(folder).documents.content_hash
    (file,) = (tmp_path / "cache" / "corpora").glob("*.arrow")
    whole = file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"x" * len(whole)):
        file.write_bytes(damaged)
        assert load_collection(folder).documents.content_hash == expected
        assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(folder / "corpus.jsonl" / "below"))
    with pytest.raises(InputError, match="BEIR_COCODR_CACHE"):
        load_collection(folder)


_LOAD = """
import sys
from beir_cocodr.data.collection import load_collection
print(load_collection(sys.argv[1], labels="none").documents.content_hash)
loaded = {"torch", "transformers", "beir", "ir_datasets"} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.fixture
def large_corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text(lines([{"_id": f"d{number}", "text": "x" * 100} for number in range(20_000)]))
    return path


def test_a_corpus_is_loaded_without_the_stack(large_corpus: Path) -> None:
    command = [sys.executable, "-c", _LOAD, str(large_corpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = load_collection(large_corpus, labels="none").documents.content_hash
    assert done.stdout == f"{expected}\n"


def _write_hash(path: Path, output: Path) -> None:
    output.write_text(load_collection(path, labels="none").documents.content_hash)


def test_processes_may_race(large_corpus: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / f"hash-{number}" for number in range(3)]
    started = [process(_write_hash, large_corpus, output) for output in outputs]
    for loading in started:
        loading.join(300)
        assert loading.exitcode == 0
    hashes = {output.read_text() for output in outputs}
    assert hashes == {load_collection(large_corpus, labels="none").documents.content_hash}
    assert [re.sub("[0-9a-f]{32}", "KEY", name) for name, _ in cached(tmp_path)] == ["KEY.arrow"]


@pytest.mark.parametrize("name", ["cranfield", "cisi", "npl", "time"])
def test_real_collections_are_what_beir_loads(name: str, real_collections: Path) -> None:
    collection = load_collection(real_collections / name)
    corpus, queries, qrels = GenericDataLoader(str(real_collections / name)).load("test")
    assert dict(collection.documents.items()) == corpus
    assert (collection.queries, collection.qrels) == (queries, qrels)
