"""What losses share that embed a batch at once, or part by part with gradient caching."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from torch import Tensor

#: The columns of a batch, as the tokenizer gives them.
Columns = list[dict[str, Tensor]]


class OptionalGradientCache(CachedLossMixin):
    """A loss that caches gradients if it is given the size of a mini-batch.

    Its ``calculate_loss`` takes the embeddings of all columns and ends with :meth:`finished`.

    References:
        Gao et al., 2021: Scaling deep contrastive learning batch size under memory limited setup.
    """

    model: Any

    def set_mini_batch(self, size: int | None) -> None:
        """Set the number of texts that are embedded at a time; None embeds all, without caching."""
        # The host reads all three. A size of 0 means no caching, and MatryoshkaLoss patches a loss
        # in another way if it caches.
        self.cached = size is not None
        self.uses_gradient_cache = self.cached
        self.mini_batch_size = size or 0

    def loss_of(self, columns: Columns, labels: Tensor | None) -> Tensor:
        """Embed the columns, and return their loss."""
        if self.cached:
            cached_loss: Tensor = self.forward_cached(columns, labels)
            return cached_loss
        embeddings = [[self.model(column)["sentence_embedding"]] for column in columns]
        loss: Tensor = self.calculate_loss(embeddings, labels)
        return loss

    @staticmethod
    def finished(loss: Tensor, with_backward: bool) -> Tensor:
        """Return the loss; with a backward pass, which is run here, a detached one."""
        if with_backward:
            torch.autograd.backward(loss)
            loss = loss.detach()
        return loss
