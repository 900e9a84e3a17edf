"""Resampling takes the objects that a program has: collections, encoders and paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import write_beir
from sentence_transformers import SentenceTransformer

from beir_cocodr.data.collection import load_collection
from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.overlap import overlap
from beir_cocodr.resampling.restrain import resample_restrain

OPTIONS = RestrainOptions(ks=(2,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """60 training and 8 test queries over 160 documents."""
    folder = write_beir(tmp_path_factory.mktemp("pair") / "tiny", documents=160, queries=60)
    judgements = folder / "qrels" / "test.tsv"
    lines = judgements.read_text().splitlines(keepends=True)
    judgements.write_text("".join(lines[:17]))
    return folder


def triple(folder: Path, split: str):
    """Return BEIR's corpus, queries and judgements."""
    collection = load_collection(folder, split)
    documents = collection.documents
    corpus = {id: documents[id] for id in documents.ids()}
    return corpus, collection.queries, collection.qrels


def test_overlap_of_objects_is_that_of_names(folder, tiny_cosine):
    by_name = overlap(str(folder), str(folder), model=str(tiny_cosine))
    by_object = overlap(
        load_collection(folder, "train"),
        triple(folder, "test"),
        model=SentenceTransformer(str(tiny_cosine), device="cpu"),
    )
    assert by_object.label_overlap == by_name.label_overlap
    assert by_object.nearest.queries == by_name.nearest.queries
    assert by_object.nearest.encoder.name == "SentenceTransformer"


def test_collections_of_names_are_resampled_to_the_same_sets(folder, tiny_cosine, tmp_path):
    by_name = resample_restrain(
        str(folder), str(folder), model=str(tiny_cosine), output=tmp_path / "a", options=OPTIONS
    )
    by_object = resample_restrain(
        load_collection(folder, "train"),
        load_collection(folder, "test"),
        model=SentenceTransformer(str(tiny_cosine), device="cpu"),
        output=str(tmp_path / "b"),
        options=OPTIONS,
    )
    assert by_object.encoder == replace(by_name.encoder, name="SentenceTransformer")
    assert by_object.sets == by_name.sets
    assert by_object.overlap == by_name.overlap
    corpus = tmp_path / "b" / "interpolation" / "corpus.jsonl"
    assert corpus.samefile(folder / "corpus.jsonl")


def test_a_corpus_in_memory_is_written_once(folder, tiny_cosine, tmp_path):
    manifest = resample_restrain(
        triple(folder, "train"),
        triple(folder, "test"),
        model=tiny_cosine,
        output=tmp_path / "o",
        options=OPTIONS,
    )
    assert manifest.same_corpus
    assert manifest.train.ir_datasets_id is None
    link = tmp_path / "o" / "extrapolation" / "corpus.jsonl"
    assert link.readlink() == Path("../corpus.jsonl")
    expected = load_collection(folder, "train").documents
    assert load_collection(link.parent, "train").documents.content_hash == expected.content_hash
