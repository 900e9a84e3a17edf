"""The table of hosts against their tests, and evaluation by sentence-transformers and FAISS."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from harness.page import PAGE
from host_figures import HOSTS, recorded

from beir_cocodr import evaluate, load_collection

ROOT = Path(__file__).parents[1]


def test_the_page_has_the_figures_that_tests_measure():
    script, found = import_module("hosts"), recorded()
    assert script.MARKS.read(PAGE.read_text()) == script.markdown(found)
    assert {row["host"] for row in found} == set(HOSTS)
    for row in found:
        file, _, test = row["test"].partition("::")
        assert f"\ndef {test}(" in (ROOT / file).read_text()
        assert file in script.TESTS


@pytest.fixture(scope="module")
def texts(beir_folder):
    """Return the collection and the texts of its documents."""
    collection = load_collection(beir_folder)
    return collection, {
        id: f"{d['title']} {d['text']}".strip() for id, d in collection.documents.items()
    }


def test_information_retrieval_evaluator(
    texts, beir_folder, tiny_cosine, tmp_path, assert_same_figure
):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    collection, documents = texts
    relevant = {
        query: {d for d, grade in grades.items() if grade > 0}
        for query, grades in collection.qrels.items()
    }
    evaluator = InformationRetrievalEvaluator(
        collection.queries, documents, relevant, mrr_at_k=[10], map_at_k=[100]
    )
    there = evaluator(SentenceTransformer(str(tiny_cosine), device="cpu"))
    here = (
        evaluate(
            {"m": str(tiny_cosine)},
            str(beir_folder),
            output=tmp_path / "o",
            measures="RR@10 AP@100",
        )
        .models["m"]
        .measures
    )
    for theirs, ours in (("cosine_mrr@10", "RR@10"), ("cosine_map@100", "AP@100")):
        assert_same_figure(
            "sentence-transformers",
            "InformationRetrievalEvaluator",
            ours,
            there[theirs],
            here[ours],
        )


def test_a_flat_index(texts, beir_folder, tiny_cosine, tmp_path, assert_same_figure):
    faiss = pytest.importorskip(
        "faiss", reason="faiss is not installed: pip install 'beir-cocodr[faiss-cpu]'"
    )
    from sentence_transformers import SentenceTransformer

    collection, documents = texts
    model, index = SentenceTransformer(str(tiny_cosine), device="cpu"), faiss.IndexFlatIP(32)
    index.add(model.encode_document([*documents.values()]))
    scores, rows = index.search(model.encode_query([*collection.queries.values()]), 20)
    ids = np.array([*documents])[rows]
    run = {
        query: dict(zip(found.tolist(), each.tolist(), strict=True))
        for query, found, each in zip(collection.queries, ids, scores, strict=True)
    }
    there = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], collection.qrels, run)[
        ir_measures.nDCG @ 10
    ]
    here = (
        evaluate(
            {"m": str(tiny_cosine)}, str(beir_folder), output=tmp_path / "o", measures="nDCG@10"
        )
        .models["m"]
        .measures
    )
    assert_same_figure("FAISS", "IndexFlatIP.search", "nDCG@10", there, here["nDCG@10"])
