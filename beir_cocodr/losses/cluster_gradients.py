"""Cluster gradients one by one, as published: slow, and the yardstick for the fast way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from beir_cocodr.losses.cluster_gram import Reduce, gram_of


def gram_by_calls(cluster_losses: Tensor, parameters: Sequence[Tensor], reduce: Reduce) -> Tensor:
    """One gradient call for each of P cluster losses: (P, P) inner products in float64.

    Holds P copies of the parameters' gradients.

    Args:
        cluster_losses: (P,), in whose graph the parameters stand; the graph stays.
        parameters: what to differentiate by; those that no loss depends on count as zero.
        reduce: sums over processes what each has of the gradients.

    Source: COCO-DR, appendix E, and its published code.
    """
    rows = [
        _flat(torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True), parameters, ())
        for loss in cluster_losses
    ]
    return gram_of(torch.stack(rows), reduce)


def gram_by_batched_call(cluster_losses: Tensor, parameters: Sequence[Tensor], reduce: Reduce) -> Tensor:
    """The same by one vectorised call (``is_grads_batched``), under eager and sdpa attention."""
    each = torch.eye(len(cluster_losses), dtype=cluster_losses.dtype, device=cluster_losses.device)
    gradients = torch.autograd.grad(
        cluster_losses, parameters, each, retain_graph=True, allow_unused=True, is_grads_batched=True
    )
    return gram_of(_flat(gradients, parameters, (len(cluster_losses),)), reduce)


def _flat(
    gradients: tuple[Tensor | None, ...], parameters: Sequence[Tensor], batch: tuple[int, ...]
) -> Tensor:
    parts = [
        (parameter.new_zeros(*batch, *parameter.shape) if gradient is None else gradient).flatten(len(batch))
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]
    return torch.cat(parts, dim=-1)
