from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder)


def tokens(text: str) -> list[str]:
    return [word for word in text.split() if len(word) > 1]


def test_scores_are_lucenes_bm25_written_out(collection):
    """Robertson's weights with Lucene's idf, ln(1 + (N − df + 0.5) / (df + 0.5)), and no (k1 + 1)
    factor.
    """
    index = BM25(collection.documents, analyzer="none")
    texts = [
        TextFormat().document(d)
        for d in collection.documents.take(range(len(collection.documents)))
    ]
    counts = [Counter(tokens(text)) for text in texts]
    mean = sum(sum(count.values()) for count in counts) / len(counts)
    for query in list(collection.queries.values())[:5]:
        expected = []
        for count in counts:
            length, score = sum(count.values()), 0.0
            for term in tokens(query):
                df = sum(term in other for other in counts)
                tf = count[term]
                if df:
                    idf = math.log(1 + (len(counts) - df + 0.5) / (df + 0.5))
                    score += idf * tf / (tf + 0.9 * (1 - 0.4 + 0.4 * length / mean))
            expected.append(score)
        np.testing.assert_allclose(index.scores(query), expected, rtol=1e-4, atol=1e-5)


def test_search_agrees_with_the_hosts_own_retrieval(collection):
    import bm25s
    import Stemmer

    documents = collection.documents
    texts = [TextFormat().document(d) for d in documents.take(range(len(documents)))]
    stemmer = Stemmer.Stemmer("english")
    host = bm25s.BM25(k1=0.9, b=0.4)
    host.index(
        bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False),
        show_progress=False,
    )
    queries = list(collection.queries.values())
    rows, scores = host.retrieve(
        bm25s.tokenize(queries, stopwords="en", stemmer=stemmer, show_progress=False),
        k=10,
        show_progress=False,
    )
    ranking = BM25(documents).search(collection.queries, 10)
    for theirs, their_rows, ours, our_rows in zip(
        scores, rows, ranking.scores, ranking.rows, strict=True
    ):
        np.testing.assert_allclose(ours, np.maximum(theirs, 0), rtol=1e-5)
        clear = theirs > theirs[-1] + 1e-5  # ties at the last place may fall either way
        assert set(our_rows[clear]) == set(their_rows[clear])


def test_only_documents_that_share_a_term_are_found_and_ties_go_by_descending_id(tmp_path):
    texts = {"b": "wing", "a": "wing", "c": "wing", "x": "drag", "e": ""}
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            f'{{"_id": "{i}", "text": "{text}", "title": "t{i}"}}\n' for i, text in texts.items()
        )
    )
    documents = load_collection(tmp_path / "corpus.jsonl", labels="none").documents
    ranking = BM25(documents).search({"q1": "wings", "q2": "the of", "q3": "zzz"}, 10)
    results = ranking.results(documents)
    assert [document for document, _ in results["q1"]] == ["c", "b", "a"]
    assert results["q2"] == results["q3"] == []
    assert [
        document for document, _ in BM25(documents).search({"q": "wing"}, 2).results(documents)["q"]
    ] == ["c", "b"]


def test_analyzer_english_stems_and_drops_stop_words_and_none_does_neither(collection):
    english, plain = BM25(collection.documents), BM25(collection.documents, analyzer="none")
    assert english.scores("wings").any()
    assert not plain.scores("wings").any()
    assert not english.scores("the of and").any()
    assert plain.scores("the of and").any()


def test_unknown_analyzer(collection):
    with pytest.raises(InputError, match="analyzer 'porter'"):
        BM25(collection.documents, analyzer="porter")


def test_term_scores_of_consecutive_documents_are_part_of_all_scores(collection):
    index = BM25(collection.documents)
    for text in collection.queries.values():
        [counts] = index.term_counts([text])
        np.testing.assert_allclose(
            index.term_scores(counts), index.scores(text), rtol=1e-5, atol=1e-6
        )
        for first, last in ((0, 1), (3, 7), (5, 5), (2, len(collection.documents))):
            np.testing.assert_array_equal(
                index.term_scores(counts, first, last), index.term_scores(counts)[first:last]
            )


def test_a_grid_is_an_index_for_each_pair_of_parameters(collection, monkeypatch):
    read = []
    take = type(collection.documents).take
    monkeypatch.setattr(
        type(collection.documents), "take", lambda *arguments: read.append(1) or take(*arguments)
    )
    found = list(BM25(collection.documents).grid((0.9, 1.6), (0.0, 0.75)))
    assert [(one.k1, one.b) for one in found] == [(0.9, 0.0), (0.9, 0.75), (1.6, 0.0), (1.6, 0.75)]
    assert len(read) == 1
    for one in found:
        alone = BM25(collection.documents, k1=one.k1, b=one.b)
        for query in [*collection.queries.values(), "wing wing", "nothing-known"]:
            np.testing.assert_allclose(one.scores(query), alone.scores(query), rtol=1e-5)
        np.testing.assert_allclose(one.weights().toarray(), alone.weights().toarray(), rtol=1e-5)
