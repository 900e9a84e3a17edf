"""The analyses take the objects that a program has: collections, encoders, measures and paths."""

from __future__ import annotations

import pytest
from conftest import write_beir
from ir_measures import nDCG
from sentence_transformers import SentenceTransformer

from beir_cocodr.analysis import RepresentationOptions, SourceClusterOptions
from beir_cocodr.analysis.predictors import variance_predictors
from beir_cocodr.analysis.qpp import QPPOptions, qpp
from beir_cocodr.analysis.representation import representation
from beir_cocodr.analysis.shift import shift
from beir_cocodr.analysis.source_clusters import source_clusters
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate

SPANS = RepresentationOptions(sample=24, batch_size=8, span_tokens=12)


@pytest.fixture(scope="module")
def triple(beir_folder):
    """BEIR's corpus, queries and judgements."""
    collection = load_collection(beir_folder)
    documents = collection.documents
    corpus = {id: documents[id] for id in documents.ids()}
    return corpus, collection.queries, collection.qrels


def test_shift_of_a_collection_is_that_of_its_folder(beir_folder, tmp_path):
    target = write_beir(tmp_path / "target", seed=3)
    by_name = shift(str(target), source=str(beir_folder))
    by_object = shift(load_collection(target), source=load_collection(beir_folder, "train"))
    assert by_object == by_name


def test_shift_of_triples_has_their_similarities(beir_folder, triple):
    record = shift(triple, source=beir_folder, source_split="test")
    assert (record.document_jaccard, record.query_type_jaccard) == (1, 1)


def test_quality_of_a_loaded_encoder_is_predicted(beir_folder, triple, tiny_cosine, tmp_path):
    by_name = qpp(str(tiny_cosine), str(beir_folder), output=tmp_path / "out")
    by_object = qpp(
        SentenceTransformer(str(tiny_cosine), device="cpu"),
        triple,
        options=QPPOptions(measure=nDCG @ 10),
    )
    assert by_object.record.model == "SentenceTransformer"
    assert by_object.record.measure == "nDCG@10"
    assert by_object.quality == pytest.approx(by_name.quality)
    assert by_object.record.predictors[0].pearson == pytest.approx(
        by_name.record.predictors[0].pearson
    )


def test_quality_of_a_run_is_predicted(beir_folder):
    collection = load_collection(beir_folder)
    run = {query: {"d1": 2.0, "d2": 1.0} for query in collection.qrels}
    prediction = qpp(run, collection)
    assert list(prediction.quality) == list(collection.qrels)


def test_several_measures_are_refused(beir_folder):
    options = QPPOptions(measure=[nDCG @ 10, nDCG @ 5])
    with pytest.raises(InputError, match="one measure at a time"):
        qpp("bm25", beir_folder, options=options)


def test_representation_of_a_loaded_encoder_is_that_of_its_folder(beir_folder, tiny_cosine):
    by_name = representation(str(tiny_cosine), str(beir_folder), options=SPANS)
    encoder = SentenceTransformer(str(tiny_cosine), device="cpu")
    by_object = representation({"mine": encoder}, load_collection(beir_folder), options=SPANS)
    [corpus] = by_object.datasets.values()
    [expected] = by_name.datasets.values()
    assert corpus.models["mine"] == expected.models[str(tiny_cosine)]


def test_results_may_be_one_path_and_the_measure_an_object(
    beir_folder, tiny_cosine, two_layer_cosine, tmp_path
):
    models = [tiny_cosine, two_layer_cosine]
    evaluate(models, beir_folder, output=tmp_path)
    record = representation(
        models,
        beir_folder,
        results=str(tmp_path / "results.json"),
        measure=nDCG @ 10,
        options=SPANS,
    )
    assert record.measure == "nDCG@10"
    [corpus] = record.datasets.values()
    assert corpus.change.gain is not None


def test_source_clusters_take_loaded_encoders(beir_folder, tiny_cosine, two_layer_cosine):
    options = SourceClusterOptions(clusters=3, sample=14, negatives=2, cases=2)
    by_name = source_clusters(
        [tiny_cosine, two_layer_cosine], beir_folder, source=beir_folder, options=options
    )
    models = {
        "before": SentenceTransformer(str(tiny_cosine), device="cpu"),
        "after": SentenceTransformer(str(two_layer_cosine), device="cpu"),
    }
    by_object = source_clusters(
        models,
        load_collection(beir_folder),
        source=load_collection(beir_folder, "train"),
        options=options,
    )
    assert (by_object.before, by_object.after) == ("before", "after")
    assert by_object.clusters == by_name.clusters
    assert by_object.targets == by_name.targets


def test_a_loaded_encoder_without_variances_has_no_variance_predictors(beir_folder, tiny_cosine):
    encoder = SentenceTransformer(str(tiny_cosine), device="cpu")
    assert variance_predictors(encoder, load_collection(beir_folder)) == {}


def test_what_is_no_dataset_or_model_is_refused_by_its_type(beir_folder, tiny_cosine):
    with pytest.raises(InputError, match="int"):
        shift(3, source=beir_folder)
    with pytest.raises(InputError, match=r"model is an? .*int"):
        qpp(3, beir_folder)
    with pytest.raises(InputError, match=r"models is an? .*int"):
        representation([tiny_cosine, 3], beir_folder)
