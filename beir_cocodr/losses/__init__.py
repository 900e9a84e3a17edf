"""Training losses: pure tensor functions with a thin module around each.

They are loaded on first use, so that importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "COCOLoss": "coco",
    "coco_contrastive_loss": "coco",
    "in_batch_losses": "coco",
    "infonce": "coco",
    "triplet_losses": "coco",
    "ClusterLoss": "dro",
    "CVaRLoss": "dro",
    "GroupDROLoss": "dro",
    "IDROLoss": "dro",
    "cvar_weights": "dro",
    "group_dro_weights": "dro",
    "idro_weights": "dro",
    "idro_weights_in_closed_form": "dro",
    "CoTMAELoss": "cotmae",
    "LambdaRankDistillationLoss": "lambdarank",
    "lambda_rank_distillation_loss": "lambdarank",
    "TSDAELoss": "tsdae",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
