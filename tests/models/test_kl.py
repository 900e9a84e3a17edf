from __future__ import annotations

import pytest
import torch
from divergence import negative_kl
from torch.distributions import Independent, Normal, kl_divergence

from beir_cocodr.models.kl import flatten_document, flatten_query


def normal(rows: int, k: int, seed: int, dtype=torch.float64, low=-2.0, high=2.0):
    """Means, and variances from 10^low to 10^high."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(rows, k, generator=generator, dtype=torch.float64)
    exponent = low + (high - low) * torch.rand(rows, k, generator=generator, dtype=torch.float64)
    return mean.to(dtype), (10**exponent).to(dtype)


def reference(query, document):
    """KL(Q‖D) of all pairs, by torch.distributions."""

    def distribution(mean, variance):
        return Independent(Normal(mean, variance.sqrt()), 1)

    return kl_divergence(distribution(*(x[:, None] for x in query)), distribution(*document))


@pytest.mark.parametrize("k", [1, 7, 64])
def test_closed_form_and_flat_score_are_the_divergence_of_torch_distributions(k):
    query, document = normal(5, k, 0, low=-0.5, high=0.5), normal(9, k, 1, low=-0.5, high=0.5)
    expected = reference(query, document)
    closed = -negative_kl(*(x[:, None] for x in query), *document)
    flat = flatten_query(*query) @ flatten_document(*document).T
    flat_kl = -0.5 * (flat + query[1].log().sum(dim=1, keepdim=True) + k)
    torch.testing.assert_close(closed, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(flat_kl, expected, rtol=0, atol=1e-10)
    assert flat.dtype == torch.float64
    assert flatten_query(*query).shape == (5, 2 * k + 1)


def test_the_vectors_are_as_specified():
    mean, variance = normal(3, 4, 2)
    q, d = flatten_query(mean, variance), flatten_document(mean, variance)
    torch.testing.assert_close(
        q, torch.cat([torch.ones(3, 1), variance + mean**2, mean], dim=1).double()
    )
    gamma = -(variance.log() + mean**2 / variance).sum(dim=1, keepdim=True)
    torch.testing.assert_close(d, torch.cat([gamma, -1 / variance, 2 * mean / variance], dim=1))


def test_gradients():
    query, document = normal(3, 4, 3, low=-1, high=1), normal(3, 4, 4, low=-1, high=1)
    inputs = tuple(x.requires_grad_() for x in (*query, *document))
    for formula in ("exact", "paper"):
        assert torch.autograd.gradcheck(lambda *x, f=formula: negative_kl(*x, f), inputs)

        def score(mean_q, variance_q, mean_d, variance_d, f=formula):
            return flatten_query(mean_q, variance_q, f) @ flatten_document(mean_d, variance_d, f).T

        assert torch.autograd.gradcheck(score, inputs)


def test_with_identical_covariances_the_nearest_mean_wins():
    """Question 1 of the paper's discussion; one variance for all dimensions makes it plain
    Euclidean.
    """
    (mean_q, variance_q), (mean_d, _) = normal(6, 12, 5), normal(40, 12, 6)
    scores = (
        flatten_query(mean_q, variance_q) @ flatten_document(mean_d, torch.full_like(mean_d, 0.7)).T
    )
    nearest = torch.cdist(mean_q, mean_d).argsort(dim=1)
    assert torch.equal(scores.argsort(dim=1, descending=True), nearest)
    # Any other common covariance measures distances in its own units.
    common = normal(1, 12, 7)[1]
    scores = (
        flatten_query(mean_q, variance_q) @ flatten_document(mean_d, common.expand_as(mean_d)).T
    )
    nearest = torch.cdist(mean_q / common.sqrt(), mean_d / common.sqrt()).argsort(dim=1)
    assert torch.equal(scores.argsort(dim=1, descending=True), nearest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("formula", ["exact", "paper"])
def test_no_nan_for_variances_from_1e_4_to_1e4_over_383_dimensions(formula, dtype):
    k, rows = 383, 6
    query, document = normal(rows, k, 8, dtype, -4, 4), normal(rows, k, 9, dtype, -4, 4)
    query[1][0], query[1][1] = 1e-4, 1e4  # the far ends, everywhere at once
    document[1][0], document[1][1] = 1e4, 1e-4
    inputs = [x.clone().requires_grad_() for x in (*query, *document)]
    q, d = flatten_query(*inputs[:2], formula), flatten_document(*inputs[2:], formula)
    scores = q @ d.T
    closed = negative_kl(*(x[:, None] for x in inputs[:2]), *inputs[2:], formula)
    assert q.dtype == d.dtype == dtype
    (scores.sum() + closed.sum()).backward()
    for values in (q, d, scores, closed, *(x.grad for x in inputs)):
        assert values.isfinite().all()


def test_half_precision_is_built_wide_and_comes_back_as_float32():
    mean, variance = (x.half() for x in normal(2, 8, 10))
    wide = flatten_document(mean.double(), variance.double())
    narrow = flatten_document(mean, variance)
    assert narrow.dtype == torch.float32
    assert torch.equal(narrow, wide.float())


def test_the_papers_formula_is_its_equation_10_and_another_order():
    query, document = normal(4, 5, 11, low=-1, high=1), normal(30, 5, 12, low=-1, high=1)
    (mean_q, variance_q), (mean_d, variance_d) = (tuple(x[:, None] for x in query), document)
    distance = ((mean_q - mean_d) ** 2 / variance_d).sum(dim=-1)
    ratio = variance_q.prod(dim=-1) / variance_d.prod(dim=-1)
    expected = -0.5 * (variance_d.log().sum(dim=-1) + ratio + distance)
    closed = negative_kl(mean_q, variance_q, mean_d, variance_d, "paper")
    torch.testing.assert_close(closed, expected)
    for reference_volume in (0.0, -3.0):
        q = flatten_query(*query, "paper", reference_volume)
        d = flatten_document(*document, "paper", reference_volume)
        assert q.shape[1] == 2 * 5 + 2
        torch.testing.assert_close(q @ d.T, 2 * expected)
    exact = negative_kl(mean_q, variance_q, mean_d, variance_d)
    assert not torch.equal(exact.argsort(dim=1), closed.argsort(dim=1))
