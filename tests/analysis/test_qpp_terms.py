from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.analysis.predictors import TermStatistics
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25

words = st.sampled_from("wing wings flow flows drag lift the of a layer".split())
corpora = st.lists(st.lists(words, max_size=8).map(" ".join), min_size=1, max_size=9)


def documents_of(texts: list[str]) -> Documents:
    columns = {
        "id": [f"d{i}" for i in range(len(texts))],
        "title": [""] * len(texts),
        "text": texts,
    }
    table = pa.table(
        {name: pa.array(column, pa.large_string()) for name, column in columns.items()}
    )
    return Documents(table, "0" * 64)


def column(statistics: TermStatistics, word: str) -> int:
    [result], _ = statistics.terms(word)
    return int(result)


def test_counts_of_an_example_by_hand():
    statistics = TermStatistics(
        documents_of(["wing wing flow", "the flows", "", "drag wings wing wing"])
    )
    assert (statistics.documents, statistics.length) == (4, 8)
    wing, flow, drag = (column(statistics, word) for word in ("wing", "flow", "drag"))
    assert statistics.df[[wing, flow, drag]].tolist() == [2, 2, 1]
    assert statistics.cf[[wing, flow, drag]].tolist() == [5, 2, 1]
    assert statistics.frequencies(wing).tolist() == [2, 3]
    assert statistics.postings.toarray()[:, [wing, flow, drag]].tolist() == [
        [2, 1, 0],
        [0, 1, 0],
        [0, 0, 0],
        [3, 0, 1],
    ]


def test_query_terms_are_stemmed_and_repeated_and_unknown_ones_counted():
    statistics = TermStatistics(documents_of(["wing flow", "drag"]))
    known, unknown = statistics.terms("Flows of the wing, zebra! flowing zebras")
    wing, flow = column(statistics, "wing"), column(statistics, "flow")
    assert known.tolist() == [flow, wing, flow]
    assert unknown == 2
    for nothing in ("", "the of", "?!"):
        known, unknown = statistics.terms(nothing)
        assert (len(known), unknown) == (0, 0)


def test_a_query_does_not_change_the_vocabulary():
    statistics = TermStatistics(documents_of(["wing flow"]), analyzer="none")
    for _ in range(2):
        assert statistics.terms("zebra wing")[1] == 1
    assert len(statistics.df) == 2


@given(texts=corpora)
def test_frequencies_equal_those_of_a_loop(texts):
    statistics = TermStatistics(documents_of(texts), analyzer="none")
    assert statistics.postings.shape == (len(texts), len(statistics.df))
    assert statistics.postings.dtype == np.int32

    counted = [Counter(word for word in text.split() if len(word) > 1) for text in texts]
    for word in {word for count in counted for word in count}:
        term = column(statistics, word)
        assert statistics.df[term] == sum(word in count for count in counted)
        assert statistics.cf[term] == sum(count[word] for count in counted)


def test_the_terms_are_those_of_our_bm25(beir_folder):
    """The statistics know the words that BM25 scores, in as many documents."""
    documents = load_collection(beir_folder).documents
    statistics, bm25 = TermStatistics(documents), BM25(documents)
    for word in "wing wings electing the flow zebra pressure a as shelf".split():
        known, _ = statistics.terms(word)
        assert int((bm25.scores(word) > 0).sum()) == (statistics.df[known[0]] if len(known) else 0)


def test_titles_are_joined_by_the_text_format():
    table = pa.table(
        {
            name: pa.array([value], pa.large_string())
            for name, value in zip(("id", "title", "text"), ("d", "wing", "flow"), strict=True)
        }
    )
    documents = Documents(table, "0" * 64)
    assert len(TermStatistics(documents).df) == 2
    assert len(TermStatistics(documents, TextFormat(title_separator="x")).df) == 1


def test_an_unknown_analyzer_is_refused():
    with pytest.raises(InputError, match="analyzer"):
        TermStatistics(documents_of(["wing"]), analyzer="porter")
