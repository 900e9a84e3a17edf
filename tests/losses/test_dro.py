"""ERM, group DRO and CVaR against loops written here, on embeddings that stand for a model."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
from conftest import sentences
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import util
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from beir_cocodr import losses
from beir_cocodr.errors import InputError
from beir_cocodr.losses.dro import (
    ClusterLoss,
    CVaRLoss,
    GroupDROLoss,
    cvar_weights,
    group_dro_weights,
)
from beir_cocodr.models.cocodr import COCODR

K = 5


class Given(torch.nn.Module):
    """An "encoder" whose embeddings are the features themselves."""

    similarity_fn_name = "dot"
    device = torch.device("cpu")

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": features["x"]}


def step(seed: int, members: list[int]):
    """Columns with gradients, labels, and the mean losses (K,) and counts (K,) by a loop."""
    rng = np.random.default_rng(seed)
    columns = [
        {"x": torch.tensor(rng.normal(size=(len(members), 4)), requires_grad=True)}
        for _ in range(3)
    ]
    query, positive, negative = (column["x"].detach().numpy() for column in columns)
    each = [
        math.log1p(math.exp(float(q @ (n - p))))
        for q, p, n in zip(query, positive, negative, strict=True)
    ]
    losses, counts = [0.0] * K, [0] * K
    for cluster, loss in zip(members, each, strict=True):
        losses[cluster] += loss
        counts[cluster] += 1
    means = [total / max(1, count) for total, count in zip(losses, counts, strict=True)]
    return columns, torch.tensor(members), each, means, counts


def steps(absent_sometimes: bool = True):
    for seed in range(4):
        high = K - 1 if absent_sometimes and seed % 2 else K
        yield step(seed, np.random.default_rng(seed).integers(0, high, size=12).tolist())


def factors_of_examples(value: torch.Tensor, columns, members, scale_by_counts) -> None:
    """The gradient of an example's own texts is the plain one times its cluster's factor."""
    value.backward()
    query, positive, negative = (column["x"].detach() for column in columns)
    margin = (query * (negative - positive)).sum(dim=1)
    plain = torch.sigmoid(margin)[:, None] * (negative - positive)
    factor = torch.tensor([scale_by_counts[m] for m in members.tolist()], dtype=torch.float64)
    torch.testing.assert_close(columns[0]["x"].grad, factor[:, None] * plain)


def test_erm_is_the_plain_mean():
    loss = ClusterLoss(Given(), K)
    for columns, members, each, _, _ in steps():
        value = loss(columns, members)
        assert value.item() == pytest.approx(sum(each) / len(each), abs=1e-12)
        factors_of_examples(value, columns, members, [1 / len(each)] * K)


def test_group_dro_is_the_papers_algorithm():
    """Algorithm 1: q of the seen groups is multiplied by exp(η ℓ), normalised, and the loss is
    q·ℓ.
    """
    loss = GroupDROLoss(Given(), K, eta=0.3)
    q = [1 / K] * K
    for columns, members, _, means, counts in steps():
        q = [weight * math.exp(0.3 * mean) for weight, mean in zip(q, means, strict=True)]
        q = [weight / sum(q) for weight in q]
        value = loss(columns, members)
        assert value.item() == pytest.approx(
            sum(a * b for a, b in zip(q, means, strict=True)), abs=1e-12
        )
        assert loss.weights.tolist() == pytest.approx(q, abs=1e-12)
        factors_of_examples(
            value, columns, members, [a / max(1, n) for a, n in zip(q, counts, strict=True)]
        )
    assert np.ptp(q) > 0.05


@given(seed=st.integers(0, 10_000), k=st.integers(1, 8), eta=st.floats(0, 2))
def test_group_dro_lifts_by_loss_and_stays_a_distribution(seed, k, eta):
    rng = np.random.default_rng(seed)
    before, losses = (
        torch.from_numpy(rng.dirichlet(np.ones(k))),
        torch.from_numpy(rng.uniform(0, 5, k)),
    )
    after = group_dro_weights(before, losses, eta)
    assert after.sum().item() == pytest.approx(1, abs=1e-12)
    ratios = (after / before).numpy()
    assert (np.diff(ratios[losses.numpy().argsort()]) >= -1e-9).all()
    torch.testing.assert_close(group_dro_weights(before, losses + 3, eta), after)
    order = torch.from_numpy(rng.permutation(k))
    torch.testing.assert_close(group_dro_weights(before[order], losses[order], eta), after[order])


def greedy(losses, sizes, alpha: float, eps: float):
    """Walk from the worst cluster on; returns weights and the place of the boundary, if any."""
    total, used, weights, boundary = sum(sizes), 0.0, [eps] * len(losses), None
    for k in sorted(range(len(losses)), key=lambda k: -losses[k]):
        share = sizes[k] / total
        if used + share < alpha:
            weights[k], used = 1 / alpha, used + share
        else:
            weights[k], boundary = max((1 - used / alpha) / share, eps), k
            break
    return weights, boundary


@given(
    seed=st.integers(0, 100_000),
    k=st.integers(1, 10),
    alpha=st.floats(0.05, 1),
    eps=st.sampled_from([0, 0.01, 0.3]),
)
def test_cvar_is_the_greedy_walk(seed, k, alpha, eps):
    rng = np.random.default_rng(seed)
    losses, sizes = rng.uniform(0, 5, k), rng.uniform(0.1, 9, k)
    expected, boundary = greedy(losses.tolist(), sizes.tolist(), alpha, eps)
    ours = cvar_weights(torch.from_numpy(losses), torch.from_numpy(sizes), alpha, eps).numpy()
    assert ours == pytest.approx(expected, abs=1e-9)
    if eps == 0 and boundary is not None:
        assert (sizes / sizes.sum() * ours).sum() == pytest.approx(1, abs=1e-9)
    order = rng.permutation(k)
    permuted = cvar_weights(
        torch.from_numpy(losses[order]), torch.from_numpy(sizes[order]), alpha, eps
    )
    assert permuted.numpy() == pytest.approx(ours[order], abs=1e-9)


def test_cvar_by_hand():
    losses, sizes = torch.tensor([1.0, 4.0, 2.0, 3.0]), torch.tensor([40.0, 30.0, 20.0, 10.0])
    ours = cvar_weights(losses.double(), sizes.double(), 0.5, 0.01)
    # 4.0 (30%) and 3.0 (10%) count fully; half of the next 20% fills the share of 50% up.
    assert ours.tolist() == pytest.approx([0.01, 2, 1, 2])
    everything = cvar_weights(losses.double(), sizes.double(), 1.0, 0.01)
    assert everything.tolist() == pytest.approx([1] * 4)
    only_the_worst = cvar_weights(losses.double(), sizes.double(), 0.3, 0.01)
    assert only_the_worst.tolist() == pytest.approx([0.01, 1 / 0.3, 0.01, 0.01])


def test_cvar_of_a_cluster_that_is_never_seen():
    """Folded clusters are empty for good: their average size falls to 0."""
    losses, sizes = torch.tensor([2.0, 0.0, 1.0]).double(), torch.tensor([3.0, 0.0, 3.0]).double()
    for alpha in (0.2, 0.5, 0.9, 1.0):
        assert cvar_weights(losses, sizes, alpha, 0.01).isfinite().all()
        assert cvar_weights(losses.flip(0) * 0, sizes, alpha, 0.01).isfinite().all()


def test_cvar_over_steps():
    loss = CVaRLoss(Given(), K, cvar_alpha=0.4, eps=0.02)
    averages, sizes, weights, seen = [0.0] * K, [1.0] * K, [1.0] * K, set()
    for columns, members, each, means, counts in steps():
        value, before = loss(columns, members), weights  # a step's loss is of the weights before it
        expected = sum(
            before[m] * own for m, own in zip(members.tolist(), each, strict=True)
        ) / len(each)
        assert value.item() == pytest.approx(expected, abs=1e-12)
        for k in range(K):
            if counts[k]:
                averages[k] = 0.9 * averages[k] + 0.1 * means[k]
            sizes[k] = 0.9 * sizes[k] + 0.1 * counts[k]
        weights, _ = greedy(averages, sizes, 0.4, 0.02)
        assert loss.weights.tolist() == pytest.approx(weights, abs=1e-12)
        assert loss.average_losses.tolist() == pytest.approx(averages, abs=1e-12)
        assert loss.average_counts.tolist() == pytest.approx(sizes, abs=1e-12)
        factors_of_examples(value, columns, members, [w / len(each) for w in before])
        seen.add(tuple(loss.weights.tolist()))
    assert len(seen) > 1


@pytest.mark.parametrize("kind", [ClusterLoss, GroupDROLoss, CVaRLoss])
def test_evaluation_moves_nothing(kind):
    loss = kind(Given(), K)
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    with torch.no_grad():
        for columns, members, *_ in steps():
            loss(columns, members)
    for name, value in loss.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_what_is_kept_for_the_log():
    loss = ClusterLoss(Given(), K)
    sums, seen, examples = np.zeros(K), np.zeros(K), np.zeros(K)
    for columns, members, _, means, counts in steps():
        loss(columns, members)
        sums, seen, examples = sums + means, seen + (np.array(counts) > 0), examples + counts
    assert loss.loss_sums.numpy() == pytest.approx(sums)
    assert loss.steps_seen.tolist() == seen.tolist()
    assert loss.examples_seen.tolist() == examples.tolist()
    assert min(seen) < 4


def test_labels_number_examples_where_clusters_are_given():
    clusters = torch.tensor([3, 0, 3, 1, 4, 2])
    columns, members, *_ = step(0, [3, 3, 0, 2])
    by_rows, by_cluster = GroupDROLoss(Given(), K, clusters=clusters), GroupDROLoss(Given(), K)
    rows = torch.tensor([0, 2, 1, 5])
    assert by_rows(columns, rows).item() == by_cluster(columns, members).item()
    assert torch.equal(by_rows.weights, by_cluster.weights)
    assert "clusters" not in by_rows.state_dict()


def test_a_triplet_needs_a_negative():
    columns, members, *_ = step(0, [0, 1, 2])
    with pytest.raises(InputError, match="no hard negative"):
        ClusterLoss(Given(), K)(columns[:2], members)
    assert ClusterLoss(Given(), K, in_batch=True)(columns[:2], members).isfinite()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "column label"),
        (torch.tensor([0.5, 1.0, 2.0]), "column label"),
        (torch.tensor([[0, 1], [1, 2], [2, 0]]), "column label"),
        (torch.tensor([0, 1, K]), f"labels 0 to {K}, not 0 to {K - 1}"),
        (torch.tensor([-1, 1, 2]), "labels -1 to 2"),
    ],
)
def test_labels_have_to_number_clusters(labels, message):
    columns, *_ = step(0, [0, 1, 2])
    for kind in (ClusterLoss, GroupDROLoss, CVaRLoss):
        with pytest.raises(InputError, match=message):
            kind(Given(), K)(columns, labels)


def test_every_loss_lists_its_columns():
    for name in filter(lambda name: name.endswith("Loss"), dir(losses)):
        inputs = inspect.getdoc(getattr(losses, name)).partition("\nInputs:\n")[2]
        assert "olumns" in inputs or "| Texts " in inputs, name


@pytest.mark.parametrize("negatives", [0, 1, 2])
@pytest.mark.parametrize("folder", ["tiny_bert", "tiny_cosine"])
def test_in_batch_erm_is_the_hosts_infonce(request, folder, negatives):
    model = COCODR(str(request.getfixturevalue(folder))).eval()
    cosine = folder == "tiny_cosine"
    rng = np.random.default_rng(0)
    columns = [
        {k: v for k, v in model.preprocess(texts).items() if torch.is_tensor(v)}
        for texts in (
            [sentences(rng, i % 4, 1 + i % 3) for i in range(6)] for _ in range(2 + negatives)
        )
    ]
    host = MultipleNegativesRankingLoss(
        model,
        scale=20.0 if cosine else 1.0,
        similarity_fct=util.cos_sim if cosine else util.dot_score,
    )
    ours = ClusterLoss(model, K, in_batch=True)
    found = []
    for loss in (host, ours):
        model.zero_grad()
        value = loss([dict(column) for column in columns], torch.tensor([0, 1, 1, 3, 3, 3]))
        value.backward()
        found.append((value.item(), [p.grad for p in model.parameters() if p.grad is not None]))
    (expected, gradients), (value, own) = found
    assert value == pytest.approx(expected, rel=1e-5)
    assert len(own) == len(gradients)
    size = max(gradient.abs().max() for gradient in gradients)
    assert all(
        (a - b).abs().max() <= 1e-5 * max(1, size) for a, b in zip(own, gradients, strict=True)
    )
