"""The K x K matrix of inner products between cluster gradients, module by module."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn

from beir_cocodr.losses.cluster_capture import Tokens

# Most bytes of cluster gradients held at a time; a module with more is worked on in blocks of its outputs.
_BLOCK = 128 << 20

#: Sums a tensor over all processes in place; does nothing on one.
Reduce = Callable[[Tensor], Tensor]


def module_gram(module: nn.Module, tokens: Tokens, n_slots: int, reduce: Reduce) -> Tensor:
    """Inner products of the clusters' gradients with respect to one module's parameters, exactly.

    The gradients themselves are formed in blocks of at most 128 MiB and discarded.

    Args:
        module: a Linear or a LayerNorm.
        tokens: (T, in) inputs, (T, out) output gradients, (T,) slots.
        n_slots: P, clusters in the batch.
        reduce: sums over processes what each has of the gradients.

    Returns:
        (P, P) float64.
    """
    inputs, gradients, slots = tokens
    if isinstance(module, nn.LayerNorm):
        return _products(_layer_norm_gradients(module, tokens, n_slots), reduce)
    order = slots.argsort(stable=True)
    ends = torch.bincount(slots, minlength=n_slots).cumsum(0).tolist()
    inputs, gradients = inputs[order].to(gradients.dtype), gradients[order]
    width = gradients.shape[1]
    gram = torch.zeros(n_slots, n_slots, dtype=torch.float64, device=gradients.device)
    wide = torch.float64 if gradients.dtype == torch.float64 else torch.float32
    block = max(1, _BLOCK // (n_slots * inputs.shape[1] * wide.itemsize))
    for first in range(0, width, block):
        columns = gradients[:, first : first + block]
        formed = inputs.new_zeros(n_slots, columns.shape[1], inputs.shape[1], dtype=wide)
        start = 0
        for slot, end in enumerate(ends):
            if end > start:
                formed[slot] = columns[start:end].T @ inputs[start:end]
            start = end
        gram += _products(formed.flatten(1), reduce)
    if module.bias is not None:
        gram += _products(_sums(gradients, slots[order], n_slots), reduce)
    return gram


def sketched_gradients(
    module: nn.Module, tokens: Tokens, n_slots: int, size: int, seed: tuple[int, int]
) -> Tensor:
    """A small random image of each cluster's gradient, whose inner products are right in expectation.

    Inputs and output gradients of a Linear are projected to ``size`` dimensions each by Gaussian matrices of
    variance 1/size, so G_k = D_kᵀ X_k becomes (size, size); LayerNorms and biases are kept whole.

    Args:
        seed: of the projections: a number, and the module's. They are the same on every process and step.

    Returns:
        (P, s), s = size² + out for a Linear with bias, 2 d for a LayerNorm.
    """
    inputs, gradients, slots = tokens
    if isinstance(module, nn.LayerNorm):
        return _layer_norm_gradients(module, tokens, n_slots)

    left = gradients @ _projection(gradients.shape[1], size, (*seed, 0)).to(gradients)
    right = inputs.to(gradients.dtype) @ _projection(inputs.shape[1], size, (*seed, 1)).to(gradients)
    parts = [_outer_sums(left, right, slots, n_slots)]
    if module.bias is not None:
        parts.append(_sums(gradients, slots, n_slots))
    return torch.cat(parts, dim=1)


def gram_of(vectors: Tensor, reduce: Reduce) -> Tensor:
    """(P, s) gradients or their sketches to their (P, P) inner products in float64."""
    return _products(vectors, reduce)


@lru_cache(maxsize=1024)
def _projection(width: int, size: int, seed: tuple[int, int, int]) -> Tensor:
    number, module, side = seed
    generator = torch.Generator().manual_seed((number * 1_000_003 + module) * 2 + side)
    matrix: Tensor = torch.randn(width, size, generator=generator) / size**0.5
    return matrix


def _layer_norm_gradients(module: nn.LayerNorm, tokens: Tokens, n_slots: int) -> Tensor:
    """(P, 2 d): weight and bias."""
    inputs, gradients, slots = tokens
    wide = gradients if gradients.dtype == torch.float64 else gradients.float()
    normal = nn.functional.layer_norm(inputs.to(wide.dtype), module.normalized_shape, eps=module.eps)
    return torch.cat([_sums(wide * normal, slots, n_slots), _sums(wide, slots, n_slots)], dim=1)


def _outer_sums(left: Tensor, right: Tensor, slots: Tensor, n_slots: int) -> Tensor:
    """(T, a) and (T, b) to (P, a b): the sum of outer products over each cluster's tokens."""
    order = slots.argsort(stable=True)
    sizes = torch.bincount(slots, minlength=n_slots).tolist()
    pairs = zip(torch.split(left[order], sizes), torch.split(right[order], sizes), strict=True)
    return torch.stack([(a.T @ b).flatten() for a, b in pairs])


def _sums(rows: Tensor, slots: Tensor, n_slots: int) -> Tensor:
    """(T, d) to (P, d): the sum over each cluster's tokens."""
    wide = rows if rows.dtype == torch.float64 else rows.float()
    return wide.new_zeros(n_slots, rows.shape[1]).index_add_(0, slots, wide)


def _products(gradients: Tensor, reduce: Reduce) -> Tensor:
    wide = gradients if gradients.dtype == torch.float64 else gradients.float()
    reduce(wide)
    return (wide @ wide.T).double()
