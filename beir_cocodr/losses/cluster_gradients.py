"""Cluster gradients of one training step: the (K, K) inner products ∇ℓ_i·∇ℓ_j that iDRO weighs clusters by.

From top to bottom: which layers are compared (:func:`selected_modules`), the step from a watched forward to the matrix
(:class:`ClusterStep`), how hooks catch what the training backward computes anyway (:class:`ClusterCapture`), and three
ways from there to inner products: exactly, module by module (:func:`module_gram`), from random projections
(:func:`sketched_gradients`), and by a gradient call for each cluster as published (:func:`gram_by_calls`), slow and the
yardstick for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from beir_cocodr.distributed import sum_over_ranks, world_size
from beir_cocodr.errors import InputError

#: Of one module, over all forwards: (T, in) inputs, (T, out) output gradients and (T,) slots of the tokens.
Tokens = tuple[Tensor, Tensor, Tensor]

#: Sums a tensor over all processes in place; does nothing on one.
Reduce = Callable[[Tensor], Tensor]

# Most bytes of cluster gradients held at a time; a module with more is worked on in blocks of its outputs.
_BLOCK = 128 << 20


def selected_modules(model: Any, layers: int | None = None) -> dict[str, nn.Module]:
    """The Linear and LayerNorm modules of the backbone's last layers, by name.

    Args:
        model: the encoder.
        layers: how many; by default 3 of 12, as published for a base model, and 2 of any other number, as published for
            a large one.

    Raises:
        InputError: the backbone has fewer layers, recomputes its activations, or keeps parameters elsewhere.
    """
    backbone = model.transformers_model
    stacks = [module for module in backbone.modules() if isinstance(module, nn.ModuleList)]
    stack = max(stacks, key=len, default=None)
    total = len(stack) if stack is not None else 0
    wanted = (3 if total == 12 else 2) if layers is None else layers
    if stack is None or not 1 <= wanted <= total:
        raise InputError(f"gradient_layers is {wanted}, this encoder has {total} layers")
    if _recomputes(backbone):
        raise InputError("cluster gradients need gradient checkpointing to be turned off")
    found: dict[str, nn.Module] = {
        f"{index}.{name}": module
        for index, layer in enumerate(stack[-wanted:], total - wanted)
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear | nn.LayerNorm)
    }
    covered = {id(parameter) for module in found.values() for parameter in module.parameters()}
    if not all(id(parameter) in covered for layer in stack[-wanted:] for parameter in layer.parameters()):
        raise InputError(
            f"{type(backbone).__name__} has parameters outside of Linear and LayerNorm modules in its last "
            "layers, which cluster gradients cannot be taken of; use the weighting groupdro, cvar or erm"
        )
    return found


def _recomputes(backbone: Any) -> bool:
    """Gradient checkpointing, under its name in transformers before 5.20 or after."""
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):
        if hasattr(type(backbone), name):
            return bool(getattr(backbone, name))
    return False


class ClusterStep:
    """From a watched forward to the inner products of all pairs of cluster gradients.

    On one process a module's share of them is worked out as soon as the backward has left it, and its inputs and output
    gradients are let go. On several, exact gradients wait for the end of the backward, so that their reduction does not
    come between that of the training gradients.

    Args:
        modules: those whose parameters count.
        counts: (K,) examples of each cluster in the batch of all processes.
        present: (P,) the clusters with examples.
        members: (B,) the clusters of this process's examples.
    """

    losses: Tensor

    def __init__(self, modules: list[nn.Module], counts: Tensor, present: Tensor, members: Tensor) -> None:
        self.modules, self.counts, self.present = modules, counts, present
        self.capture = ClusterCapture(modules, torch.searchsorted(present, members), self._deliver)
        # What a caught gradient is of: loss_scale * factors[k] * W times the cluster's mean loss.
        self._factors = torch.ones(len(present), dtype=torch.float64, device=present.device)
        self._loss_scale = torch.ones((), dtype=torch.float64, device=present.device)
        self._products = self._factors.new_zeros(len(present), len(present))  # (P, P)
        self._waiting: list[tuple[int, Tokens]] = []
        self._sketched: dict[int, Tensor] = {}
        self._sketch: tuple[int, int] | None = None

    @contextmanager
    def watch_forward(self) -> Iterator[None]:
        with self.capture.forward():
            yield

    def watch_backward(self, loss: Tensor, factors: Tensor, sketch: tuple[int, int] | None) -> None:
        """Catch gradients in the backward of ``loss`` = Σ ``factors``[k] W ℓ_k, whatever scales it later."""
        self._sketch, self._factors = sketch, factors.double()
        self.capture.watch_backward()
        loss.register_hook(self._set_loss_scale)  # type: ignore[no-untyped-call]

    def differentiate_once(self, loss: Tensor, sketch: tuple[int, int] | None) -> None:
        """Catch gradients of ``loss`` = Σ W ℓ_k by a backward of their own through the watched layers."""
        self._sketch = sketch
        self.capture.differentiate(loss)

    def differentiate_each(self, cluster_losses: Tensor, vectorized: bool) -> None:
        """Gradients of (P,) losses W ℓ_k by a call each, or by one vectorised call."""
        self.capture.drop()
        parameters = [parameter for module in self.modules for parameter in module.parameters()]
        oracle = gram_by_batched_call if vectorized else gram_by_calls
        self._products += oracle(cluster_losses, parameters)

    def gram(self) -> Tensor:
        """(K, K) ∇ℓ_i·∇ℓ_j in float64, 0 where a cluster is absent; on all processes, after the backward."""
        for index, tokens in sorted(self._waiting, key=lambda pair: pair[0]):
            self._products += module_gram(self.modules[index], tokens, len(self.present))
        self._waiting.clear()
        if self._sketch is not None:
            parts = [self._sketched[index] for index in sorted(self._sketched)]
            self._products += gram_of(torch.cat(parts, dim=1))
        factors = self._factors * self._loss_scale * world_size()
        inverse = torch.where(factors > 0, 1 / factors, 0.0)  # no gradient can be told from weight 0
        products = self._products * inverse[:, None] * inverse
        whole = products.new_zeros(len(self.counts), len(self.counts))
        whole[self.present[:, None], self.present] = products
        return whole

    def _deliver(self, index: int, tokens: Tokens) -> None:
        module, n_slots = self.modules[index], len(self.present)
        if self._sketch is not None:
            size, seed = self._sketch
            self._sketched[index] = sketched_gradients(module, tokens, n_slots, size, (seed, index))
        elif world_size() > 1:
            self._waiting.append((index, tokens))
        else:
            self._products += module_gram(module, tokens, n_slots)

    def _set_loss_scale(self, gradient: Tensor) -> None:
        self._loss_scale = gradient.detach().double()


class ClusterCapture:
    """Keeps the inputs and output gradients of chosen modules over one training step.

    For a layer y = x Wᵀ + b the gradient of cluster k's loss is D_kᵀ X_k, where X_k and D_k are the rows of x and of
    the gradient of y that come from cluster k's examples; the backward computes both anyway. Hooks are put on for the
    duration of a forward only, so nothing of this stays in the model.

    Args:
        modules: to watch; each takes (B, ..., in) and gives (B, ..., out), row b from example b.
        slots: (B,) the place of each example's cluster among the clusters of the batch.
        deliver: called once per module, with its index and :data:`Tokens`, as soon as the gradients of all its forwards
            are there.
    """

    def __init__(self, modules: list[nn.Module], slots: Tensor, deliver: Callable[[int, Tokens], None]) -> None:
        self.modules, self.slots, self.deliver = modules, slots, deliver
        self._forwards: list[list[tuple[Tensor, Tensor]]] = [[] for _ in modules]  # inputs and outputs
        self._arrived: list[list[Tokens]] = [[] for _ in modules]

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Watch the forwards in this block."""
        handles = [module.register_forward_hook(self._keep(i)) for i, module in enumerate(self.modules)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def drop(self) -> None:
        """Let go of what the forwards left."""
        self._forwards = [[] for _ in self.modules]

    def watch_backward(self) -> None:
        """Take the output gradients from the coming backward of the training loss."""
        for index, forwards in enumerate(self._forwards):
            for inputs, output in forwards:
                hook = self._take(index, inputs, len(forwards))
                output.register_hook(hook)  # type: ignore[no-untyped-call]
            self._forwards[index] = []

    def differentiate(self, loss: Tensor) -> None:
        """Take the output gradients from ``loss``, whose graph stays; only these modules are gone through."""
        pairs = [(index, *pair) for index, forwards in enumerate(self._forwards) for pair in forwards]
        gradients = torch.autograd.grad(loss, [output for *_, output in pairs], retain_graph=True)
        for (index, inputs, _), gradient in zip(pairs, gradients, strict=True):
            self._arrived[index].append(self._tokens(inputs, gradient))
        self.drop()
        for index in range(len(self.modules)):
            self._hand_over(index)

    def _keep(self, index: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if len(output) != len(self.slots):
                raise ValueError(
                    f"{type(module).__name__} gave {len(output)} rows for {len(self.slots)} examples; "
                    "cluster gradients need a model that keeps the batch as its first dimension"
                )
            if output.requires_grad:
                self._forwards[index].append((inputs[0].detach(), output))

        return hook

    def _take(self, index: int, inputs: Tensor, expected: int) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            self._arrived[index].append(self._tokens(inputs, gradient.detach()))
            if len(self._arrived[index]) == expected:
                self._hand_over(index)

        return hook

    def _tokens(self, inputs: Tensor, gradient: Tensor) -> Tokens:
        """Flat tokens, without those whose output gradient is zero: padding, and in the last layer of a [CLS] encoder
        most others. They add nothing to any cluster's gradient.
        """
        slots = self.slots.view(-1, *[1] * (gradient.ndim - 2)).expand(gradient.shape[:-1])
        used = (gradient != 0).any(dim=-1)
        return inputs[used], gradient[used], slots[used]

    def _hand_over(self, index: int) -> None:
        arrived, self._arrived[index] = self._arrived[index], []
        if arrived:
            inputs, gradients, slots = (torch.cat(parts) for parts in zip(*arrived, strict=True))
            self.deliver(index, (inputs, gradients, slots))


def module_gram(module: nn.Module, tokens: Tokens, n_slots: int, reduce: Reduce = sum_over_ranks) -> Tensor:
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
        return gram_of(_layer_norm_gradients(module, tokens, n_slots), reduce)
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
        gram += gram_of(formed.flatten(1), reduce)
    if module.bias is not None:
        gram += gram_of(_sums(gradients, slots[order], n_slots), reduce)
    return gram


def gram_of(vectors: Tensor, reduce: Reduce = sum_over_ranks) -> Tensor:
    """(P, s) gradients or sketches, of which each process has a part, to (P, P) float64 inner products."""
    wide = vectors if vectors.dtype == torch.float64 else vectors.float()
    reduce(wide)
    return (wide @ wide.T).double()


def sketched_gradients(module: nn.Module, tokens: Tokens, n_slots: int, size: int, seed: tuple[int, int]) -> Tensor:
    """A small random image of each cluster's gradient, whose inner products are right in expectation.

    Inputs and output gradients of a Linear are projected to ``size`` dimensions each by Gaussian matrices of variance
    1/size, so G_k = D_kᵀ X_k becomes (size, size); LayerNorms and biases are kept whole.

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


@lru_cache(maxsize=1024)
def _projection(width: int, size: int, seed: tuple[int, int, int]) -> Tensor:
    number, module, side = seed
    generator = torch.Generator().manual_seed((number * 1_000_003 + module) * 2 + side)
    matrix: Tensor = torch.randn(width, size, generator=generator) / size**0.5
    return matrix


def _outer_sums(left: Tensor, right: Tensor, slots: Tensor, n_slots: int) -> Tensor:
    """(T, a) and (T, b) to (P, a b): the sum of outer products over each cluster's tokens."""
    order = slots.argsort(stable=True)
    sizes = torch.bincount(slots, minlength=n_slots).tolist()
    pairs = zip(torch.split(left[order], sizes), torch.split(right[order], sizes), strict=True)
    return torch.stack([(a.T @ b).flatten() for a, b in pairs])


def _layer_norm_gradients(module: nn.LayerNorm, tokens: Tokens, n_slots: int) -> Tensor:
    """(P, 2 d): weight and bias."""
    inputs, gradients, slots = tokens
    wide = gradients if gradients.dtype == torch.float64 else gradients.float()
    normal = nn.functional.layer_norm(inputs.to(wide.dtype), module.normalized_shape, eps=module.eps)
    return torch.cat([_sums(wide * normal, slots, n_slots), _sums(wide, slots, n_slots)], dim=1)


def _sums(rows: Tensor, slots: Tensor, n_slots: int) -> Tensor:
    """(T, d) to (P, d): the sum over each cluster's tokens."""
    wide = rows if rows.dtype == torch.float64 else rows.float()
    return wide.new_zeros(n_slots, rows.shape[1]).index_add_(0, slots, wide)


def gram_by_calls(cluster_losses: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """One gradient call for each of P cluster losses: (P, P) inner products in float64.

    Holds P copies of the parameters' gradients.

    Args:
        cluster_losses: (P,), in whose graph the parameters stand; the graph stays.
        parameters: what to differentiate by; those that no loss depends on count as zero.

    Source: COCO-DR, appendix E, and its published code.
    """
    rows = [
        _flat(torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True), parameters, ())
        for loss in cluster_losses
    ]
    return gram_of(torch.stack(rows))


def gram_by_batched_call(cluster_losses: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The same by one vectorised call (``is_grads_batched``), under eager and sdpa attention."""
    each = torch.eye(len(cluster_losses), dtype=cluster_losses.dtype, device=cluster_losses.device)
    gradients = torch.autograd.grad(
        cluster_losses, parameters, each, retain_graph=True, allow_unused=True, is_grads_batched=True
    )
    return gram_of(_flat(gradients, parameters, (len(cluster_losses),)))


def _flat(gradients: tuple[Tensor | None, ...], parameters: Sequence[Tensor], batch: tuple[int, ...]) -> Tensor:
    parts = [
        (parameter.new_zeros(*batch, *parameter.shape) if gradient is None else gradient).flatten(len(batch))
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]
    return torch.cat(parts, dim=-1)
