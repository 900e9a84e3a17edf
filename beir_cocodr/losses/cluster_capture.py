"""What the training backward tells about every cluster's gradient, without a backward of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

#: Of one module, over all forwards: (T, in) inputs, (T, out) output gradients and (T,) slots of the tokens.
Tokens = tuple[Tensor, Tensor, Tensor]


class ClusterCapture:
    """Keeps the inputs and output gradients of chosen modules over one training step.

    For a layer y = x Wᵀ + b the gradient of cluster k's loss is D_kᵀ X_k, where X_k and D_k are the rows of x
    and of the gradient of y that come from cluster k's examples; the backward computes both anyway. Hooks
    are put on for the duration of a forward only, so nothing of this stays in the model.

    Args:
        modules: to watch; each takes (B, ..., in) and gives (B, ..., out), row b from example b.
        slots: (B,) the place of each example's cluster among the clusters of the batch.
        deliver: called once per module, with its index and :data:`Tokens`, as soon as the gradients of all
            its forwards are there.
    """

    def __init__(
        self, modules: list[nn.Module], slots: Tensor, deliver: Callable[[int, Tokens], None]
    ) -> None:
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
        """Flat tokens, without those whose output gradient is zero: padding, and in the last layer of a
        [CLS] encoder most others. They add nothing to any cluster's gradient."""
        slots = self.slots.view(-1, *[1] * (gradient.ndim - 2)).expand(gradient.shape[:-1])
        used = (gradient != 0).any(dim=-1)
        return inputs[used], gradient[used], slots[used]

    def _hand_over(self, index: int) -> None:
        arrived, self._arrived[index] = self._arrived[index], []
        if arrived:
            inputs, gradients, slots = (torch.cat(parts) for parts in zip(*arrived, strict=True))
            self.deliver(index, (inputs, gradients, slots))
