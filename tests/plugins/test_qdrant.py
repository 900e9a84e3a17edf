"""The real Qdrant client, in memory, ranks what was handed over as our own search does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
from ir_measures import nDCG
from lazy_hosts import LazyModule, lazy_or_skip

from beir_cocodr import CompareOptions, FuseOptions, compare, fuse, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.handover import points
from beir_cocodr.retrieval.handover.engines import HandOverOptions
from beir_cocodr.retrieval.handover.hand_over import hand_over
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions

qdrant_client = lazy_or_skip(
    "qdrant_client", "qdrant-client is not installed: pip install 'beir-cocodr[qdrant]'"
)
plugin = LazyModule("beir_cocodr.plugins.qdrant")

#: All documents, so that rankings end in no tie.
EVERYTHING = 48


def in_memory() -> Any:
    return qdrant_client.QdrantClient(":memory:")


def uploaded(folder: Path, **options) -> Any:
    collection = plugin.QdrantCollection(folder, in_memory(), **options)
    assert collection.upload() == EVERYTHING
    return collection


def ours(model: str, dataset: Path, queries: dict[str, str], **options) -> dict:
    """Return the results of our own search, {query: {document: score}}."""
    documents = load_collection(dataset, labels="none").documents
    with Resources.temporary(documents, SearchOptions(**options)) as resources:
        ranking = resources.ranker(model).search(queries, EVERYTHING)
    return {query: dict(hits) for query, hits in ranking.results(documents).items()}


def assert_same_ranking(theirs: dict, mine: dict, tolerance: float = 1e-5) -> None:
    """Compare scores, and the order of all documents whose scores differ by more than rounding."""
    assert theirs.keys() == mine.keys()
    for query, expected in mine.items():
        assert theirs[query].keys() == expected.keys()
        in_their_order = [expected[document] for document in theirs[query]]
        assert (np.diff(in_their_order) <= tolerance).all()
        scores = [theirs[query][document] for document in expected]
        np.testing.assert_allclose(scores, list(expected.values()), atol=tolerance)


@pytest.fixture(scope="module")
def queries(beir_folder):
    return load_collection(beir_folder).queries


@pytest.mark.parametrize("kind", ["dense", "fused"])
def test_qdrant_has_our_figures(kind, beir_folder, tiny_cosine, tmp_path, assert_same_figure):
    model = str(tiny_cosine)
    if kind == "fused":
        model = str(tmp_path / "fused")
        fuse(str(tiny_cosine), beir_folder, output=model, options=FuseOptions(sample=16, probes=4))
    hand_over(model, beir_folder, output=tmp_path / "handed")
    collection = load_collection(beir_folder)
    theirs = uploaded(tmp_path / "handed").search(collection.queries, 10)
    [there] = ir_measures.calc_aggregate([nDCG @ 10], collection.qrels, theirs).values()
    here = evaluate({"model": model}, beir_folder, measures=["nDCG@10"]).models["model"]
    script = f"query_points: {kind}"
    assert_same_figure("Qdrant", script, "nDCG@10", there, here.measures["nDCG@10"])


@pytest.mark.parametrize("kind", ["cosine", "dot"])
def test_vectors_rank_as_here(kind, beir_folder, tiny_cosine, tiny_bert, queries, tmp_path):
    model = str({"cosine": tiny_cosine, "dot": tiny_bert}[kind])
    record = hand_over(model, beir_folder, output=tmp_path / "handed")
    assert (record.documents, record.dimensions, record.bm25_weight) == (EVERYTHING, 32, None)
    collection = uploaded(tmp_path / "handed")
    theirs = collection.search(queries, EVERYTHING)
    assert_same_ranking(theirs, ours(model, beir_folder, queries), tolerance=1e-4)
    settings = collection.client.get_collection("documents").config.params
    assert settings.vectors["dense"].distance.value == "Dot"


def test_distributions_rank_as_here(beir_folder, tiny_bert, queries, tmp_path):
    """The vectors of an MRL have another width than those of its encoder."""
    MRL(str(tiny_bert)).save_pretrained(str(tmp_path / "mrl"))
    record = hand_over(tmp_path / "mrl", beir_folder, output=tmp_path / "handed")
    theirs = uploaded(tmp_path / "handed").search(queries, EVERYTHING)
    mine = ours(str(tmp_path / "mrl"), beir_folder, queries)
    assert record.dimensions != 32
    assert_same_ranking(theirs, mine, tolerance=1e-3)


def test_a_store_is_handed_over_as_it_is(beir_folder, tiny_cosine, queries, tmp_path):
    store = tmp_path / "store"
    encode(str(beir_folder), str(tiny_cosine), store, EncodeOptions(precision="int8"))
    hand_over(store, beir_folder, output=tmp_path / "handed", options=HandOverOptions(to="qdrant"))
    theirs = uploaded(tmp_path / "handed").search(queries, EVERYTHING)
    mine = ours(str(tiny_cosine), beir_folder, queries, stores=(store,))
    assert_same_ranking(theirs, mine)


def test_a_hybrid_encoder_ranks_as_here(beir_folder, tiny_cosine, queries, tmp_path):
    fused = tmp_path / "fused"
    fuse(str(tiny_cosine), beir_folder, output=fused, options=FuseOptions(sample=16, probes=4))
    hand_over(fused, beir_folder, output=tmp_path / "handed")
    theirs = uploaded(tmp_path / "handed").search(queries, EVERYTHING)
    assert_same_ranking(theirs, ours(str(fused), beir_folder, queries), tolerance=1e-4)


def test_cosine_would_rank_a_hybrid_encoder_otherwise(beir_folder, tiny_cosine, queries, tmp_path):
    """Its lengths carry BM25's part, which is why the distance is the dot product."""
    fused = tmp_path / "fused"
    fuse(str(tiny_cosine), beir_folder, output=fused, options=FuseOptions(sample=16, probes=4))
    hand_over(fused, beir_folder, output=tmp_path / "handed")
    path = tmp_path / "handed" / "collection.json"
    settings = json.loads(path.read_text())
    assert settings["vectors"]["dense"]["distance"] == "Dot"
    mine = ours(str(fused), beir_folder, queries)
    overlaps = []
    for distance in ("Dot", "Cosine"):
        settings["vectors"]["dense"]["distance"] = distance
        path.write_text(json.dumps(settings))
        overlaps.append(overlap(uploaded(tmp_path / "handed").search(queries, 10), mine))
    assert overlaps[0] == 1 > overlaps[1] + 0.02


@pytest.fixture(scope="module")
def fusion(beir_folder, tiny_cosine, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fusion") / "handed"
    record = hand_over(f"hybrid@0.3:{tiny_cosine}", beir_folder, output=folder)
    assert record.bm25_weight == 0.3
    return folder


def test_a_fusion_ranks_as_here(fusion, beir_folder, tiny_cosine, queries):
    queries = {**queries, "1": "wing", "2": "treaty treaty the", "3": "unheard", "4": "wing shelf"}
    theirs = uploaded(fusion).search(queries, EVERYTHING)
    mine = ours(f"hybrid@0.3:{tiny_cosine}", beir_folder, queries)
    for query, hits in mine.items():
        # Theirs lacks what is the same for all documents of a query.
        shift = np.mean(list(theirs[query].values())) - np.mean(list(hits.values()))
        mine[query] = {document: score + shift for document, score in hits.items()}
    assert_same_ranking(theirs, mine)


def test_a_large_fusion_ranks_nearly_as_here(
    beir_folder, tiny_cosine, queries, tmp_path, monkeypatch
):
    """Covariances of a third of the documents, and few candidates."""
    monkeypatch.setattr(points, "SAMPLE", EVERYTHING // 3)
    model = f"hybrid@0.3:{tiny_cosine}"
    hand_over(model, beir_folder, output=tmp_path / "handed")
    theirs = uploaded(tmp_path / "handed", candidates=20).search(queries, 10)
    mine = ours(model, beir_folder, queries)
    dense_alone = ours(str(tiny_cosine), beir_folder, queries)
    assert overlap(theirs, mine) > overlap(dense_alone, mine) + 0.2


def overlap(first: dict, second: dict, depth: int = 10) -> float:
    """Return the mean share of the best documents that two results have in common."""
    shares = []
    for query, hits in first.items():
        common = set(list(hits)[:depth]) & set(list(second[query])[:depth])
        shares.append(len(common) / depth)
    return float(np.mean(shares))


def test_a_collection_is_a_model(beir_folder, tiny_cosine, tmp_path):
    hand_over(tiny_cosine, beir_folder, output=tmp_path / "handed")
    collection = uploaded(tmp_path / "handed")
    models = {"qdrant": collection, "here": str(tiny_cosine)}
    record = evaluate(models, beir_folder)
    there, here = (record.models[name].measures for name in models)
    assert there == pytest.approx(here, abs=1e-6)
    options = CompareOptions(labels=False, samples=4)
    [pair] = compare(models, beir_folder, options=options).pairs
    assert pair.verdict in ("no difference", "cannot tell")


def test_what_does_not_fit_is_refused(beir_folder, tiny_cosine, two_layer_cosine, tmp_path):
    folder = tmp_path / "handed"
    hand_over(tiny_cosine, beir_folder, output=folder)
    collection = uploaded(folder)
    with pytest.raises(InputError, match=r"'documents' already; .*replace=True"):
        collection.upload()
    assert collection.upload(replace=True) == EVERYTHING
    path = folder / "hand-over.json"
    content = json.loads(path.read_text())
    other = {"name": "other", "path": str(two_layer_cosine)}
    path.write_text(json.dumps({**content, "model": other}))
    with pytest.raises(
        InputError, match="is no longer the model that made the vectors; hand over again"
    ):
        plugin.QdrantCollection(folder, in_memory())
    path.write_text(json.dumps({**content, "engine": "weaviate"}))
    with pytest.raises(InputError, match="was written for weaviate; run hand-over --to qdrant"):
        plugin.QdrantCollection(folder, in_memory())


def test_a_damaged_file_is_not_uploaded(beir_folder, tiny_cosine, tmp_path):
    folder = tmp_path / "handed"
    hand_over(tiny_cosine, beir_folder, output=folder)
    file = folder / "points-00000.parquet"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"points-00000\.parquet.*hand over again"):
        plugin.QdrantCollection(folder, in_memory()).upload()


def test_a_configuration_alone_has_no_vectors(beir_folder, tiny_cosine, tmp_path):
    options = HandOverOptions(vectors=False)
    hand_over(tiny_cosine, beir_folder, output=tmp_path / "handed", options=options)
    assert not list((tmp_path / "handed").glob("points*"))
    with pytest.raises(InputError, match="no vectors, as it was written with --no-vectors"):
        plugin.QdrantCollection(tmp_path / "handed", in_memory()).upload()
