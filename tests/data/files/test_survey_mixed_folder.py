"""A folder of 300 files of all kinds: what can be read is read, and the rest is listed.

The test knows every byte, because it writes them.
"""

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beir_cocodr import Searcher, load_collection
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.files.bounded import MOST_BYTES, MOST_LINE
from beir_cocodr.data.validation import validate
from beir_cocodr.errors import InputError

ENGLISH = (
    "Report {n} of the wind tunnel. The wing makes lift in the flow of air. The boundary layer "
    "is laminar near the nose and turbulent behind it. The drag was measured at speed {n}."
)
GERMAN = (
    "Bericht {n} aus dem Windkanal. Der Flügel erzeugt Auftrieb in der Strömung. Die "
    "Grenzschicht ist vorne laminar und wird nach hinten größer. Gemessen bei Stufe {n}."
)
CHINESE = "风洞报告第{n}号。飞机的机翼在气流中产生升力。边界层在前部是层流，在后部是湍流。"
JAPANESE = "風洞の報告第{n}号。飛行機の翼は空気の流れの中で揚力を生み出します。境界層は薄いです。"

#: Text, encoding, whether the file has a byte order mark, and number of files.
KINDS = [
    (ENGLISH, "utf-8", 180),
    (GERMAN, "utf-8", 20),
    (GERMAN, "cp1252", 20),
    (CHINESE, "utf-8", 10),
    (CHINESE, "gb18030", 15),
    (JAPANESE, "cp932", 15),
    (ENGLISH, "utf-16", 10),
    (ENGLISH, "utf-16-le", 10),
]

SUFFIXES = [".txt", ".md", ".log", ""]

#: Files that cannot be read, with a word of the reason.
BAD: dict[str, tuple[bytes, str]] = {
    "photo.png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0", "not text"),
    "photo.jpg": (b"\xff\xd8\xff\xe0\0\x10JFIF\0\1" * 9, "not text"),
    "program": (b"\x7fELF\x02\x01\x01" + bytes(90), "not text"),
    "archive.tar.gz": (gzip.compress(b"a.txt" + bytes(507) + b"text\n" * 9), "not text"),
    "broken.gz": (b"\x1f\x8b\x08\0not gzip at all", "cannot be read"),
    "cut.txt.gz": (gzip.compress(random.Random(1).randbytes(900).hex().encode())[:-60], "end"),
    "scan.pdf": (b"%PDF-1.4 broken", "cannot be read"),
    "empty.pdf": (b"", "cannot be read"),
    "word.docx": (b"PK\x03\x04 broken", "cannot be read"),
    "table.parquet": (b"PAR1 broken", "cannot be read"),
    "columns.csv": (b"x,y\n1,2\n", "--text-column"),
    "cells.csv": (b"id,text\n1,2,3\n", "3 cells for 2 columns"),
    "quote.csv": (b'id,text\n1,"open\n', "cannot be read"),
    "nul.csv": (b"id,text\n1,o\0ne\n", "not text"),
    "twins.tsv": (b"id\ttext\ttext\n1\tone\ttwo\n", "rename"),
    "spaces.jsonl": (b'{"id": "a b", "text": "x"}\n', "white space"),
    "twice.jsonl": (b'{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', "occurs twice"),
    "broken.jsonl": (b'{"id": "a", "text": "x"}\n{"id": \n', "broken JSON"),
    "wide.jsonl": ('{"id": "a", "text": "x"}\n'.encode("utf-16-le"), "UTF-16"),
    "run.trec": (b"q1 Q0 d1 1 12.5 bm25\nq1 Q0 d2 2 11.5 bm25\n", "TREC run"),
}


def write_folder(folder: Path) -> dict[str, str]:
    """Write the folder, and return the text of each file that can be read."""
    expected = {}
    number = 0
    for text, encoding, count in KINDS:
        for _ in range(count):
            name = f"part{number % 7}/file{number}{SUFFIXES[number % 4]}"
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"{text.format(n=number)}\n".encode(encoding))
            expected[name] = text.format(n=number)
            number += 1
    for name, (content, _) in BAD.items():
        path = folder / f"part{number % 7}" / name
        path.write_bytes(content)
        number += 1
    assert sum(path.is_file() for path in folder.rglob("*")) == 300
    return expected


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("mixed") / "archive"
    return folder, write_folder(folder)


def test_all_that_can_be_read_is_read(mixed):
    folder, expected = mixed
    searcher = Searcher(folder, "bm25")
    texts = {searcher.file_of(id): row["text"] for id, row in searcher.documents.items()}
    assert texts == expected
    facts = searcher.documents.facts
    assert facts.files == 280
    assert facts.encodings == {"cp1252": 20, "gb18030": 15, "cp932": 15, "utf_16_le": 10}
    assert facts.language in (None, "en")


def test_the_rest_is_listed_with_reasons(mixed, caplog):
    folder, _ = mixed
    left_out = load_collection(folder, labels="none").documents.facts.left_out
    assert {Path(entry.file).name for entry in left_out} == BAD.keys()
    for entry in left_out:
        assert BAD[Path(entry.file).name][1] in entry.reason, entry
    [head, *rest] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "20 of 300 files" in head
    assert "--strict" in head
    assert len(rest) == 6
    assert "15 more" in rest[-1]


@pytest.mark.parametrize(
    ("query", "text", "most"),
    [
        ("产生升力", CHINESE, 25),
        ("揚力を生み", JAPANESE, 15),
        ("Grenzschicht größer", GERMAN, 40),
        ("turbulent layer", ENGLISH, 200),
    ],
)
def test_a_query_finds_the_passages_of_its_language(mixed, query, text, most):
    folder, expected = mixed
    hits = Searcher(folder, "bm25").search(query, top_k=300)
    names = {name for name, content in expected.items() if content[:4] == text[:4]}
    assert {hit.file for hit in hits[: len(names)]} == names
    assert len(names) == most


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A folder with as many bad files and fewer others, for commands that encode."""
    folder = tmp_path_factory.mktemp("small") / "archive"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.txt").write_text(ENGLISH.format(n=number))
    for name, (content, _) in BAD.items():
        (folder / name).write_bytes(content)
    return folder


COMMANDS = {
    "validate": "validate --dataset {}",
    "search": "search lift --dataset {} --model bm25",
    "compare": "compare bm25 {model} --dataset {} --output {out}/compare",
    "encode": "encode --dataset {} --model {model} --output {out}/store",
    "generate-queries": "generate-queries --dataset {} --per-passage 1 --output {out}/queries",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_same_number(small, command, tiny_cosine, tmp_path, capsys, caplog):
    words = COMMANDS[command].format(small, model=tiny_cosine, out=tmp_path).split()
    with caplog.at_level("INFO"), pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, caplog.text
    if command == "validate":
        assert "files left out: 20" in capsys.readouterr().out
    else:
        assert "20 of 30 files were left out" in caplog.text
    if command == "compare":
        record = json.loads((tmp_path / "compare" / "comparison.json").read_text())
        assert {entry["file"] for entry in record["left_out"]} == BAD.keys()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--strict"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert any(name in error for name in [*BAD, "archive"])


def test_validate_lists_every_file(mixed):
    folder, _ = mixed
    defects = validate(folder)
    kinds = Counter(defect.kind for defect in defects)
    assert kinds["files left out"] == 20
    assert {defect.severity for defect in defects} == {"warning"}
    strict = validate(f"{folder}?strict=true")
    named = {Path(defect.file).name for defect in strict if defect.severity == "error"}
    # The ids of all files together are compared at the end.
    assert BAD.keys() <= named | {"twice.jsonl"}
    assert "duplicate ids" in {defect.kind for defect in strict}


def test_a_file_that_is_named_alone_is_refused(mixed, tmp_path):
    for name, (content, _) in BAD.items():
        (tmp_path / name).write_bytes(content)
        if name == "twins.tsv":  # alone, a corpus of id, title and text
            continue
        with pytest.raises(InputError, match=name):
            load_collection(tmp_path / name, labels="none")
    (tmp_path / "zh.txt").write_bytes(CHINESE.encode("gb18030"))
    with pytest.raises(InputError, match=r"zh\.txt.*GB18030.*encoding="):
        load_collection(tmp_path / "zh.txt", labels="none")
    collection = load_collection(f"{tmp_path / 'zh.txt'}?encoding=gb18030", labels="none")
    assert [row["text"] for row in collection.documents.values()] == [CHINESE]


def test_a_small_file_that_unpacks_to_a_large_one_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("beir_cocodr.data.files.bounded.MOST_BYTES", 1 << 20)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"word " * (1 << 20)))
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(bytes(1 << 22)))
    (tmp_path / "note.txt").write_text("A note.")
    [bomb, zeros] = load_collection(tmp_path, labels="none").documents.facts.left_out
    assert (bomb.file, "more than 1 MiB" in bomb.reason) == ("bomb.txt.gz", True)
    assert (zeros.file, "not text" in zeros.reason) == ("zeros.gz", True)


def test_a_record_may_have_no_more_than_a_document():
    assert MOST_LINE == MOST_BYTES


def test_a_line_that_fills_the_memory_is_left_out(tmp_path, monkeypatch):
    for module in ("bounded", "file_tables"):
        monkeypatch.setattr(f"beir_cocodr.data.files.{module}.MOST_LINE", 1 << 20)
    long = b"x" * (1 << 22)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id,text\n1," + long))
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "' + long + b'"}\n')
    (tmp_path / "note.txt").write_text("A note.")
    left_out = load_collection(tmp_path, labels="none").documents.facts.left_out
    assert [entry.file for entry in left_out] == ["a.csv.gz", "b.jsonl"]
    assert all("a line of more than 1 Mi" in entry.reason for entry in left_out)


DAMAGES = ["cut", "flip", "zeros", "random", "empty"]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32 - 1), damage=st.sampled_from(DAMAGES))
def test_a_damaged_file_is_never_a_traceback(tmp_path, seed, damage):
    rng = random.Random(seed)
    contents = {
        "a.txt": GERMAN.encode("cp1252"),
        "b.csv": f"id,text\n1,{ENGLISH!r}\n2,drag\n".encode(),
        "c.jsonl": b"".join(
            json.dumps({"id": str(n), "text": ENGLISH}).encode() + b"\n" for n in range(3)
        ),
        "d.txt.gz": gzip.compress(ENGLISH.encode()),
        "e": CHINESE.encode("gb18030"),
        "f.html": f"<html><body><p>{JAPANESE}</p></body></html>".encode("utf-16"),
        "g.md": f"# Wings\n\n{ENGLISH}\n".encode(),
    }
    name = rng.choice(list(contents))
    data = bytearray(contents[name])
    place = rng.randrange(len(data))
    if damage == "cut":
        del data[place:]
    elif damage == "flip":
        data[place] ^= 1 << rng.randrange(8)
    elif damage == "zeros":
        data[place : place + 16] = bytes(16)
    elif damage == "random":
        data[:] = rng.randbytes(len(data))
    else:
        data.clear()
    folder = tmp_path / f"{seed}-{damage}"
    folder.mkdir(exist_ok=True)
    for other, content in contents.items():
        (folder / other).write_bytes(bytes(data) if other == name else content)
    collection = load_collection(folder, labels="none")
    left_out = {entry.file for entry in collection.documents.facts.left_out}
    assert left_out <= {name}
    files = {id.partition("#")[0] for id in collection.documents}
    assert files >= contents.keys() - {name}
