"""Listwise distillation: the student learns the teacher's order, most of all at the top."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, get_args

import torch
import torch.nn.functional as F
from sentence_transformers.util import all_gather, all_gather_with_grad
from torch import Tensor, nn

from beir_cocodr.distributed import rank, sum_over_ranks, world_size
from beir_cocodr.errors import InputError, Limits
from beir_cocodr.losses.coco import default_scale
from beir_cocodr.losses.gradient_cache import OptionalGradientCache
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.papers import bibtex
from beir_cocodr.records import Json

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: How the terms of a batch become one loss.
Reduction = Literal["sum", "mean"]
_REDUCTIONS = Limits(choices=get_args(Reduction))

# MRL's vectors have the dot product −2·KL(Q‖D); half of it is −KL(Q‖D).
_MRL_SCALE = 0.5

# An odd factor of the text hashes, so that no power of it loses a bit.
_FACTOR = 0x5851F42D4C957F2D


def lambda_rank_distillation_loss(
    student: Tensor,
    teacher: Tensor,
    mask: Tensor | None = None,
    reduction: Reduction = "sum",
    over_ranks: bool = False,
) -> Tensor:
    """Weight a pairwise logistic loss by how much exchanging the pair changes the ranking.

    The loss is Σ |1/π(d) − 1/π(d')| · softplus(s(d') − s(d)) over pairs with y(d) > y(d'), where π
    is the student's rank of a document among those of its query, ties by position. No gradient
    passes through π.

    Args:
        student: s, (B, n) scores. Only their differences within a row matter.
        teacher: y, (B, m) scores of the first m ≤ n documents. Only their order within a row
            matters. The other documents are in-batch documents: ranked below these, and tied among
            themselves.
        mask: (B, n), true where there is a document to compare. Default: everywhere.
        reduction: "sum" sums over the pairs of a query and averages over queries. "mean" averages
            over all pairs of all queries, as the lambda-MRR loss of CL-DRD does.
        over_ranks: Let "mean" average over the pairs of all processes, so that the mean of their
            losses is that of one process.

    Returns:
        A scalar in float32 or wider, 0 where there is no pair.

    Raises:
        InputError: The reduction is unknown.

    References:
        MRL, Eq. 12.
    """
    _REDUCTIONS.check("reduction", reduction)
    with torch.autocast(student.device.type, enabled=False):
        scores = _wide(student)
        if mask is None:
            mask = torch.ones_like(scores)
        present = mask.bool()
        # The scores of absent documents may be anything, and must not reach the gradient.
        scores = scores.masked_fill(~present, 0.0)
        absent_grades = scores.shape[1] - teacher.shape[1]
        grades = F.pad(_wide(teacher), (0, absent_grades), value=-torch.inf)  # (B, n)
        better = slice(0, teacher.shape[1])  # no in-batch document is the better one of a pair
        pairs = grades[:, better, None] > grades[:, None, :]  # (B, m, n)
        pairs &= present[:, better, None] & present[:, None, :]
        gains = 1.0 / _ranks(scores.detach(), present)  # (B, n)
        weights = (gains[:, better, None] - gains[:, None, :]).abs()
        margins = scores[:, None, :] - scores[:, better, None]
        terms = weights * F.softplus(margins)  # (B, m, n)
        total = torch.where(pairs, terms, 0.0).sum()
        if reduction == "sum":
            return total / len(scores)
        count = pairs.sum().float()
        if over_ranks:
            count = sum_over_ranks(count) / world_size()
        return total / count.clamp(min=1 / world_size())


def _wide(scores: Tensor) -> Tensor:
    """Return scores in float32 or wider; grades may be whole numbers."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _ranks(scores: Tensor, present: Tensor) -> Tensor:
    """Return (B, n) ranks from 1, highest score first, ties by position, absent documents last."""
    of_present = scores.masked_fill(~present, -torch.inf)
    order = of_present.argsort(dim=1, descending=True, stable=True)
    ranks = torch.arange(
        1,
        scores.shape[1] + 1,
        device=scores.device,
        dtype=scores.dtype,
    )
    return torch.empty_like(scores).scatter_(1, order, ranks.expand_as(scores))


class LambdaRankDistillationLoss(OptionalGradientCache, nn.Module):
    """LambdaRank distillation: the order of a teacher's scores, learned by the model's similarity.

    Use it to train a retriever on the scores of a cross-encoder or another strong ranker, or on
    graded judgements. It is :func:`lambda_rank_distillation_loss` of the model's own similarity.

    With ``in_batch``, the documents of all other queries in the batch are ranked below a query's
    own. A document whose tokens equal those of one of the query's own is left out: where lists hold
    all known positives, no known positive becomes a negative. Each document takes part once, in
    however many lists it is. On several ranks the documents of all ranks take part, gathered with
    their gradients, so that the result is that of one process.

    Args:
        model: An :class:`~beir_cocodr.MRL`, or any encoder that compares by dot product or cosine.
        scale: Factor on dot products. Default: ½ for MRL, so that s = −KL; 20 for cosine models; 1
            for others.
        in_batch: Rank the documents of other queries below a query's own.
        reduction: "sum" or "mean", see :func:`lambda_rank_distillation_loss`.
        mini_batch_size: Texts that gradient caching embeds at a time. Default: all at once, without
            caching.

    Raises:
        InputError: The reduction is unknown, or, in a forward, the teacher's score of a document is
            NaN.

    References:
        MRL, section 4.2, Eq. 12; its last paragraph for the in-batch documents.

    Requirements:
        For MRL, ``args.router_mapping`` maps the columns to "query" and "document".

    Inputs:
        +------------------------------------------+----------------------------+
        | Texts                                    | Labels                     |
        +==========================================+============================+
        | (query, document_1, ..., document_n)     | list of n teacher scores   |
        +------------------------------------------+----------------------------+

        A label of −inf marks a document that a query does not have, where it has fewer than n.

    Relations:
        sentence-transformers' ``MarginMSELoss`` learns the differences of the teacher's scores, and
        not only their order.

    Example:
        >>> import torch
        >>> from beir_cocodr import load_encoder
        >>> from beir_cocodr.losses import LambdaRankDistillationLoss
        >>> loss = LambdaRankDistillationLoss(load_encoder("minilm"), in_batch=False)
        >>> columns = [["sort an array"], ["Draw a histogram."], ["Return a sorted copy."]]
        >>> features = [loss.model.preprocess(column) for column in columns]
        >>> same_order = loss(features, torch.tensor([[0.1, 7.0]]))
        >>> other_order = loss(features, torch.tensor([[7.0, 0.1]]))
        >>> bool(same_order < other_order)
        True
    """

    def __init__(
        self,
        model: SentenceTransformer,
        scale: float | None = None,
        in_batch: bool = True,
        reduction: Reduction = "sum",
        mini_batch_size: int | None = None,
    ) -> None:
        """Set the options of the loss."""
        super().__init__()
        _REDUCTIONS.check("reduction", reduction)
        self.model = model
        self.normalize = model.similarity_fn_name == "cosine"
        if scale is None:
            scale = _MRL_SCALE
            if not isinstance(model, MRL):
                scale = default_scale(model)
        self.scale = scale
        self.in_batch = in_batch
        self.reduction = reduction
        self.set_mini_batch(mini_batch_size)
        # Set by each forward, for the two passes of gradient caching.
        self._texts = torch.empty(0, dtype=torch.long)

    def forward(
        self,
        sentence_features: Iterable[dict[str, Tensor]],
        labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch of queries and documents; labels are the teacher's scores."""
        columns = list(sentence_features)
        _check_columns(columns, self.in_batch)
        _check_labels(labels, len(columns) - 1)
        self._texts = _text_hashes(columns[1:])
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
            reps: For each column, (b, d) embeddings.
            labels: (B, n) teacher's scores.
            with_backward: Run the backward pass, and return a detached loss.
        """
        assert labels is not None
        query, *documents = [torch.cat(column) for column in reps]
        present = labels != -torch.inf  # (B, n)
        scores, mask = self._scores(query, documents, present)
        loss = lambda_rank_distillation_loss(
            scores,
            labels,
            mask,
            self.reduction,
            over_ranks=True,
        )
        return self.finished(loss, with_backward)

    def _scores(
        self,
        query: Tensor,
        documents: list[Tensor],
        present: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the scores of each query's documents and of in-batch documents, and their mask.

        Args:
            query: (B, d).
            documents: n columns of (B, d).
            present: (B, n), true where a query has the document.

        Returns:
            (B, n) each, or (B, n + U) with U different in-batch documents.
        """
        with torch.autocast(query.device.type, enabled=False):
            queries = query.float()
            lists = torch.stack(documents, dim=1).float()  # (B, n, d)
            if self.normalize:
                queries = F.normalize(queries, dim=-1)
                lists = F.normalize(lists, dim=-1)
            scores = self.scale * torch.einsum("bd,bnd->bn", queries, lists)
            if not self.in_batch:
                return scores, present
            candidates, first, foreign = self._candidates(lists, present)
            in_batch = candidates.flatten(0, 1)[first]  # (U, d)
            others = self.scale * queries @ in_batch.T  # (B, U)
            all_scores = torch.cat([scores, others], dim=1)
            mask = torch.cat([present, foreign], dim=1)
            return all_scores, mask

    def _candidates(self, lists: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the lists of all ranks and what :func:`_in_batch` makes of them for this rank."""
        if world_size() == 1:
            first, foreign = _in_batch(self._texts, present)
            return lists, first, foreign
        candidates = all_gather_with_grad(lists)  # (BW, n, d)
        texts = all_gather(self._texts)
        all_present = all_gather(present.long()).bool()
        first, foreign = _in_batch(texts, all_present)
        start = rank() * len(present)
        return candidates, first, foreign[start : start + len(present)]

    @property
    def citation(self) -> str:
        """Return the BibTeX entry of the paper."""
        return bibtex("zamani2023mrl")

    def get_config_dict(self) -> Json:
        """Return the options, for the host's model card."""
        return {
            "scale": self.scale,
            "in_batch": self.in_batch,
            "reduction": self.reduction,
            "mini_batch_size": self.mini_batch_size or None,
        }


def _check_columns(columns: list[dict[str, Tensor]], in_batch: bool) -> None:
    """Check that a query has documents to rank."""
    least = 2 if in_batch else 3
    if len(columns) < least:
        raise ValueError(
            f"distillation needs a query and documents to rank, at least {least} columns; "
            f"got {len(columns)}"
        )


def _check_labels(labels: Tensor | None, documents: int) -> None:
    """Check that the labels are a score of each document."""
    shape = None
    if labels is not None:
        shape = tuple(labels.shape)
    if labels is None or labels.shape[1:] != (documents,):
        raise ValueError(
            f"labels must be teacher scores of the documents, (B, {documents}); got {shape}"
        )
    nan = labels.isnan().nonzero()
    if len(nan):
        row, column = nan[0].tolist()
        raise InputError(
            f"the teacher's score of document_{column + 1} in row {row} of the batch is NaN; "
            "correct the label"
        )


def _text_hashes(columns: list[dict[str, Tensor]]) -> Tensor:
    """Return (B, n) hashes of each document's tokens, 64 bits, equal on all ranks.

    Padding does not change them.
    """
    hashes = []
    for column in columns:
        is_padding = column["attention_mask"] == 0
        tokens = (column["input_ids"] + 1).masked_fill(is_padding, 0)
        powers = torch.full_like(tokens[0], _FACTOR).cumprod(0)  # beyond 64 bits they wrap around
        mixed = (tokens * powers).sum(dim=1)
        hashes.append(mixed ^ (mixed >> 29))
    return torch.stack(hashes, dim=1)


def _in_batch(texts: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different documents of a batch, and for which lists they are in-batch documents.

    Args:
        texts: (B, n) hashes of the documents.
        present: (B, n), true where there is a document.

    Returns:
        (U,) the first position of each of U different documents in B·n, and (B, U), true where a
        document is not in a query's own list.
    """
    numbers = torch.unique(texts, return_inverse=True)[1]  # (B, n), from 0 to U − 1
    flat = numbers.flatten()
    different = int(numbers.max()) + 1
    positions = torch.arange(len(flat), device=flat.device)
    last = torch.full_like(positions[:different], len(flat))
    first = last.scatter_reduce(0, flat, positions, "amin")
    real = torch.zeros(different, dtype=torch.bool, device=flat.device)
    real[flat[present.flatten()]] = True
    foreign = real.expand(len(numbers), different).scatter(1, numbers, False)
    return first, foreign
