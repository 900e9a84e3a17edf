"""Dense search, fusion and feedback against a few lines of numpy over all scores."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr import COCODR
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid import fusion
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.embeddings import MemoryEmbeddings
from beir_cocodr.retrieval.vectors.dense import Dense, Moments


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder)


@pytest.fixture(scope="module", params=["tiny_bert", "tiny_cosine"])
def setting(request, collection, tmp_path_factory):
    name = str(request.getfixturevalue(request.param))
    retrievers = Resources(collection.documents, tmp_path_factory.mktemp("embeddings"))
    model = COCODR(name)
    documents = model.encode_corpus(collection.documents.take(range(len(collection.documents))))
    queries = model.encode_queries(list(collection.queries.values()))
    index = BM25(collection.documents)
    lexical = np.stack([index.scores(query) for query in collection.queries.values()])
    return (
        name,
        retrievers,
        queries.astype(np.float64),
        documents.astype(np.float64),
        lexical.astype(np.float64),
    )


def z(scores):
    return (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)


def check(ranking, expected, top_k):
    """The ranking holds the best of ``expected``, (Q, N), with their scores."""
    best = -np.sort(-expected, axis=1)[:, :top_k]
    np.testing.assert_allclose(ranking.scores, best, rtol=1e-4, atol=1e-4)
    found = np.take_along_axis(expected, ranking.rows, axis=1)
    np.testing.assert_allclose(found, best, rtol=1e-4, atol=1e-4)


def test_dense(setting, collection):
    name, retrievers, queries, documents, _ = setting
    check(retrievers.ranker(name).search(collection.queries, 7), queries @ documents.T, 7)


def weighted(setting, weight=0.5):
    _, _, queries, documents, lexical = setting
    return (z(queries @ documents.T) + weight * z(lexical)) / (1 + weight)


def test_hybrid_is_the_weighted_mean_of_z_scores_over_all_documents(
    setting, collection, monkeypatch
):
    name, retrievers, _, documents, _ = setting
    expected = weighted(setting)
    check(retrievers.ranker(f"hybrid:{name}").search(collection.queries, 9), expected, 9)
    monkeypatch.setattr(fusion, "_QUERIES", 3)  # a pass
    monkeypatch.setattr(fusion, "_BLOCK_ELEMENTS", 24)  # four documents at a time
    check(
        retrievers.ranker(f"hybrid:{name}").search(collection.queries, 100),
        expected,
        len(documents),
    )


class Counted(MemoryEmbeddings):
    """Embeddings in two chunks that know how often they were read."""

    reads = 0

    def chunks(self):
        self.reads += 1
        return self.blocks(len(self) // 2 + 1)


@pytest.mark.parametrize("kind", ["hybrid", "rm3"])
def test_the_corpus_is_read_once_for_a_block_of_queries(setting, collection, tmp_path, kind):
    """And once before, for the moments; where BM25 is somewhere else, for fewer queries at a
    time.
    """
    name, retrievers, _, documents, _ = setting
    embeddings = Counted(torch.from_numpy(documents.astype(np.float32)))
    dense = Dense(COCODR(name), collection.documents, tmp_path, given=embeddings)
    index = retrievers.ranker("bm25")
    retriever = fusion.Hybrid(dense, index) if kind == "hybrid" else fusion.RM3(dense, index)
    found = retriever.search(collection.queries, 5)
    assert embeddings.reads == {"hybrid": 2, "rm3": 3}[kind]
    retriever.search(collection.queries, 5)
    assert embeddings.reads == {"hybrid": 3, "rm3": 5}[kind]

    if kind == "hybrid":
        check(found, weighted(setting), 5)
        elsewhere = SimpleNamespace(scores=index.scores)
        check(fusion.Hybrid(dense, elsewhere).search(collection.queries, 5), weighted(setting), 5)


def test_the_scores_of_lists_are_those_of_a_search(setting, collection, monkeypatch):
    name, retrievers, queries, documents, _ = setting
    dense = retrievers.dense(name)
    index = retrievers.ranker("bm25")
    rng = np.random.default_rng(0)
    lists = [rng.permutation(len(documents))[: 3 + number % 5] for number in range(len(queries))]
    texts = list(collection.queries.values())
    expected = weighted(setting)
    monkeypatch.setattr(fusion, "_QUERIES", 3)
    for bm25 in (index, SimpleNamespace(scores=index.scores)):
        scores = fusion.Hybrid(dense, bm25).list_scores(texts, dense.encode_queries(texts), lists)
        for of_query, of_all, rows in zip(scores, expected, lists, strict=True):
            np.testing.assert_allclose(of_query, of_all[rows], rtol=1e-4, atol=1e-4)


def test_ties_go_by_descending_id_and_documents_of_one_text_are_constant(tiny_bert, tmp_path):
    """More than two thousand copies: more than a search has room for."""
    file = tmp_path / "corpus.jsonl"
    file.write_text(
        "".join(json.dumps({"_id": f"{i:04}", "text": "wing flow"}) + "\n" for i in range(2_200))
    )
    documents = load_collection(file, labels="none").documents
    vector = COCODR(str(tiny_bert)).encode_corpus([{"title": "", "text": "wing flow"}])
    given = MemoryEmbeddings(torch.from_numpy(np.repeat(vector, len(documents), axis=0)))
    dense = Dense(COCODR(str(tiny_bert)), documents, tmp_path, given=given)
    ranking = fusion.Hybrid(dense, BM25(documents)).search({"q": "wing"}, 4)
    assert documents.ids(ranking.rows[0]) == ["2199", "2198", "2197", "2196"]
    np.testing.assert_array_equal(ranking.scores, np.zeros((1, 4)))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.integers(1, 9),
    st.sampled_from([0.0, 1.0, 100.0]),
)
def test_moments_of_scores_are_those_of_all_scores(seed, count, width, shift):
    """Moments are exact for vectors around a mean up to a hundred times as long as they differ."""
    random = np.random.default_rng(seed)
    vectors = (random.standard_normal((count, width)) + shift).astype(np.float32)
    queries = random.standard_normal((4, width)).astype(np.float32)
    mean, deviation = Moments(Counted(torch.from_numpy(vectors))).of_scores(queries)
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    np.testing.assert_allclose(mean, scores.mean(axis=1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(deviation, scores.std(axis=1), rtol=1e-3, atol=1e-4)


def test_moments_of_bm25_are_added_up_over_parts_of_the_corpus(collection, monkeypatch):
    index = BM25(collection.documents)
    weights = [
        {term: 1.0 + term % 3 for term in terms}
        for terms in index.term_counts(list(collection.queries.values()))
    ]
    monkeypatch.setattr(fusion, "_MOMENT_DOCUMENTS", 3)
    assert len(collection.documents) > 6
    mean, deviation = fusion.TermScores(index, weights).moments()
    scores = np.stack([index.term_scores(terms) for terms in weights]).astype(np.float64)
    np.testing.assert_allclose(mean, scores.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(deviation, scores.std(axis=1), rtol=1e-6)


def moved(setting, weight=0.5):
    _, _, queries, documents, _ = setting
    best = np.argsort(-weighted(setting, weight), axis=1)[:, :3]
    vectors = queries + 0.5 * documents[best].mean(axis=1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_feedback_moves_the_query_towards_the_best_of_the_fusion(setting, collection):
    name, retrievers, _, documents, _ = setting
    check(
        retrievers.ranker(f"feedback:{name}").search(collection.queries, 6),
        moved(setting) @ documents.T,
        6,
    )


@pytest.mark.parametrize("weight", [0.0, 1.0, 40.0])
def test_the_weight_of_bm25_is_an_option(setting, collection, tmp_path, weight):
    name, first, _, documents, _ = setting
    retrievers = Resources(collection.documents, tmp_path, SearchOptions(bm25_weight=weight))
    retrievers._shared = first._shared  # the same vectors
    hybrid, feedback = (retrievers.ranker(f"{kind}:{name}") for kind in ("hybrid", "feedback"))
    check(hybrid.search(collection.queries, 8), weighted(setting, weight), 8)
    check(feedback.search(collection.queries, 8), moved(setting, weight) @ documents.T, 8)
    assert hybrid.describe()["bm25_weight"] == feedback.describe()["bm25_weight"] == weight
    if weight == 0:  # nothing but the encoder is left
        alone = first.ranker(name).search(collection.queries, 8)
        np.testing.assert_array_equal(hybrid.search(collection.queries, 8).rows, alone.rows)


@pytest.mark.parametrize("weight", [0.5, 0.2])
def test_rm3_expands_the_query_from_the_best_of_the_fusion(setting, collection, weight):
    name, retrievers, queries, documents, _ = setting
    base = retrievers.ranker(f"rm3:{name}")
    retriever = fusion.RM3(base.dense, base.bm25, documents=4, terms=5, weight=weight)
    # By brute force, of words: the analyzer's, and BM25's weights of single terms in all documents.
    index, texts = retriever.bm25, collection.documents.take(range(len(documents)))
    index.prepare()
    words = [
        index._tokenizer.tokenize([index.text_format.document(text)], return_as="string")[0]
        for text in texts
    ]
    known = {word for found in words for word in found}
    expected = []
    for query, dense, fused in zip(
        collection.queries.values(), queries @ documents.T, weighted(setting), strict=True
    ):
        best = np.argsort(-fused)[:4]
        chance = np.exp(fused[best]) / np.exp(fused[best]).sum()
        model = {
            w: sum(p * words[d].count(w) / len(words[d]) for d, p in zip(best, chance, strict=True))
            for w in known
        }
        # Terms of the same chance are taken in the order of the corpus.
        order = list(dict.fromkeys(word for found in words for word in found))
        kept = sorted(known, key=lambda w: (-round(model[w], 12), order.index(w)))[:5]
        asked = [w for w in index._tokenizer.tokenize([query], return_as="string")[0] if w in known]
        lexical = sum(
            (
                (1 - weight) * asked.count(w) / len(asked)
                + weight * (w in kept) * model[w] / sum(map(model.get, kept))
            )
            * index.postings.scores([index.postings.vocabulary[w]]).astype(np.float64)
            for w in {*asked, *kept}
        )
        expected.append((z(dense[None]) + 0.5 * z(lexical[None]))[0] / 1.5)
    check(retriever.search(collection.queries, 9), np.stack(expected), 9)
    assert {
        "weight": weight,
        "documents": 4,
        "terms": 5,
        "bm25_weight": 0.5,
    }.items() <= retriever.describe().items()


def test_rm3_of_a_query_without_known_terms_and_of_a_tiny_corpus(tiny_bert, tmp_path):
    file = tmp_path / "corpus.jsonl"
    file.write_text(
        "".join(
            json.dumps({"_id": str(i), "text": t}) + "\n"
            for i, t in enumerate(["wing flow", "", "the"])
        )
    )
    retrievers = Resources(load_collection(file, labels="none").documents, tmp_path)
    ranking = retrievers.ranker(f"rm3:{tiny_bert}").search({"a": "zzz", "b": "wing", "c": ""}, 5)
    assert np.isfinite(ranking.scores).all()
    assert sorted(ranking.rows[1]) == [0, 1, 2]


def test_reciprocal_rank_fusion(setting, collection):
    name, retrievers, queries, documents, lexical = setting
    dense = queries @ documents.T
    expected = 1 / (61 + np.argsort(np.argsort(-dense, axis=1), axis=1))
    for row, scores in zip(expected, lexical, strict=True):
        order = np.argsort(-scores, kind="stable")
        for rank, document in enumerate(order[: (scores > 0).sum()]):
            # The tie rule of the lists decides between equal BM25 scores; none here are equal.
            row[document] += 1 / (61 + rank)
    assert all(len(np.unique(scores[scores > 0])) == (scores > 0).sum() for scores in lexical)
    check(retrievers.ranker(f"rrf:{name}").search(collection.queries, 5), expected, 5)


def test_one_encoder_is_encoded_once(setting, collection):
    name, retrievers, *_ = setting
    parts = [retrievers.ranker(f"{kind}:{name}") for kind in ("hybrid", "rrf")]
    assert parts[0].dense is parts[1].dense is retrievers.ranker(name)
    assert parts[0].bm25 is retrievers.ranker("bm25")


def test_constant_scores_normalise_to_zero():
    np.testing.assert_array_equal(
        fusion.z_normalize(np.full((2, 5), 3.0, np.float32)), np.zeros((2, 5))
    )


def test_a_fusion_without_an_encoder_is_one_clear_line(setting):
    with pytest.raises(InputError, match=r"'hybrid:' .*dense encoder"):
        setting[1].ranker("hybrid:")


def test_nan_embeddings_fail_and_name_the_documents(collection, tiny_bert, tmp_path):
    retriever = Resources(collection.documents, tmp_path).ranker(str(tiny_bert))
    broken = retriever.embeddings.vectors
    broken[5] = np.nan
    for broken_retriever in (retriever, fusion.Hybrid(retriever, BM25(collection.documents))):
        with pytest.raises(InputError, match="document 'd5'"):
            broken_retriever.search(collection.queries, 3)
    broken[5] = 0
    queries = retriever.encode_queries(list(collection.queries.values())).clone()
    queries[2, 0] = torch.inf
    with pytest.raises(InputError, match=f"query '{list(collection.queries)[2]}'"):
        retriever.search_embeddings(list(collection.queries), queries, 3)
