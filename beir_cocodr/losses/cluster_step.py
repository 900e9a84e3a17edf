"""The cluster gradients of one training step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from beir_cocodr.losses.cluster_capture import ClusterCapture, Tokens
from beir_cocodr.losses.cluster_gradients import gram_by_batched_call, gram_by_calls
from beir_cocodr.losses.cluster_gram import gram_of, module_gram, sketched_gradients
from beir_cocodr.ranks import sum_over_ranks, world_size


class ClusterStep:
    """From a watched forward to the inner products of all pairs of cluster gradients.

    On one process a module's share of them is worked out as soon as the backward has left it, and its inputs
    and output gradients are let go. On several, exact gradients wait for the end of the backward, so that
    their reduction does not come between that of the training gradients.

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
        self._products += oracle(cluster_losses, parameters, sum_over_ranks)

    def gram(self) -> Tensor:
        """(K, K) ∇ℓ_i·∇ℓ_j in float64, 0 where a cluster is absent; on all processes, after the backward."""
        for index, tokens in sorted(self._waiting, key=lambda pair: pair[0]):
            self._products += module_gram(self.modules[index], tokens, len(self.present), sum_over_ranks)
        self._waiting.clear()
        if self._sketch is not None:
            parts = [self._sketched[index] for index in sorted(self._sketched)]
            self._products += gram_of(torch.cat(parts, dim=1), sum_over_ranks)
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
            self._products += module_gram(module, tokens, n_slots, sum_over_ranks)

    def _set_loss_scale(self, gradient: Tensor) -> None:
        self._loss_scale = gradient.detach().double()
