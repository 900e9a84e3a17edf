"""PyTerrier itself evaluates and composes our transformers, with our figures; Terrier's jar is not
needed.
"""

from __future__ import annotations

import pandas as pd
import pytest
import torch

pt = pytest.importorskip(
    "pyterrier", reason="pyterrier is not installed: pip install 'beir-cocodr[pyterrier]'"
)
from beir_cocodr.plugins import pyterrier as plugin  # noqa: E402
from beir_cocodr.plugins.pyterrier import Retriever  # noqa: E402

from beir_cocodr import load_collection, load_encoder  # noqa: E402
from beir_cocodr.errors import InputError  # noqa: E402
from beir_cocodr.evaluation.evaluate import EvaluateOptions, evaluate  # noqa: E402
from beir_cocodr.models.mrl import MRL  # noqa: E402
from beir_cocodr.models.spec import SearchOptions  # noqa: E402
from beir_cocodr.retrieval.store.encode import encode  # noqa: E402
from beir_cocodr.retrieval.store.record import EncodeOptions  # noqa: E402


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder)


@pytest.fixture(scope="module")
def topics(collection):
    return pd.DataFrame(list(collection.queries.items()), columns=["qid", "query"])


@pytest.fixture(scope="module")
def qrels(collection):
    rows = [
        (qid, docno, grade)
        for qid, grades in collection.qrels.items()
        for docno, grade in grades.items()
    ]
    return pd.DataFrame(rows, columns=["qid", "docno", "label"])


@pytest.fixture(scope="module", params=["cosine", "mrl"])
def store(request, beir_folder, tiny_bert, tiny_cosine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    if request.param == "mrl":
        MRL(str(tiny_bert)).save_pretrained(str(folder / "mrl"))
    model = folder / "mrl" if request.param == "mrl" else tiny_cosine
    encode(str(beir_folder), str(model), folder / "store", options=EncodeOptions(precision="fp32"))
    return folder / "store", str(model)


def test_an_experiment_has_our_figures(
    beir_folder, tiny_cosine, topics, qrels, tmp_path, assert_same_figure
):
    names = {"bm25": "bm25", "dense": str(tiny_cosine), "hybrid": f"hybrid:{tiny_cosine}"}
    found = pt.Experiment(
        [Retriever(beir_folder, model) for model in names.values()],
        topics,
        qrels,
        ["ndcg_cut_10", "map"],
        list(names),
    ).set_index("name")
    ours = evaluate(
        names,
        str(beir_folder),
        output=tmp_path / "o",
        measures="nDCG@10 AP",
        options=EvaluateOptions(top_k=1000),
    ).models
    for name in names:
        assert found.loc[name, "ndcg_cut_10"] == pytest.approx(
            ours[name].measures["nDCG@10"], abs=1e-6
        )
        assert found.loc[name, "map"] == pytest.approx(ours[name].measures["AP"], abs=1e-6)
        there = found.loc[name, "ndcg_cut_10"]
        assert_same_figure(
            "PyTerrier", f"pt.Experiment: {name}", "nDCG@10", there, ours[name].measures["nDCG@10"]
        )


def test_it_composes_with_the_hosts_operators(beir_folder, tiny_cosine):
    dense = Retriever(beir_folder, str(tiny_cosine))
    bm25 = Retriever(beir_folder, "bm25")
    mixed = 0.5 * bm25 + dense
    assert mixed.search("wing flow").iloc[0]["rank"] == 0


def test_results_are_cut_and_reranked_by_a_cross_encoder(tiny_bert, beir_folder, topics, tmp_path):
    from sentence_transformers import CrossEncoder

    tiny_cross = str(tmp_path / "cross")
    CrossEncoder(str(tiny_bert), num_labels=1).save_pretrained(tiny_cross)
    cut = (Retriever(beir_folder, "bm25", 5) % 2)(topics)
    assert cut.groupby("qid").size().max() == 2
    reranked = Retriever(beir_folder, f"rerank:{tiny_cross}@bm25", 3, text=True)(topics.head(2))
    assert len(reranked) > 2
    pairs = []
    for row in reranked.to_dict("records"):
        pairs.append((row["query"], f"{row['title']} {row['text']}".strip()))
    scores = CrossEncoder(tiny_cross).predict(pairs, activation_fn=torch.nn.Identity())
    assert reranked["score"].to_numpy() == pytest.approx(scores, abs=1e-5)


def test_a_store_and_loaded_objects_are_searched(store, beir_folder, topics):
    folder, model = store
    expected = Retriever(beir_folder, model)(topics)
    stored = Retriever(beir_folder, model, options=SearchOptions(stores=(folder,)))
    pd.testing.assert_frame_equal(stored(topics), expected, atol=1e-4)
    loaded = Retriever(load_collection(beir_folder), load_encoder(model))
    pd.testing.assert_frame_equal(loaded(topics), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "way_out"), [("Reranker", "SBertBiEncoder"), ("StoreReader", "stores")]
)
def test_former_transformers_are_refused_with_the_way_out(name, way_out):
    with pytest.raises(InputError, match=rf"{name}.*{way_out}") as caught:
        getattr(plugin, name)
    assert "\n" not in str(caught.value)
    assert not hasattr(plugin, "Indexer")


def test_frames_keep_their_columns_and_none_is_none(beir_folder, topics):
    bm25 = Retriever(beir_folder, "bm25", 2, text=True)
    twice = pd.concat(
        [topics.head(1).assign(query_0="first"), topics.head(1).assign(query_0="second")]
    )
    assert list(bm25(twice)["query_0"]) == ["first", "first", "second", "second"]
    assert len(bm25.search("zzz qqq")) == 0
    columns = ["qid", "query", "docno", "score", "rank", "title", "text"]
    assert pt.inspect.transformer_outputs(bm25, ["qid", "query"]) == columns
    assert len(bm25(pd.DataFrame(columns=["qid", "query"]))) == 0
    with pytest.raises(pt.validate.InputValidationError):
        bm25(topics[["qid"]])
    with pytest.raises(InputError, match="num_results"):
        Retriever(beir_folder, "bm25", 0)
