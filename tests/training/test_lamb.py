"""LAMB against its definition written again in numpy, and against another implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.lamb import LAMB
from beir_cocodr.training.options import FinetuneOptions

# Two tensors: one of a norm above 10, one of zeros, whose ratio is 1 in the first step.
STARTS = [np.linspace(-8, 9, 6).reshape(2, 3), np.zeros(4)]


def gradients(step: int) -> list[np.ndarray]:
    rng = np.random.default_rng(step)
    return [rng.normal(size=start.shape) for start in STARTS]


def by_definition(steps: int, lr: float, decay: float, eps: float = 1e-8) -> list[np.ndarray]:
    """Move the tensors by You et al. (2020), third version, in float64."""
    weights = [start.copy() for start in STARTS]
    means = [np.zeros_like(start) for start in STARTS]
    squares = [np.zeros_like(start) for start in STARTS]
    for step in range(steps):
        for i, gradient in enumerate(gradients(step)):
            means[i] = 0.9 * means[i] + 0.1 * gradient
            squares[i] = 0.999 * squares[i] + 0.001 * gradient**2
            update = means[i] / (np.sqrt(squares[i]) + eps) + decay * weights[i]
            norm = min(np.linalg.norm(weights[i]), 10)
            ratio = norm / np.linalg.norm(update) if norm > 0 else 1.0
            weights[i] = weights[i] - lr * ratio * update
    return weights


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_moves_weights_as_its_paper_defines(decay):
    weights = [torch.tensor(start, requires_grad=True) for start in STARTS]
    optimizer = LAMB(weights, lr=0.02, weight_decay=decay)
    for step in range(4):
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = torch.tensor(gradient)
        optimizer.step()
    for weight, expected in zip(weights, by_definition(4, 0.02, decay), strict=True):
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12)
    assert np.linalg.norm(STARTS[0]) > 10


# What torch_optimizer 0.3.0's Lamb(lr=0.02, eps=1e-8, weight_decay=0.1) makes of STARTS in four
# steps in float64.
ELSEWHERE = [
    [-8.2983405362, -4.48136825128, -1.46383785846, 2.36397993951, 5.46444414459, 8.54166568657],
    [-0.0630802416844, -0.0694007957156, 0.0648074674787, 0.0647023781948],
]


def test_lamb_is_that_of_another_implementation():
    weights = [torch.tensor(start, requires_grad=True) for start in STARTS]
    optimizer = LAMB(weights, lr=0.02, weight_decay=0.1)
    for step in range(4):
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = torch.tensor(gradient)
        optimizer.step()
    for weight, expected in zip(weights, ELSEWHERE, strict=True):
        np.testing.assert_allclose(weight.detach().numpy().ravel(), expected, rtol=1e-9)


def test_a_training_takes_the_optimizer_that_is_chosen(tiny_bert, beir_folder, tmp_path):
    moved = {}
    for name in ("adamw", "lamb"):
        options = FinetuneOptions.of(
            max_steps=1, batch_size=4, warmup=0, learning_rate=1e-3, optimizer=name
        )
        finetune(str(tiny_bert), str(beir_folder), output=tmp_path / name, options=options)
        moved[name] = _largest_change(tiny_bert, tmp_path / name)
    # Adam's first step moves every weight by about the rate; LAMB's is scaled for each tensor.
    assert moved["adamw"] == pytest.approx(1e-3, rel=0.05)
    assert abs(moved["lamb"] - 1e-3) > 1e-4


def _largest_change(before, after) -> float:
    from beir_cocodr import COCODR

    first, second = (
        dict(COCODR(str(folder)).named_parameters())["0.model.encoder.layer.0.output.dense.weight"]
        for folder in (before, after)
    )
    return float((first - second).abs().max())
