"""PyTerrier itself evaluates and composes our transformers, with our figures; Terrier's jar is not
needed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pt = pytest.importorskip(
    "pyterrier", reason="pyterrier is not installed: pip install 'beir-cocodr[pyterrier]'"
)
from beir_cocodr.plugins.pyterrier import Reranker, Retriever, StoreReader  # noqa: E402

from beir_cocodr import load_collection, load_encoder  # noqa: E402
from beir_cocodr.errors import InputError  # noqa: E402
from beir_cocodr.evaluation.evaluate import EvaluateOptions, evaluate  # noqa: E402
from beir_cocodr.models.mrl import MRL  # noqa: E402
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
    beir_folder, tiny_cosine, topics, qrels, tmp_path, same_figure
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
        same_figure(
            "PyTerrier", f"pt.Experiment: {name}", "nDCG@10", there, ours[name].measures["nDCG@10"]
        )


def test_a_reranker_composes_and_scores_as_the_encoder_searches(beir_folder, tiny_cosine, topics):
    dense = Retriever(beir_folder, str(tiny_cosine))(topics)
    pipeline = Retriever(beir_folder, str(tiny_cosine), text=True) >> Reranker(
        tiny_cosine, batch_size=7
    )
    again = pipeline(topics)
    assert [*again.columns] == ["qid", "query", "docno", "title", "text", "score", "rank"]
    pd.testing.assert_frame_equal(
        again[dense.columns].sort_values(["qid", "docno"], ignore_index=True).drop(columns="rank"),
        dense.sort_values(["qid", "docno"], ignore_index=True).drop(columns="rank"),
        atol=1e-5,
    )
    assert list(again[again["rank"] == 0]["qid"]) == list(topics["qid"])
    assert (Retriever(beir_folder, "bm25", 5) % 2)(topics).groupby("qid").size().max() == 2
    mixed = 0.5 * Retriever(beir_folder, "bm25") + Retriever(beir_folder, str(tiny_cosine))
    assert mixed.search("wing flow").iloc[0]["rank"] == 0
    loaded = Reranker(load_encoder(tiny_cosine))
    pd.testing.assert_frame_equal(loaded(again), again, atol=1e-5)


def test_a_cross_encoder_reranks(tiny_bert, beir_folder, topics, tmp_path):
    from sentence_transformers import CrossEncoder

    tiny_cross = str(tmp_path / "cross")
    CrossEncoder(str(tiny_bert), num_labels=1).save_pretrained(tiny_cross)
    given = Retriever(beir_folder, "bm25", 3, text=True)(topics.head(2))
    found = Reranker(tiny_cross, cross_encoder=True)(given)
    texts = [
        (row["query"], f"{row['title']} {row['text']}".strip()) for row in given.to_dict("records")
    ]
    scores = CrossEncoder(tiny_cross).predict(texts)
    expected = dict(zip(zip(given["qid"], given["docno"], strict=True), scores, strict=True))
    for row in found.itertuples():
        assert row.score == pytest.approx(float(expected[row.qid, row.docno]), abs=1e-5)
    assert all(group.score.is_monotonic_decreasing for _, group in found.groupby("qid"))


def test_a_store_is_searched_and_scores_given_documents(store, beir_folder, topics):
    folder, model = store
    dense = Retriever(beir_folder, model)(topics)
    reader = StoreReader(folder)
    pd.testing.assert_frame_equal(reader(topics), dense, atol=1e-4)
    given = dense[dense["docno"].isin([f"d{i}" for i in range(0, 48, 5)])].assign(score=0.0)
    scored = (pt.Transformer.from_df(given) >> reader)(topics).set_index(["qid", "docno"])["score"]
    expected = dense.set_index(["qid", "docno"])["score"].loc[scored.index]
    assert np.allclose(scored, expected, atol=1e-4)
    with pytest.raises(InputError, match="'nowhere'"):
        reader(given.assign(docno="nowhere"))


def test_frames_keep_their_columns_and_none_is_none(store, beir_folder, tiny_cosine, topics):
    reader, bm25 = (
        StoreReader(store[0], num_results=2),
        Retriever(beir_folder, "bm25", 2, text=True),
    )
    twice = pd.concat(
        [topics.head(1).assign(query_0="first"), topics.head(1).assign(query_0="second")]
    )
    assert list(bm25(twice)["query_0"]) == ["first", "first", "second", "second"]
    assert len(bm25.search("zzz qqq")) == 0
    columns = ["qid", "query", "docno", "score", "rank"]
    assert pt.inspect.transformer_outputs(reader, ["qid", "query"]) == columns
    assert set(pt.inspect.transformer_outputs(bm25 >> Reranker(tiny_cosine), ["qid", "query"])) == {
        *columns,
        "title",
        "text",
    }
    assert (
        len(reader(pd.DataFrame(columns=["qid", "query"])))
        == len(bm25(pd.DataFrame(columns=["qid", "query"])))
        == 0
    )
    for transformer, frame in (
        (bm25, topics[["qid"]]),
        (Reranker(tiny_cosine), topics),
        (reader, topics[["qid"]]),
    ):
        with pytest.raises(pt.validate.InputValidationError):
            transformer(frame)
    with pytest.raises(InputError, match="num_results"):
        Retriever(beir_folder, "bm25", 0)
