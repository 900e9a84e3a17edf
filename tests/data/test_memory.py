"""Collections that a program already holds are the same as those in files."""

import datasets
import pytest

from beir_cocodr import load_collection
from beir_cocodr.data.collection import Collection, has_labels, is_dataset
from beir_cocodr.errors import InputError

CORPUS = {
    "d1": {"title": "Sort", "text": "Return a sorted copy of an array."},
    "d2": {"title": "", "text": "Draw a histogram."},
}
QUERIES = {"q1": "sort an array", "q2": "unjudged"}
QRELS = {"q1": {"d1": 1}}


def test_a_corpus_dict_is_a_collection_without_labels():
    collection = load_collection(CORPUS, labels="optional")
    assert dict(collection.documents.items()) == CORPUS
    assert (collection.queries, collection.qrels, collection.split) == ({}, {}, None)
    assert not has_labels(CORPUS)


def test_texts_alone_have_empty_titles():
    collection = load_collection({"d1": "Sort.", "d2": "Draw."}, labels="none")
    assert collection.documents["d2"] == {"title": "", "text": "Draw."}
    assert collection.counts == {}


def test_a_triple_has_the_judged_queries_of_the_split():
    collection = load_collection((CORPUS, QUERIES, QRELS), "dev")
    assert collection.queries == {"q1": "sort an array"}
    assert collection.qrels == QRELS
    assert collection.split == "dev"


def test_what_beir_loads_is_the_folder(beir_folder):
    from beir.datasets.data_loader import GenericDataLoader

    triple = GenericDataLoader(str(beir_folder)).load("test")
    ours, folder = load_collection(triple), load_collection(beir_folder)
    assert ours.documents.content_hash == folder.documents.content_hash
    assert (ours.queries, ours.qrels) == (folder.queries, folder.qrels)


@pytest.mark.parametrize("id_column", ["_id", "id"])
def test_a_hugging_face_dataset_is_its_rows(id_column):
    rows = [{id_column: id, **document, "extra": 1} for id, document in CORPUS.items()]
    collection = load_collection(datasets.Dataset.from_list(rows), labels="none")
    assert dict(collection.documents.items()) == CORPUS
    assert load_collection(CORPUS, labels="none").documents.path == collection.documents.path


def test_a_collection_and_its_documents_are_taken_as_they_are(beir_folder):
    collection = load_collection(beir_folder)
    assert load_collection(collection) is collection
    assert load_collection(collection.documents, labels="none").documents is collection.documents


def test_another_split_of_a_collection_shares_its_documents(beir_folder):
    collection = load_collection(beir_folder, "test")
    other = collection.in_split("train")
    assert other.documents is collection.documents
    assert (other.queries, other.qrels) == (
        load_collection(beir_folder, "train").queries,
        load_collection(beir_folder, "train").qrels,
    )
    with pytest.raises(InputError, match="in memory and has no split 'train'"):
        load_collection((CORPUS, QUERIES, QRELS)).in_split("train")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([1, 2], "dataset is a list of int; give a name, a path"),
        (None, "dataset is None"),
        (3.5, "dataset is a float"),
        ({"d1": 3}, "document 'd1' is an int; give its text"),
        ({}, "dict of 0 documents: empty"),
        ({"a b": "text"}, "'a b' has white space"),
        ((CORPUS, QUERIES), "dataset is a tuple of dict"),
        ((CORPUS, ["q"], QRELS), "queries of the triple are a list of str"),
        ((CORPUS, QUERIES, {"q1": ["d1"]}), "qrels of query 'q1' are a list of str"),
        ((CORPUS, QUERIES, {"q1": {"d1": "x"}}), "grade 'x' is not an integer"),
        (datasets.Dataset.from_dict({"body": ["a"]}), "of columns .*body"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_its_type(dataset, message):
    with pytest.raises(InputError, match=message) as caught:
        load_collection(dataset, labels="optional")
    assert "\n" not in str(caught.value)
    assert "beir-cocodr validate" not in str(caught.value)


def test_labels_that_are_required_and_missing_are_refused():
    with pytest.raises(InputError, match=r"dict of 2 documents: no queries and qrels"):
        load_collection(CORPUS)
    unlabelled = load_collection(CORPUS, labels="none")
    with pytest.raises(InputError, match="has no judgements"):
        load_collection(unlabelled)


def test_a_program_can_tell_datasets_from_models(beir_folder, tiny_bert):
    collection = load_collection(beir_folder)
    datasets_ = [collection, collection.documents, (CORPUS, QUERIES, QRELS), "apidocs/numpy"]
    assert all(map(is_dataset, [*datasets_, beir_folder, beir_folder / "corpus.jsonl"]))
    assert not any(map(is_dataset, ["minilm", "bm25", str(tiny_bert), ["bm25"], object()]))
    assert isinstance(collection, Collection)
