"""Losses of fine-tuning and of distillation: what each is called, its options, and its papers."""

from __future__ import annotations

from dataclasses import dataclass

from beir_cocodr.models.spec import Options, option
from beir_cocodr.training.rows import Row


@dataclass(frozen=True)
class ScaleOptions(Options):
    """Options of a contrastive loss.

    Args:
        scale: factor on scores. None means 1 for dot product and 20 for cosine.
    """

    scale: float | None = option(None, above=0)


@dataclass(frozen=True)
class LambdaRankOptions(Options):
    """Options of :class:`~beir_cocodr.losses.lambdarank.LambdaRankDistillationLoss`.

    Args:
        reduction: "sum" or "mean" over the pairs of a list.
    """

    reduction: str = option("sum", choices=("sum", "mean"))


@dataclass(frozen=True)
class KLMarginOptions(Options):
    """Options of :class:`~beir_cocodr.losses.list_distillation.ListDistillationLoss`.

    Args:
        margin_weight: weight of the margins, against 1 of the divergence.
        temperature: divides the teacher's scores.
    """

    margin_weight: float = option(0.05, min=0)
    temperature: float = option(1.0, above=0)


@dataclass(frozen=True, kw_only=True)
class FinetuneLoss(Row):
    """A loss of fine-tuning.

    ``build`` is called with the model, the :class:`~beir_cocodr.training.options.FinetuneOptions`
    and the number of pairs. The loss gets the columns of :attr:`columns`, in their order, and the
    numbers of the pairs as labels.

    Attributes:
        in_batch: whether a query is compared with all documents of the batch. A batch then holds
            no text twice, and no document that is relevant to another of its queries.
        weighable: whether weightings of clusters can weigh it.
    """

    in_batch: bool = False
    weighable: bool = False


@dataclass(frozen=True, kw_only=True)
class DistillationLoss(Row):
    """A loss of distillation.

    ``build`` is called with the model and the
    :class:`~beir_cocodr.training.options.DistillOptions`. The loss gets the columns of
    :attr:`columns`, in their order, and the teacher's scores as labels.

    Attributes:
        equal_lists: whether all lists must have the same length.
        caches_columns: whether all texts of the lists count for gradient caching, which then embeds
            one column at a time, or less.
    """

    equal_lists: bool = False
    caches_columns: bool = False


_PAIRS = {"query": "query", "positive": "document", "negative_n": "document"}
_LISTS = {"query": "query", "document_n": "document"}
_BUILDERS = "beir_cocodr.training.finetuning.loss_builders"

#: Name to loss of fine-tuning. Add a row for your own.
LOSSES: dict[str, FinetuneLoss] = {
    "triplet": FinetuneLoss(
        build=f"{_BUILDERS}:triplet",
        help="a query's positive against its own hard negatives",
        options=ScaleOptions,
        columns=_PAIRS,
        weighable=True,
    ),
    "infonce": FinetuneLoss(
        build=f"{_BUILDERS}:infonce",
        help="a query's positive against all documents of the batch",
        options=ScaleOptions,
        columns=_PAIRS,
        in_batch=True,
        weighable=True,
    ),
}

#: Name to loss of distillation. Add a row for your own.
DISTILLATION_LOSSES: dict[str, DistillationLoss] = {
    "lambdarank": DistillationLoss(
        build=f"{_BUILDERS}:lambdarank",
        help="pairs of a list, weighted by what their exchange costs",
        options=LambdaRankOptions,
        columns=_LISTS,
        citations=("zamani2023mrl",),
    ),
    "kl": DistillationLoss(
        build=f"{_BUILDERS}:kl_divergence",
        help="KL divergence of two distributions over a list",
        columns=_LISTS,
        equal_lists=True,
    ),
    "kl_margin": DistillationLoss(
        build=f"{_BUILDERS}:kl_margin",
        help="KL divergence over a list, and the margins to its best document",
        options=KLMarginOptions,
        columns=_LISTS,
        equal_lists=True,
        caches_columns=True,
        citations=("hofstatter2020marginmse",),
    ),
    "margin_mse": DistillationLoss(
        build=f"{_BUILDERS}:margin_mse",
        help="squared error of the margins between positive and negatives",
        columns=_LISTS,
        equal_lists=True,
        citations=("hofstatter2020marginmse",),
    ),
}
