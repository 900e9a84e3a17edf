"""Folders of files: what is read, by which ids, and what is read again after a change."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from beir_cocodr.data.collection import has_labels, load_collection, resolve_source
from beir_cocodr.data.files import file_formats, survey
from beir_cocodr.data.files.file_folder import Reading, TextFiles
from beir_cocodr.data.validation import validate
from beir_cocodr.errors import InputError


def texts(dataset: str | Path) -> dict[str, tuple[str, str]]:
    documents = load_collection(dataset, labels="none").documents
    return {id: (document["title"], document["text"]) for id, document in documents.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    (place / "deep dir").mkdir(parents=True)
    (place / "a.txt").write_text("Plain words about a wing.\n")
    (place / "deep dir" / "b.md").write_text(
        "# Guide\n\nHello.\n\n## Install > it\n\nClone it.\n\n## Use\n\nSearch.\n"
    )
    (place / "c.csv").write_text("id,title,text\n1,one,first record\n2,two,second record\n")
    (place / "d.jsonl").write_text(
        '{"text": "a record without id"}\n{"text": "a record without id"}\n'
    )
    (place / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (place / ".git").mkdir()
    (place / ".git" / "hidden.txt").write_text("hidden")
    return place


def test_a_folder_of_files_is_a_corpus(folder):
    found = texts(folder)
    shown = {id.partition("#")[0]: value for id, value in found.items()}
    assert list(shown) == ["a.txt", "c.csv", "d.jsonl", "deep%20dir/b.md"]
    assert shown["a.txt"] == ("a", "Plain words about a wing.")
    assert (found["c.csv#1"], found["c.csv#2"]) == (
        ("one", "first record"),
        ("two", "second record"),
    )
    sections = [value for id, value in found.items() if id.startswith("deep%20dir/b.md#")]
    assert sections == [
        ("Guide", "Hello."),
        ("Guide > Install - it", "Clone it."),
        ("Guide > Use", "Search."),
    ]
    same = [id for id in found if id.startswith("d.jsonl")]
    assert same[1] == f"{same[0]}-2"
    source = resolve_source(folder, "test")
    assert isinstance(source, TextFiles)
    assert {source.file_of(id) for id in found} == {"a.txt", "c.csv", "d.jsonl", "deep dir/b.md"}
    assert not has_labels(folder)
    [left_out, *duplicates] = validate(folder)
    assert (left_out.kind, left_out.severity) == ("files left out", "warning")
    assert (left_out.file, left_out.times) == (str(folder / "picture.png"), 1)
    assert "not text" in left_out.message
    assert {defect.kind for defect in duplicates} == {"title null or absent", "duplicate texts"} - {
        "title null or absent"
    }


def test_ids_stay_where_texts_do_and_only_changed_files_are_read_again(folder, monkeypatch):
    read: list[str] = []
    original = file_formats.read_content

    def counted(path, data, encoding=None):
        read.append(path.name)
        return original(path, data, encoding)

    monkeypatch.setattr(file_formats, "read_content", counted)
    before = texts(folder)
    assert read == ["a.txt", "b.md"]
    assert texts(folder) == before
    assert read == ["a.txt", "b.md"]
    guide = folder / "deep dir" / "b.md"
    guide.write_text(guide.read_text().replace("Hello.", "Welcome.") + "\n## More\n\nMore.\n")
    (folder / "e.txt").write_text("new")
    (folder / "c.csv").unlink()
    after = texts(folder)
    assert sorted(read[2:]) == ["b.md", "e.txt"]
    kept = {id for id in before if not id.startswith("c.csv") and before[id][1] != "Hello."}
    assert {id: after[id] for id in kept} == {id: before[id] for id in kept}
    assert {text for id, (_, text) in after.items() if id not in before} == {
        "Welcome.",
        "More.",
        "new",
    }
    assert not {id for id in after if id.startswith("c.csv")}
    (folder / "a.txt").unlink()
    guide.unlink()
    texts(folder)
    [cached] = [
        path
        for path in survey.cache_folder("files").glob("*.json")
        if str(folder) in path.read_text()
    ]
    kept_files = list(json.loads(cached.read_text()))
    assert kept_files == [str(folder / "d.jsonl"), str(folder / "e.txt")]


def test_long_texts_are_cut_by_sentences(tmp_path):
    from beir_cocodr.data.text import count_units

    words = [f"Sentence number {i} says what it says." for i in range(60)]
    (tmp_path / "a.txt").write_text(" ".join(words))
    (tmp_path / "b.csv").write_text("id,text\nx," + " ".join(words) + "\n")
    found = texts(tmp_path)
    for start in ("a.txt#", "b.csv#x#"):
        parts = [text for id, (_, text) in found.items() if id.startswith(start)]
        assert " ".join(parts) == " ".join(words)
        assert all(
            part.endswith("it says.") and 100 < count_units(part) <= 180 for part in parts[:-1]
        )
    assert len(texts(f"{tmp_path}?words=40")) > len(found)


def test_one_file_is_a_corpus_and_keeps_the_ids_of_its_records(folder):
    assert texts(folder / "c.csv") == {"1": ("one", "first record"), "2": ("two", "second record")}
    found = texts(f"{folder / 'c.csv'}?text=title&title=&id=")
    assert list(found.values()) == [("", "one"), ("", "two")]
    assert all(id.startswith("c.csv#") for id in found)
    assert all(id.startswith("d.jsonl#") for id in texts(f"{folder / 'd.jsonl'}?text=text"))
    [(id, value)] = texts(folder / "a.txt").items()
    assert (id.partition("#")[0], value) == ("a.txt", ("a", "Plain words about a wing."))
    assert resolve_source(folder / "a.txt", "test").file_of(id) == "a.txt"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{}?colour=red", "colour"),
        ("{}?words=many", "words"),
        ("{}?words=0", "words"),
        ("{}?language=klingon", "klingon"),
        ("{}/c.csv?text=z", "'z'"),
        ("{}/picture.png", "not text"),
        ("{}?strict=yes", "strict"),
        ("{}?encoding=klingon", "klingon"),
        ("{}?encoding=base64", "base64"),
        ("{}-nowhere?text=z", "no such file"),
        ("hf:no/such-data-set", "apidocs/numpy"),
    ],
)
def test_a_bad_name_names_the_way_out(folder, name, words):
    with pytest.raises(InputError, match=words):
        texts(name.format(folder))


BAD = {
    "bad.md": (b"a\0b", "NUL"),
    "bad.csv": (b"id,text\na b,x\n", "white space"),
    "worse.csv": (b"x,y\n1,2\n", "--text-column"),
    "twice.csv": (b"id,text\n1,x\n1,y\n", "line 3.*occurs twice|duplicate ids"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_left_out_of_a_folder_and_refused_where_it_is_meant(folder, name):
    content, reason = BAD[name]
    before = texts(folder)
    (folder / name).write_bytes(content)
    assert texts(folder) == before
    collection = load_collection(folder, labels="none")
    [bad, _] = sorted(collection.documents.facts.left_out, key=lambda entry: entry.file != name)
    assert bad.file == name
    assert re.search(reason, bad.reason)
    assert collection.counts["files left out"] == 2
    (folder / "picture.png").unlink()
    for dataset in (folder / name, f"{folder}?strict=true"):
        with pytest.raises(InputError, match=rf"{name}.*({reason})|({reason})"):
            texts(dataset)


def test_a_folder_that_is_closed_is_left_out(folder, monkeypatch):
    original = Path.iterdir

    def closed(path):
        if path.name == "deep dir":
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(Path, "iterdir", closed)
    collection = load_collection(folder, labels="none")
    left_out = {entry.file: entry.reason for entry in collection.documents.facts.left_out}
    assert left_out.keys() == {"deep dir", "picture.png"}
    assert "make it readable" in left_out["deep dir"]
    with pytest.raises(InputError, match=r"deep dir.*make it readable"):
        texts(f"{folder}?strict=true")


def test_what_needs_an_extra_is_left_out_and_named(folder, monkeypatch, caplog):
    (folder / "scan.pdf").write_bytes(b"%PDF")
    for module in ("file_formats", "file_folder"):
        monkeypatch.setattr(f"beir_cocodr.data.files.{module}.find_spec", lambda name: None)
    texts(folder)
    assert "scan.pdf" in caplog.text
    assert "beir-cocodr[files]" in caplog.text
    with pytest.raises(InputError, match=r"beir-cocodr\[files\]"):
        texts(folder / "scan.pdf")


def test_folders_of_beir_and_of_nothing_are_what_they_were(tmp_path, beir_folder):
    assert not isinstance(resolve_source(beir_folder, "test"), TextFiles)
    with pytest.raises(InputError, match="question mark"):
        texts(f"{beir_folder}?language=de")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "README.md").write_text("A collection that has lost its corpus.")
    with pytest.raises(InputError, match=r"corpus\.jsonl"):
        texts(tmp_path)


def test_a_saved_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"id": [7, 8], "text": ["one", "two"], "label": [0, 1]})
    rows.save_to_disk(tmp_path / "one")
    assert texts(tmp_path / "one") == {"7": ("", "one"), "8": ("", "two")}
    datasets.DatasetDict({"x": rows, "y": rows.select([1])}).save_to_disk(tmp_path / "several")
    assert list(texts(f"{tmp_path / 'several'}?split=y")) == ["8"]
    with pytest.raises(InputError, match="x, y"):
        texts(tmp_path / "several")


def test_settings_stand_behind_the_name():
    name = Reading.extend("my.csv?words=90", text="a b,c", language="de")
    assert Reading.parse(name) == ("my.csv", Reading(text="a b,c", language="de", words=90))
    assert Reading.parse("my.csv") == ("my.csv", None)
    with pytest.raises(InputError, match=r"setting 'text' of my\.csv .*at position 1"):
        Reading.extend("my.csv", text="a\udcff")
    with pytest.raises(InputError, match=r"'text' of my\.csv is too long: 'ääää"):
        Reading.extend("my.csv", text="ä" * 60)
