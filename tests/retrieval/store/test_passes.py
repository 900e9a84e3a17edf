"""Passes over a finished store: terms are added without encoding, and what a search fits itself."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import exit_code, process

from beir_cocodr import FuseOptions, HybridEncoder, fuse, load_collection
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import UNFINISHED
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.refit import REFIT_FILE, Refit
from beir_cocodr.retrieval.store.store import EmbeddingStore


@pytest.fixture(scope="module")
def place(beir_folder, tiny_cosine, tmp_path_factory) -> Path:
    """A hybrid encoder, its store and that of its dense part."""
    place = tmp_path_factory.mktemp("passes")
    encode(str(beir_folder), str(tiny_cosine), place / "dense", EncodeOptions(shard_size=20))
    options = FuseOptions(lexical="svd", bytes_per_document=2 * (32 + 24))
    fuse(
        str(tiny_cosine),
        str(beir_folder),
        output=place / "model",
        options=options,
        stores=[place / "dense"],
    )
    encode(str(beir_folder), str(place / "model"), place / "store", EncodeOptions(shard_size=20))
    return place


@pytest.fixture(scope="module")
def model(place) -> HybridEncoder:
    return HybridEncoder(place / "model")


def test_what_is_fitted_for_a_search_ranks_as_what_fuse_makes(beir_folder, tiny_cosine, tmp_path):
    model = tmp_path / "model"
    corpus = tmp_path / "corpus.jsonl"  # without queries, as they have a part in the choice
    corpus.write_bytes((beir_folder / "corpus.jsonl").read_bytes())
    fuse(str(tiny_cosine), str(corpus), output=model, options=FuseOptions(bm25_weight=0.3))
    collection = load_collection(beir_folder)
    options = SearchOptions(bm25_weight=0.3)
    search = Resources(collection.documents, tmp_path, options)
    saved = search.ranker(str(model)).search(collection.queries, 10)
    fitted = search.ranker(f"vector:{tiny_cosine}")
    ranking = fitted.search(collection.queries, 10)
    np.testing.assert_array_equal(ranking.rows, saved.rows)
    np.testing.assert_allclose(ranking.scores, saved.scores, atol=1e-5)
    query = next(iter(collection.queries.values()))
    parts = fitted.parts(query, ranking.rows[0], ranking.scores[0])
    np.testing.assert_allclose(parts.dense + parts.lexical, ranking.scores[0], atol=1e-5)
    assert fitted.describe()["dimensions"] == HybridEncoder(model).get_embedding_dimension()


def test_a_hybrid_encoder_of_full_rank_ranks_as_the_exact_fusion(
    beir_folder, tiny_cosine, tmp_path
):
    collection = load_collection(beir_folder)
    search = Resources(collection.documents, tmp_path, SearchOptions(bm25_weight=0.7))
    exact = search.ranker(f"hybrid:{tiny_cosine}").search(collection.queries, 10)
    fitted = search.ranker(f"vector:{tiny_cosine}").search(collection.queries, 10)
    same = [len(np.intersect1d(*rows)) for rows in zip(exact.rows, fitted.rows, strict=True)]
    assert np.mean(same) > 9.5


def _add_terms(arguments: list[str]) -> None:
    main(arguments)


@pytest.mark.parametrize("then", ["killed", "goes on"])
def test_a_run_whose_folder_is_moved_leaves_nothing_half_written(
    then, place, beir_folder, tmp_path
):
    """Terms are added in a folder that gets another name meanwhile, and in that one once more."""
    model, dense = str(place / "model"), str(place / "dense")
    arguments = ["encode", "--dataset", str(beir_folder), "--model", model, "--dense", dense]
    arguments.append("--output")
    before, after = tmp_path / "runs", tmp_path / "moved"
    before.mkdir()
    running = process(_add_terms, [*arguments, str(before / "store")])
    while running.is_alive() and not list(before.glob(f"{UNFINISHED}*/new/*")):
        time.sleep(0.0005)
    os.kill(running.pid, signal.SIGSTOP)
    assert not (before / "store").exists()
    before.rename(after)
    if then == "killed":
        running.kill()
    else:
        os.kill(running.pid, signal.SIGCONT)
    running.join(60)
    assert running.exitcode == (-signal.SIGKILL if then == "killed" else 2)
    assert not (after / "store").exists()
    assert not (before / "store").exists()
    assert exit_code(_add_terms, [*arguments, str(after / "store")]) == 0
    assert [path.name for path in after.iterdir()] == ["store"]
    assert EmbeddingStore.open(after / "store").missing(thorough=True) == []


def test_terms_are_added_to_a_store_of_the_dense_part(place, beir_folder, tmp_path, capsys):
    arguments = ["encode", "--dataset", str(beir_folder), "--model", str(place / "model")]

    def run(*more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *more])
        return int(ended.value.code)

    assert run("--output", str(tmp_path / "added"), "--dense", str(place / "dense"), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["documents_encoded"] == 0
    assert report["refit"] == Refit.read(tmp_path / "added" / REFIT_FILE).describe()
    added, encoded = EmbeddingStore.open(tmp_path / "added"), EmbeddingStore.open(place / "store")
    assert added.record.identity == encoded.record.identity
    np.testing.assert_allclose(added.load(), encoded.load(), atol=1e-5)
    assert run("--output", str(tmp_path / "other"), "--dense", str(place / "store")) == 2
    assert "was fused from another encoder" in capsys.readouterr().err
    both = ("--dense", str(place / "dense"), "--update")
    assert run("--output", str(tmp_path / "other"), *both) == 2
    assert "one of them" in capsys.readouterr().err


def _status(arguments: list[str]) -> object:
    """Return the exit status of the command line."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


@pytest.mark.parametrize(
    ("setting", "difference"),
    [
        (("--chunk-pooling", "first+mean"), 'chunk_pooling "first" there, "first+mean" now'),
        (("--document-length", "8"), "document_length 48 there, 8 now"),
        (("--title-separator", ": "), 'title_separator " " there, ": " now'),
    ],
)
def test_a_store_of_documents_that_were_read_otherwise_is_refused(
    setting, difference, place, beir_folder, tmp_path, capsys
):
    arguments = ["encode", "--dataset", str(beir_folder), "--model", str(place / "model")]
    arguments += ["--dense", str(place / "dense"), "--output", str(tmp_path / "mixed")]
    assert _status([*arguments, *setting]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "there" in line]
    assert f"has: {difference}; encode" in line
    assert "leave --dense out" in line
    assert not (tmp_path / "mixed").exists()


def test_how_queries_are_read_changes_no_dense_part(place, beir_folder, tmp_path):
    arguments = ["encode", "--dataset", str(beir_folder), "--model", str(place / "model")]
    arguments += ["--dense", str(place / "dense"), "--output", str(tmp_path / "added")]
    assert _status([*arguments, "--query-length", "8"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--precision", "int8"), "--precision is not used with --dense"),
        (("--no-verify",), "--no-verify is not used with --dense"),
        (
            ("--processes", "2", "--shard-size", "9"),
            "--shard-size, --processes are not used with --dense",
        ),
    ],
)
def test_options_that_only_encoding_reads_are_refused(
    options, message, place, beir_folder, tmp_path, capsys
):
    arguments = ["encode", "--dataset", str(beir_folder), "--model", str(place / "model")]
    arguments += ["--dense", str(place / "dense"), "--output", str(tmp_path / "added")]
    assert _status([*arguments, *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "added").exists()
