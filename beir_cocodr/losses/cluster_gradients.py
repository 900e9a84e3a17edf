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

# Most bytes of the examples' gradients that are held at a time. A larger module is worked on in
# blocks of its outputs.
_BLOCK = 256 << 20

# Set where torch returns the products of 16-bit matrices in float32, from 2.8 on; its CPU never
# does.
_HAS_WIDE_PRODUCT = hasattr(torch.ops.aten.bmm, "dtype")

# Layers whose gradients are compared by default: as published for a base model of 12 layers, and as
# published for a large one.
_BASE_LAYERS = 12
_LAYERS_OF_BASE = 3
_LAYERS_OF_OTHERS = 2


class Tokens(NamedTuple):
    """The tokens of one module over all its forwards.

    Attributes:
        inputs: (B, L, in) inputs of the module, row b from example b.
        gradients: (B, L, out) gradients of its outputs.
    """

    inputs: Tensor
    gradients: Tensor


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
    if any(getattr(module, "gradient_checkpointing", False) for module in backbone.modules()):
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
    covered: set[int] = set()
    for module in selected.values():
        covered.update(id(weight) for weight in module.parameters())
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
    computes both anyway, and hooks keep them. One batched product makes the gradients of all
    examples, and one more adds them by cluster, so that a step takes few kernels, whatever the
    number of clusters. Both are in float32 under any autocast. The hooks are on the modules during
    a forward only, so nothing stays in the model.

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
        self._membership = membership(members, present)  # (P, B)
        # For each module, the inputs and outputs of its forwards.
        self._forwards: list[list[tuple[Tensor, Tensor]]] = [[] for _ in modules]
        self._arrived: list[list[Tokens]] = [[] for _ in modules]
        self._waiting: dict[int, Tokens] = {}
        # For each module, (B, s) gradients of the examples that are small enough to be held.
        self._vectors: dict[int, list[Tensor]] = {}
        self._grams = [self._membership.new_zeros(len(present), len(present))]
        # A watched gradient is that of loss_scale * factors[k] * W times the cluster's mean loss.
        self._factors = torch.ones(len(present), dtype=torch.float64, device=present.device)
        self._loss_scale = torch.ones((), dtype=torch.float64, device=present.device)

    @contextmanager
    def watch_forward(self) -> Iterator[None]:
        """Watch the forwards in this block."""
        handles: list[RemovableHandle] = []
        for index, module in enumerate(self.modules):
            hook = partial(self._keep, index)
            handles.append(module.register_forward_hook(hook))
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
        forwards_of_modules = zip(indexes, inputs, gradients, strict=True)
        for index, module_inputs, gradient in forwards_of_modules:
            tokens = _tokens(module_inputs, gradient)
            self._arrived[index].append(tokens)
        for index, arrived in enumerate(self._arrived):
            if arrived:
                self._compare(index)

    def differentiate_each(self, cluster_losses: Tensor) -> None:
        """Differentiate each of the (P,) losses W ℓ_k by a call of its own."""
        self._forwards.clear()
        parameters: list[Tensor] = []
        for module in self.modules:
            parameters += module.parameters()
        gram = gram_by_calls(cluster_losses, parameters)
        self._grams.append(gram)

    def gram(self) -> Tensor:
        """Return the (K, K) products ∇ℓ_i·∇ℓ_j in float64, 0 where a cluster is absent.

        Call it on all processes, after the backward pass.
        """
        with torch.autocast(self.present.device.type, enabled=False):
            products = self._sum_products()  # (P, P)
        factors = self._factors * self._loss_scale * world_size()
        # A factor of 0 leaves nothing of a gradient.
        inverse = torch.where(factors > 0, 1 / factors, 0.0)
        clusters = len(self.counts)
        gram = products.new_zeros(clusters, clusters)
        rows = self.present[:, None]
        columns = self.present
        gram[rows, columns] = products * inverse[:, None] * inverse
        return gram

    def _sum_products(self) -> Tensor:
        """Return the (P, P) products over all parameters, of gradients as they were watched."""
        for index in sorted(self._waiting):
            tokens = self._waiting[index]
            self._grams += weight_grams(tokens, self._membership)
        self._waiting.clear()
        vectors: list[Tensor] = []
        for index in sorted(self._vectors):
            vectors += self._vectors[index]
        if vectors:
            of_examples = torch.cat(vectors, dim=1)  # (B, s)
            of_clusters = cluster_sums(of_examples, self._membership)  # (P, s)
            self._grams.append(gram_of(of_clusters))
        grams = torch.stack(self._grams)
        return grams.sum(dim=0, dtype=torch.float64)

    def _keep(
        self,
        index: int,
        module: nn.Module,
        inputs: tuple[Any, ...],
        output: Tensor,
    ) -> None:
        """Keep the inputs and the output of a forward; a forward hook."""
        examples = self._membership.shape[1]
        if len(output) != examples:
            raise ValueError(
                f"{type(module).__name__} returned {len(output)} rows for {examples} examples; "
                " cluster gradients need a model whose first dimension is the batch"
            )
        if output.requires_grad:
            forward = (inputs[0].detach(), output)
            self._forwards[index].append(forward)

    def _take(
        self,
        index: int,
        inputs: Tensor,
        forwards: int,
        gradient: Tensor,
    ) -> None:
        """Take the gradient of one of the module's ``forwards`` outputs; a backward hook."""
        arrived = self._arrived[index]
        arrived.append(_tokens(inputs, gradient.detach()))
        if len(arrived) == forwards:
            self._compare(index)

    def _compare(self, index: int) -> None:
        """Use the gradients of a module after all have arrived."""
        forwards = self._arrived[index]
        self._arrived[index] = []
        # The backward pass may run under the autocast of the forward.
        with torch.autocast(self.present.device.type, enabled=False):
            tokens = Tokens(
                inputs=torch.cat([tokens.inputs for tokens in forwards], dim=1),
                gradients=torch.cat([tokens.gradients for tokens in forwards], dim=1),
            )
            module = self.modules[index]
            vectors = vector_gradients(module, tokens)
            if isinstance(module, nn.Linear):
                vectors += self._compare_weights(index, tokens)
            self._vectors[index] = vectors

    def _compare_weights(self, index: int, tokens: Tokens) -> list[Tensor]:
        """Use the weight gradients of a Linear, and return their sketch if one is wanted."""
        if self.sketch is not None:
            sketched = sketched_gradients(
                tokens,
                size=self.sketch.size,
                seed=self.sketch.seed,
                module=index,
            )
            return [sketched]
        if world_size() > 1:
            self._waiting[index] = tokens
        else:
            self._grams += weight_grams(tokens, self._membership)
        return []

    def _set_loss_scale(self, gradient: Tensor) -> None:
        self._loss_scale = gradient.detach().double()


def membership(members: Tensor, present: Tensor) -> Tensor:
    """Return (P, B) float32: 1 where an example is of a cluster, else 0.

    A product with it sums over the examples of each cluster, in the same order on every run.

    Args:
        members: (B,) clusters of the examples.
        present: (P,) clusters of the batch.
    """
    return (present[:, None] == members).float()


def cluster_sums(vectors: Tensor, members: Tensor) -> Tensor:
    """Return the (P, s) sums of (B, s) vectors over the examples of each cluster.

    Args:
        vectors: (B, s), in float32 or wider.
        members: (P, B) as :func:`membership` returns it.
    """
    return members.to(vectors.dtype) @ vectors


def _tokens(inputs: Tensor, gradient: Tensor) -> Tokens:
    """Return the tokens of a forward as (B, L, in) and (B, L, out).

    Padding at the end of the texts has no output gradient, nor have most tokens in the last layer
    of a [CLS] encoder. On the CPU, the positions after the last one with a gradient are left out.
    """
    examples = len(gradient)
    inputs = inputs.reshape(examples, -1, inputs.shape[-1])
    gradient = gradient.reshape(examples, -1, gradient.shape[-1])
    if _can_read(gradient.device):
        largest = torch.linalg.vector_norm(gradient, ord=torch.inf, dim=(0, 2))  # (L,)
        used = largest.nonzero()
        length = 0
        if len(used):
            length = int(used[-1]) + 1
        inputs = inputs[:, :length]
        gradient = gradient[:, :length]
    return Tokens(inputs, gradient)


def _can_read(device: torch.device) -> bool:
    """Return whether values can be read at no cost. A GPU would have to finish its work first."""
    return device.type == "cpu"


def weight_grams(tokens: Tokens, members: Tensor) -> list[Tensor]:
    """Return the exact products of cluster gradients with respect to the weight of a Linear.

    The gradients themselves are computed in blocks of outputs, of at most 256 MiB for the examples,
    and discarded.

    Args:
        tokens: The tokens of the module.
        members: (P, B) as :func:`membership` returns it.

    Returns:
        (P, P) inner products of each block, in float32 or wider.
    """
    inputs, gradients = tokens
    examples, _, width = inputs.shape
    bytes_per_output = examples * width * _wide_type(gradients).itemsize
    outputs = max(1, _BLOCK // bytes_per_output)
    grams: list[Tensor] = []
    for block in torch.split(gradients, outputs, dim=2):
        of_examples = _outer_sums(block, inputs.to(gradients.dtype))  # (B, outputs, in)
        of_clusters = cluster_sums(of_examples.flatten(1), members)
        grams.append(gram_of(of_clusters))
        del of_examples, of_clusters  # before those of the next block are made
    return grams


def gram_of(vectors: Tensor) -> Tensor:
    """Return the (P, P) inner products of (P, s) vectors, summed over the processes.

    The vectors and the products are in float32 or wider.
    """
    sum_over_ranks(vectors)
    return vectors @ vectors.T


def vector_gradients(module: nn.Module, tokens: Tokens) -> list[Tensor]:
    """Return the gradients of the examples with respect to a module's vectors.

    Args:
        module: A Linear or a LayerNorm.
        tokens: The tokens of the module.

    Returns:
        (B, d) for the weight of a LayerNorm and for a bias, in float32 or wider.
    """
    inputs, gradients = tokens
    wide = _wide_type(gradients)
    vectors: list[Tensor] = []
    if isinstance(module, nn.LayerNorm):
        normal = nn.functional.layer_norm(
            inputs.to(wide),
            module.normalized_shape,
            eps=module.eps,
        )
        vectors.append((gradients * normal).sum(dim=1))
    if module.bias is not None:
        vectors.append(gradients.sum(dim=1, dtype=wide))
    return vectors


def sketched_gradients(
    tokens: Tokens,
    size: int,
    seed: int,
    module: int,
) -> Tensor:
    """Return small random images of weight gradients, whose products are right in expectation.

    Inputs and output gradients of a Linear are projected to ``size`` dimensions each by Gaussian
    matrices of variance 1/size, so that an example's gradient Dᵀ X becomes (size, size).

    Args:
        tokens: The tokens of the module.
        size: Dimensions of the projections.
        seed: Seed of the projections, which are the same on every process and in every step.
        module: The number of the module.

    Returns:
        (B, size²), in float32 or wider.
    """
    inputs, gradients = tokens
    wide = _wide_type(gradients)
    device = gradients.device
    left_projection = _projection(
        gradients.shape[2],
        size,
        seed=(seed, module, 0),
        device=device,
    )
    right_projection = _projection(
        inputs.shape[2],
        size,
        seed=(seed, module, 1),
        device=device,
    )
    left = gradients.to(wide) @ left_projection.to(wide)
    right = inputs.to(wide) @ right_projection.to(wide)
    return _outer_sums(left, right).flatten(1)


def gram_by_calls(cluster_losses: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the products of the gradients of (P,) cluster losses by one gradient call for each.

    P copies of the gradients are held. The graph stays.

    Args:
        cluster_losses: (P,) losses.
        parameters: Parameters that count. Those that a loss does not depend on count as zero.

    Returns:
        (P, P) inner products in float32 or wider.

    References:
        COCO-DR, appendix E, and its published code.
    """
    rows: list[Tensor] = []
    for loss in cluster_losses:
        gradients = torch.autograd.grad(
            loss,
            parameters,
            retain_graph=True,
            materialize_grads=True,
        )
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return gram_of(_widened(torch.stack(rows)))


@lru_cache(maxsize=1024)
def _projection(
    width: int,
    size: int,
    seed: tuple[int, int, int],
    device: torch.device,
) -> Tensor:
    number, module, side = seed
    number_of_matrix = (number * 1_000_003 + module) * 2 + side
    generator = torch.Generator().manual_seed(number_of_matrix)
    normal = torch.randn(width, size, generator=generator)
    matrix: Tensor = normal / size**0.5
    return matrix.to(device)


def _wide_type(tensor: Tensor) -> torch.dtype:
    """Return float32, or the type of a tensor where that is wider."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _widened(tensor: Tensor) -> Tensor:
    """Return a tensor in float32, or wider where it is wider."""
    return tensor.to(_wide_type(tensor))


def _outer_sums(left: Tensor, right: Tensor) -> Tensor:
    """Return each example's sum of outer products over its tokens.

    Products and sums are in float32 or wider also for inputs of 16 bits.

    Args:
        left: (B, L, a).
        right: (B, L, b), of the same type.

    Returns:
        (B, a, b).
    """
    wide = _wide_type(left)
    if left.dtype != wide and not left.is_cpu and _HAS_WIDE_PRODUCT:
        # Tensor cores multiply 16 bits exactly and add in float32.
        return torch.bmm(left.mT, right, out_dtype=wide)
    return torch.bmm(left.to(wide).mT, right.to(wide))
