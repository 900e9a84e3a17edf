"""Contrastive losses: COCO over two spans of each document, and InfoNCE over queries and documents.

:class:`COCOLoss` adds the language-model losses of a training head to
:func:`coco_contrastive_loss`. :func:`infonce` is sentence-transformers' loss on the model's own
similarity. :func:`triplet_losses` and :func:`in_batch_losses` return the loss of each example.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers import util
from sentence_transformers.sentence_transformer import losses
from torch import Tensor, nn

from beir_cocodr.data.text import IGNORED
from beir_cocodr.distributed import rank, sum_over_ranks, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.io import Keywords
from beir_cocodr.losses.gradient_cache import OptionalGradientCache
from beir_cocodr.models.mrl_head import COSINE_SCALE
from beir_cocodr.models.papers import bibtex
from beir_cocodr.records import Json

_ALL = slice(None)


def default_scale(model: Any) -> float:
    """Return the factor on scores for a model: 20 if it compares by cosine, else 1."""
    if model.similarity_fn_name == "cosine":
        return COSINE_SCALE
    return 1.0


def coco_contrastive_loss(
    embeddings: Tensor,
    scale: float = 1.0,
    normalize: bool = False,
    negatives: Tensor | None = None,
    rows: slice = _ALL,
) -> Tensor:
    """Contrast each span with the other span of its document, among all spans of the batch.

    With S = scale · C Cᵀ, the diagonal set to −∞, and i xor 1 the target of row i, this is the
    cross entropy averaged over all rows. Identical embeddings give exactly ln(2B − 1). Scores are
    float32 even where the encoder runs in a lower precision.

    Args:
        embeddings: C, (2B, d). Rows 2i and 2i + 1 come from document i.
        scale: Factor on the scores, an inverse temperature (paper: 1).
        normalize: Compare by cosine instead of dot product.
        negatives: (N, d) further candidates of every row that are no row's target.
        rows: Rows that the loss is averaged over. All rows remain candidates. Default: all.

    Returns:
        A scalar.

    References:
        COCO-DR, Eq. 1.

    Example:
        >>> import math
        >>> import torch
        >>> from beir_cocodr.losses.coco import coco_contrastive_loss
        >>> loss = coco_contrastive_loss(torch.ones(8, 16))  # two equal spans of four documents
        >>> math.isclose(loss, math.log(7), rel_tol=1e-6)
        True
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        spans = len(embeddings)
        candidates = embeddings
        if negatives is not None:
            candidates = torch.cat([embeddings, negatives])
        vectors = _prepared(candidates, normalize)
        scores = scale * (vectors[:spans][rows] @ vectors.T)  # (R, 2B + N)
        positions = torch.arange(spans, device=scores.device)[rows]  # (R,)
        itself = torch.zeros_like(scores, dtype=torch.bool)
        itself.scatter_(1, positions[:, None], True)
        return F.cross_entropy(scores.masked_fill(itself, -torch.inf), positions ^ 1)


class COCOLoss(OptionalGradientCache, nn.Module):
    """COCO: contrast of two spans of each document, plus the losses of a language-model head.

    Use it to adapt an encoder to a corpus without labels: cut two spans out of each document, and
    train on them as anchor and positive. :func:`~beir_cocodr.pretrain` does all of it.

    The language-model losses need a model that ends in a
    :class:`~beir_cocodr.models.heads.condenser.CondenserHead`, and features with ``mlm_labels``.
    The head appends a column to the embeddings, each sequence's summed language-model loss. These
    are summed over the batch, divided by the number of masked tokens of the whole batch, and added
    with weight ``mlm_weight``. So gradient caching does not change their weight.

    On several ranks the batch is that of all ranks: rank r holds its r-th part, all parts of one
    size. Embeddings are gathered with their gradients and masked tokens are counted over all ranks,
    so that the gradient after data-parallel averaging is that of one process with the whole batch.
    The value is this rank's share; its mean over the ranks is the loss.

    Args:
        model: The encoder, with or without the head.
        scale: Factor on the scores. Default: 20 for cosine models, 1 for dot-product models.
        mini_batch_size: Sequences that gradient caching embeds at a time, which bounds memory.
            Default: all at once, without caching.
        mlm_weight: Weight of the language-model losses (paper: 1).
        contrastive_weight: Weight of the contrastive loss (paper: 1). With 0 it is left out and one
            column is enough, as for Condenser and for masked language modelling.

    References:
        - COCO-DR, section 4.1, Eq. 1 and 2.
        - Gradient caching: Gao et al., Scaling deep contrastive learning batch size under memory
          limited setup, 2021.

    Inputs:
        +-----------------------------------------------+--------+
        | Texts                                         | Labels |
        +===============================================+========+
        | (anchor, positive) spans of one document      | none   |
        +-----------------------------------------------+--------+
        | (anchor, positive, negative_1, ...)           | none   |
        +-----------------------------------------------+--------+

        Negatives are candidates of every row and no row's target. A label is ignored.

    Relations:
        - :func:`infonce` contrasts in one direction only, from the first column to the others.
        - sentence-transformers' ``MatryoshkaLoss`` may wrap this loss over a model without a
          training head.

    Example:
        >>> from datasets import Dataset
        >>> from sentence_transformers import SentenceTransformerTrainer
        >>> from sentence_transformers import SentenceTransformerTrainingArguments
        >>> from beir_cocodr import load_encoder
        >>> from beir_cocodr.losses import COCOLoss
        >>> model = load_encoder("minilm")
        >>> spans = Dataset.from_dict({
        ...     "anchor": ["Sort an array.", "Draw bars."],
        ...     "positive": ["The sort is stable.", "Choose the bins."],
        ... })
        >>> arguments = SentenceTransformerTrainingArguments(
        ...     "output", max_steps=1, save_strategy="no", report_to="none", disable_tqdm=True
        ... )
        >>> trainer = SentenceTransformerTrainer(
        ...     model=model, args=arguments, train_dataset=spans, loss=COCOLoss(model)
        ... )
        >>> result = trainer.train()  # doctest: +ELLIPSIS
        {...}
        >>> result.training_loss > 0  # ln 3 = 1.1 if all spans looked alike
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
        """Set the options of the loss."""
        super().__init__()
        self.model = model
        self.mlm_weight = mlm_weight
        self.contrastive_weight = contrastive_weight
        self.normalize = model.similarity_fn_name == "cosine"
        self.scale = default_scale(model) if scale is None else scale
        self.set_mini_batch(mini_batch_size)
        # Read here, as the model may later be wrapped for several processes. Models in tests that
        # have no training head need no width.
        has_width = hasattr(model, "get_embedding_dimension")
        self._width = model.get_embedding_dimension() if has_width else 0
        # Set by each forward, for the two passes of gradient caching.
        self._labelled: list[bool] = []
        self._masked_tokens = 0

    def forward(
        self,
        sentence_features: Iterable[dict[str, Tensor]],
        labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch of tokenised columns."""
        columns = list(sentence_features)
        least = 2 if self.contrastive_weight else 1
        if len(columns) < least:
            raise ValueError(f"COCO takes at least {least} columns of texts, got {len(columns)}")
        self._count_masked(columns)
        return self.loss_of(columns, labels)

    def calculate_loss(
        self,
        reps: list[list[Tensor]],
        labels: Tensor | None = None,
        *,
        with_backward: bool = False,
    ) -> Tensor:
        """Return the loss of embeddings, in mini-batches for each column; the host calls it.

        Args:
            reps: For each column, (b, d) embeddings, or (b, d + 1) with a language-model loss.
            labels: Ignored.
            with_backward: Run the backward pass, and return a detached loss.
        """
        columns = [torch.cat(column) for column in reps]
        parts = []
        if any(self._labelled):
            parts.append(self._language_model_loss(columns))
        if self.contrastive_weight:
            embeddings = []
            for column, labelled in zip(columns, self._labelled, strict=True):
                embeddings.append(column[:, :-1] if labelled else column)
            parts.append(self.contrastive_weight * self._contrastive_loss(*embeddings))
        loss = torch.stack(parts).sum()
        return self.finished(loss, with_backward)

    def _language_model_loss(self, columns: list[Tensor]) -> Tensor:
        """Return the weighted mean over the masked tokens of the whole batch."""
        sums = []
        for column, labelled in zip(columns, self._labelled, strict=True):
            if not labelled:
                continue
            if column.shape[1] != self._width + 1:
                raise InputError(
                    "the loss of the training head follows the embedding, and MatryoshkaLoss cuts "
                    "it off; wrap COCOLoss over a model without a training head"
                )
            sums.append(column[:, -1].sum())
        summed = torch.stack(sums).sum()
        # Data-parallel training divides by the number of ranks, and the count is that of all.
        return self.mlm_weight * world_size() * summed / max(1, self._masked_tokens)

    def _contrastive_loss(
        self,
        first: Tensor,
        second: Tensor,
        *negatives: Tensor,
    ) -> Tensor:
        """Return the contrast of this rank's spans with the spans and negatives of all ranks."""
        spans = torch.stack([first, second], dim=1).flatten(0, 1)  # (2B, d) of this rank
        candidates = torch.cat(negatives) if negatives else None
        start = rank() * len(spans)
        rows = slice(start, start + len(spans))
        if world_size() > 1:
            spans = util.all_gather_with_grad(spans)  # (2BW, d)
            if candidates is not None:
                candidates = util.all_gather_with_grad(candidates)
        return coco_contrastive_loss(
            embeddings=spans,
            scale=self.scale,
            normalize=self.normalize,
            negatives=candidates,
            rows=rows,
        )

    def _count_masked(self, columns: list[dict[str, Tensor]]) -> None:
        """Note which columns have a language-model loss, and count masked tokens of all ranks."""
        self._labelled = ["mlm_labels" in column for column in columns]
        if any(self._labelled):
            labels = [column["mlm_labels"] for column in columns if "mlm_labels" in column]
            counts = [(tokens != IGNORED).sum() for tokens in labels]
            self._masked_tokens = int(sum_over_ranks(torch.stack(counts).sum()))
        elif not self.contrastive_weight:
            raise ValueError("without the contrastive loss the features need mlm_labels")

    @property
    def citation(self) -> str:
        """Return the BibTeX entry of the paper."""
        return bibtex("yu2022cocodr")

    def get_config_dict(self) -> Json:
        """Return the options, for the host's model card."""
        return {
            "scale": self.scale,
            "normalize": self.normalize,
            "mlm_weight": self.mlm_weight,
            "contrastive_weight": self.contrastive_weight,
            "mini_batch_size": self.mini_batch_size or None,
        }


def infonce(
    model: Any,
    scale: float | None = None,
    mini_batch_size: int | None = None,
) -> Any:
    """Return sentence-transformers' InfoNCE on the model's own similarity, over all ranks.

    Each row's first text has to select its second text among the second and further texts of all
    rows.

    Args:
        model: The encoder.
        scale: Factor on the scores. Default: 20 for cosine models, 1 for dot-product models.
        mini_batch_size: Sequences that gradient caching embeds at a time. Default: all at once.

    Returns:
        A ``MultipleNegativesRankingLoss``, or its cached form.
    """
    cosine = model.similarity_fn_name == "cosine"
    settings: Keywords = {
        "scale": default_scale(model) if scale is None else scale,
        "similarity_fct": util.cos_sim if cosine else util.dot_score,
        "gather_across_devices": world_size() > 1,
    }
    if mini_batch_size is None:
        return losses.MultipleNegativesRankingLoss(model, **settings)
    settings["mini_batch_size"] = mini_batch_size
    return losses.CachedMultipleNegativesRankingLoss(model, **settings)


def triplet_losses(
    queries: Tensor,
    documents: Tensor,
    scale: float = 1.0,
    normalize: bool = False,
) -> Tensor:
    """Return −log softmax of each query's positive among the query's own documents.

    An example's loss depends on its own texts alone.

    Args:
        queries: (B, d) embeddings.
        documents: (B, 1 + n, d) embeddings, the positive first.
        scale: Factor on the scores.
        normalize: Compare by cosine instead of dot product.

    Returns:
        (B,) losses in float32 or wider.

    References:
        COCO-DR, Eq. 2; ANCE (Xiong et al., 2021).
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries = _prepared(queries, normalize)
        documents = _prepared(documents, normalize)
        scores = scale * torch.einsum("bd,bnd->bn", queries, documents)  # (B, 1 + n)
        return -scores.log_softmax(dim=1)[:, 0]


def in_batch_losses(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    scale: float = 1.0,
    normalize: bool = False,
) -> Tensor:
    """Return −log softmax of each query's positive among all documents of a batch (InfoNCE).

    Args:
        queries: (B, d) embeddings.
        candidates: (M, d) embeddings of the documents of the whole batch.
        targets: (B,) rows of ``candidates`` that hold the positives.
        scale: Factor on the scores.
        normalize: Compare by cosine instead of dot product.

    Returns:
        (B,) losses in float32 or wider.
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries = _prepared(queries, normalize)
        candidates = _prepared(candidates, normalize)
        return F.cross_entropy(scale * (queries @ candidates.T), targets, reduction="none")


def _prepared(vectors: Tensor, normalize: bool) -> Tensor:
    """Return vectors in float32 or wider, scaled to unit length if they are compared by cosine."""
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    if normalize:
        return F.normalize(vectors, dim=-1)
    return vectors
