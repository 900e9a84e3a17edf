"""Transformer layers as in BERT or GPT-2, for the parts of pre-training that follow an encoder."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn

# The names of nn.TransformerEncoderLayer and of BERT's and RoBERTa's layers for the same modules.
_LAYER_NAMES = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}

# Deviation of BERT's and GPT-2's initial weights.
INITIAL_DEVIATION = 0.02


@dataclass(frozen=True)
class TransformerShape:
    """The shape of a transformer layer, by the names of BERT's configuration."""

    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    dropout: float = 0.1
    layer_norm_eps: float = 1e-12

    @classmethod
    def of_config(cls, config: Any) -> Self:
        """Return the shape in a backbone's configuration, which DistilBERT names differently."""
        dropout = getattr(config, "dropout", cls.dropout)
        return cls(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=getattr(config, "intermediate_size", None) or config.hidden_dim,
            dropout=getattr(config, "hidden_dropout_prob", dropout),
            layer_norm_eps=getattr(config, "layer_norm_eps", cls.layer_norm_eps),
        )

    @classmethod
    def split(cls, settings: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Return the shape in the settings of a module, and the other settings."""
        names = [field.name for field in fields(cls)]
        shape = {name: settings[name] for name in names}
        others = {name: value for name, value in settings.items() if name not in shape}
        return cls(**shape), others


def transformer_layers(
    count: int,
    shape: TransformerShape,
    norm_first: bool = False,
) -> nn.ModuleList:
    """Return new layers, whose weights :func:`initialize` draws.

    Args:
        count: Number of layers.
        shape: Shape of each.
        norm_first: Normalise before attention and feed-forward, as GPT-2 does, instead of after
            them, as BERT does.
    """
    layers = nn.ModuleList()
    for _ in range(count):
        layer = nn.TransformerEncoderLayer(
            shape.hidden_size,
            shape.num_attention_heads,
            shape.intermediate_size,
            shape.dropout,
            activation="gelu",
            layer_norm_eps=shape.layer_norm_eps,
            batch_first=True,
            norm_first=norm_first,
        )
        layer.dropout = nn.Dropout(0.0)  # neither has dropout inside its feed-forward block
        layers.append(layer)
    return layers


def initialize(module: nn.Module) -> None:
    """Draw the weights of a module as BERT does: normal with deviation 0.02, and zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=INITIAL_DEVIATION)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.MultiheadAttention):
        nn.init.normal_(module.in_proj_weight, std=INITIAL_DEVIATION)


def encoder_layer_weights(weights: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Return the weights of a BERT or RoBERTa layer by the names of nn.TransformerEncoderLayer.

    Query, key and value, (d, d) each, become one input projection, (3d, d), in this order.

    Args:
        weights: Weights by BERT's names.
        prefix: What the names of the layer begin with.

    Raises:
        KeyError: A weight is missing.
    """
    renamed: dict[str, Tensor] = {}
    for part in ("weight", "bias"):
        projections = []
        for name in ("query", "key", "value"):
            projections.append(weights[f"{prefix}attention.self.{name}.{part}"])
        renamed[f"self_attn.in_proj_{part}"] = torch.cat(projections)
        for ours, theirs in _LAYER_NAMES.items():
            renamed[f"{ours}.{part}"] = weights[f"{prefix}{theirs}.{part}"]
    return renamed
