"""InfoNCE over a batch: the host's loss on the model's own similarity."""

from __future__ import annotations

from typing import Any

from sentence_transformers import util
from sentence_transformers.sentence_transformer import losses

from beir_cocodr.ranks import world_size


def infonce(model: Any, scale: float | None = None, mini_batch_size: int | None = None) -> Any:
    """Each row's first text has to find its second among the second and further texts of all rows.

    Args:
        model: an encoder that compares by cosine or dot product.
        scale: factor on scores; None means 20 for cosine and 1 for dot product.
        mini_batch_size: texts embedded at a time by gradient caching; None embeds all at once.

    Returns:
        sentence-transformers' loss, over the batch of all ranks where there are several.
    """
    cosine = model.similarity_fn_name == "cosine"
    settings: dict[str, Any] = {
        "scale": (20.0 if cosine else 1.0) if scale is None else scale,
        "similarity_fct": util.cos_sim if cosine else util.dot_score,
        "gather_across_devices": world_size() > 1,
    }
    if mini_batch_size is None:
        return losses.MultipleNegativesRankingLoss(model, **settings)
    return losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=mini_batch_size, **settings)
