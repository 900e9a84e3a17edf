"""Ids that outlive the process: kept in ir_datasets' home, read by every process of ours, and its
own commands.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys

import ir_datasets
import pytest
from beir_cocodr.plugins import irds, irds_registry
from conftest import exit_code, write_beir

from beir_cocodr import evaluate, load_collection
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.restrain import resample_restrain

numbers = itertools.count()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "irds"))
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "irds"


@pytest.fixture
def name() -> str:
    return f"kept-{next(numbers)}"


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as status:
        main(["irds", *map(str, words)])
    return status.value.code or 0


def _read_in_another_process(name: str, folder: str, home: str) -> None:
    os.environ["IR_DATASETS_HOME"] = home
    assert name not in ir_datasets.registry
    collection = load_collection(
        f"irds:{name}"
    )  # ours asks the plugin where the host does not know an id
    assert collection.qrels == load_collection(folder).qrels
    assert ir_datasets.load(f"{name}/test").docs_count() == len(collection.documents)


def test_a_kept_folder_is_known_in_every_process(beir_folder, name, home, capsys):
    assert command("register", beir_folder, name) == 0
    assert capsys.readouterr().out.split() == [name, f"{name}/test", f"{name}/train"]
    assert json.loads((home / "beir_cocodr.json").read_text())["folders"] == {
        name: str(beir_folder)
    }
    assert exit_code(_read_in_another_process, name, str(beir_folder), str(home)) == 0
    assert command("forget", name) == 0
    assert exit_code(_read_in_another_process, name, str(beir_folder), str(home)) == 1
    assert command("forget", name) == 2
    assert f"'{name}' is not kept" in capsys.readouterr().err


def test_its_commands_list_and_export_them(beir_folder, name, capsys):
    irds.register_folder(beir_folder, name, keep=True)
    assert command("list") == 0
    assert {name, f"{name}/test", "vaswani"} <= {*capsys.readouterr().out.split()}
    collection = load_collection(beir_folder)
    assert command("export", f"{name}/test", "qrels") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {(query, document): int(grade) for query, _, document, grade in lines} == {
        (query, document): grade
        for query, found in collection.qrels.items()
        for document, grade in found.items()
    }
    assert command("export", name, "docs", "--format", "jsonl", "--fields", "doc_id", "text") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["doc_id"]: row["text"] for row in rows} == {
        id: d["text"] for id, d in collection.documents.items()
    }
    assert command("lookup", name, "d3") == 0
    assert capsys.readouterr().out.startswith("d3\t")


def test_resampled_ids_are_kept_where_the_cache_is_lost(
    tiny_cosine, name, tmp_path, monkeypatch, capsys
):
    folder = write_beir(tmp_path / name, documents=200, queries=80)
    lines = (folder / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    (folder / "qrels" / "test.tsv").write_text("".join(lines[:17]))
    resample_restrain(
        str(folder),
        str(folder),
        model=str(tiny_cosine),
        output=tmp_path / "out",
        options=RestrainOptions(sizes=(16,)),
    )
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "other"))
    assert command("register", tmp_path / "out") == 0
    found = capsys.readouterr().out.split()
    assert len(found) == 6
    [set_id] = [id for id in found if id.endswith("interpolation/train")]
    assert irds.register() == found
    assert command("export", set_id, "queries") == 0
    assert len(capsys.readouterr().out.splitlines()) == ir_datasets.load(set_id).queries_count() > 0
    irds.forget(str(tmp_path / "out"))
    assert not irds.register()


def test_a_folder_that_is_gone_is_a_warning_and_bad_words_one_line(
    name, tmp_path, capsys, caplog, beir_folder
):
    folder = write_beir(tmp_path / "gone")
    irds.register_folder(folder, name, keep=True)
    irds_registry._SOURCES.clear()
    (folder / "corpus.jsonl").unlink()
    with caplog.at_level(logging.WARNING):
        irds.register()
    assert f"irds forget {name}" in caplog.text
    for words in (
        ["register", beir_folder],
        ["register"],
        ["forget"],
        ["listing"],
        ["export", "no/such/id", "docs"],
    ):
        capsys.readouterr()
        assert command(*words) == 2, words
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    irds_registry.kept_file().write_text("{")
    with pytest.raises(InputError, match=r"beir_cocodr\.json"):
        irds.register()


def test_lookup_finds_documents_and_queries_by_id(beir_folder, name, capsys):
    irds.register_folder(beir_folder, name, keep=True)
    collection = load_collection(beir_folder)
    assert command("lookup", name, "d7", "d3", "--format", "jsonl") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["doc_id"], row["text"]) for row in rows] == [
        (id, collection.documents[id]["text"]) for id in ("d7", "d3")
    ]
    [query, *_] = collection.queries
    assert command("lookup", f"{name}/test", "--qid", query) == 0
    assert capsys.readouterr().out.split("\t") == [query, collection.queries[query] + "\n"]


def test_ir_measures_command_line_scores_a_run_by_exported_judgements(
    beir_folder, name, tmp_path, capsys
):
    """The way that docs/beir.md names."""
    irds.register_folder(beir_folder, name, keep=True)
    assert command("export", f"{name}/test", "qrels") == 0
    (tmp_path / "test.qrels").write_text(capsys.readouterr().out)
    record = evaluate("bm25", beir_folder, measures="nDCG@10 R@100", output=tmp_path / "judged")
    words = [tmp_path / "test.qrels", tmp_path / "judged" / "bm25.run", "nDCG@10", "R@100"]
    done = subprocess.run(
        [sys.executable, "-m", "ir_measures", *words, "--places", "6"],
        capture_output=True,
        text=True,
        check=True,
    )
    figures = dict(line.split("\t") for line in done.stdout.splitlines())
    expected = record.models["bm25"].measures
    assert {name: float(value) for name, value in figures.items()} == pytest.approx(
        expected, abs=1e-6
    )
