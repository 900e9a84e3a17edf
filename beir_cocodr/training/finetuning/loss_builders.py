"""Builders of the rows of losses and objectives: a loss over a model, by a training's options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import util
from sentence_transformers.sentence_transformer import losses
from torch import Tensor, nn

from beir_cocodr.errors import InputError
from beir_cocodr.losses.coco import COCOLoss
from beir_cocodr.losses.coco import infonce as infonce_loss
from beir_cocodr.losses.cotmae import CoTMAELoss
from beir_cocodr.losses.dro import ClusterLoss
from beir_cocodr.losses.lambdarank import LambdaRankDistillationLoss
from beir_cocodr.losses.list_distillation import ListDistillationLoss
from beir_cocodr.losses.tsdae import TSDAELoss
from beir_cocodr.models.mrl import MRL
from beir_cocodr.training.finetuning.loss_rows import (
    KLMarginOptions,
    LambdaRankOptions,
    ScaleOptions,
)
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

# Factor on scores in the host's losses of distillation, by what the student compares with.
_MRL_SCALE = 0.5
_COSINE_SCALE = 20.0


def _scale(options: PretrainOptions) -> float | None:
    own_options = options.objective_options
    if isinstance(own_options, ScaleOptions):
        return own_options.scale
    return None


def coco(
    model: COCODR,
    options: PretrainOptions,
    mini_batch_size: int | None,
) -> nn.Module:
    """Build the contrastive loss, if the objective has it, and the language-model losses."""
    contrastive_weight = 1.0 if options.row("objective").contrastive else 0.0
    return COCOLoss(
        model=model,
        scale=_scale(options),
        mini_batch_size=mini_batch_size,
        mlm_weight=options.language_model_weight,
        contrastive_weight=contrastive_weight,
    )


def contrastive(
    model: COCODR,
    options: PretrainOptions,
    mini_batch_size: int | None,
) -> nn.Module:
    """Build the contrastive loss alone."""
    loss: nn.Module = infonce_loss(model, _scale(options), mini_batch_size)
    return loss


def simcse(
    model: Any,
    options: PretrainOptions,
    mini_batch_size: int | None,
) -> nn.Module:
    """Build the contrastive loss for an encoder with dropout, which alone tells copies apart."""
    modules = model.transformers_model.modules()
    if not any(isinstance(module, nn.Dropout) and module.p > 0 for module in modules):
        raise InputError(
            "simcse needs an encoder with dropout, and the dropout of this one is 0: nothing else "
            "tells the two copies of a text apart; choose another objective"
        )
    return contrastive(model, options, mini_batch_size)


def tsdae(
    model: COCODR,
    options: PretrainOptions,
    mini_batch_size: int | None,
) -> nn.Module:
    """Build the loss of a decoder that rebuilds a text from its embedding."""
    return TSDAELoss(model, mini_batch_size)


def cotmae(
    model: COCODR,
    options: PretrainOptions,
    mini_batch_size: int | None,
) -> nn.Module:
    """Build CoT-MAE's loss; no text acts on another, so gradients are accumulated, not cached."""
    return CoTMAELoss(model, mini_batch_size, options.language_model_weight)


def infonce(model: COCODR, options: FinetuneOptions, pairs: int) -> nn.Module:
    """Build InfoNCE over all documents of a batch."""
    loss: nn.Module = infonce_loss(model, options.scale, options.cached_mini_batch())
    return loss


def triplet(model: COCODR, options: FinetuneOptions, pairs: int) -> nn.Module:
    """Build the loss of each positive against the query's own hard negatives."""
    one_cluster = torch.zeros(pairs, dtype=torch.int64)
    return ClusterLoss(model, 1, one_cluster, scale=options.scale, in_batch=False)


def weighted(model: COCODR, options: FinetuneOptions, clusters: Tensor) -> nn.Module:
    """Build the loss that weighs clusters of queries.

    Args:
        model: the encoder.
        options: they name the weighting and the loss that it weighs.
        clusters: (pairs,) the cluster of each training pair.
    """
    weighting = options.row("weighting")
    own_options = options.clustering
    loss: nn.Module = weighting.load()(
        model,
        n_clusters=own_options.clusters,
        clusters=clusters,
        scale=options.scale,
        in_batch=options.row("loss").in_batch,
        seed=options.seed,
        **own_options.loss_arguments(),
    )
    return loss


def lambdarank(model: COCODR, options: DistillOptions) -> nn.Module:
    """Build LambdaRank over the teacher's order (MRL, Eq. 12)."""
    own_options = options.loss_options
    assert isinstance(own_options, LambdaRankOptions)
    reduction: Any = own_options.reduction
    return LambdaRankDistillationLoss(
        model, reduction=reduction, mini_batch_size=options.cached_mini_batch()
    )


def kl_divergence(model: COCODR, options: DistillOptions) -> nn.Module:
    """Build sentence-transformers' KL divergence from the teacher's scores of a list."""
    return losses.DistillKLDivLoss(model, similarity_fct=_similarity(model))


def margin_mse(model: COCODR, options: DistillOptions) -> nn.Module:
    """Build sentence-transformers' squared error of the margins to the teacher's."""
    return losses.MarginMSELoss(model, similarity_fct=_similarity(model))


def kl_margin(model: COCODR, options: DistillOptions) -> nn.Module:
    """Build the divergence of a list with margins to its best document."""
    own_options = options.loss_options
    assert isinstance(own_options, KLMarginOptions)
    return ListDistillationLoss(
        model,
        _similarity(model),
        own_options.margin_weight,
        own_options.temperature,
        mini_batch_size=options.cached_mini_batch(),
    )


def _similarity(model: COCODR) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the student's similarity of pairs, scaled for the host's losses."""
    cosine = model.similarity_fn_name == "cosine"
    pairwise = util.pairwise_cos_sim if cosine else util.pairwise_dot_score
    scale = _COSINE_SCALE if cosine else 1.0
    if isinstance(model, MRL):
        scale = _MRL_SCALE

    def similarity(queries: Tensor, documents: Tensor) -> Tensor:
        return scale * pairwise(queries, documents)

    return similarity
