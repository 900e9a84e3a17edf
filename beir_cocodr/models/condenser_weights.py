"""Where a training head's weights come from: a published Condenser head, or a masked language model."""

from __future__ import annotations

import pickle
import re

import torch
from sentence_transformers.util import load_file_path
from torch import Tensor
from transformers import AutoModelForMaskedLM

from beir_cocodr.errors import InputError

#: The file beside the BERT weights in which Condenser and coCondenser were released with their head.
PUBLISHED_HEAD = "model.pt"

# dense, LayerNorm and bias of the masked-language-model heads of BERT, RoBERTa and MPNet, DistilBERT:
# the same three layers under different names.
_MLM_NAMES = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
)

# nn.TransformerEncoderLayer's names for the modules of BERT's and RoBERTa's layers.
_LAYER_NAMES = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


def mlm_layers(source: str) -> dict[str, Tensor] | None:
    """dense, LayerNorm and bias of a masked language model, under our head's names; None without one."""
    try:
        language_model, info = AutoModelForMaskedLM.from_pretrained(source, output_loading_info=True)
    except (OSError, ValueError, KeyError):
        return None
    weights, missing = language_model.state_dict(), set(info["missing_keys"])
    for dense, norm, bias in _MLM_NAMES:
        ours = {
            f"{ours}.{part}": f"{theirs}.{part}"
            for ours, theirs in (("dense", dense), ("layer_norm", norm))
            for part in ("weight", "bias")
        } | {"bias": bias}
        if all(name in weights and name not in missing for name in ours.values()):
            return {name: weights[theirs] for name, theirs in ours.items()}
    return None


def published_head_layers(source: str) -> list[dict[str, Tensor]] | None:
    """The transformer layers of a Condenser head as it was released, as nn.TransformerEncoderLayer's weights.

    The file is the one foreign pickle that is read here, and only tensors of it (``weights_only=True``): a
    state dict with the keys ``c_head.{i}.`` of BERT's layers. Other keys (coCondenser keeps a buffer of
    contrastive targets) are of no use outside the original training.

    Returns:
        One state dict per layer; None where there is no such file, or no such key in it.

    Raises:
        InputError: the file cannot be read, or lacks weights of a layer.

    Source: Condenser (Gao and Callan, 2021), its released code and checkpoints.
    """
    try:
        path = load_file_path(source, PUBLISHED_HEAD)
    except OSError:  # the hub could not be asked, and the encoder came from its cache
        return None
    if path is None:
        return None
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{path} is not a Condenser head: it cannot be read as tensors; move it away for a new head"
        ) from error
    keys = [re.match(r"c_head\.(\d+)\.", str(key)) for key in weights] if isinstance(weights, dict) else []
    layers = max((int(key.group(1)) + 1 for key in keys if key), default=0)
    try:
        return [encoder_layer_weights(weights, f"c_head.{i}.") for i in range(layers)] or None
    except KeyError as error:
        raise InputError(
            f"{path} is not a complete Condenser head: it has no {error}; move it away for a new head"
        ) from error


def encoder_layer_weights(weights: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The weights of one BERT or RoBERTa layer under the names of nn.TransformerEncoderLayer.

    Query, key and value, (d, d) each, become one input projection, (3d, d), in this order.

    Raises:
        KeyError: a weight is missing.
    """
    found: dict[str, Tensor] = {}
    for part in ("weight", "bias"):
        projections = [weights[f"{prefix}attention.self.{name}.{part}"] for name in ("query", "key", "value")]
        found[f"self_attn.in_proj_{part}"] = torch.cat(projections)
        for ours, theirs in _LAYER_NAMES.items():
            found[f"{ours}.{part}"] = weights[f"{prefix}{theirs}.{part}"]
    return found
