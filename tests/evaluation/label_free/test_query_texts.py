"""How the texts of queries differ from those of documents."""

from __future__ import annotations

import numpy as np
import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.label_free.query_texts import held_words, nonletter_excess


@pytest.fixture
def corpus():
    """Return a function that loads documents with some texts."""

    def load(texts):
        documents = {f"d{number}": {"text": text} for number, text in enumerate(texts)}
        return load_collection((documents, {}, {}), labels="none").documents

    return load


def test_held_words_by_hand(corpus):
    documents = corpus(["red wing", "blue wing", "lift", "red blue lift"])
    rows = np.array([[0, 1, 2, 3], [3, -1, -1, -1]])
    first = (2 / 2 + 1 / 2 + 0 / 2) / 3
    assert held_words(["Red wing"], rows[:1], documents) == pytest.approx(first)
    expected = (1 + 1 / 2 + 0 + 1 / 2) / 4
    assert held_words(["red wing", "lift drag"], rows, documents) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("documents", "queries", "excess"),
    [
        (["x = f(1)"], ["what is f"], 4 / 6),
        (["profit 1,200", "loss"], ["profit of 2020"], (5 / 11 + 0) / 2 - 4 / 12),
        (["Straße 中文", "x"], ["ü"], 0.0),
        (["words"], ["1 + 1"], -1.0),
        (["words"], [], 0.0),
        (["", " \n"], ["words"], 0.0),
    ],
)
def test_characters_that_are_no_letters_by_hand(corpus, documents, queries, excess):
    assert nonletter_excess(queries, corpus(documents)) == pytest.approx(excess)


def test_a_long_document_counts_by_its_beginning(corpus):
    assert nonletter_excess(["a"], corpus(["a " * 1_000 + "1 " * 9_000])) == 0
