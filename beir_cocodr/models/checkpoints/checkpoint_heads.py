"""Weights of heads that checkpoints hold beside their encoder.

These are the masked-language-model layers of a backbone's checkpoint, and the transformer layers of
a Condenser head as it was released.
"""

import pickle
import re
from contextlib import suppress
from typing import Any

import torch
from sentence_transformers.util import load_file_path
from torch import Tensor
from transformers import AutoModelForMaskedLM

from beir_cocodr.errors import InputError, explained, listed
from beir_cocodr.models.checkpoints.integrity import MAYBE_HEAD, loading
from beir_cocodr.models.heads.transformer_layers import encoder_layer_weights

#: The file beside the BERT weights in which Condenser and coCondenser were released with their
#: head.
PUBLISHED_HEAD = "model.pt"

# dense, LayerNorm and bias of the masked-language-model heads of BERT, of RoBERTa and MPNet, and of
# DistilBERT: the same layers by other names.
_MLM_NAMES = (
    (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    ),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
)


def mlm_layers(source: str) -> dict[str, Tensor] | None:
    """Return the layers of a checkpoint's masked-language-model head by the names of our head.

    Args:
        source: Folder or hub name of the checkpoint.

    Returns:
        The weights of dense, layer_norm and bias, or None if the checkpoint has no such head.

    Raises:
        InputError: A part of the head is missing.
    """
    try:
        with loading(source, MAYBE_HEAD):
            language_model, info = AutoModelForMaskedLM.from_pretrained(
                source, output_loading_info=True
            )
    except InputError:
        # The encoder itself was loaded from here: no such head is known for its architecture.
        return None
    missing = set(info["missing_keys"])
    weights: dict[str, Tensor] = {}
    for name, weight in language_model.state_dict().items():
        if name not in missing:
            weights[name] = weight
    for dense, norm, bias in _MLM_NAMES:
        names = {"bias": bias}
        for part in ("weight", "bias"):
            names[f"dense.{part}"] = f"{dense}.{part}"
            names[f"layer_norm.{part}"] = f"{norm}.{part}"
        lacking = [name for name in names.values() if name not in weights]
        if not lacking:
            return {ours: weights[theirs] for ours, theirs in names.items()}
        if len(lacking) < len(names):
            raise InputError(
                f"the language-model head of {source} lacks {listed(lacking, 3)}; download it again"
            )
    return None


def published_head_layers(source: str) -> list[dict[str, Tensor]] | None:
    """Return the transformer layers of a Condenser head as it was released.

    The file is the one foreign pickle that is read here, and only its tensors are read
    (``weights_only=True``): a state dict with the keys ``c_head.{i}.`` of BERT's layers.

    Args:
        source: Folder or hub name of the checkpoint.

    Returns:
        Each layer's weights by the names of nn.TransformerEncoderLayer, or None if there is no such
        file or no such key in it.

    Raises:
        InputError: The file cannot be read, or lacks weights of a layer.

    References:
        Condenser (Gao and Callan, 2021), its released code and checkpoints.
    """
    path = None
    with suppress(OSError):  # the hub cannot be asked, and the encoder came from its cache
        path = load_file_path(source, PUBLISHED_HEAD)
    if path is None:
        return None
    kinds = (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError)
    way_out = "move it away to start with a new head"
    with explained(f"{path} cannot be read as tensors", way_out, *kinds):
        weights = torch.load(path, map_location="cpu", weights_only=True)
    layers = _count_layers(weights)
    with explained(f"{path} is not a complete head, it lacks a weight", way_out, KeyError):
        return [encoder_layer_weights(weights, f"c_head.{i}.") for i in range(layers)] or None


def _count_layers(weights: Any) -> int:
    """Return one more than the largest number of a layer in a state dict."""
    if not isinstance(weights, dict):
        return 0
    keys = [re.match(r"c_head\.(\d+)\.", str(name)) for name in weights]
    numbers = [int(key.group(1)) for key in keys if key is not None]
    return max(numbers, default=-1) + 1
