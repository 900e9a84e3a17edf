"""Validation: a folder with one of everything, and agreement with loading on arbitrary input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.validation import Defect, summarize, validate
from beir_cocodr.errors import InputError

HEADER = b"query-id\tcorpus-id\tscore\n"


def write(root: Path, corpus: bytes | None, queries: bytes | None, **qrels: bytes) -> Path:
    (root / "qrels").mkdir(parents=True, exist_ok=True)
    for name, content in [("corpus.jsonl", corpus), ("queries.jsonl", queries)]:
        if content is not None:
            (root / name).write_bytes(content)
    for split, content in qrels.items():
        (root / "qrels" / f"{split}.tsv").write_bytes(content)
    return root


def places(defects: list[Defect]) -> set[tuple[str, str, str, int | None, str | None]]:
    return {
        (defect.severity, defect.kind, Path(defect.file).name, defect.line, defect.id)
        for defect in defects
    }


def test_everything_at_once_with_file_line_and_id(tmp_path: Path) -> None:
    corpus = [
        b'{"_id": "d1", "title": "t", "text": "one"}\r',
        b'{"_id": "d2", "title": null, "text": "two"}',
        b'{"_id": "d3", "title": "t", "text": "three"',
        b'{"_id": "d4", "title": "t", "text": "caf\xe9"}',
        b'{"title": "t", "text": "five"}',
        b'{"_id": "d1", "title": "t", "text": "six"}',
        b'{"_id": "d 7", "title": "t", "text": "seven"}',
        b'{"_id": "d\\t8", "title": "t", "text": "eight"}',
        b'{"_id": "d9", "title": "t", "text": ""}',
        b'{"_id": "d10", "title": "", "text": ""}',
        b'{"_id": "q1", "title": "", "text": "what is it"}',
        b'{"_id": "d12", "title": "t", "text": "one"}\r',
    ]
    queries = [
        b'{"_id": "q1", "text": "why"}',
        b'{"_id": "q2", "text": "what is it"}',
        b'{"_id": "q3", "text": ""}',
        b'{"_id": "q2", "text": "again"}',
        b'{"text": "no id"}',
    ]
    qrels = (
        HEADER
        + b"q1\td1\t1\nq9\td1\t1\nq1\tgone\t1\nq1\td2\t1.0\nq2\td2\t0\nq2\td2\t0\nq3\td\xff\t1\n"
    )
    folder = write(tmp_path / "bad", b"\n".join(corpus), b"\n".join(queries), test=qrels)
    defects = validate(folder)
    assert places(defects) == {
        ("warning", "CRLF", "corpus.jsonl", 1, None),
        ("warning", "title null or absent", "corpus.jsonl", 2, "d2"),
        ("error", "broken JSON", "corpus.jsonl", 3, None),
        ("error", "not UTF-8", "corpus.jsonl", 4, None),
        ("error", "missing ids", "corpus.jsonl", 5, None),
        ("error", "duplicate ids", "corpus.jsonl", 6, "d1"),
        ("error", "white space in ids", "corpus.jsonl", 7, "d 7"),
        ("error", "white space in ids", "corpus.jsonl", 8, "d\t8"),
        ("warning", "title-only documents", "corpus.jsonl", 9, "d9"),
        ("warning", "empty documents", "corpus.jsonl", 10, "d10"),
        ("warning", "duplicate texts", "corpus.jsonl", 12, "d12"),
        ("warning", "query ids equal to document ids", "queries.jsonl", 1, "q1"),
        ("warning", "query texts equal to document texts", "queries.jsonl", 2, "q2"),
        ("warning", "empty queries", "queries.jsonl", 3, "q3"),
        ("error", "duplicate ids", "queries.jsonl", 4, "q2"),
        ("error", "missing ids", "queries.jsonl", 5, None),
        ("warning", "qrels for unknown queries", "test.tsv", 3, "q9"),
        ("warning", "qrels for unknown documents", "test.tsv", 4, "gone"),
        ("error", "non-integer grades", "test.tsv", 5, "q1"),
        ("warning", "repeated judgements", "test.tsv", 7, "q2"),
        ("error", "not UTF-8", "test.tsv", 8, None),
    }
    assert len(defects) == 21
    crlf = next(defect for defect in defects if defect.kind == "CRLF")
    assert crlf.times == 2
    texts = next(
        defect for defect in defects if defect.kind == "query texts equal to document texts"
    )
    assert "line 11" in texts.message
    counts = summarize(defects)
    assert counts["white space in ids"] == 2
    assert counts["CRLF"] == 2
    assert list(counts)[-1] not in {"broken JSON", "not UTF-8"}
    assert sum(counts.values()) == 22
    assert all("\n" not in str(defect) and defect.file in str(defect) for defect in defects)


def test_missing_parts_do_not_stop_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "some", b"{\n", None, train=HEADER + b"q\td\t1\n")
    assert places(validate(folder, "test")) == {
        ("error", "missing file", "queries.jsonl", None, None),
        ("error", "missing split", "test.tsv", None, None),
        ("error", "broken JSON", "corpus.jsonl", 1, None),
    }
    split = next(defect for defect in validate(folder, "test") if defect.kind == "missing split")
    assert "train" in split.message
    assert places(validate(folder, "test", labels="optional")) == {
        ("error", "broken JSON", "corpus.jsonl", 1, None)
    }
    empty = tmp_path / "empty"
    empty.mkdir()
    assert ("error", "missing file", "corpus.jsonl", None, None) in places(validate(empty))


def test_a_good_collection_and_a_lone_corpus_have_no_defects(tmp_path: Path) -> None:
    corpus = b'{"_id": "d", "title": "t", "text": "x"}\n'
    folder = write(
        tmp_path / "good", corpus, b'{"_id": "q", "text": "y"}\n', test=HEADER + b"q\td\t1\n"
    )
    assert validate(folder) == []
    assert validate(folder / "corpus.jsonl") == []
    assert places(validate(folder / "corpus.jsonl", labels="required")) == {
        ("error", "missing file", "corpus.jsonl", None, None)
    }
    tsv = tmp_path / "corpus.tsv"
    tsv.write_bytes(b"a\tone\nb\tT\ttwo\nc d\tthree\n")
    assert places(validate(tsv)) == {
        ("error", "wrong columns", "corpus.tsv", 2, "b"),
        ("error", "white space in ids", "corpus.tsv", 3, "c d"),
    }


def test_no_such_collection_raises(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        validate(tmp_path / "nowhere")


def test_a_split_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"split of .* has no name"):
        validate(tmp_path, split="")


ends = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n"])
blemishes = st.fixed_dictionaries(
    {"text": st.sampled_from(["x", "y", "z", "翼", "", " ", None])},
    optional={"title": st.sampled_from(["t", "", " ", None]), "metadata": st.just({"url": 1})},
)
bad_values = st.sampled_from(["a", "a b", "", 1, None, 2.5, True, "\u2003", ["x"]])
bad_records = st.fixed_dictionaries(
    {}, optional={"_id": bad_values, "id": bad_values, "title": bad_values, "text": bad_values}
)
bad_lines = st.one_of(
    bad_records.map(lambda record: json.dumps(record).encode()),
    st.sampled_from(
        [b"", b"  ", b"{", b"[]", b"\xff\xfe", b'{"_id": "u", "text": "\\udc00"}', b"\xef\xbb\xbf"]
    ),
)


@st.composite
def files(
    draw: st.DrawFn, good: st.SearchStrategy[list[bytes]], bad: st.SearchStrategy[bytes]
) -> bytes:
    """A file of good lines, in every fourth case with one bad line somewhere."""
    lines = draw(good)
    if draw(st.integers(0, 3)) == 0:
        lines.insert(draw(st.integers(0, len(lines))), draw(bad))
    return b"".join(line + draw(ends) for line in lines)


@st.composite
def mostly(draw: st.DrawFn, content: st.SearchStrategy[bytes]) -> bytes | None:
    """A file that is missing in one case of ten."""
    return draw(content) if draw(st.integers(0, 9)) else None


@st.composite
def good_lines(draw: st.DrawFn) -> list[bytes]:
    ids = draw(
        st.lists(
            st.sampled_from(["a", "b", "c", "d", "naïve", "翼", 1, 2]), unique=True, min_size=1
        )
    )
    key = draw(st.sampled_from(["_id", "id"]))
    return [json.dumps({key: id, **draw(blemishes)}).encode() for id in ids]


@st.composite
def good_qrels(draw: st.DrawFn) -> list[bytes]:
    layout = draw(st.sampled_from(["{}\t{}\t{}", "{} Q0 {} {}"]))
    id = st.sampled_from(["a", "b", "c", "1", "2", "gone"])
    triples = draw(st.lists(st.tuples(id, id, st.sampled_from("012")), max_size=6))
    header = [HEADER.rstrip()] if "\t" in layout and draw(st.booleans()) else []
    return header + [layout.format(*triple).encode() for triple in triples]


bad_qrels = st.sampled_from(
    [b"a\tb\t1.0", b"a\tb", b"a b\tc\t1", b"\tb\t1", b"a\tb\tc\t1", b"a\tb\t-1", b"\xff"]
)
json_files = files(good_lines(), bad_lines)
qrels_files = files(good_qrels(), bad_qrels)


@settings(max_examples=100, deadline=None)
@given(
    corpus=mostly(json_files),
    queries=mostly(json_files),
    qrels=mostly(qrels_files),
    labels=st.sampled_from(["required", "optional", "none"]),
    lone=st.integers(0, 4).map(lambda number: number == 0),
)
def test_an_error_is_what_loading_refuses(corpus, queries, qrels, labels, lone) -> None:
    environment = patch.dict(os.environ)
    with tempfile.TemporaryDirectory() as name, environment:
        os.environ["BEIR_COCODR_CACHE"] = f"{name}/cache"
        folder = write(
            Path(name) / "toy", corpus, queries, **({} if qrels is None else {"test": qrels})
        )
        dataset = folder / "corpus.jsonl" if lone and corpus is not None else folder
        defects = validate(dataset, labels=labels)
        errors = [defect for defect in defects if defect.severity == "error"]
        event(f"refused: {bool(errors)}, labels {labels}")
        if errors:
            with pytest.raises(InputError) as caught:
                load_collection(dataset, labels=labels)
            assert any(Path(error.file).name in str(caught.value) for error in errors)
            return
        counts = load_collection(dataset, labels=labels).counts
    warned = summarize(defects)
    # Validation looks at every query, loading at those of the split; the texts only validation
    # compares.
    warned.pop("query texts equal to document texts", None)
    assert counts.pop("query ids equal to document ids", 0) <= warned.pop(
        "query ids equal to document ids", 0
    )
    assert counts == warned


def test_validation_needs_none_of_the_stack(tmp_path: Path) -> None:
    folder = write(tmp_path / "toy", b'{"_id": "d", "text": "x"}', b"", test=HEADER)
    code = (
        "import sys; from beir_cocodr.data.validation import validate;"
        " print(len(validate(sys.argv[1])));assert not {'torch', 'transformers', 'beir',"
        " 'ir_datasets'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == len(validate(folder))
