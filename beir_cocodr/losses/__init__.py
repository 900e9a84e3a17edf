"""Training losses: pure tensor functions with a thin module around each.

They are loaded on first use, so that importing this package imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the same for type checkers
    from beir_cocodr.losses.coco import COCOLoss as COCOLoss
    from beir_cocodr.losses.coco import coco_contrastive_loss as coco_contrastive_loss
    from beir_cocodr.losses.coco import in_batch_losses as in_batch_losses
    from beir_cocodr.losses.coco import infonce as infonce
    from beir_cocodr.losses.coco import triplet_losses as triplet_losses
    from beir_cocodr.losses.cotmae import CoTMAELoss as CoTMAELoss
    from beir_cocodr.losses.dro import ClusterLoss as ClusterLoss
    from beir_cocodr.losses.dro import CVaRLoss as CVaRLoss
    from beir_cocodr.losses.dro import GroupDROLoss as GroupDROLoss
    from beir_cocodr.losses.dro import IDROLoss as IDROLoss
    from beir_cocodr.losses.dro import cvar_weights as cvar_weights
    from beir_cocodr.losses.dro import group_dro_weights as group_dro_weights
    from beir_cocodr.losses.dro import idro_weights as idro_weights
    from beir_cocodr.losses.dro import idro_weights_in_closed_form as idro_weights_in_closed_form
    from beir_cocodr.losses.lambdarank import (
        LambdaRankDistillationLoss as LambdaRankDistillationLoss,
    )
    from beir_cocodr.losses.lambdarank import (
        lambda_rank_distillation_loss as lambda_rank_distillation_loss,
    )
    from beir_cocodr.losses.list_distillation import ListDistillationLoss as ListDistillationLoss
    from beir_cocodr.losses.list_distillation import (
        list_distillation_loss as list_distillation_loss,
    )
    from beir_cocodr.losses.tsdae import TSDAELoss as TSDAELoss

_NAMES = {
    "coco": "COCOLoss coco_contrastive_loss in_batch_losses infonce triplet_losses",
    "cotmae": "CoTMAELoss",
    "dro": "ClusterLoss CVaRLoss GroupDROLoss IDROLoss"
    " cvar_weights group_dro_weights idro_weights idro_weights_in_closed_form",
    "lambdarank": "LambdaRankDistillationLoss lambda_rank_distillation_loss",
    "list_distillation": "ListDistillationLoss list_distillation_loss",
    "tsdae": "TSDAELoss",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
