"""The two per-example losses against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.losses.coco import in_batch_losses, triplet_losses


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def loop(
    query: np.ndarray, documents: np.ndarray, target: int, scale: float, cosine: bool
) -> float:
    """The definition, one exponential at a time."""
    scores = []
    for document in documents:
        score = sum(a * b for a, b in zip(query, document, strict=True))
        if cosine:
            score /= math.sqrt(sum(a * a for a in query)) * math.sqrt(sum(b * b for b in document))
        scores.append(scale * score)
    return math.log(sum(math.exp(score - scores[target]) for score in scores))


@pytest.mark.parametrize("negatives", [1, 3, 15])
@pytest.mark.parametrize("normalize", [False, True])
def test_equal_documents_give_the_logarithm_of_their_number(negatives, normalize):
    documents = normal(4, 1, 8).expand(4, 1 + negatives, 8)
    losses = triplet_losses(normal(4, 8, seed=1), documents, 3.0, normalize)
    assert losses.numpy() == pytest.approx(math.log(1 + negatives), abs=1e-12)
    candidates = normal(1, 8).expand(1 + negatives, 8)
    losses = in_batch_losses(normal(2, 8, seed=1), candidates, torch.tensor([0, 1]), 3.0, normalize)
    assert losses.numpy() == pytest.approx(math.log(1 + negatives), abs=1e-12)


def test_one_negative_is_the_softplus_of_the_margin():
    query, documents = torch.tensor([[1.0, 0.0]]), torch.tensor([[[2.0, 5.0], [3.5, -7.0]]])
    assert triplet_losses(query, documents).item() == pytest.approx(
        math.log1p(math.exp(1.5)), abs=1e-6
    )
    assert triplet_losses(query, documents, 2.0).item() == pytest.approx(
        math.log1p(math.exp(3)), abs=1e-6
    )
    cosines = 2 / math.sqrt(29), 3.5 / math.sqrt(61.25)
    expected = math.log1p(math.exp(20 * (cosines[1] - cosines[0])))
    assert triplet_losses(query, documents, 20.0, True).item() == pytest.approx(expected, abs=1e-5)


@given(
    rows=st.integers(1, 4),
    negatives=st.integers(1, 3),
    scale=st.floats(0.1, 5),
    cosine=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_the_definition_written_as_a_loop(rows, negatives, scale, cosine, seed):
    queries, documents = normal(rows, 5, seed=seed), normal(rows, 1 + negatives, 5, seed=seed + 1)
    expected = [
        loop(queries[i].numpy(), documents[i].numpy(), 0, scale, cosine) for i in range(rows)
    ]
    assert triplet_losses(queries, documents, scale, cosine).numpy() == pytest.approx(
        expected, rel=1e-9
    )
    candidates = documents.flatten(0, 1)
    targets = torch.arange(rows) * (1 + negatives)
    expected = [
        loop(queries[i].numpy(), candidates.numpy(), int(targets[i]), scale, cosine)
        for i in range(rows)
    ]
    losses = in_batch_losses(queries, candidates, targets, scale, cosine)
    assert losses.numpy() == pytest.approx(expected, rel=1e-9)


def test_cosine_does_not_see_lengths_and_dot_products_do():
    queries, documents = normal(3, 6), normal(3, 3, 6, seed=1)
    lengths = torch.tensor([0.2, 1.0, 7.0])[None, :, None]
    for normalize in (True, False):
        same = torch.allclose(
            triplet_losses(queries, documents, 1.0, normalize),
            triplet_losses(5 * queries, lengths * documents, 1.0, normalize),
        )
        assert same is normalize


def test_an_example_depends_on_its_own_texts_alone():
    documents = normal(3, 2, 6, seed=1).requires_grad_()
    triplet_losses(normal(3, 6), documents)[1].backward()
    assert documents.grad[1].abs().min() > 0
    assert documents.grad[[0, 2]].abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_vectors_get_float32_scores(dtype):
    """Also under autocast, which turns the products of float32 vectors back into half precision."""
    queries, documents = (8 * normal(4, 64)).to(dtype), (8 * normal(4, 3, 64, seed=1)).to(dtype)
    candidates, targets = documents.flatten(0, 1), torch.arange(4) * 3
    exact = triplet_losses(queries.double(), documents.double(), 0.01)
    exact_in_batch = in_batch_losses(queries.double(), candidates.double(), targets, 0.01)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            ours = triplet_losses(queries, documents, 0.01)
            in_batch = in_batch_losses(queries, candidates, targets, 0.01)
        assert ours.dtype == in_batch.dtype == torch.float32
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(in_batch.double(), exact_in_batch, rtol=1e-5, atol=1e-5)


def test_extreme_scores_stay_finite():
    queries = torch.tensor([[1.0]])
    losses = [
        triplet_losses(queries, torch.tensor([[[a], [b]]])).item() for a, b in [(0, 1e4), (1e4, 0)]
    ]
    assert losses == [pytest.approx(1e4), 0.0]
