"""Cluster gradients of one training step: the (K, K) inner products ∇ℓ_i·∇ℓ_j that iDRO weighs
clusters by, exactly, from random projections, or by a gradient call for each cluster as published,
slow and the yardstick for the others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from beir_cocodr.distributed import sum_over_ranks, world_size
from beir_cocodr.errors import InputError

#: Of one module, over all forwards: (T, in) inputs, (T, out) output gradients and (T,) slots of the
#: tokens.
Tokens = tuple[Tensor, Tensor, Tensor]

# Most bytes of cluster gradients held at a time; a module with more is worked on in blocks of its
# outputs.
_BLOCK = 128 << 20


def selected_modules(model: Any, layers: int | None = None) -> dict[str, nn.Module]:
    """The Linear and LayerNorm modules of the backbone's last layers, by name: ``layers`` of them,
    by default 3 of 12, as published for a base model, else 2, as for a large one. An InputError
    where the backbone has fewer, recomputes its activations, or keeps parameters elsewhere.
    """
    backbone = model.transformers_model
    stack = max(
        (module for module in backbone.modules() if isinstance(module, nn.ModuleList)),
        key=len,
        default=(),
    )
    wanted = (3 if len(stack) == 12 else 2) if layers is None else layers
    if not 1 <= wanted <= len(stack):
        raise InputError(f"gradient_layers is {wanted}, this encoder has {len(stack)} layers")
    if backbone.is_activation_checkpointing:
        raise InputError("cluster gradients need gradient checkpointing to be turned off")
    last = stack[-wanted:]
    found: dict[str, nn.Module] = {
        f"{index}.{name}": module
        for index, layer in enumerate(last, len(stack) - wanted)
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear | nn.LayerNorm)
    }
    covered = {id(parameter) for module in found.values() for parameter in module.parameters()}
    if not all(id(parameter) in covered for layer in last for parameter in layer.parameters()):
        raise InputError(
            f"{type(backbone).__name__} has parameters outside of Linear and LayerNorm modules in its last "
            "layers, which cluster gradients cannot be taken of; use the weighting groupdro, cvar or erm"
        )
    return found


class ClusterStep:
    """One training step, from its forward to the inner products of all pairs of cluster gradients.

    For a layer y = x Wᵀ + b the gradient of cluster k's loss is D_kᵀ X_k, where X_k and D_k are the
    rows of x and of the gradient of y that come from cluster k's examples. The backward computes
    both anyway, and hooks keep them. The hooks are on the modules during a forward only, so nothing
    of this stays in the model.

    On one process a module's share of the products is computed as soon as the backward has left it,
    and its inputs and output gradients are let go. On several, exact gradients wait for the end of
    the backward, so that their reduction does not come between that of the training gradients.

    Args:
        modules: those whose parameters count; each takes (B, ..., in) and gives (B, ..., out), row
            b from example b.
        counts: (K,) examples of each cluster in the batch of all processes.
        present: (P,) the clusters with examples.
        members: (B,) the clusters of this process's examples.
        sketch: size and seed of the projections, see :func:`sketched_gradients`; None compares
        exactly.
    """

    losses: Tensor

    def __init__(
        self,
        modules: list[nn.Module],
        counts: Tensor,
        present: Tensor,
        members: Tensor,
        sketch: tuple[int, int] | None = None,
    ) -> None:
        self.modules, self.counts, self.present, self.sketch = modules, counts, present, sketch
        self._slots = torch.searchsorted(present, members)  # (B,) places in ``present``
        self._forwards: list[list[tuple[Tensor, Tensor]]] = [
            [] for _ in modules
        ]  # inputs and outputs
        self._arrived: list[list[Tokens]] = [[] for _ in modules]
        self._waiting: dict[int, Tokens] = {}
        self._sketched: dict[int, Tensor] = {}
        # What a caught gradient is of: loss_scale * factors[k] * W times the cluster's mean loss.
        self._factors = torch.ones(len(present), dtype=torch.float64, device=present.device)
        self._loss_scale = torch.ones((), dtype=torch.float64, device=present.device)
        self._products = self._factors.new_zeros(len(present), len(present))  # (P, P)

    @contextmanager
    def watch_forward(self) -> Iterator[None]:
        """Watch the forwards in this block."""
        handles = [
            module.register_forward_hook(partial(self._keep, i))
            for i, module in enumerate(self.modules)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def watch_backward(self, loss: Tensor, factors: Tensor) -> None:
        """Catch gradients in the backward of ``loss`` = Σ ``factors``[k] W ℓ_k, whatever scales it
        later.
        """
        self._factors = factors.double()
        for index, forwards in enumerate(self._forwards):
            for inputs, output in forwards:
                hook = partial(self._take, index, inputs, len(forwards))
                output.register_hook(hook)  # type: ignore[no-untyped-call]
        self._forwards.clear()
        loss.register_hook(self._set_loss_scale)  # type: ignore[no-untyped-call]

    def differentiate_once(self, loss: Tensor) -> None:
        """Catch gradients of ``loss`` = Σ W ℓ_k by a backward of their own, through the watched
        layers only.
        """
        pairs = [
            (index, *pair) for index, forwards in enumerate(self._forwards) for pair in forwards
        ]
        self._forwards.clear()
        gradients = torch.autograd.grad(loss, [output for *_, output in pairs], retain_graph=True)
        for (index, inputs, _), gradient in zip(pairs, gradients, strict=True):
            self._arrived[index].append(self._tokens(inputs, gradient))
        for index, arrived in enumerate(self._arrived):
            if arrived:
                self._compare(index)

    def differentiate_each(self, cluster_losses: Tensor, batched: bool) -> None:
        """Gradients of (P,) losses W ℓ_k by :func:`gram_by_calls`."""
        self._forwards.clear()
        parameters = [parameter for module in self.modules for parameter in module.parameters()]
        self._products += gram_by_calls(cluster_losses, parameters, batched)

    def gram(self) -> Tensor:
        """(K, K) ∇ℓ_i·∇ℓ_j in float64, 0 where a cluster is absent; on all processes, after the
        backward.
        """
        for index, tokens in sorted(self._waiting.items()):
            self._products += module_gram(self.modules[index], tokens, len(self.present))
        self._waiting.clear()
        if self.sketch is not None:
            parts = [self._sketched[index] for index in sorted(self._sketched)]
            self._products += gram_of(torch.cat(parts, dim=1))
        factors = self._factors * self._loss_scale * world_size()
        inverse = torch.where(
            factors > 0, 1 / factors, 0.0
        )  # weight 0 leaves nothing of a gradient
        whole = self._products.new_zeros(len(self.counts), len(self.counts))
        whole[self.present[:, None], self.present] = self._products * inverse[:, None] * inverse
        return whole

    def _keep(self, index: int, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Forward hook."""
        if len(output) != len(self._slots):
            raise ValueError(
                f"{type(module).__name__} gave {len(output)} rows for {len(self._slots)} examples; "
                "cluster gradients need a model that keeps the batch as its first dimension"
            )
        if output.requires_grad:
            self._forwards[index].append((inputs[0].detach(), output))

    def _take(self, index: int, inputs: Tensor, forwards: int, gradient: Tensor) -> None:
        """Hook on the output of one of the module's ``forwards``."""
        self._arrived[index].append(self._tokens(inputs, gradient.detach()))
        if len(self._arrived[index]) == forwards:
            self._compare(index)

    def _tokens(self, inputs: Tensor, gradient: Tensor) -> Tokens:
        """Flat tokens without those of zero output gradient: padding, and most of a [CLS] encoder's
        last layer.
        """
        slots = self._slots.view(-1, *[1] * (gradient.ndim - 2)).expand(gradient.shape[:-1])
        used = (gradient != 0).any(dim=-1)
        return inputs[used], gradient[used], slots[used]

    def _compare(self, index: int) -> None:
        """Use the gradients of a module, of which all have arrived."""
        inputs, gradients, slots = (
            torch.cat(parts) for parts in zip(*self._arrived[index], strict=True)
        )
        self._arrived[index] = []
        module, tokens, n_slots = self.modules[index], (inputs, gradients, slots), len(self.present)
        if self.sketch is not None:
            size, seed = self.sketch
            self._sketched[index] = sketched_gradients(module, tokens, n_slots, size, (seed, index))
        elif world_size() > 1:
            self._waiting[index] = tokens
        else:
            self._products += module_gram(module, tokens, n_slots)

    def _set_loss_scale(self, gradient: Tensor) -> None:
        self._loss_scale = gradient.detach().double()


def module_gram(module: nn.Module, tokens: Tokens, n_slots: int) -> Tensor:
    """(P, P) float64 inner products of P clusters' gradients with respect to one module's
    parameters, exactly.

    The gradients themselves are formed in blocks of at most 128 MiB and discarded.

    Args:
        module: a Linear or a LayerNorm.
        tokens: see :data:`Tokens`.
        n_slots: P, clusters in the batch.
    """
    if isinstance(module, nn.LayerNorm):
        return gram_of(_layer_norm_gradients(module, tokens, n_slots))
    inputs, gradients, slots = tokens
    gram = torch.zeros(n_slots, n_slots, dtype=torch.float64, device=gradients.device)
    order, sizes = _by_slot(slots, n_slots)
    rows = torch.split(inputs[order].to(gradients.dtype), sizes)
    block = max(1, _BLOCK // (n_slots * inputs.shape[1] * _wide(gradients[:0]).itemsize))
    for columns in torch.split(gradients[order], block, dim=1):
        gram += gram_of(_outer_sums(torch.split(columns, sizes), rows))
    if module.bias is not None:
        gram += gram_of(_sums(gradients, slots, n_slots))
    return gram


def gram_of(vectors: Tensor) -> Tensor:
    """(P, s) gradients or sketches, of which each process has a part, to (P, P) float64 inner
    products.
    """
    wide = _wide(vectors)
    sum_over_ranks(wide)
    return (wide @ wide.T).double()


def sketched_gradients(
    module: nn.Module, tokens: Tokens, n_slots: int, size: int, seed: tuple[int, int]
) -> Tensor:
    """A small random image of each cluster's gradient, (P, s), whose inner products are right in
    expectation.

    Inputs and output gradients of a Linear are projected to ``size`` dimensions each by Gaussian
    matrices of variance 1/size, so G_k = D_kᵀ X_k becomes (size, size); LayerNorms and biases are
    kept whole: s = size² + out for a Linear with bias, 2 d for a LayerNorm. ``seed``, a number and
    the module's, makes the same ones on every process and step.
    """
    if isinstance(module, nn.LayerNorm):
        return _layer_norm_gradients(module, tokens, n_slots)
    inputs, gradients, slots = tokens
    left = gradients @ _projection(gradients.shape[1], size, (*seed, 0)).to(gradients)
    right = inputs.to(gradients.dtype) @ _projection(inputs.shape[1], size, (*seed, 1)).to(
        gradients
    )
    order, sizes = _by_slot(slots, n_slots)
    parts = [_outer_sums(torch.split(left[order], sizes), torch.split(right[order], sizes))]
    if module.bias is not None:
        parts.append(_sums(gradients, slots, n_slots))
    return torch.cat(parts, dim=1)


@lru_cache(maxsize=1024)
def _projection(width: int, size: int, seed: tuple[int, int, int]) -> Tensor:
    number, module, side = seed
    generator = torch.Generator().manual_seed((number * 1_000_003 + module) * 2 + side)
    matrix: Tensor = torch.randn(width, size, generator=generator) / size**0.5
    return matrix


def _wide(tensor: Tensor) -> Tensor:
    """In float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _by_slot(slots: Tensor, n_slots: int) -> tuple[Tensor, list[int]]:
    """The order that brings the tokens of a cluster together, and how many each has."""
    return slots.argsort(stable=True), torch.bincount(slots, minlength=n_slots).tolist()


def _outer_sums(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """(T_k, a) and (T_k, b) of each cluster to (P, a b): the sums of outer products over its
    tokens.
    """
    sums = _wide(left[0][:0]).new_zeros(len(left), left[0].shape[1], right[0].shape[1])
    for k, (a, b) in enumerate(zip(left, right, strict=True)):
        if len(a):
            sums[k] = a.T @ b
    return sums.flatten(1)


def _layer_norm_gradients(module: nn.LayerNorm, tokens: Tokens, n_slots: int) -> Tensor:
    """(P, 2 d): weight and bias."""
    inputs, gradients, slots = tokens
    wide = _wide(gradients)
    normal = nn.functional.layer_norm(
        inputs.to(wide.dtype), module.normalized_shape, eps=module.eps
    )
    return torch.cat([_sums(wide * normal, slots, n_slots), _sums(wide, slots, n_slots)], dim=1)


def _sums(rows: Tensor, slots: Tensor, n_slots: int) -> Tensor:
    """(T, d) to (P, d): the sum over each cluster's tokens."""
    wide = _wide(rows)
    return wide.new_zeros(n_slots, rows.shape[1]).index_add_(0, slots, wide)


def gram_by_calls(
    cluster_losses: Tensor, parameters: Sequence[Tensor], batched: bool = False
) -> Tensor:
    """(P,) cluster losses to the (P, P) float64 inner products of their gradients, P copies of
    which are held.

    Parameters that a loss does not depend on count as zero. The graph stays. ``batched`` makes one
    vectorised call (``is_grads_batched``, under eager and sdpa attention) instead of one for each.

    Source: COCO-DR, appendix E, and its published code.
    """
    if batched:
        each = torch.eye(len(cluster_losses)).to(cluster_losses)
        columns = torch.autograd.grad(
            cluster_losses,
            parameters,
            each,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
        )
        return gram_of(
            torch.cat([column.flatten(1) for column in columns if column is not None], dim=1)
        )
    made = (
        torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
        for loss in cluster_losses
    )
    return gram_of(
        torch.stack([torch.cat([gradient.flatten() for gradient in call]) for call in made])
    )
