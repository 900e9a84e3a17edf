"""Tables and encodings that may be read in two ways are refused, and nothing in them is lost."""

import gzip
import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beir_cocodr import load_collection
from beir_cocodr.errors import InputError


def texts(dataset: object) -> dict[str, tuple[str, str]]:
    documents = load_collection(dataset, labels="none").documents
    return {id: (documents[id]["title"], documents[id]["text"]) for id in documents}


def write_lines(file: Path, *records: dict[str, object]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_all_records_of_json_lines_say_which_columns_there_are(tmp_path):
    write_lines(
        tmp_path / "a.jsonl",
        {"text": "first"},
        {"id": "x", "title": "Second", "text": "second"},
        {"title": "Third", "id": "y", "text": "third"},
    )
    read = texts(tmp_path)
    assert read["a.jsonl#x"] == ("Second", "second")
    assert read["a.jsonl#y"] == ("Third", "third")
    assert sorted(read.values())[0] == ("", "first")


UNCLEAR = [
    ({"text": "a"}, {"body": "b"}, r"line 2 has 'body' where others have 'text'"),
    ({"note": "a", "x": 1}, {"text": "b", "x": 2}, None),
    ({"id": 1, "text": "a"}, {"doc_id": 2, "text": "b"}, r"line 2 has 'doc_id'.*'id'"),
    ({"text": "a", "name": "n"}, {"text": "b", "title": "t"}, r"line 1 has 'name'.*'title'"),
]


@pytest.mark.parametrize(("first", "second", "message"), UNCLEAR)
def test_a_field_of_another_name_is_refused(tmp_path, first, second, message):
    (tmp_path / "note.txt").write_text("A note.")
    write_lines(tmp_path / "a.jsonl", first, second)
    if message is None:  # the other record has no text, which is counted
        assert ("", "b") in texts(tmp_path).values()
        return
    assert texts(tmp_path).keys() == {next(iter(texts(tmp_path / "note.txt")))}
    with pytest.raises(InputError, match=rf"a\.jsonl: {message}.*--text-column"):
        texts(f"{tmp_path}?strict=true")


@pytest.mark.parametrize(
    ("content", "column"),
    [
        ("id,text,text\n1,one,two\n", "'text'"),
        ("id,Text,text\n1,one,two\n", "'Text' and 'text'"),
        ("id,id,text\n1,2,two\n", "'id'"),
        ("title,text,Title\n1,2,two\n", "'title' and 'Title'"),
    ],
)
def test_two_columns_of_one_name_are_refused(tmp_path, content, column):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=rf"a\.csv.*{column}.*rename"):
        texts(tmp_path / "a.csv")


def test_columns_that_are_not_read_may_have_one_name(tmp_path):
    (tmp_path / "a.csv").write_text("id,,text,\n1,x,one,y\n")
    assert texts(tmp_path / "a.csv") == {"1": ("", "one")}


def test_two_columns_of_one_name_in_parquet_are_refused(tmp_path):
    table = pa.table(
        [pa.array(["1"]), pa.array(["one"]), pa.array(["two"])], ["id", "text", "text"]
    )
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet.*'text'"):
        texts(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_one_column_without_a_header_is_refused(tmp_path, name):
    content = "The wing makes lift.\nThe plate gets hot.\n"
    write = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / name).write_bytes(write(content.encode()))
    with pytest.raises(InputError, match=rf"{name}.*'The wing makes lift.'.*--text-column"):
        texts(f"{tmp_path / 'docs'}?strict=true")
    (tmp_path / "docs" / name).write_bytes(write(f"text\n{content}".encode()))
    assert len(texts(tmp_path / "docs")) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", b""), ("a.csv", b"id,text\n"), ("a.jsonl", b""), ("a.tsv", b"text\n")],
)
def test_a_table_without_records_is_named(tmp_path, name, content):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / name).write_bytes(content)
    if name != "a.tsv":  # alone, a corpus of two columns without a header
        with pytest.raises(InputError, match=rf"{name}.*empty"):
            texts(docs / name)
    (docs / "note.txt").write_text("A note.")
    collection = load_collection(docs, labels="none")
    assert len(collection.documents) == 1
    assert collection.counts["files without text"] == 1


WIDE = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]


@pytest.mark.parametrize("encoding", [*WIDE, "utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.rst", "a.html", "a.csv"])
def test_a_wide_encoding_is_read_by_its_mark_or_refused(tmp_path, name, encoding):
    html = "<html><body><p>The wing makes lift.</p></body></html>"
    contents = {"a.html": html, "a.csv": "id,text\n1,The wing makes lift.\n"}
    content = contents.get(name, "The wing makes lift.\n")
    (tmp_path / name).write_bytes(content.encode(encoding))
    if encoding in WIDE:
        with pytest.raises(InputError, match=rf"{name}.*{encoding.upper()}"):
            texts(tmp_path / name)
        with pytest.raises(InputError, match=rf"{name}.*{encoding.upper()}"):
            texts(f"{tmp_path}?strict=true")
    collection = load_collection(tmp_path, labels="none")
    assert [document["text"] for document in collection.documents.values()] == [
        "The wing makes lift."
    ]
    assert collection.counts.get("encodings guessed", 0) == (encoding in WIDE)


@pytest.mark.parametrize("encoding", WIDE)
def test_a_wide_encoding_in_a_collection_is_refused(tmp_path, encoding):
    corpus = '{"_id": "d", "title": "", "text": "wing"}\n'
    (tmp_path / "corpus.jsonl").write_bytes(corpus.encode(encoding))
    with pytest.raises(InputError, match=r"corpus\.jsonl:1.*UTF-16"):
        load_collection(tmp_path, labels="none")
    (tmp_path / "corpus.jsonl").write_text(corpus)
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "wing"}\n')
    (tmp_path / "qrels").mkdir()
    qrels = "query-id\tcorpus-id\tscore\nq\td\t1\n"
    (tmp_path / "qrels" / "test.tsv").write_bytes(qrels.encode(encoding))
    with pytest.raises(InputError, match=r"test\.tsv:1.*UTF-16"):
        load_collection(tmp_path)


def test_a_page_of_tags_that_never_end_takes_no_quadratic_time(tmp_path):
    (tmp_path / "a.html").write_text("<h1>Wings</h1><p>They make lift.</p>" + "<p " * 100_000)
    start = time.process_time()
    assert any("They make lift." in text for _, text in texts(tmp_path).values())
    assert time.process_time() - start < 20  # it was minutes


def test_dates_that_python_does_not_have(tmp_path):
    dates = pa.array([10**12], pa.timestamp("s"))
    pq.write_table(pa.table({"id": ["1"], "text": dates}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet"):
        texts(tmp_path / "a.parquet")
