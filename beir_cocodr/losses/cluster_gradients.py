"""Inner products of cluster gradients in one training step: the (K, K) matrix ∇ℓ_i·∇ℓ_j of iDRO.

:class:`ClusterStep` computes it exactly in the backward pass of training, or approximately from
random projections. :func:`gram_by_calls` makes one gradient call for each cluster, as the published
code does. It is slow, and the yardstick for the others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from beir_cocodr.distributed import sum_over_ranks, world_size
from beir_cocodr.errors import InputError

# Most bytes of cluster gradients that are held at a time. A larger module is worked on in blocks of
# its outputs.
_BLOCK = 128 << 20

# Layers whose gradients are compared by default: as published for a base model of 12 layers, and as
# published for a large one.
_BASE_LAYERS = 12
_LAYERS_OF_BASE = 3
_LAYERS_OF_OTHERS = 2


class Tokens(NamedTuple):
    """The tokens of one module over all its forwards.

    Attributes:
        inputs: (T, in) inputs of the module.
        gradients: (T, out) gradients of its outputs.
        slots: (T,) slot of each token's cluster among the P clusters of the batch.
    """

    inputs: Tensor
    gradients: Tensor
    slots: Tensor


class Sketch(NamedTuple):
    """The size and the seed of random projections, see :func:`sketched_gradients`."""

    size: int
    seed: int


def selected_modules(model: Any, layers: int | None = None) -> dict[str, nn.Module]:
    """Return the Linear and LayerNorm modules of the backbone's last layers, by name.

    Args:
        model: The encoder.
        layers: Number of last layers. Default: 3 of 12, as published for a base model, else 2, as
            published for a large one.

    Raises:
        InputError: The backbone has fewer layers, recomputes its activations, or has parameters
            outside of these modules.
    """
    backbone = model.transformers_model
    stacks = [module for module in backbone.modules() if isinstance(module, nn.ModuleList)]
    stack = max(stacks, key=len, default=nn.ModuleList())
    if layers is None:
        layers = _LAYERS_OF_OTHERS
        if len(stack) == _BASE_LAYERS:
            layers = _LAYERS_OF_BASE
    if not 1 <= layers <= len(stack):
        raise InputError(f"gradient_layers is {layers}; this encoder has {len(stack)} layers")
    if backbone.is_activation_checkpointing:
        raise InputError("cluster gradients need activations; turn gradient checkpointing off")
    start = len(stack) - layers
    selected: dict[str, nn.Module] = {}
    for index in range(start, len(stack)):
        for name, module in stack[index].named_modules():
            if isinstance(module, nn.Linear | nn.LayerNorm):
                selected[f"{index}.{name}"] = module
    _check_covered(backbone, stack[start:], selected)
    return selected


def _check_covered(
    backbone: nn.Module,
    layers: nn.ModuleList,
    selected: dict[str, Any],
) -> None:
    """Check that the selected modules hold all parameters of some layers."""
    covered = {id(weight) for module in selected.values() for weight in module.parameters()}
    if any(id(weight) not in covered for weight in layers.parameters()):
        raise InputError(
            f"{type(backbone).__name__} has parameters outside of Linear and LayerNorm modules in "
            "its last layers, so its cluster gradients cannot be computed; "
            "use the weighting groupdro, cvar or erm"
        )


class ClusterStep:
    """One training step, from its forward to the inner products of all pairs of cluster gradients.

    For a layer y = x Wᵀ + b, the gradient of cluster k's loss is D_kᵀ X_k, where X_k and D_k are
    the rows of x and of the gradient of y that come from cluster k's examples. The backward pass
    computes both anyway, and hooks keep them. The hooks are on the modules during a forward only,
    so nothing stays in the model.

    On one process, a module's share of the products is computed as soon as the backward pass has
    left it, and its inputs and gradients are released. On several processes, exact gradients wait
    for the end of the backward pass, so that their reduction does not interfere with that of the
    training gradients.

    Args:
        modules: Modules whose parameters count. Each maps (B, ..., in) to (B, ..., out), row b from
            example b.
        counts: (K,) examples of each cluster in the batch of all processes.
        present: (P,) clusters with examples.
        members: (B,) clusters of this process's examples.
        sketch: Size and seed of random projections. Default: exact gradients.
    """

    losses: Tensor

    def __init__(
        self,
        modules: list[nn.Module],
        counts: Tensor,
        present: Tensor,
        members: Tensor,
        sketch: Sketch | None = None,
    ) -> None:
        """Prepare to watch a forward."""
        self.modules = modules
        self.counts = counts
        self.present = present
        self.sketch = sketch
        self._slots = torch.searchsorted(present, members)  # (B,)
        # For each module, the inputs and outputs of its forwards.
        self._forwards: list[list[tuple[Tensor, Tensor]]] = [[] for _ in modules]
        self._arrived: list[list[Tokens]] = [[] for _ in modules]
        self._waiting: dict[int, Tokens] = {}
        self._sketched: dict[int, Tensor] = {}
        # A watched gradient is that of loss_scale * factors[k] * W times the cluster's mean loss.
        self._factors = torch.ones(len(present), dtype=torch.float64, device=present.device)
        self._loss_scale = torch.ones((), dtype=torch.float64, device=present.device)
        self._products = self._factors.new_zeros(len(present), len(present))  # (P, P)

    @contextmanager
    def watch_forward(self) -> Iterator[None]:
        """Watch the forwards in this block."""
        handles: list[RemovableHandle] = []
        for index, module in enumerate(self.modules):
            handles.append(module.register_forward_hook(partial(self._keep, index)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def watch_backward(self, loss: Tensor, factors: Tensor) -> None:
        """Watch the backward pass of a loss.

        Args:
            loss: Σ ``factors``[k] W ℓ_k; whatever scales it later is taken into account.
            factors: (P,) factors of the clusters in the loss.
        """
        self._factors = factors.double()
        for index, forwards in enumerate(self._forwards):
            for inputs, output in forwards:
                hook = partial(self._take, index, inputs, len(forwards))
                output.register_hook(hook)  # type: ignore[no-untyped-call]
        self._forwards.clear()
        loss.register_hook(self._set_loss_scale)  # type: ignore[no-untyped-call]

    def differentiate_once(self, loss: Tensor) -> None:
        """Differentiate ``loss`` = Σ W ℓ_k in a backward pass through the watched layers alone."""
        indexes: list[int] = []
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        for index, forwards in enumerate(self._forwards):
            for module_inputs, output in forwards:
                indexes.append(index)
                inputs.append(module_inputs)
                outputs.append(output)
        self._forwards.clear()
        gradients = torch.autograd.grad(loss, outputs, retain_graph=True)
        for index, module_inputs, gradient in zip(indexes, inputs, gradients, strict=True):
            self._arrived[index].append(self._tokens(module_inputs, gradient))
        for index, arrived in enumerate(self._arrived):
            if arrived:
                self._compare(index)

    def differentiate_each(self, cluster_losses: Tensor) -> None:
        """Differentiate each of the (P,) losses W ℓ_k by a call of its own."""
        self._forwards.clear()
        parameters = [weight for module in self.modules for weight in module.parameters()]
        self._products += gram_by_calls(cluster_losses, parameters)

    def gram(self) -> Tensor:
        """Return the (K, K) products ∇ℓ_i·∇ℓ_j in float64, 0 where a cluster is absent.

        Call it on all processes, after the backward pass.
        """
        for index in sorted(self._waiting):
            tokens = self._waiting[index]
            self._products += module_gram(self.modules[index], tokens, len(self.present))
        self._waiting.clear()
        if self.sketch is not None:
            parts = [self._sketched[index] for index in sorted(self._sketched)]
            self._products += gram_of(torch.cat(parts, dim=1))
        factors = self._factors * self._loss_scale * world_size()
        # A factor of 0 leaves nothing of a gradient.
        inverse = torch.where(factors > 0, 1 / factors, 0.0)
        gram = self._products.new_zeros(len(self.counts), len(self.counts))
        rows = self.present[:, None]
        gram[rows, self.present] = self._products * inverse[:, None] * inverse
        return gram

    def _keep(
        self,
        index: int,
        module: nn.Module,
        inputs: tuple[Any, ...],
        output: Tensor,
    ) -> None:
        """Keep the inputs and the output of a forward; a forward hook."""
        if len(output) != len(self._slots):
            raise ValueError(
                f"{type(module).__name__} returned {len(output)} rows for {len(self._slots)} "
                "examples; cluster gradients need a model whose first dimension is the batch"
            )
        if output.requires_grad:
            self._forwards[index].append((inputs[0].detach(), output))

    def _take(
        self,
        index: int,
        inputs: Tensor,
        forwards: int,
        gradient: Tensor,
    ) -> None:
        """Take the gradient of one of the module's ``forwards`` outputs; a backward hook."""
        self._arrived[index].append(self._tokens(inputs, gradient.detach()))
        if len(self._arrived[index]) == forwards:
            self._compare(index)

    def _tokens(self, inputs: Tensor, gradient: Tensor) -> Tokens:
        """Return the flat tokens that have an output gradient.

        Padding has none, nor have most tokens in the last layer of a [CLS] encoder.
        """
        ones = [1] * (gradient.ndim - 2)
        slots = self._slots.view(-1, *ones).expand(gradient.shape[:-1])
        used = (gradient != 0).any(dim=-1)
        return Tokens(
            inputs=inputs[used],
            gradients=gradient[used],
            slots=slots[used],
        )

    def _compare(self, index: int) -> None:
        """Use the gradients of a module after all have arrived."""
        forwards = self._arrived[index]
        self._arrived[index] = []
        tokens = Tokens(
            inputs=torch.cat([tokens.inputs for tokens in forwards]),
            gradients=torch.cat([tokens.gradients for tokens in forwards]),
            slots=torch.cat([tokens.slots for tokens in forwards]),
        )
        module = self.modules[index]
        n_slots = len(self.present)
        if self.sketch is not None:
            seed = (self.sketch.seed, index)
            self._sketched[index] = sketched_gradients(
                module, tokens, n_slots, self.sketch.size, seed
            )
        elif world_size() > 1:
            self._waiting[index] = tokens
        else:
            self._products += module_gram(module, tokens, n_slots)

    def _set_loss_scale(self, gradient: Tensor) -> None:
        self._loss_scale = gradient.detach().double()


def module_gram(
    module: nn.Module,
    tokens: Tokens,
    n_slots: int,
) -> Tensor:
    """Return the exact products of cluster gradients with respect to one module's parameters.

    The gradients themselves are computed in blocks of at most 128 MiB and discarded.

    Args:
        module: A Linear or a LayerNorm.
        tokens: The module's tokens.
        n_slots: P, the number of clusters in the batch.

    Returns:
        (P, P) inner products in float64.
    """
    if isinstance(module, nn.LayerNorm):
        return gram_of(_layer_norm_gradients(module, tokens, n_slots))
    inputs, gradients, slots = tokens
    gram = torch.zeros(n_slots, n_slots, dtype=torch.float64, device=gradients.device)
    order, sizes = _by_slot(slots, n_slots)
    rows = torch.split(inputs[order].to(gradients.dtype), sizes)
    bytes_per_output = n_slots * inputs.shape[1] * _wide(gradients[:0]).itemsize
    outputs = max(1, _BLOCK // bytes_per_output)
    for block in torch.split(gradients[order], outputs, dim=1):
        gram += gram_of(_outer_sums(torch.split(block, sizes), rows))
    if module.bias is not None:
        gram += gram_of(_sums(gradients, slots, n_slots))
    return gram


def gram_of(vectors: Tensor) -> Tensor:
    """Return the (P, P) float64 inner products of (P, s) vectors, summed over the processes."""
    wide = _wide(vectors)
    sum_over_ranks(wide)
    return (wide @ wide.T).double()


def sketched_gradients(
    module: nn.Module,
    tokens: Tokens,
    n_slots: int,
    size: int,
    seed: tuple[int, int],
) -> Tensor:
    """Return small random images of cluster gradients, whose products are right in expectation.

    Inputs and output gradients of a Linear are projected to ``size`` dimensions each by Gaussian
    matrices of variance 1/size, so that G_k = D_kᵀ X_k becomes (size, size). LayerNorms and biases
    are not projected.

    Args:
        module: A Linear or a LayerNorm.
        tokens: The module's tokens.
        n_slots: P, the number of clusters in the batch.
        size: Dimensions of the projections.
        seed: A seed and the number of the module. The projections are the same on every process
            and in every step.

    Returns:
        (P, s), where s is size² + out for a Linear with bias and 2 d for a LayerNorm.
    """
    if isinstance(module, nn.LayerNorm):
        return _layer_norm_gradients(module, tokens, n_slots)
    inputs, gradients, slots = tokens
    left_projection = _projection(gradients.shape[1], size, (*seed, 0))
    right_projection = _projection(inputs.shape[1], size, (*seed, 1))
    left = gradients @ left_projection.to(gradients)
    right = inputs.to(gradients.dtype) @ right_projection.to(gradients)
    order, sizes = _by_slot(slots, n_slots)
    left_of = torch.split(left[order], sizes)
    right_of = torch.split(right[order], sizes)
    parts = [_outer_sums(left_of, right_of)]
    if module.bias is not None:
        parts.append(_sums(gradients, slots, n_slots))
    return torch.cat(parts, dim=1)


def gram_by_calls(cluster_losses: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the products of the gradients of (P,) cluster losses by one gradient call for each.

    P copies of the gradients are held. The graph stays.

    Args:
        cluster_losses: (P,) losses.
        parameters: Parameters that count. Those that a loss does not depend on count as zero.

    Returns:
        (P, P) inner products in float64.

    References:
        COCO-DR, appendix E, and its published code.
    """
    rows: list[Tensor] = []
    for loss in cluster_losses:
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return gram_of(torch.stack(rows))


@lru_cache(maxsize=1024)
def _projection(
    width: int,
    size: int,
    seed: tuple[int, int, int],
) -> Tensor:
    number, module, side = seed
    number_of_matrix = (number * 1_000_003 + module) * 2 + side
    generator = torch.Generator().manual_seed(number_of_matrix)
    matrix: Tensor = torch.randn(width, size, generator=generator) / size**0.5
    return matrix


def _wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float32, or wider where it is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _by_slot(slots: Tensor, n_slots: int) -> tuple[Tensor, list[int]]:
    """Return the order that groups tokens by cluster, and the number of tokens of each cluster."""
    order = slots.argsort(stable=True)
    sizes = torch.bincount(slots, minlength=n_slots)
    return order, sizes.tolist()


def _outer_sums(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Return the sums of outer products over each cluster's tokens.

    Args:
        left: (T_k, a) for each cluster k.
        right: (T_k, b) for each cluster k.

    Returns:
        (P, a b).
    """
    first = left[0]
    shape = (len(left), first.shape[1], right[0].shape[1])
    sums = _wide(first[:0]).new_zeros(shape)
    for cluster, (a, b) in enumerate(zip(left, right, strict=True)):
        if len(a):
            sums[cluster] = a.T @ b
    return sums.flatten(1)


def _layer_norm_gradients(
    module: nn.LayerNorm,
    tokens: Tokens,
    n_slots: int,
) -> Tensor:
    """Return the (P, 2 d) gradients of a LayerNorm's weight and bias."""
    gradients = _wide(tokens.gradients)
    inputs = tokens.inputs.to(gradients.dtype)
    normal = nn.functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)
    of_weight = _sums(gradients * normal, tokens.slots, n_slots)
    of_bias = _sums(gradients, tokens.slots, n_slots)
    return torch.cat([of_weight, of_bias], dim=1)


def _sums(
    rows: Tensor,
    slots: Tensor,
    n_slots: int,
) -> Tensor:
    """Return the (P, d) sums of (T, d) rows over each cluster's tokens."""
    wide = _wide(rows)
    return wide.new_zeros(n_slots, rows.shape[1]).index_add_(0, slots, wide)
