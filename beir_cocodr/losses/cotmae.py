"""CoT-MAE: masked language modelling of a passage, and its context rebuilt from its embedding.

:func:`accumulated` makes the gradient of a large batch from small parts, each computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from beir_cocodr.data.text import IGNORED
from beir_cocodr.distributed import sum_over_ranks, world_size
from beir_cocodr.models.papers import bibtex
from beir_cocodr.records import Json

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Losses are multiplied by this, or a larger power of two, before they are differentiated: float16
# needs it against underflow, and a power of two leaves gradients exact.
_SCALE = 1024.0

# The columns of labels, in the order in which the two models append their losses.
_LABELS = ("mlm_labels", "decoder_labels")


def accumulated(
    loss: Callable[[slice], Tensor],
    parts: Iterable[slice],
    parameters: Iterable[nn.Parameter],
) -> Tensor:
    """Return the sum of a loss over the parts of a batch, with one part in memory at a time.

    The gradient of each part is computed as soon as its loss is known, and passed on in the
    backward pass of the sum. Unlike gradient caching this embeds nothing twice. It needs a loss in
    which no part acts on another, and memory for one more gradient of all trained parameters.

    Args:
        loss: A function from rows of the batch to their share of its loss, a scalar.
        parts: Rows of each part.
        parameters: The parameters that the loss may depend on.

    Returns:
        A scalar.
    """
    slices = list(parts)
    trained = [weight for weight in parameters if weight.requires_grad]
    if not torch.is_grad_enabled():
        return torch.stack([loss(rows) for rows in slices]).sum()
    # The share of a part shrinks with their number.
    scale = _SCALE * 2.0 ** (len(slices) - 1).bit_length()
    values: list[Tensor] = []
    gradients: dict[int, Tensor] = {}
    for rows in slices:
        value = loss(rows)
        values.append(value.detach())
        part_gradients = torch.autograd.grad(scale * value, trained, allow_unused=True)
        for index, gradient in enumerate(part_gradients):
            if gradient is None:
                continue
            if index in gradients:
                gradients[index].add_(gradient)
            else:
                # A copy, as two parameters may share one tensor, and it is added to later.
                gradients[index] = gradient.clone()
    unscaled = [gradient.div_(scale) for gradient in gradients.values()]
    used = [trained[index] for index in gradients]
    total: Tensor = _KnownGradients.apply(  # type: ignore[no-untyped-call]
        torch.stack(values).sum(), unscaled, *used
    )
    return total


class _KnownGradients(torch.autograd.Function):
    """A value whose gradients are already known."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        gradients: list[Tensor],
        *parameters: Tensor,
    ) -> Tensor:
        """Keep the gradients, and return the value."""
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        """Return the gradients, scaled by the gradient of the value."""
        gradients = ctx.gradients
        ctx.gradients = None
        return None, None, *(gradient.mul_(outer[0]) for gradient in gradients)


def next_token_labels(ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the labels of a decoder that predicts token i + 1 at position i.

    Args:
        ids: (B, L) token ids, padded on the right.
        attention_mask: (B, L), 1 where there is a token.

    Returns:
        (B, L) labels, -100 where no token follows.
    """
    labels = torch.full_like(ids, IGNORED)
    next_ids = ids[:, 1:]
    is_padding = attention_mask[:, 1:] == 0
    labels[:, :-1] = next_ids.masked_fill(is_padding, IGNORED)
    return labels


class CoTMAELoss(nn.Module):
    """CoT-MAE: the encoder's masked-language-model loss plus a decoder's loss.

    Use it to pre-train an encoder on passages and their contexts, such as neighbouring passages or
    generated queries: a weak decoder can only rebuild the context if the embedding of the passage
    says what it needs.

    Each loss is the mean over its own labels in the whole batch: the masked tokens of the passages,
    and the tokens of the contexts that the decoder predicts, all of them or the masked ones.

    On several ranks the batch is that of all ranks, as in
    :class:`~beir_cocodr.losses.coco.COCOLoss`: the gradient after data-parallel averaging is that
    of one process with the whole batch.

    Args:
        model: The encoder, ending in a
            :class:`~beir_cocodr.models.heads.condenser.CondenserHead` without layers and a
            :class:`~beir_cocodr.models.heads.cotmae_decoder.CoTMAEDecoder`.
        mini_batch_size: Passages in memory at a time, by accumulation. Default: all at once.
        mlm_weight: Weight of the encoder's loss (paper: 1).

    References:
        - Wu et al., Query-as-context pre-training for dense passage retrieval, 2023, section 2.2.
        - Wu et al., ConTextual masked auto-encoder for dense passage retrieval, 2023, Eq. 7.

    Inputs:
        +-----------------------------------------------+--------+
        | Texts                                         | Labels |
        +===============================================+========+
        | (passage, context), tokenised and masked      | none   |
        +-----------------------------------------------+--------+

        Passages have ``mlm_labels``. Where contexts have them, they are the labels of the decoder;
        otherwise it predicts each next token. A label is ignored.

    Relations:
        :class:`~beir_cocodr.losses.coco.COCOLoss` with ``contrastive_weight=0`` is the encoder's
        loss alone.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        mini_batch_size: int | None = None,
        mlm_weight: float = 1.0,
    ) -> None:
        """Set the options of the loss."""
        super().__init__()
        self.model = model
        self.mini_batch_size = mini_batch_size
        self.mlm_weight = mlm_weight

    def forward(
        self,
        sentence_features: Iterable[dict[str, Tensor]],
        labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch of passages and contexts."""
        columns = list(sentence_features)
        if len(columns) != 2:
            raise ValueError(
                f"CoT-MAE takes two columns, passages and contexts, got {len(columns)}"
            )
        features = _joined(*columns)
        weights = self._weights(features)

        def share(rows: slice) -> Tensor:
            outputs = self.model(_rows_of(features, rows))
            embedded: Tensor = outputs["sentence_embedding"]  # (b, d + 2)
            sums = embedded[:, -2:].sum(dim=0)  # the two models' losses
            return (sums * weights).sum()

        size = self.mini_batch_size
        passages = len(features["decoder_ids"])
        if size is None or size >= passages:
            return share(slice(None))
        parts = [slice(start, start + size) for start in range(0, passages, size)]
        return accumulated(share, parts, self.parameters())

    def _weights(self, features: dict[str, Tensor]) -> Tensor:
        """Return the (2,) weights of the encoder's and of the decoder's summed losses."""
        counts = torch.stack([(features[name] != IGNORED).sum() for name in _LABELS])
        # Data-parallel training divides by the number of ranks, and the counts are those of all.
        weights = world_size() / sum_over_ranks(counts).clamp(min=1)
        return weights * weights.new_tensor([self.mlm_weight, 1.0])

    @property
    def citation(self) -> str:
        """Return the BibTeX entries of the papers."""
        return bibtex("wu2023cotmae", "wu2023qc")

    def get_config_dict(self) -> Json:
        """Return the options, for the host's model card."""
        return {"mini_batch_size": self.mini_batch_size, "mlm_weight": self.mlm_weight}


def _joined(passages: dict[str, Tensor], contexts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the features of passages with those of their contexts as the decoder's."""
    ids = contexts["input_ids"]
    mask = contexts["attention_mask"]
    labels = contexts.get("mlm_labels")
    if labels is None:
        labels = next_token_labels(ids, mask)
    return {
        **passages,
        "decoder_ids": ids,
        "decoder_mask": mask,
        "decoder_labels": labels,
    }


def _rows_of(features: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """Return some rows of the features, without padding that none of them needs."""
    widths: dict[str, int] = {}
    for mask in ("attention_mask", "decoder_mask"):
        used = features[mask][rows].any(0).nonzero()
        widths[mask] = int(used.max()) + 1
    part: dict[str, Tensor] = {}
    for name, value in features.items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            part[name] = value
            continue
        mask = "decoder_mask" if name.startswith("decoder_") else "attention_mask"
        length = features[mask].shape[1]
        has_tokens = value.ndim > 1 and value.shape[1] == length
        if has_tokens:
            part[name] = value[rows, : widths[mask]]
        else:
            part[name] = value[rows]
    return part
