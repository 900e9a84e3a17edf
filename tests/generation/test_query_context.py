"""Passages with their queries, against the files that they are made of."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict

import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.query_context import load_query_context
from beir_cocodr.generation.settings import GenerationOptions


@pytest.fixture(scope="module")
def folder(beir_folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("context") / "generated"
    options = GenerationOptions(passage_tokens=30, title_separator=" - ")
    generate_queries(beir_folder, "lexical", output, options)
    return output


def expected(folder, most):
    documents = load_collection(folder, "train").documents
    passages = defaultdict(list)
    for line in (folder / "queries.jsonl").read_text().splitlines():
        query = json.loads(line)
        place = query["metadata"]
        document = TextFormat(title_separator=" - ").document(documents[place["document"]])
        text = document[place["start"] : place["end"]]
        row = int(documents.rows([place["document"]])[0])
        passages[place["document"], row, place["number"], text].append(query["text"])
    return [
        dict(zip(("document", "row", "number", "text"), key, strict=True))
        | {"queries": queries[:most]}
        for key, queries in passages.items()
    ]


@pytest.mark.parametrize("most", [None, 1, 3])
def test_it_holds_what_the_files_hold(folder, most):
    for _ in range(2):  # written, then mapped again
        table = load_query_context(folder, most)
        assert list(table) == expected(folder, most)
    assert [file["filename"] for file in table.cache_files]  # memory-mapped
    rows = table["row"][:]
    assert list(rows) == sorted(rows)
    assert table[0]["text"].startswith(table[0]["text"].strip())


def test_other_queries_are_another_table(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    queries = tmp_path / "copy" / "queries.jsonl"
    lines = queries.read_text().splitlines()
    queries.unlink()
    queries.write_text("\n".join(lines[:7]) + "\n")
    table = load_query_context(tmp_path / "copy")
    assert sum(len(row["queries"]) for row in table) == 7
    assert len(load_query_context(folder)) > len(table)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no record", "generation.json"),
        ("settings.few_shot", r"generation.json: .*few_shot.* is 'text'; it must be bool"),
        ("generator.name", r"generation.json: .*generator.name is \[\], which is not text"),
        ("no queries", "does not exist"),
        ("shuffled", "order"),
        ("stranger", "not in the corpus"),
        ("no metadata", r"queries.jsonl:1: .*metadata"),
        ("broken line", r"queries.jsonl:2: .*JSON"),
        ("other corpus", "corpus .*changed"),
    ],
)
def test_what_was_changed_is_refused(folder, tmp_path, damage, message):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, symlinks=True)
    queries = copy / "queries.jsonl"
    lines = queries.read_text().splitlines()
    first = json.loads(lines[0])
    if damage == "no record":
        (copy / "generation.json").unlink()
    elif "." in damage:
        record = json.loads((copy / "generation.json").read_text())
        part, name = damage.split(".")
        record[part][name] = {"few_shot": "text", "name": []}[name]
        (copy / "generation.json").unlink()
        (copy / "generation.json").write_text(json.dumps(record))
    elif damage == "shuffled":
        lines.reverse()
    elif damage == "stranger":
        lines[0] = json.dumps(first | {"metadata": first["metadata"] | {"document": "nobody"}})
    elif damage == "no metadata":
        lines[0] = json.dumps({"_id": "q", "text": "x"})
    elif damage == "broken line":
        lines[1] = "{"
    elif damage == "other corpus":
        text = (copy / "corpus.jsonl").read_text()
        (copy / "corpus.jsonl").unlink()
        (copy / "corpus.jsonl").write_text(text + '{"_id": "new", "title": "", "text": "x"}\n')
    queries.unlink()
    if damage != "no queries":
        queries.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=message):
        load_query_context(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, r"queries.jsonl:2: query 'gen.*' is there twice"),
        ({"_id": [[1]]}, r"queries.jsonl:1: .*_id.* is no text"),
        ({"text": [[1]]}, r"queries.jsonl:1: .*text.* is no text"),
        (
            {"metadata": {"document": "d", "number": 0, "start": {"a": 1}, "end": 3}},
            r"queries.jsonl:1: .*metadata with .*start.* is no whole number",
        ),
    ],
)
def test_a_query_is_there_once_and_is_as_it_was_written(folder, tmp_path, change, message):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, symlinks=True)
    queries = copy / "queries.jsonl"
    content = queries.read_text()
    first = json.loads(content.splitlines()[0]) | change
    queries.unlink()
    queries.write_text(json.dumps(first) + "\n" + content)
    with pytest.raises(InputError, match=message):
        load_query_context(copy)


def test_a_passage_keeps_at_least_one_query(folder):
    with pytest.raises(InputError, match="1 query"):
        load_query_context(folder, 0)
