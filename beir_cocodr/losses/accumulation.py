"""The gradient of a large batch from small parts, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# A power of two leaves gradients exact but for under- and overflow; against the former float16 needs it.
_SCALE = 1024.0


def accumulated(
    loss: Callable[[slice], Tensor], parts: Iterable[slice], parameters: Iterable[nn.Parameter]
) -> Tensor:
    """The sum of a loss over the parts of a batch, with one part's activations in memory at a time.

    The gradient of each part is taken as soon as its loss is known, and handed on in the backward pass of the
    sum. Unlike gradient caching this embeds nothing twice; it needs a loss in which no part acts on another,
    and memory for one more gradient of all parameters.

    Args:
        loss: rows of the batch to their share of its loss, a scalar.
        parts: the rows of each part.
        parameters: all that the loss depends on and that is trained.

    Returns:
        A scalar, without a graph where gradients are off.
    """
    slices, weights = list(parts), [p for p in parameters if p.requires_grad]
    if not torch.is_grad_enabled():
        return torch.stack([loss(rows) for rows in slices]).sum()
    # The share of a part shrinks with their number.
    scale = _SCALE * 2.0 ** (len(slices) - 1).bit_length()
    values: list[Tensor] = []
    gradients: list[Tensor | None] = [None] * len(weights)
    for rows in slices:
        value = loss(rows)
        found = torch.autograd.grad(scale * value, weights, allow_unused=True)
        values.append(value.detach())
        for i, gradient in enumerate(found):
            before = gradients[i]
            if gradient is not None:  # two parameters may be given one tensor, which is added to below
                gradients[i] = gradient.clone() if before is None else before.add_(gradient)
    used = [(p, g.div_(scale)) for p, g in zip(weights, gradients, strict=True) if g is not None]
    total: Tensor = _Known.apply(  # type: ignore[no-untyped-call]
        torch.stack(values).sum(), [gradient for _, gradient in used], *(weight for weight, _ in used)
    )
    return total


class _Known(torch.autograd.Function):
    """A value whose gradients are there already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *(gradient.mul_(outer[0]) for gradient in gradients)
