"""CoT-MAE: masked language modelling of a passage, and its context rebuilt from its embedding.

:func:`accumulated` makes the gradient of a large batch from small parts, each computed once.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from beir_cocodr.data.text import IGNORED
from beir_cocodr.distributed import sum_over_ranks, world_size
from beir_cocodr.records import Json

# A power of two leaves gradients exact but for under- and overflow; against the former float16
# needs it.
_SCALE = 1024.0


def accumulated(
    loss: Callable[[slice], Tensor], parts: Iterable[slice], parameters: Iterable[nn.Parameter]
) -> Tensor:
    """The sum of a loss over the parts of a batch, with one part's activations in memory at a time.

    The gradient of each part is taken as soon as its loss is known, and handed on in the backward
    pass of the sum. Unlike gradient caching this embeds nothing twice; it needs a loss in which no
    part acts on another, and memory for one more gradient of all parameters, those that the loss
    depends on and that are trained. ``loss`` takes rows of the batch to their share of its loss, a
    scalar.
    """
    slices, weights = list(parts), [p for p in parameters if p.requires_grad]
    if not torch.is_grad_enabled():
        return torch.stack([loss(rows) for rows in slices]).sum()
    # The share of a part shrinks with their number.
    scale = _SCALE * 2.0 ** (len(slices) - 1).bit_length()
    values: list[Tensor] = []
    gradients: dict[int, Tensor] = {}
    for rows in slices:
        value = loss(rows)
        values.append(value.detach())
        for i, gradient in enumerate(
            torch.autograd.grad(scale * value, weights, allow_unused=True)
        ):
            if (
                gradient is not None
            ):  # two parameters may be given one tensor, which is added to below
                gradients[i] = gradients[i].add_(gradient) if i in gradients else gradient.clone()
    used = [gradient.div_(scale) for gradient in gradients.values()]
    total: Tensor = _Known.apply(  # type: ignore[no-untyped-call]
        torch.stack(values).sum(), used, *(weights[i] for i in gradients)
    )
    return total


class _Known(torch.autograd.Function):
    """A value whose gradients are there already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *(gradient.mul_(outer[0]) for gradient in gradients)


def next_token_labels(ids: Tensor, attention_mask: Tensor) -> Tensor:
    """(B, L) ids and mask, padded on the right, to the (B, L) labels of a decoder that predicts
    token i + 1 at position i: -100 where no token follows.
    """
    labels = torch.full_like(ids, IGNORED)
    labels[:, :-1] = ids[:, 1:].masked_fill(attention_mask[:, 1:] == 0, IGNORED)
    return labels


class CoTMAELoss(nn.Module):
    """The encoder's masked-language-model loss plus the decoder's loss.

    Each is the mean over its own labels of the whole batch: the masked tokens of the passages, and
    the tokens of the contexts that the decoder predicts (all of them, or the masked ones).

    Over several ranks the batch is that of all ranks, as in
    :class:`~beir_cocodr.losses.coco.COCOLoss`: the gradient that data-parallel averaging makes is
    that of one process with the whole batch.

    Args:
        model: the encoder, ending in a :class:`~beir_cocodr.models.condenser.CondenserHead` without
            layers and a :class:`~beir_cocodr.models.cotmae_decoder.CoTMAEDecoder`.
        mini_batch_size: passages in memory at a time, by accumulation; None takes all at once.
        mlm_weight: weight of the encoder's loss (paper: 1).

    Inputs:
        Two columns, made by the data collator: passages with ``mlm_labels``, and their contexts;
        with ``mlm_labels`` these are labels of the decoder, else it predicts each next token. A
        label is ignored.

    References:
        Query-as-context pre-training, section 2.2; CoT-MAE (Wu et al., 2022), Eq. 7.
    """

    def __init__(
        self, model: Any, mini_batch_size: int | None = None, mlm_weight: float = 1.0
    ) -> None:
        super().__init__()
        self.model, self.mini_batch_size, self.mlm_weight = model, mini_batch_size, mlm_weight

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        columns = list(sentence_features)
        if len(columns) != 2:
            raise ValueError(
                f"CoT-MAE takes two columns, passages and contexts, got {len(columns)}"
            )
        passages, contexts = columns
        ids, mask = contexts["input_ids"], contexts["attention_mask"]
        features = {**passages, "decoder_ids": ids, "decoder_mask": mask}
        given = contexts.get("mlm_labels")
        features["decoder_labels"] = next_token_labels(ids, mask) if given is None else given
        counts = torch.stack(
            [(features[n] != IGNORED).sum() for n in ("mlm_labels", "decoder_labels")]
        )
        # Data-parallel training divides by the number of ranks, the counts are of all of them.
        weights = world_size() / sum_over_ranks(counts).clamp(min=1)
        weights = weights * weights.new_tensor([self.mlm_weight, 1.0])

        def share(rows: slice) -> Tensor:
            embedded: Tensor = self.model(_part(features, rows))["sentence_embedding"]  # (b, d + 2)
            return (embedded[:, -2:].sum(dim=0) * weights).sum()

        size, rows = self.mini_batch_size, len(ids)
        if size is None or size >= rows:
            return share(slice(None))
        return accumulated(
            share, (slice(i, i + size) for i in range(0, rows, size)), self.parameters()
        )

    def get_config_dict(self) -> Json:
        return {"mini_batch_size": self.mini_batch_size, "mlm_weight": self.mlm_weight}


def _part(features: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """Some rows, without padding that none of them needs."""
    widths = {
        mask: int(features[mask][rows].any(0).nonzero().max()) + 1
        for mask in ("attention_mask", "decoder_mask")
    }

    def cut(name: str, value: Tensor) -> Tensor:
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        mask = "decoder_mask" if name.startswith("decoder_") else "attention_mask"
        wide = value.ndim > 1 and value.shape[1] == features[mask].shape[1]
        return value[rows, : widths[mask]] if wide else value[rows]

    return {name: cut(name, value) for name, value in features.items()}
