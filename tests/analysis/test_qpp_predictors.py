"""Each predictor against its formula, written out over the words themselves."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.analysis.predictors import (
    PREDICTORS,
    TermStatistics,
    avg_idf,
    max_pmi,
    max_scq,
    max_var,
    scs,
)
from beir_cocodr.data.documents import Documents

words = st.sampled_from("wing flow drag lift layer plate".split())
corpora = st.lists(st.lists(words, max_size=8).map(" ".join), min_size=1, max_size=8)
queries = st.lists(words | st.just("zebra"), max_size=6).map(" ".join)


def statistics_of(texts: list[str]) -> TermStatistics:
    columns = {
        "id": [f"d{i}" for i in range(len(texts))],
        "title": [""] * len(texts),
        "text": texts,
    }
    table = pa.table(
        {name: pa.array(column, pa.large_string()) for name, column in columns.items()}
    )
    return TermStatistics(Documents(table, "0" * 64), analyzer="none")


def slow(texts: list[str], query: str) -> dict[str, float]:
    """Compute all predictors, one document and one word at a time."""
    documents = [Counter(text.split()) for text in texts]
    everything = Counter(word for text in texts for word in text.split())
    n = len(documents)
    asked = [word for word in query.split() if word in everything]
    if not asked:
        return dict.fromkeys(PREDICTORS, math.nan)
    df = {word: sum(1 for document in documents if word in document) for word in asked}
    idf = [math.log(n / df[word]) for word in set(asked)]
    scq = [(1 + math.log(everything[word])) * math.log(1 + n / df[word]) for word in asked]
    deviations = []
    for word in asked:
        weights = [
            (1 + math.log(document[word])) * math.log(1 + n / df[word])
            for document in documents
            if word in document
        ]
        mean = sum(weights) / len(weights)
        deviations.append(math.sqrt(sum((weight - mean) ** 2 for weight in weights) / len(weights)))
    clarity = 0.0
    for word in set(asked):
        in_query = asked.count(word) / len(asked)
        clarity += in_query * math.log2(in_query / (everything[word] / sum(everything.values())))
    mutual = []
    for a, b in itertools.combinations(set(asked), 2):
        both = sum(1 for document in documents if a in document and b in document) / n
        if both:
            mutual.append(math.log2(both / ((df[a] / n) * (df[b] / n))))
    return {
        "AvgIDF": sum(idf) / len(idf),
        "MaxSCQ": max(scq),
        "MaxVAR": max(deviations),
        "SCS": clarity,
        "MaxPMI": max(mutual, default=math.nan),
    }


@given(corpora, queries)
def test_predictors_equal_their_formulas(texts, query):
    statistics = statistics_of(texts)
    terms = statistics.terms(query)[0]
    expected = slow(texts, query)
    assert set(expected) == set(PREDICTORS)
    for name, predictor in PREDICTORS.items():
        result = predictor.compute(statistics, terms)
        assert type(result) is float
        assert result == pytest.approx(expected[name], abs=1e-12, nan_ok=True), name


def test_an_example_by_hand():
    """N = 4, 8 terms; wing: df 2, cf 5, tf 2 and 3; flow: df 2, cf 2; drag: df 1, cf 1."""
    statistics = statistics_of(["wing wing flow", "flow", "", "drag wing wing wing"])
    terms = statistics.terms("wing wing drag zebra")[0]
    assert avg_idf(statistics, terms) == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert max_scq(statistics, terms) == pytest.approx((1 + math.log(5)) * math.log(3))
    assert max_var(statistics, terms) == pytest.approx(math.log(3) * math.log(3 / 2) / 2)
    assert scs(statistics, terms) == pytest.approx(
        2 / 3 * math.log2(2 / 3 * 8 / 5) + 1 / 3 * math.log2(8 / 3)
    )
    assert max_pmi(statistics, terms) == pytest.approx(math.log2(4 * 1 / (2 * 1)))


def test_a_query_without_known_terms_has_no_value():
    statistics = statistics_of(["wing", "flow"])
    for query in ("", "zebra"):
        for predictor in PREDICTORS.values():
            assert math.isnan(predictor.compute(statistics, statistics.terms(query)[0]))


def test_mutual_information_needs_two_terms_in_one_document():
    statistics = statistics_of(["wing flow", "drag flow"])
    for query in ("wing", "wing wing", "wing drag"):
        assert math.isnan(max_pmi(statistics, statistics.terms(query)[0]))
    # The pair apart does not hide the pair together, which is no closer than chance.
    assert max_pmi(statistics, statistics.terms("wing drag flow")[0]) == 0


def test_counts_of_a_large_corpus_do_not_overflow():
    """df · df and N · (a, b) of millions of documents are beyond 32 bits."""

    class Large:
        documents = 10_000_000
        df = np.array([3_000_000, 3_000_000])
        postings = statistics_of(["wing flow"] * 3).postings

    assert max_pmi(Large(), np.array([0, 1])) == pytest.approx(
        math.log2(10_000_000 * 3 / 3_000_000**2)
    )
