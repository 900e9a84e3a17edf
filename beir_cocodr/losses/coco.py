"""Contrastive loss over two spans of each document, with the language-model losses beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from torch import Tensor, nn

from beir_cocodr.data.masking import IGNORED


def coco_contrastive_loss(embeddings: Tensor, scale: float = 1.0, normalize: bool = False) -> Tensor:
    """Each span has to find the other span of its document among all spans of the batch.

    With S = scale * C Cᵀ, the diagonal set to −∞, and row i's target i xor 1, the cross entropy averaged
    over all rows, so over both directions. Identical embeddings give exactly ln(2B − 1).

    Args:
        embeddings: C, (2B, d); rows 2i and 2i + 1 come from document i.
        scale: factor on the scores, an inverse temperature (paper: 1).
        normalize: compare by cosine instead of dot product.

    Returns:
        A scalar.

    Source: COCO-DR, Eq. 1.
    """
    vectors = F.normalize(embeddings, dim=-1) if normalize else embeddings
    scores = scale * (vectors @ vectors.T).float()  # (2B, 2B)
    itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    targets = torch.arange(len(scores), device=scores.device) ^ 1
    return F.cross_entropy(scores.masked_fill(itself, -torch.inf), targets)


class COCOLoss(CachedLossMixin, nn.Module):
    """COCO: the contrastive loss above plus the masked-language-model losses of a training head.

    Where the model ends in a :class:`~beir_cocodr.models.condenser.CondenserHead` and the features carry
    ``mlm_labels``, the last column of each embedding is that sequence's summed language-model loss. Summed
    over the batch and divided by the number of masked tokens of the whole batch, it is added with weight
    ``mlm_weight``, so that gradient caching leaves its weight unchanged.

    Args:
        model: the encoder, with or without the head.
        scale: factor on the scores; by default 20 for cosine models and 1 for dot-product models.
        mini_batch_size: sequences embedded at a time by gradient caching; None embeds all at once.
        mlm_weight: weight of the language-model losses (paper: 1).

    Requirements:
        Two columns of texts, row i of both from document i. Labels are ignored.

    References:
        COCO-DR, section 4.1, Eq. 1 and 2; gradient caching: Gao et al., 2021.
    """

    def __init__(
        self,
        model: Any,
        scale: float | None = None,
        mini_batch_size: int | None = None,
        mlm_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.normalize = model.similarity_fn_name == "cosine"
        self.scale = (20.0 if self.normalize else 1.0) if scale is None else scale
        self.cached = mini_batch_size is not None
        self.mini_batch_size = mini_batch_size or 0
        self.mlm_weight = mlm_weight
        self._masked_tokens: int | None = None

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        columns = list(sentence_features)
        if len(columns) != 2:
            raise ValueError(f"COCO takes two columns of spans, got {len(columns)}")
        masked = [(column["mlm_labels"] != IGNORED).sum() for column in columns if "mlm_labels" in column]
        self._masked_tokens = int(sum(masked)) if masked else None
        if self.cached:
            return self.forward_cached(columns, labels)
        return self.calculate_loss([[self.model(column)["sentence_embedding"]] for column in columns])

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        first, second = (torch.cat(column) for column in reps)  # (B, d) or (B, d + 1) each
        sequences = torch.stack([first, second], dim=1).flatten(0, 1)  # (2B, ...)
        if self._masked_tokens is None:
            loss = coco_contrastive_loss(sequences, self.scale, self.normalize)
        else:
            loss = coco_contrastive_loss(sequences[:, :-1], self.scale, self.normalize)
            loss = loss + self.mlm_weight * sequences[:, -1].sum() / max(1, self._masked_tokens)
        if with_backward:
            torch.autograd.backward(loss)
            loss = loss.detach()
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "normalize": self.normalize,
            "mini_batch_size": self.mini_batch_size or None,
            "mlm_weight": self.mlm_weight,
        }
