"""Listwise distillation: the student learns the teacher's order, most of all at the top of its own
list.
"""

from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.util import all_gather, all_gather_with_grad
from torch import Tensor, nn

from beir_cocodr.distributed import rank, sum_over_ranks, world_size
from beir_cocodr.errors import InputError, Limits
from beir_cocodr.models.mrl import MRL
from beir_cocodr.records import Json

Reduction = Literal["sum", "mean"]
_REDUCTIONS = Limits(choices=get_args(Reduction))


def lambda_rank_distillation_loss(
    student: Tensor,
    teacher: Tensor,
    mask: Tensor | None = None,
    reduction: Reduction = "sum",
    over_ranks: bool = False,
) -> Tensor:
    """Σ over pairs with y(d) > y(d') of |1/π(d) − 1/π(d')| · softplus(s(d') − s(d)).

    π is the student's own rank of a document among those of its query, ties by position; no
    gradient passes through it. The scalar is at least float32, and 0 where there is no pair.

    Args:
        student: s, (B, n) scores; only their differences within a row matter.
        teacher: y, (B, m) scores of the first m ≤ n documents; only their order within a row
            matters. The others are in-batch documents: ranked below these, and tied among
            themselves.
        mask: (B, n), True where there is a document to be compared (default everywhere).
        reduction: "sum" sums over the pairs of a query and averages over queries. "mean" averages
            over all pairs of all queries, as the lambda-MRR loss of CL-DRD does.
        over_ranks: "mean" averages over the pairs of all processes, so that the mean of their
            losses is that of one.

    Source: MRL, Eq. 12.
    """
    _REDUCTIONS.check("reduction", reduction)
    with torch.autocast(student.device.type, enabled=False):
        scores = student.to(torch.promote_types(student.dtype, torch.float32))
        present = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.bool()
        scores = scores.masked_fill(
            ~present, 0.0
        )  # whatever stands there, it must not reach the gradient
        better = slice(0, teacher.shape[1])  # in-batch documents are never the better one of a pair
        known = teacher.to(
            torch.promote_types(teacher.dtype, torch.float32)
        )  # grades may be whole numbers
        known = F.pad(known, (0, scores.shape[1] - teacher.shape[1]), value=-torch.inf)  # (B, n)
        pairs = known[:, better, None] > known[:, None, :]  # (B, m, n)
        pairs &= present[:, better, None] & present[:, None, :]
        gains = 1.0 / _ranks(scores.detach(), present)  # (B, n)
        weights = (gains[:, better, None] - gains[:, None, :]).abs()
        terms = weights * F.softplus(scores[:, None, :] - scores[:, better, None])  # (B, m, n)
        total = torch.where(pairs, terms, 0.0).sum()
        if reduction == "sum":
            return total / len(scores)
        count = pairs.sum().float()
        return total / (sum_over_ranks(count) / world_size() if over_ranks else count).clamp(
            min=1 / world_size()
        )


def _ranks(scores: Tensor, present: Tensor) -> Tensor:
    """(B, n) ranks from 1, the highest score first and the earlier of two equals; the absent come
    last.
    """
    order = scores.masked_fill(~present, -torch.inf).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(1, scores.shape[1] + 1, device=scores.device, dtype=scores.dtype)
    return torch.empty_like(scores).scatter_(1, order, places.expand_as(scores))


class LambdaRankDistillationLoss(CachedLossMixin, nn.Module):
    """The loss above on an encoder: the model's own similarity against the scores of a teacher. An
    InputError: a NaN among the labels.

    Args:
        model: an :class:`MRL`, or any encoder that compares by dot product or cosine.
        scale: factor on dot products; by default ½ for MRL, so that s = −KL, 20 for cosine models
            and 1 for others.
        in_batch: all documents of the batch take part in every query's list, below its own
            (default). A document with the tokens of one in the query's own list is left out: where
            lists hold all known positives, no known positive becomes a negative. Each takes part
            once, however many lists hold it. Under ``torchrun`` they are those of all processes,
            gathered with their gradients, so that the result is that of one process.
        reduction: see :func:`lambda_rank_distillation_loss`.
        mini_batch_size: texts embedded at a time by gradient caching; None embeds all at once.

    Inputs:
        Columns query, document_1, ..., document_n, and label, a list of the teacher's n raw scores,
        −inf for a place without a document, where a query has fewer than n. For MRL,
        ``args.router_mapping`` has to map the columns to "query" and "document".

    References:
        MRL, section 4.2, Eq. 12; in-batch documents: its last paragraph.

    Example:
        >>> import torch
        >>> from beir_cocodr import load_encoder
        >>> from beir_cocodr.losses.lambdarank import LambdaRankDistillationLoss
        >>> loss = LambdaRankDistillationLoss(load_encoder("minilm"), in_batch=False)
        >>> columns = [["sort an array"], ["Draw a histogram."], ["Return a sorted copy."]]
        >>> features = [loss.model.preprocess(column) for column in columns]
        >>> right = loss(features, torch.tensor([[0.1, 7.0]]))  # the teacher agrees with the model's order
        >>> wrong = loss(features, torch.tensor([[7.0, 0.1]]))
        >>> bool(right < wrong)
        True
    """

    def __init__(
        self,
        model: Any,
        scale: float | None = None,
        in_batch: bool = True,
        reduction: Reduction = "sum",
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        _REDUCTIONS.check("reduction", reduction)
        self.model = model
        self.normalize = model.similarity_fn_name == "cosine"
        default = 0.5 if isinstance(model, MRL) else 20.0 if self.normalize else 1.0
        self.scale = default if scale is None else scale
        self.in_batch, self.reduction = in_batch, reduction
        # The host reads both attributes: 0 stands for no caching, and only with caching may it be
        # patched.
        self.cached = self.uses_gradient_cache = mini_batch_size is not None
        self.mini_batch_size = mini_batch_size or 0
        self._texts = torch.empty(0, dtype=torch.long)

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        columns = list(sentence_features)
        _check(columns, labels, self.in_batch)
        self._texts = _text_hashes(columns[1:])
        if self.cached:
            return self.forward_cached(columns, labels)
        return self.calculate_loss([[self.model(c)["sentence_embedding"]] for c in columns], labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        assert labels is not None
        columns = [torch.cat(column) for column in reps]
        with torch.autocast(columns[0].device.type, enabled=False):
            query = columns[0].float()  # (B, d)
            documents = torch.stack(columns[1:], dim=1).float()  # (B, n, d)
            if self.normalize:
                query, documents = F.normalize(query, dim=-1), F.normalize(documents, dim=-1)
            scores = self.scale * torch.einsum("bd,bnd->bn", query, documents)
            mask = labels != -torch.inf  # (B, n)
            if self.in_batch:
                every, texts, present, own = documents, self._texts, mask, slice(0, len(mask))
                if world_size() > 1:
                    every = all_gather_with_grad(documents)  # (BW, n, d)
                    texts, present = all_gather(texts), all_gather(mask.long()).bool()
                    own = slice(rank() * len(mask), (rank() + 1) * len(mask))
                first, foreign = _in_batch(texts, present)
                others = self.scale * query @ every.flatten(0, 1)[first].T  # (B, U)
                scores, mask = (
                    torch.cat([scores, others], dim=1),
                    torch.cat([mask, foreign[own]], dim=1),
                )
        loss = lambda_rank_distillation_loss(scores, labels, mask, self.reduction, over_ranks=True)
        if with_backward:
            torch.autograd.backward(loss)
            loss = loss.detach()
        return loss

    def get_config_dict(self) -> Json:
        names = ("scale", "in_batch", "reduction")
        return {name: getattr(self, name) for name in names} | {
            "mini_batch_size": self.mini_batch_size or None
        }


def _check(columns: list[dict[str, Tensor]], labels: Tensor | None, in_batch: bool) -> None:
    listed = len(columns) - 1
    if listed < (1 if in_batch else 2):
        raise ValueError(
            f"distillation needs a query and documents to rank, got {len(columns)} columns"
        )
    if labels is None or labels.ndim != 2 or labels.shape[1] != listed:
        got = None if labels is None else tuple(labels.shape)
        raise ValueError(
            f"the labels have to be teacher scores, (B, {listed}) like the documents; got {got}"
        )
    if (wrong := labels.isnan().nonzero()).numel():
        row, column = wrong[0].tolist()
        raise InputError(
            f"the teacher's score of document_{column + 1} in row {row} of the batch is NaN"
        )


# Odd, so that a power of it loses no bit.
_FACTOR = 0x5851F42D4C957F2D


def _text_hashes(columns: list[dict[str, Tensor]]) -> Tensor:
    """(B, n): a 64-bit hash of each document's tokens, the same on all ranks, whatever is
    padded.
    """
    hashes = []
    for column in columns:
        tokens = (column["input_ids"] + 1).masked_fill(column["attention_mask"] == 0, 0)
        powers = torch.full_like(tokens[0], _FACTOR).cumprod(0)  # beyond 64 bits they wrap around
        mixed = (tokens * powers).sum(dim=1)
        hashes.append(mixed ^ (mixed >> 29))
    return torch.stack(hashes, dim=1)


def _in_batch(texts: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """The U different documents of (B, n), by a place of each in B·n; whose list each is not in,
    (B, U).
    """
    texts = torch.unique(texts, return_inverse=True)[1]
    flat, size = texts.flatten(), int(texts.max()) + 1
    places = torch.arange(len(flat), device=flat.device)
    first = torch.full_like(places[:size], len(flat)).scatter_reduce(0, flat, places, "amin")
    real = torch.zeros(size, dtype=torch.bool, device=flat.device)
    real[flat[present.flatten()]] = True
    foreign = real.expand(len(texts), size).scatter(1, texts, False)
    return first, foreign
