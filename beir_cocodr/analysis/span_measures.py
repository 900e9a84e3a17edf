"""What a model makes of pairs of spans: alignment, uniformity, contrastive loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from beir_cocodr.analysis.alignment import alignment
from beir_cocodr.analysis.span_pairs import SpanPairs
from beir_cocodr.analysis.uniformity import uniformity
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.significance import interval
from beir_cocodr.losses.coco import COCOLoss, coco_contrastive_loss

_NAMED = 5


@dataclass(frozen=True)
class SpanMeasures:
    """Measures of one model on n pairs.

    Attributes:
        alignment: (n,) squared distances of the two spans; their mean is ℓ_align.
        uniformity: ℓ_uniform, the mean of that of the first spans and that of the second ones, as in the
            authors' code: so no positive pair is among the pairs.
        losses: (m,) contrastive losses of m batches; what is left over is in none.
    """

    alignment: npt.NDArray[np.float64]
    uniformity: float
    losses: npt.NDArray[np.float64]

    def record(self) -> dict[str, Any]:
        return {
            "alignment": float(self.alignment.mean()),
            "alignment_interval": interval(self.alignment),
            "uniformity": self.uniformity,
            "contrastive_loss": float(self.losses.mean()),
            "contrastive_loss_interval": interval(self.losses),
        }

    def change(self, before: SpanMeasures, comparable: bool) -> dict[str, Any]:
        """Differences to what another model gave on the same pairs, in the same batches.

        Args:
            before: of the other model.
            comparable: whether both losses are on one scale; their differences are None otherwise.
        """
        closer, lower = self.alignment - before.alignment, self.losses - before.losses
        loss = float(before.losses.mean())
        return {
            "alignment": float(closer.mean()),
            "alignment_interval": interval(closer),
            "uniformity": self.uniformity - before.uniformity,
            "contrastive_loss": float(lower.mean()) if comparable else None,
            "contrastive_loss_interval": interval(lower) if comparable else None,
            "contrastive_loss_reduction": -float(lower.mean()) / loss if comparable and loss else None,
        }


def measure_spans(
    model: Any,
    pairs: SpanPairs,
    batch_size: int,
    temperature: float = 2.0,
    encode_batch_size: int = 64,
    progress: bool = False,
) -> SpanMeasures:
    """Encode n pairs as documents, without masking or gradient, and measure.

    Args:
        model: an encoder; the contrastive loss has its similarity, with scale 20 for cosine and 1 for dot
            product.
        pairs: the texts.
        batch_size: documents contrasted with each other; all of them where there are fewer.
        temperature: of uniformity.
        encode_batch_size, progress: of encoding.

    Raises:
        InputError: an embedding is NaN or infinite; the message names its document.

    Source: COCO-DR, Eq. 1 and appendix H.
    """
    first, second = (
        _encode(model, texts, pairs.ids, encode_batch_size, progress) for texts in (pairs.first, pairs.second)
    )
    return SpanMeasures(
        alignment(first, second).numpy(),
        (uniformity(first, temperature) + uniformity(second, temperature)) / 2,
        _losses(first, second, batch_size, COCOLoss(model)),
    )


def _encode(model: Any, texts: list[str], ids: list[str], batch_size: int, progress: bool) -> Tensor:
    encoded = model.encode_document(
        texts, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=progress
    )
    vectors: Tensor = encoded.detach().float().cpu()
    wrong = torch.nonzero(~vectors.isfinite().all(dim=1)).flatten().tolist()
    if wrong:
        named = ", ".join(repr(ids[row]) for row in wrong[:_NAMED])
        raise InputError(
            f"NaN or infinite embeddings of spans of {len(wrong)} documents, such as {named}: look at their "
            "texts, and encode in float32 if the model runs in half precision"
        )
    return vectors


def _losses(first: Tensor, second: Tensor, batch_size: int, loss: COCOLoss) -> npt.NDArray[np.float64]:
    spans = torch.stack([first, second], dim=1).double()  # (n, 2, d)
    size = min(batch_size, len(spans))
    batches = [spans[start : start + size] for start in range(0, len(spans) - size + 1, size)]
    losses = [
        coco_contrastive_loss(batch.flatten(0, 1), loss.scale, loss.normalize).item() for batch in batches
    ]
    return np.array(losses)
