"""The training loss of source queries under a model, without gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from beir_cocodr.analysis.source_triplets import SourceTriplets
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.losses.coco import COCOLoss
from beir_cocodr.losses.triplet import triplet_losses

#: Queries whose documents are encoded at a time.
_BLOCK = 256


class SourceLosses(NamedTuple):
    """(Q,) losses, and the (Q, d) query embeddings, normalised where the model compares by cosine."""

    losses: npt.NDArray[np.float64]
    embeddings: npt.NDArray[np.float32]


def source_losses(
    model: Any, documents: Documents, triplets: SourceTriplets, batch_size: int = 64, progress: bool = False
) -> SourceLosses:
    """−log p(d⁺ | q, d⁻) of every query, averaged over its negatives one at a time.

    Args:
        model: an encoder; cosines are scaled by 20 as in training, dot products by 1.
        documents: the corpus of the triplets. The documents of 256 queries are in memory at a time.
        triplets: the queries.
        batch_size, progress: of encoding.

    Raises:
        InputError: a query's loss is NaN or infinite.

    Source: COCO-DR, Eq. 2 and 3.
    """
    compared = COCOLoss(model)  # how this model's scores are made in training
    texts = list(triplets.queries.values())
    options = {"batch_size": batch_size, "convert_to_tensor": True, "show_progress_bar": progress}
    queries = _plain(model.encode_queries(texts, **options))
    losses = []
    for start in range(0, len(texts), _BLOCK):
        rows = triplets.rows[start : start + _BLOCK]  # (b, 1 + n)
        taken = documents.take(rows.ravel())
        encoded = _plain(model.encode_corpus(taken, **options)).view(*rows.shape, -1)  # (b, 1 + n, d)
        losses.append(_losses(queries[start : start + _BLOCK], encoded, compared.scale, compared.normalize))
    found = torch.cat(losses).numpy()
    if not np.isfinite(found).all():
        wrong = list(triplets.queries)[int(np.flatnonzero(~np.isfinite(found))[0])]
        raise InputError(f"the loss of query {wrong!r} is not finite; encode in float32 if it was in half")
    vectors = F.normalize(queries, dim=1) if compared.normalize else queries
    return SourceLosses(found, vectors.numpy())


def _losses(queries: Tensor, documents: Tensor, scale: float, normalize: bool) -> Tensor:
    """(b, d) and (b, 1 + n, d) to (b,)."""
    size, negatives = len(queries), documents.shape[1] - 1
    one_each = torch.stack(
        [documents[:, :1].expand(-1, negatives, -1), documents[:, 1:]], dim=2
    )  # (b, n, 2, d)
    repeated = queries.double().repeat_interleave(negatives, dim=0)  # (b * n, d)
    losses = triplet_losses(repeated, one_each.flatten(0, 1).double(), scale, normalize)
    return losses.view(size, negatives).mean(dim=1)


def _plain(encoded: Tensor) -> Tensor:
    return encoded.detach().float().cpu()
