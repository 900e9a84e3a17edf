from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.retrieval.vectors import corpus_encoder
from beir_cocodr.retrieval.vectors.corpus_encoder import EncodingClock, token_batches


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


def test_the_time_left_follows_the_tokens_and_not_the_number_of_texts(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(corpus_encoder.time, "perf_counter", lambda: now[0])
    clock = EncodingClock(documents=20)
    assert clock.seconds_left() is None
    lengths = np.array([100, 100, 10, 10, 10, 10])
    clock.plan(lengths)
    assert clock.seconds_left() is None
    now[0] = 5.0
    clock.count(lengths[:2])  # 200 tokens in 5 seconds
    # 40 tokens of those planned, and 14 documents of 40 tokens in the mean.
    assert clock.seconds_left() == pytest.approx((40 + 14 * 40) * 5 / 200)
    now[0] = 6.0
    clock.count(lengths[2:])
    assert clock.seconds_left() == pytest.approx(14 * 40 * 6 / 240)
    now[0] = 50.0  # something else between two shards
    clock.plan(np.array([40] * 14))
    now[0] = 51.0
    clock.count(np.array([40] * 14))
    assert clock.seconds_left() == 0
