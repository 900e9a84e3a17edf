from __future__ import annotations

import shutil

import pytest
from conftest import write_beir

from beir_cocodr import load_collection
from beir_cocodr.data.collection import load_queries
from beir_cocodr.errors import InputError


@pytest.mark.parametrize("split", ["test", "train"])
def test_queries_are_those_of_the_collection(beir_folder, split):
    collection, found = load_collection(beir_folder, split), load_queries(beir_folder, split)
    assert list(found.queries.items()) == list(collection.queries.items())
    assert found.documents.content_hash == collection.documents.content_hash


def test_without_judgements_all_queries_are_taken(beir_folder, tmp_path):
    shutil.copytree(beir_folder, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "qrels")
    assert len(load_queries(tmp_path / "bare").queries) == 32


def test_a_misspelt_split_does_not_become_all_queries(beir_folder):
    with pytest.raises(InputError, match=r"'tset' .*test, train"):
        load_queries(beir_folder, "tset")


def test_no_queries_and_bad_lines_are_named(tmp_path):
    folder = write_beir(tmp_path / "c")
    with pytest.raises(InputError, match="no queries"):
        load_queries(folder / "corpus.jsonl")
    with (folder / "queries.jsonl").open("a") as file:
        file.write('{"_id": "q0", "text": \n')
    with pytest.raises(InputError, match=r"queries\.jsonl:33"):
        load_queries(folder)
