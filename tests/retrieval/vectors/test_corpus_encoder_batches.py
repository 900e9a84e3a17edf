from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.retrieval.vectors.corpus_encoder import token_batches


@given(st.lists(st.integers(1, 600), max_size=300), st.integers(1, 5_000))
def test_every_text_is_in_one_batch_and_no_batch_is_above_its_budget(lengths, budget):
    lengths = np.array(lengths, dtype=np.int64)
    batches = list(token_batches(lengths, budget))
    together = np.concatenate([np.empty(0, np.int64), *batches])
    assert sorted(together.tolist()) == list(range(len(lengths)))
    assert (np.diff(lengths[together]) <= 0).all()
    for batch in batches:
        assert len(batch) * lengths[batch].max() <= budget or len(batch) == 1


@given(st.lists(st.integers(1, 600), min_size=2, max_size=300), st.integers(1, 5_000))
def test_a_batch_takes_what_its_budget_holds(lengths, budget):
    """Only the last batch has room for one text more."""
    lengths = np.array(lengths, dtype=np.int64)
    for batch in list(token_batches(lengths, budget))[:-1]:
        assert (len(batch) + 1) * lengths[batch].max() > budget


def test_equal_lengths_stay_in_order():
    batches = [batch.tolist() for batch in token_batches(np.array([5, 9, 5, 5, 9]), 18)]
    assert batches == [[1, 4], [0, 2, 3]]


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        list(token_batches(np.array([1]), 0))
