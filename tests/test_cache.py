"""The cache: its sizes by kind and corpus, and that nothing else is removed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import write_beir

from beir_cocodr import Searcher
from beir_cocodr.cache import chosen, entries, remove
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError


@pytest.fixture
def cache_of_two(tmp_path, tiny_cosine, monkeypatch) -> Path:
    """Return a cache that holds two corpora and the vectors of both."""
    root = tmp_path / "cache"
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(root))
    monkeypatch.delenv("BEIR_COCODR_VECTORS")
    for number, name in enumerate(("one", "two")):
        folder = write_beir(tmp_path / name, documents=16, queries=4, seed=number)
        Searcher(folder, str(tiny_cosine)).prepare()
    return root


def run(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["cache", *arguments])
    printed = capsys.readouterr()
    return end.value.code, printed.out or printed.err


def sizes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_sizes_are_those_of_the_files_by_kind_and_corpus(cache_of_two, tmp_path, capsys):
    code, out = run(capsys, "--json")
    shown = json.loads(out)
    assert code == 0
    expected = {}
    for kind in ("vectors", "corpora"):
        for name in ("one", "two"):
            expected[kind, str(tmp_path / name / "corpus.jsonl")] = 1
    assert {(row["kind"], row["corpus"]): row["entries"] for row in shown["entries"]} == expected
    assert shown["bytes"] == sizes(cache_of_two)
    vectors = [row["bytes"] for row in shown["entries"] if row["kind"] == "vectors"]
    assert sum(vectors) == sizes(cache_of_two / "vectors") > 2 * 16 * 32 * 4
    assert "vectors of texts" in run(capsys)[1]


@pytest.mark.parametrize("wanted", ["{}/one", "{}/one/corpus.jsonl"])
def test_one_corpus_is_cleared_and_the_other_stays(cache_of_two, tmp_path, capsys, wanted):
    before = sizes(cache_of_two)
    code, out = run(capsys, "--clear", wanted.format(tmp_path), "--json")
    shown = json.loads(out)
    assert code == 0
    assert {row["corpus"] for row in shown["entries"]} == {str(tmp_path / "two" / "corpus.jsonl")}
    assert shown["removed_bytes"] == before - sizes(cache_of_two) > 0


def test_a_kind_is_cleared_and_all(cache_of_two, capsys):
    run(capsys, "--clear", "vectors")
    assert {entry.kind for entry in entries()} == {"corpora"}
    assert "2 entries" in run(capsys, "--clear", "all")[1]
    assert entries() == []


def test_only_what_was_not_used_for_so_long_is_cleared(cache_of_two, tmp_path, capsys):
    old = [entry for entry in entries() if "one" in entry.corpus]
    for entry in old:
        for path in entry.paths:
            for file in [path, *path.rglob("*")]:
                os.utime(file, (1, 1))
    assert json.loads(run(capsys, "--older-than", "30", "--json")[1])["removed_entries"] == 2
    status, error = run(capsys, "--older-than", "inf")
    assert (status, "--older-than must be" in error) == (2, True)
    assert {Path(entry.corpus).parent.name for entry in entries()} == {"two"}


def test_what_is_used_again_is_not_old(cache_of_two, tmp_path, tiny_cosine):
    for file in cache_of_two.rglob("*"):
        os.utime(file, (1, 1))
    Searcher(tmp_path / "one", str(tiny_cosine)).prepare()
    kept = {entry.corpus for entry in entries()} - {
        entry.corpus for entry in chosen(entries(), None, 1.0)
    }
    assert kept == {str(tmp_path / "one" / "corpus.jsonl")}


def test_nothing_that_the_package_did_not_make_is_removed(cache_of_two, tmp_path, capsys):
    """Also if the cache is a folder of other files, or holds links that lead out of it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("precious")
    foreign = [
        cache_of_two / "notes.txt",
        cache_of_two / "corpora" / "thesis.arrow",
        cache_of_two / "files" / "letters.json",
        cache_of_two / "vectors" / "mine" / "here" / "segment.json",
    ]
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    (cache_of_two / "corpora" / ("a" * 32)).symlink_to(outside)
    (cache_of_two / "judge").symlink_to(outside)
    [segment] = [entry.paths[0] for entry in entries() if entry.kind == "vectors"][:1]
    (segment / "link").symlink_to(outside)
    run(capsys, "--clear", "all")
    assert all(file.is_file() for file in foreign)
    assert (outside / "precious.txt").read_text() == "precious"
    assert not segment.exists()


def test_a_corpus_that_the_cache_does_not_hold_is_named(cache_of_two, capsys):
    code, out = run(capsys, "--clear", "three")
    assert code == 2
    assert "three" in out
    with pytest.raises(InputError, match="contains nothing of 'three'"):
        chosen(entries(), "three", None)
    assert remove([]) == 0


def test_an_empty_cache_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("BEIR_COCODR_VECTORS", "off")
    assert "0 entries" in run(capsys)[1]
