"""The training loss of source queries under a model, without gradient.

A seeded sample of source queries with the documents that their training loss compares.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.losses.coco import COCOLoss, triplet_losses
from beir_cocodr.training.negatives import bm25_negatives

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceTriplets:
    """Q queries, each with a positive and n negatives.

    Attributes:
        queries: query id -> text, in collection order.
        rows: (Q, 1 + n) int64 corpus rows, the positive first.
    """

    queries: dict[str, str]
    rows: npt.NDArray[np.int64]


def sample_triplets(
    collection: Collection, text_format: TextFormat, size: int, negatives: int = 4, seed: int = 42
) -> SourceTriplets:
    """Draw queries that have a relevant document, one of these, and negatives among BM25's best 30 others.

    Args:
        collection: with queries and qrels.
        text_format: of BM25.
        size: the most queries; a collection that has fewer gives them all.
        negatives: n; of a query that has fewer, some are drawn repeatedly.
        seed: of all draws.

    Raises:
        InputError: no query has a relevant document in the corpus.

    Source: COCO-DR, sections 4.2 and 5.1 (the first negatives of fine-tuning are BM25's).
    """
    rng = np.random.default_rng(seed)
    positives: dict[str, npt.NDArray[np.int64]] = {}
    for query, grades in collection.qrels.items():
        rows = collection.documents.rows([document for document, grade in grades.items() if grade > 0])
        if (rows >= 0).any():
            positives[query] = rows[rows >= 0]
    if not positives:
        raise InputError(f"{collection.name}: no query of split {collection.split} has a relevant document")
    ids = list(positives)
    drawn = {ids[i] for i in rng.choice(len(ids), min(size, len(ids)), replace=False).tolist()}
    queries = {query: text for query, text in collection.queries.items() if query in drawn}
    log.info("%s: %d of %d queries with a relevant document", collection.name, len(queries), len(ids))
    judged = {query: collection.qrels[query] for query in queries}
    sampled = replace(collection, queries=queries, qrels=judged)
    pools = bm25_negatives(sampled, text_format, seed=seed)
    triplets = [
        [rng.choice(positives[query]), *rng.choice(pools[query], negatives, len(pools[query]) < negatives)]
        for query in queries
    ]
    return SourceTriplets(queries, np.array(triplets, np.int64))


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
