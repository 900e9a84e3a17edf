"""Tokens that are drawn by given random numbers, compared with the host's own filters."""

import numpy as np
import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from beir_cocodr.generation.own_draws import OwnDraws, draws_of


def drawn(scores, numbers, top_k, top_p):
    """Return the one token that is left of each distribution."""
    left = OwnDraws(np.array(numbers)[:, None], top_k, top_p)(None, scores)
    assert (torch.isfinite(left).sum(1) == 1).all()
    return left.argmax(1)


@pytest.mark.parametrize(("top_k", "top_p"), [(25, 0.95), (3, 1.0), (1, 1.0), (200, 0.5), (60, 1)])
def test_tokens_are_as_frequent_as_in_the_filtered_distribution(top_k, top_p):
    torch.manual_seed(0)
    scores = 2 * torch.randn(1, 60)
    filtered = scores
    if top_k < 60:
        filtered = TopKLogitsWarper(top_k)(None, filtered)
    expected = TopPLogitsWarper(float(top_p))(None, filtered).softmax(1)[0]
    samples = 20_000
    numbers = (np.arange(samples) + 0.5) / samples
    tokens = drawn(scores.expand(samples, -1), numbers, top_k, top_p)
    shares = torch.bincount(tokens, minlength=60) / samples
    torch.testing.assert_close(shares, expected, atol=2 / samples, rtol=0)


def test_a_number_that_rounds_to_one_stays_in_the_nucleus():
    scores = torch.tensor([[0.0, 3.0, 2.9, -1.0]])
    assert drawn(scores, [1 - 1e-12], top_k=4, top_p=0.7).item() == 2
    assert drawn(scores, [0.0], top_k=4, top_p=0.7).item() == 1


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scores_that_are_no_numbers_stay_so_for_the_host_to_refuse(value):
    scores = torch.tensor([[0.0, value, 1.0]])
    left = OwnDraws(np.zeros((1, 1)), 2, 0.9)(None, scores)
    assert left.softmax(1).isnan().any()


def test_draws_follow_their_seeds_alone():
    both = draws_of([(1, 2), (3, 4)], samples=2, length=5)
    assert both.shape == (4, 5)
    np.testing.assert_array_equal(both[2:], draws_of([(3, 4)], samples=2, length=5))
    assert len(np.unique(both)) == 20
