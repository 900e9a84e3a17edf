"""Two real processes weigh clusters, and move a model, as one process does with the whole batch."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from conftest import sentences
from torch.nn.parallel import DistributedDataParallel

from beir_cocodr.losses.dro import ClusterLoss, CVaRLoss, GroupDROLoss, IDROLoss
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.training.trainer import BROADCAST_BUFFERS

RANKS, STEPS, K = 2, 3, 6
# The first half is the first rank's: clusters 0 and 4 are on one rank only, 3 on both unevenly, 5
# on none.
MEMBERS = [[0, 3, 3, 3, 2, 3, 4, 1], [2, 2, 1, 3, 0, 0, 0, 3], [1, 1, 1, 1, 2, 4, 4, 2]]
CASES = {
    "idro": (IDROLoss, {}),
    "idro published": (IDROLoss, {"mode": "published"}),
    "idro paper": (IDROLoss, {"mode": "paper", "tau": 3e4}),
    "idro sketch": (IDROLoss, {"gram": "sketch", "sketch_size": 8, "rho": 1.0}),
    "idro k_calls": (IDROLoss, {"gram": "k_calls"}),
    "idro in batch": (IDROLoss, {"in_batch": True}),
    "idro in batch sketch": (IDROLoss, {"in_batch": True, "gram": "sketch", "sketch_size": 8}),
    "idro in batch k_calls": (IDROLoss, {"in_batch": True, "gram": "k_calls"}),
    "groupdro": (GroupDROLoss, {"eta": 0.5}),
    "groupdro in batch": (GroupDROLoss, {"eta": 0.5, "in_batch": True}),
    "cvar": (CVaRLoss, {}),
    "erm": (ClusterLoss, {}),
    "erm in batch": (ClusterLoss, {"in_batch": True}),
}
# Each process has weights of its own, so that one process does something else.
PER_RANK = {
    "one backward": (IDROLoss, {"mode": "published", "scope": "rank", "rho": 1.0}),
    "k_calls": (IDROLoss, {"mode": "published", "scope": "rank", "rho": 1.0, "gram": "k_calls"}),
}


def batch(model: COCODR, step: int) -> list[dict[str, torch.Tensor]]:
    columns = []
    for column in range(4):
        rng = np.random.default_rng((step, column))
        texts = [
            sentences(rng, k % 4, 1 + (i + column) % 3, 7) for i, k in enumerate(MEMBERS[step])
        ]
        columns.append({k: v for k, v in model.preprocess(texts).items() if torch.is_tensor(v)})
    return columns


def train(case: str, folder: str, rank: int = 0, ranks: int = 1) -> dict[str, torch.Tensor]:
    """Values, last gradients and weights after some steps on a rank's part of each batch."""
    model = COCODR(folder).eval()  # dropout off
    for parameter in model[0].parameters():
        if parameter.ndim == 2:
            parameter.data /= 2  # mild scores
    kind, settings = (CASES | PER_RANK)[case]
    loss = kind(model, K, **settings)
    trained = model
    if ranks > 1:
        trained = DistributedDataParallel(
            model, find_unused_parameters=True, broadcast_buffers=BROADCAST_BUFFERS
        )
        loss.model = trained  # what the host's trainer does
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    part = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
    found: dict[str, torch.Tensor] = {}
    for step, members in enumerate(MEMBERS):
        optimizer.zero_grad()
        columns = [{k: v[part] for k, v in column.items()} for column in batch(model, step)]
        value = loss(columns, torch.tensor(members)[part])
        value.backward()
        optimizer.step()
        loss.finish_step()
        found[f"value {step}"] = value.detach()
        found[f"weights {step}"] = loss.weights.clone()
    for name in ("loss_sums", "steps_seen", "examples_seen"):
        found[name] = getattr(loss, name)
    found |= {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return found


def work(rank: int, folder: str, output: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{output}/meet",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(
            seconds=60
        ),  # a collective that only one of them calls fails instead of hanging
    )
    trained = {case: train(case, folder, rank, RANKS) for case in CASES | PER_RANK}
    torch.save(trained, f"{output}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(two_layer_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.start_processes(
        work, (str(two_layer_bert), str(folder)), nprocs=RANKS, start_method="forkserver"
    )
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_do_what_one_does(ranks, two_layer_bert, case):
    whole = train(case, str(two_layer_bert))
    assert max(float(g.abs().max()) for n, g in whole.items() if n.startswith("gradient")) > 1e-2
    moving = [whole[f"weights {step}"] for step in range(STEPS)]
    assert torch.equal(moving[0], moving[2]) is case.startswith("erm")
    first, second = (found[case] for found in ranks)
    assert first.keys() == second.keys() == whole.keys()
    for name, expected in whole.items():
        if name.startswith("value"):  # a rank's own share; their mean is the loss
            torch.testing.assert_close(
                (first[name] + second[name]) / 2, expected, rtol=1e-5, atol=1e-5
            )
            assert abs(first[name] - second[name]) > 1e-3
            continue
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(
            first[name], expected, rtol=1e-5, atol=1e-5, msg=f"{case}: {name}"
        )


def by_hand(folder: str) -> list[dict[str, np.ndarray]]:
    """Weights of each rank after each step, as the released code moves them, without ours.

    A rank has its own h, and losses and counts of its own half of the batch. The gradients of a
    cluster's losses are summed over the ranks, and the training gradient is the ranks' mean.
    """
    model = COCODR(folder).eval()
    for parameter in model[0].parameters():
        if parameter.ndim == 2:
            parameter.data /= 2
    watched = [p for name, p in model.named_parameters() if ".encoder.layer." in name]
    assert len(watched) == 2 * 16
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    h = np.ones((RANKS, K))
    steps = []
    for step, members in enumerate(MEMBERS):
        optimizer.zero_grad()
        columns = [model(dict(c))["sentence_embedding"] for c in batch(model, step)]
        queries, positives, *negatives = columns
        scores = torch.stack([(queries * d).sum(1) for d in (positives, *negatives)], dim=1)
        each = scores.logsumexp(1) - scores[:, 0]
        total = each.new_zeros(())
        losses = np.zeros((RANKS, K))
        gradients = np.zeros((K, sum(p.numel() for p in watched)))
        for one in range(RANKS):
            half = range(one * 4, one * 4 + 4)
            for cluster in range(K):
                rows = [row for row in half if members[row] == cluster]
                if rows:
                    loss = each[rows].mean()
                    losses[one, cluster] = loss.item()
                    parts = torch.autograd.grad(loss, watched, retain_graph=True)
                    gradients[cluster] += torch.cat([p.flatten() for p in parts]).double().numpy()
                    total = total + float(h[one, cluster]) * loss / RANKS
        total.backward()
        optimizer.step()
        directions = gradients / (1e-12 + np.linalg.norm(gradients, axis=1, keepdims=True))
        for one in range(RANKS):
            present = losses[one] > 0
            powers = losses[one] ** 0.25
            exponent = (np.outer(powers, powers) * (directions @ directions.T)).mean(0) * present
            moved = h[one] ** 0.1 * np.exp(exponent - exponent.max()) * present
            h[one] = np.maximum(moved / moved.sum(), 0.01)
        steps.append({"weights": h.copy(), "loss": total.item()})
    gradient = dict(model.named_parameters())["0.model.encoder.layer.1.output.dense.weight"].grad
    return [*steps, {"gradient": gradient.numpy()}]


@pytest.mark.parametrize("case", PER_RANK)
def test_each_process_moves_weights_of_its_own_by_its_own_batch(ranks, two_layer_bert, case):
    *steps, last = by_hand(str(two_layer_bert))
    first, second = (found[case] for found in ranks)
    for number, expected in enumerate(steps):
        for one, trained in enumerate((first, second)):
            weights = trained[f"weights {number}"].numpy()
            np.testing.assert_allclose(weights, expected["weights"][one], atol=1e-6)
        loss = (first[f"value {number}"] + second[f"value {number}"]) / 2
        assert float(loss) == pytest.approx(expected["loss"], rel=1e-5)
    assert np.abs(steps[-1]["weights"][0] - steps[-1]["weights"][1]).max() > 0.1
    name = "gradient of 0.model.encoder.layer.1.output.dense.weight"
    np.testing.assert_allclose(first[name].numpy(), last["gradient"], atol=1e-5)
    np.testing.assert_allclose(second[name].numpy(), last["gradient"], atol=1e-5)
