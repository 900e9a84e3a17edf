"""The layers after [CLS] with which ANCE and encoders of its form compute their scores."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm
from torch import Tensor, nn

from beir_cocodr.errors import InputError, explained
from beir_cocodr.io import Keywords
from beir_cocodr.models.checkpoints.hub import find_file

_NAMES = ("embeddingHead.weight", "embeddingHead.bias", "norm.weight", "norm.bias")


def score_projection(name: str, places: Keywords) -> tuple[Dense, LayerNorm]:
    """Return the trained ``embeddingHead`` and ``norm`` of a checkpoint as modules of the host.

    Args:
        name: A folder or a hub name.
        places: Where to look, see :data:`~beir_cocodr.models.checkpoints.hub.PLACES`.

    Returns:
        The projection and the layer normalisation, which are applied one after the other.

    Raises:
        InputError: A weight is missing, or they do not fit each other.

    References:
        ANCE (Xiong et al., 2021), its released code and checkpoints.
    """
    weights = _weights(name, places)
    missing = [tensor for tensor in _NAMES if tensor not in weights]
    if missing:
        raise InputError(
            f"model {name!r} scores with embeddingHead and norm, and lacks {', '.join(missing)}; "
            "download it again"
        )
    head, bias, scale, shift = (weights[tensor].float() for tensor in _NAMES)
    way_out = "the model is damaged, download it again"
    with explained(f"embeddingHead and norm of {name!r} do not fit", way_out, RuntimeError):
        width = len(head)
        dense = Dense(
            head.shape[1],
            width,
            activation_function=nn.Identity(),
            init_weight=head,
            init_bias=bias,
        )
        norm = LayerNorm(width)
        norm.norm.load_state_dict({"weight": scale, "bias": shift})
    return dense, norm


def _weights(name: str, places: Keywords) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint; of a pickle, tensors alone are read."""
    kinds = (OSError, RuntimeError, ValueError, SafetensorError, pickle.UnpicklingError)
    with explained(f"the weights of {name!r} cannot be read", "download it again", *kinds):
        file = find_file(name, "model.safetensors", places)
        if file is not None and Path(file).is_file():
            return load_file(file)
        file = find_file(name, "pytorch_model.bin", places)
        if file is None:
            return {}
        tensors: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        return tensors
