"""Contrastive losses: COCO over two spans of each document, and InfoNCE over queries and documents.

:class:`COCOLoss` adds a training head's language-model losses to :func:`coco_contrastive_loss`.
:func:`infonce` is the host's, on the model's own similarity; :func:`triplet_losses` and
:func:`in_batch_losses` give each example's own.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers import util
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.sentence_transformer import losses
from torch import Tensor, nn

from beir_cocodr.data.text import IGNORED
from beir_cocodr.distributed import rank, sum_over_ranks, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.records import Json

_ALL = slice(None)


def coco_contrastive_loss(
    embeddings: Tensor,
    scale: float = 1.0,
    normalize: bool = False,
    negatives: Tensor | None = None,
    rows: slice = _ALL,
) -> Tensor:
    """Each span has to find the other span of its document among all spans of the batch.

    With S = scale * C Cᵀ, the diagonal set to −∞, and row i's target i xor 1, the cross entropy
    averaged over all rows. Identical embeddings give exactly ln(2B − 1). Scores are float32, also
    where the encoder ran in a lower precision.

    Args:
        embeddings: C, (2B, d); rows 2i and 2i + 1 come from document i.
        scale: factor on the scores, an inverse temperature (paper: 1).
        normalize: compare by cosine instead of dot product.
        negatives: (N, d), further candidates of every row, which are nobody's target.
        rows: the rows that look for their other span, all by default; the candidates stay.

    Source: COCO-DR, Eq. 1.

    Example:
        >>> import math
        >>> import torch
        >>> from beir_cocodr.losses.coco import coco_contrastive_loss
        >>> loss = coco_contrastive_loss(torch.ones(8, 16))  # four documents, two spans each, all alike
        >>> math.isclose(loss, math.log(7), rel_tol=1e-6)
        True
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        spans = len(embeddings)
        vectors = _prepared(
            embeddings if negatives is None else torch.cat([embeddings, negatives]), normalize
        )
        scores = scale * (vectors[:spans][rows] @ vectors.T)  # (R, 2B + N)
        places = torch.arange(spans, device=scores.device)[rows]
        itself = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, places[:, None], True)
        return F.cross_entropy(scores.masked_fill(itself, -torch.inf), places ^ 1)


class COCOLoss(CachedLossMixin, nn.Module):
    """COCO: the contrastive loss above plus the masked-language-model losses of a training head.

    Where the model ends in a :class:`~beir_cocodr.models.condenser.CondenserHead` and the features
    carry ``mlm_labels``, the last column of each embedding is that sequence's summed language-model
    loss. Summed over the batch and divided by the number of masked tokens of the whole batch, it is
    added with weight ``mlm_weight``, so that gradient caching leaves its weight unchanged.

    Over several ranks the batch is that of all ranks: rank r holds its r-th part, all parts of one
    size. Embeddings are gathered with their gradient, masked tokens are counted over all ranks, and
    the gradient that data-parallel averaging makes is that of one process with the whole batch. The
    value is this rank's share; its mean over ranks is the loss.

    Args:
        model: the encoder, with or without the head.
        scale: factor on the scores; by default 20 for cosine models and 1 for dot-product models.
        mini_batch_size: sequences embedded at a time by gradient caching; None embeds all at once.
        mlm_weight: weight of the language-model losses (paper: 1).
        contrastive_weight: weight of the contrastive loss (paper: 1); 0 leaves it out, so that one
            column is enough (Condenser, or masked language modelling with a head without layers).

    Inputs:
        Columns anchor and positive, row i of both from document i. Further columns (negative_1,
        ...) are hard negatives: candidates of every row, and nobody's target. A label is ignored.

    Relations:
        The host's ``MatryoshkaLoss`` may wrap it, but not over a training head.

    References:
        COCO-DR, section 4.1, Eq. 1 and 2; gradient caching: Gao et al., 2021.

    Example:
        >>> from beir_cocodr import load_encoder
        >>> from beir_cocodr.losses.coco import COCOLoss
        >>> loss = COCOLoss(load_encoder("minilm"))  # for SentenceTransformerTrainer(loss=loss, ...)
        >>> spans = [["Sort an array.", "Draw bars."], ["The sort is stable.", "Choose the bins."]]
        >>> value = loss([loss.model.preprocess(column) for column in spans])
        >>> value.backward()
        >>> 0 < float(value) < 1.1  # less than ln 3, that of spans which all look alike
        True
    """

    def __init__(
        self,
        model: Any,
        scale: float | None = None,
        mini_batch_size: int | None = None,
        mlm_weight: float = 1.0,
        contrastive_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.model, self.mlm_weight, self.contrastive_weight = model, mlm_weight, contrastive_weight
        self.normalize = model.similarity_fn_name == "cosine"
        self.scale = (20.0 if self.normalize else 1.0) if scale is None else scale
        # The host's MatryoshkaLoss reads the second, and wraps a loss that caches otherwise than
        # one that does not.
        self.cached = self.uses_gradient_cache = mini_batch_size is not None
        self.mini_batch_size = mini_batch_size or 0
        # Asked before the model is wrapped for several processes; stand-ins without a training head
        # need none.
        self._width = (
            model.get_embedding_dimension() if hasattr(model, "get_embedding_dimension") else 0
        )
        self._labelled: list[bool] = []
        self._masked_tokens = 0

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        columns = list(sentence_features)
        least = 2 if self.contrastive_weight else 1
        if len(columns) < least:
            raise ValueError(f"COCO takes at least {least} columns of texts, got {len(columns)}")
        self._count_masked(columns)
        if self.cached:
            return self.forward_cached(columns, labels)
        return self.calculate_loss(
            [[self.model(column)["sentence_embedding"]] for column in columns]
        )

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        # (B, d), or (B, d + 1) with a language-model loss
        columns = list(zip((torch.cat(column) for column in reps), self._labelled, strict=True))
        parts = []
        if any(self._labelled):
            if any(labelled and column.shape[1] != self._width + 1 for column, labelled in columns):
                raise InputError(
                    "the training head's loss stands behind the embedding, where MatryoshkaLoss cuts it off: wrap "
                    "COCOLoss over a model without a training head"
                )
            summed = torch.stack(
                [column[:, -1].sum() for column, labelled in columns if labelled]
            ).sum()
            # Data-parallel training divides by the number of ranks, the count is of all of them.
            parts.append(self.mlm_weight * world_size() * summed / max(1, self._masked_tokens))
        if self.contrastive_weight:
            embeddings = [column[:, :-1] if labelled else column for column, labelled in columns]
            parts.append(self.contrastive_weight * self._contrastive(*embeddings))
        loss = torch.stack(parts).sum()
        if with_backward:
            torch.autograd.backward(loss)
            loss = loss.detach()
        return loss

    def _contrastive(self, first: Tensor, second: Tensor, *negatives: Tensor) -> Tensor:
        spans = torch.stack([first, second], dim=1).flatten(0, 1)  # (2B, d) of this rank
        others = torch.cat(negatives) if negatives else None
        rows = slice(rank() * len(spans), (rank() + 1) * len(spans))
        if world_size() > 1:
            spans = util.all_gather_with_grad(spans)  # (2BW, d)
            others = None if others is None else util.all_gather_with_grad(others)
        return coco_contrastive_loss(spans, self.scale, self.normalize, others, rows)

    def _count_masked(self, columns: list[dict[str, Tensor]]) -> None:
        """Which columns carry a language-model loss, and how many masked tokens all ranks have
        together.
        """
        self._labelled = ["mlm_labels" in column for column in columns]
        if not any(self._labelled):
            if not self.contrastive_weight:
                raise ValueError(
                    "without the contrastive loss there have to be masked tokens: mlm_labels"
                )
            return
        counts = [
            (column["mlm_labels"] != IGNORED).sum() for column in columns if "mlm_labels" in column
        ]
        self._masked_tokens = int(sum_over_ranks(torch.stack(counts).sum()))

    def get_config_dict(self) -> Json:
        names = ("scale", "normalize", "mlm_weight", "contrastive_weight")
        return {name: getattr(self, name) for name in names} | {
            "mini_batch_size": self.mini_batch_size or None
        }


def infonce(model: Any, scale: float | None = None, mini_batch_size: int | None = None) -> Any:
    """Sentence-transformers' loss over the batch of all ranks: each row's first text has to find
    its second among the second and further texts of all rows; the arguments are those of
    :class:`COCOLoss`.
    """
    cosine = model.similarity_fn_name == "cosine"
    settings: dict[str, Any] = {
        "scale": (20.0 if cosine else 1.0) if scale is None else scale,
        "similarity_fct": util.cos_sim if cosine else util.dot_score,
        "gather_across_devices": world_size() > 1,
    }
    if mini_batch_size is None:
        return losses.MultipleNegativesRankingLoss(model, **settings)
    return losses.CachedMultipleNegativesRankingLoss(
        model, mini_batch_size=mini_batch_size, **settings
    )


def triplet_losses(
    queries: Tensor, documents: Tensor, scale: float = 1.0, normalize: bool = False
) -> Tensor:
    """(B,) −log softmax of each query's positive over its own positive and negatives, float32 or
    wider. An example's loss depends on its own texts alone.

    Args:
        queries, documents: (B, d) and (B, 1 + n, d), the positive first.
        scale, normalize: as for :func:`coco_contrastive_loss`.

    Source: COCO-DR, Eq. 2; ANCE (Xiong et al., 2021).
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries, documents = _prepared(queries, normalize), _prepared(documents, normalize)
        scores = scale * torch.einsum("bd,bnd->bn", queries, documents)  # (B, 1 + n)
        return -scores.log_softmax(dim=1)[:, 0]


def in_batch_losses(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    scale: float = 1.0,
    normalize: bool = False,
) -> Tensor:
    """(B,) −log softmax of each query's positive over all documents of a batch (InfoNCE), float32
    or wider.

    Args:
        queries, candidates: (B, d), and (M, d), the documents of the whole batch.
        targets: (B,) rows of ``candidates`` that hold the positives.
        scale, normalize: as for :func:`coco_contrastive_loss`.
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries, candidates = _prepared(queries, normalize), _prepared(candidates, normalize)
        return F.cross_entropy(scale * (queries @ candidates.T), targets, reduction="none")


def _prepared(vectors: Tensor, normalize: bool) -> Tensor:
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return F.normalize(vectors, dim=-1) if normalize else vectors
