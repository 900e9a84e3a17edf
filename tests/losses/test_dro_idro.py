"""iDRO's weights against the specification written again in numpy, and against a numerical
minimiser.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from conftest import sentences
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from beir_cocodr.errors import InputError
from beir_cocodr.losses.dro import IDROLoss, idro_weights, idro_weights_in_closed_form
from beir_cocodr.models.cocodr import COCODR

K = 6
# (query's topic, cluster) of the examples of three fixed batches: clusters 4 and 5 come late or
# never.
BATCHES = [[0, 0, 1, 2, 2, 3], [1, 1, 0, 4, 4, 4], [3, 2, 2, 0, 3, 1]]


def published(h, losses, counts, gradients, alpha=0.25, rho=0.05, ema=0.1, eps=0.01):
    """Section 2 of the specification, steps 2 to 4, loop by loop. ``gradients``: (K, P), 0 where
    absent.
    """
    k = len(h)
    directions = [g / (1e-12 + math.sqrt(float(g @ g))) for g in gradients]
    exponents = np.zeros(k)
    for j in range(k):
        r = [
            (losses[i] * losses[j]) ** alpha * float(directions[i] @ directions[j])
            for i in range(k)
        ]
        exponents[j] = rho * sum(r) / k if counts[j] else 0.0
    exponents -= exponents.max()
    moved = [h[j] ** ema * math.exp(exponents[j]) * (counts[j] > 0) for j in range(k)]
    return np.array([max(value / sum(moved), eps) for value in moved])


def drawn(seed: int, absent: tuple[int, ...] = (), k: int = K):
    """Weights, losses, counts, gradients (k, 7) and their Gram matrix."""
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(k, 7)) * rng.uniform(0.01, 100, size=(k, 1))
    losses, counts = rng.uniform(0.01, 4, size=k), rng.integers(1, 9, size=k)
    for cluster in absent:
        gradients[cluster], losses[cluster], counts[cluster] = 0, 0, 0
    weights = rng.uniform(0.05, 1, size=k)
    return weights, losses, counts, gradients, gradients @ gradients.T


def moved(weights, losses, counts, gram, **settings) -> np.ndarray:
    parts = [torch.as_tensor(np.asarray(part)) for part in (weights, losses, counts, gram)]
    return idro_weights(*parts, **settings).numpy()


@pytest.mark.parametrize("settings", [{}, {"alpha": 0.7, "rho": 3.0, "ema": 0.8, "eps": 0.05}])
def test_published_weights_over_three_steps(settings):
    ours = transcribed = np.ones(K)
    for step, absent in enumerate([(), (1, 4), (0,)]):
        _, losses, counts, gradients, gram = drawn(step, absent)
        ours = moved(ours, losses, counts, gram, absent="reset", **settings)
        transcribed = published(transcribed, losses, counts, gradients, **settings)
        assert ours == pytest.approx(transcribed, abs=1e-9)
    assert np.ptp(ours[1:]) > 1e-3


def batch(model: COCODR, clusters: list[int], negatives: int = 1):
    """Texts of mixed lengths, padded, one column after the other."""
    columns = []
    for column in range(2 + negatives):
        rng = np.random.default_rng(column)
        texts = [
            sentences(rng, cluster % 4, 1 + (i + column) % 3) for i, cluster in enumerate(clusters)
        ]
        columns.append({k: v for k, v in model.preprocess(texts).items() if torch.is_tensor(v)})
    return columns


def by_autograd(model: COCODR, clusters: list[int]):
    """(K) differentiable mean losses, 0 where absent, and (K, P) gradients over the last two
    layers.
    """
    query, positive, negative = (
        model(dict(c))["sentence_embedding"] for c in batch(model, clusters)
    )
    each = torch.log1p(torch.exp((query * negative).sum(1) - (query * positive).sum(1)))
    layers = [
        p for name, p in model.named_parameters() if re.search(r"encoder\.layer\.[23]\.", name)
    ]
    assert len(layers) == 2 * 16
    losses, gradients = [], []
    for cluster in range(K):
        own = [each[i] for i, c in enumerate(clusters) if c == cluster]
        losses.append(sum(own) / len(own) if own else each.sum() * 0)
        found = torch.autograd.grad(losses[-1], layers, retain_graph=True)
        gradients.append(torch.cat([g.flatten() for g in found]).numpy())
    return losses, np.stack(gradients).astype(np.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gram", ["one_backward", "k_calls"])
def test_published_loss_and_weights_while_a_model_trains(deep_bert, dtype, gram):
    ours, other = (COCODR(str(deep_bert)).to(dtype).eval() for _ in range(2))
    for layer in [*ours.modules(), *other.modules()]:
        if isinstance(layer, torch.nn.Linear | torch.nn.Embedding):
            layer.weight.data /= 3  # mild scores
    loss = IDROLoss(ours, K, mode="published", gram=gram)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (ours, other)]
    h = np.ones(K)
    for clusters in BATCHES:
        for optimizer in optimizers:
            optimizer.zero_grad()
        value = loss(batch(ours, clusters), torch.tensor(clusters))
        value.backward()
        loss.finish_step()
        losses, gradients = by_autograd(other, clusters)
        expected = sum(weight * part for weight, part in zip(h.tolist(), losses, strict=True))
        expected.backward()  # with the weights from before this step
        assert value.item() == pytest.approx(
            expected.item(), rel=1e-5 if dtype == torch.float32 else 1e-9
        )
        values = [part.item() for part in losses]
        h = published(h, values, [clusters.count(k) for k in range(K)], gradients)
        assert loss.weights.numpy() == pytest.approx(h, abs=1e-6)
        for optimizer in optimizers:
            optimizer.step()
    assert h[5] == 0.01
    assert np.ptp(h[:4]) > 1e-3


def test_stable_divides_the_factors_of_a_batch_by_their_sum(deep_bert):
    """And keeps the weights of absent clusters, so that the loss is a weighted mean of the present
    ones.
    """
    model = COCODR(str(deep_bert)).eval()
    loss = IDROLoss(model, K)
    loss.weights.copy_(torch.tensor([0.1, 0.3, 0.05, 0.05, 0.2, 0.3], dtype=torch.float64))
    clusters = [0, 0, 1, 2, 2, 2]
    losses, gradients = by_autograd(model, clusters)
    value = loss(batch(model, clusters), torch.tensor(clusters))
    values = np.array([part.item() for part in losses])
    assert value.item() == pytest.approx(
        (0.1 * values[0] + 0.3 * values[1] + 0.05 * values[2]) / 0.45, rel=1e-5
    )  # float32 on both sides
    value.backward()
    loss.finish_step()
    h = np.array([0.1, 0.3, 0.05, 0.05, 0.2, 0.3])
    shares = published(h, values, [2, 1, 3, 0, 0, 0], gradients, eps=0)
    expected = np.where([True] * 3 + [False] * 3, shares * 0.45, h)
    assert loss.weights.numpy() == pytest.approx(np.maximum(expected, 0.01), abs=1e-6)


def test_duplicated_clusters_get_equal_weight():
    weights, losses, counts, gradients, _ = drawn(3)
    for values in (weights, losses, counts, gradients):
        values[4] = values[1]
    for settings in ({}, {"rho": 5.0, "ema": 1.0}):
        ours = moved(weights, losses, counts, gradients @ gradients.T, **settings)
        assert ours[4] == pytest.approx(ours[1], abs=1e-12)
        assert abs(ours[0] - ours[1]) > 1e-4


@pytest.mark.parametrize("absent", ["reset", "keep"])
def test_without_gradient_term_and_forgetting_nothing_moves(absent):
    weights, losses, counts, _, gram = drawn(4)
    weights /= weights.sum()
    assert weights.min() > 0.01
    ours = moved(weights, losses, counts, gram, rho=0.0, ema=1.0, absent=absent)
    assert ours == pytest.approx(weights, abs=1e-15)


def test_absent_clusters_fall_to_eps_or_keep_their_share():
    weights, losses, counts, _, gram = drawn(5, absent=(0, 3))
    reset = moved(weights, losses, counts, gram, absent="reset")
    assert reset[[0, 3]].tolist() == [0.01, 0.01]
    assert reset[[1, 2, 4, 5]].sum() == pytest.approx(1)
    kept = moved(weights, losses, counts, gram, absent="keep")
    shares = weights / weights.sum()
    assert kept[[0, 3]] == pytest.approx(shares[[0, 3]], abs=1e-15)
    assert kept.sum() == pytest.approx(1)
    assert kept[[1, 2, 4, 5]] / kept[1] == pytest.approx(reset[[1, 2, 4, 5]] / reset[1])


@given(seed=st.integers(0, 10_000), k=st.integers(1, 9))
def test_keep_and_reset_agree_when_all_are_present(seed, k):
    weights, losses, counts, _, gram = drawn(seed, k=k)
    reset, keep = (moved(weights, losses, counts, gram, absent=kind) for kind in ("reset", "keep"))
    assert keep == pytest.approx(reset, abs=1e-12)


def test_a_single_cluster_gets_everything():
    assert moved([0.3], [2.0], [4], [[9.0]]).tolist() == [1.0]
    lone = moved([0.2, 0.5, 0.3], [0, 2.0, 0], [0, 4, 0], np.diag([0, 9.0, 0]), absent="reset")
    assert lone == pytest.approx([0.01, 1.0, 0.01])
    kept = moved([0.2, 0.5, 0.3], [0, 2.0, 0], [0, 4, 0], np.diag([0, 9.0, 0]))
    assert kept == pytest.approx([0.2, 0.5, 0.3])


def test_a_cluster_without_gradient_is_neither_lifted_nor_lifts_others():
    weights, losses, counts, gradients, _ = drawn(6)
    weights[:] = 1
    gradients[2] = 0
    ours = moved(weights, losses, counts, gradients @ gradients.T, eps=1e-9)
    assert np.isfinite(ours).all()
    assert ours == pytest.approx(published(weights, losses, counts, gradients, eps=1e-9), abs=1e-12)
    without = np.delete(np.arange(K), 2)
    # Same clusters without it: the mean is still over K, so rho is scaled to match.
    fewer = gradients[without]
    alone = moved(
        weights[without], losses[without], counts[without], fewer @ fewer.T, rho=0.05 * 5 / 6
    )
    assert ours[without] / ours[0] == pytest.approx(alone / alone[0])
    nothing = moved(weights, losses, counts, np.zeros((K, K)))
    assert nothing == pytest.approx(1 / K)


def test_losses_of_zero_are_no_trouble():
    weights, _, counts, _, gram = drawn(7)
    assert moved(weights, np.zeros(K), counts, gram, ema=1.0) == pytest.approx(
        weights / weights.sum()
    )


def test_the_clamp_lets_the_sum_pass_one():
    weights = np.array([1.0, 1e-6, 1e-6])
    ours = moved(weights, np.ones(3), np.ones(3), np.eye(3), rho=0.0, ema=1.0, eps=0.1)
    assert ours == pytest.approx([1 / (1 + 2e-6), 0.1, 0.1])
    assert ours.sum() > 1.19


@given(seed=st.integers(0, 10_000), absent=st.sets(st.integers(0, K - 1), max_size=K - 1))
def test_permuting_clusters_permutes_weights(seed, absent):
    weights, losses, counts, _, gram = drawn(seed, tuple(absent))
    order = np.random.default_rng(seed).permutation(K)
    for kind in ("reset", "keep"):
        ours = moved(weights, losses, counts, gram, absent=kind, rho=1.0)
        permuted = moved(
            weights[order],
            losses[order],
            counts[order],
            gram[np.ix_(order, order)],
            absent=kind,
            rho=1.0,
        )
        assert permuted == pytest.approx(ours[order], abs=1e-12)
        assert ours.min() >= 0.01


@given(seed=st.integers(0, 10_000), factor=st.floats(1e-4, 1e4))
def test_lengths_of_gradients_do_not_matter_except_in_the_closed_form(seed, factor):
    weights, losses, counts, _, gram = drawn(seed)
    lengths = np.ones(K)
    lengths[0] = factor
    ours = moved(weights, losses, counts, gram * lengths[:, None] * lengths)
    assert ours == pytest.approx(moved(weights, losses, counts, gram), abs=1e-9)


def objective(weights, before, gains, tau):
    return -(weights @ gains) + tau * (weights * np.log(weights / before)).sum()


def numerically(before: np.ndarray, gains: np.ndarray, tau: float) -> np.ndarray:
    def value(logits):
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        slope = -gains + tau * (np.log(weights / before) + 1)
        return objective(weights, before, gains, tau), weights * (slope - weights @ slope)

    found = minimize(value, np.zeros(len(gains)), jac=True, method="BFGS", options={"gtol": 1e-11})
    weights = np.exp(found.x - found.x.max())
    return weights / weights.sum()


@pytest.mark.parametrize("seed", range(8))
def test_closed_form_is_the_minimiser_on_the_simplex(seed):
    rng = np.random.default_rng(seed)
    k, tau, beta = int(rng.integers(2, 9)), float(rng.uniform(0.5, 3)), float(rng.uniform(0, 1))
    gradients, losses = rng.normal(size=(k, 5)), rng.uniform(0.05, 2, size=k)
    before = rng.dirichlet(np.ones(k)) + 0.02
    before /= before.sum()
    gains = np.zeros(k)
    for i in range(k):
        for j in range(k):
            gains[i] += (losses[i] * losses[j]) ** beta * float(gradients[i] @ gradients[j])
    parts = [torch.from_numpy(part) for part in (before, losses, gradients @ gradients.T)]
    ours = idro_weights_in_closed_form(*parts, beta, tau).numpy()
    assert ours.sum() == pytest.approx(1, abs=1e-12)
    assert ours == pytest.approx(numerically(before, gains, tau), abs=1e-6)
    assert np.abs(ours - before).max() > 1e-2
    least = objective(ours, before, gains, tau)
    for _ in range(200):
        other = 0.99 * ours + 0.01 * rng.dirichlet(np.ones(k))
        assert objective(other, before, gains, tau) >= least - 1e-12


def test_closed_form_moves_absent_clusters_only_by_the_normalisation():
    before = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    gram = torch.tensor([[4.0, 0, 1], [0, 0, 0], [1, 0, 2]], dtype=torch.float64)
    losses = torch.tensor([1.0, 0, 1], dtype=torch.float64)
    ours = idro_weights_in_closed_form(before, losses, gram, 0.25, 10.0)
    raw = before * torch.exp(torch.tensor([0.5, 0, 0.3], dtype=torch.float64))
    torch.testing.assert_close(ours, raw / raw.sum())


def test_mode_paper(deep_bert):
    """Its factors, loss and weights over three steps, by autograd."""
    model = COCODR(str(deep_bert)).double().eval()
    loss = IDROLoss(model, K, mode="paper", beta=0.5, tau=2000.0)
    weights = np.full(K, 1 / K)
    for clusters in BATCHES:
        losses, gradients = by_autograd(model, clusters)
        values = np.array([part.item() for part in losses])
        present = [k for k in range(K) if k in clusters]
        alphas = values**0.5 / np.mean(values[present] ** 0.5)
        value = loss(batch(model, clusters), torch.tensor(clusters))
        assert value.item() == pytest.approx(
            sum(alphas[k] * weights[k] * values[k] for k in present)
        )
        value.backward()
        loss.finish_step()
        gains = np.zeros(K)
        for i in range(K):
            for j in range(K):
                gains[i] += (values[i] * values[j]) ** 0.5 * float(gradients[i] @ gradients[j])
        raw = np.log(weights) + gains / 2000
        weights = np.exp(raw - raw.max()) / np.exp(raw - raw.max()).sum()
        assert loss.weights.numpy() == pytest.approx(weights, abs=1e-6)
    assert np.ptp(weights) > 1e-3


def test_factors_of_mode_paper_have_mean_1_over_present_clusters(deep_bert):
    loss = IDROLoss(COCODR(str(deep_bert)), K, mode="paper")
    assert loss.tau == pytest.approx(K / 0.05)
    losses = torch.tensor([0.3, 0, 2.0, 0, 1.1, 0], dtype=torch.float64)
    counts = torch.tensor([1, 0, 3, 0, 2, 0])
    factors = loss.coefficients(losses, counts) / loss.weights
    assert factors[[0, 2, 4]].mean().item() == pytest.approx(1)
    expected = (2.0 / 0.3) ** 0.25
    assert (factors[2] / factors[0]).item() == pytest.approx(expected)
    assert factors[[1, 3, 5]].tolist() == [0, 0, 0]
    nothing = loss.coefficients(torch.zeros(K, dtype=torch.float64), counts) / loss.weights
    assert nothing.tolist() == [1, 0, 1, 0, 1, 0]


def test_the_papers_tau_is_what_the_published_settings_amount_to(deep_bert):
    assert IDROLoss(COCODR(str(deep_bert)), 50, mode="paper").tau == pytest.approx(1000)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "publshed"},
        {"absent": "forget"},
        {"mode": "published", "absent": "keep"},
        {"mode": "published", "renormalize_present": True},
        {"mode": "paper", "absent": "reset"},
        {"gram": "none"},
        {"gradient_layers": 5},
        {"gradient_layers": 0},
    ],
)
def test_settings_that_do_not_exist_are_refused(deep_bert, settings):
    with pytest.raises(InputError):
        IDROLoss(COCODR(str(deep_bert)), K, **settings)


def test_an_overflowing_backward_leaves_the_weights(deep_bert):
    """float16's loss scaler finds its level by overflows, and skips the steps in which they
    occur.
    """
    model = COCODR(str(deep_bert)).eval()
    loss = IDROLoss(model, K)
    labels = torch.tensor(BATCHES[0])
    for scale, moves in ((1.0, True), (1e38, False), (1.0, True)):
        before = loss.weights.clone()
        (loss(batch(model, BATCHES[0]), labels) * scale).backward()
        if not moves:
            assert not all(
                p.grad.isfinite().all() for p in model.parameters() if p.grad is not None
            )
        model.zero_grad()
        loss.finish_step()
        assert loss.weights.isfinite().all()
        assert torch.equal(loss.weights, before) is not moves
