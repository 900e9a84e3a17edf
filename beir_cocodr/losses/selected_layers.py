"""Which parameters cluster gradients are compared on."""

from __future__ import annotations

from typing import Any

from torch import nn

from beir_cocodr.errors import InputError


def selected_modules(model: Any, layers: int | None = None) -> dict[str, nn.Module]:
    """The Linear and LayerNorm modules of the backbone's last layers, by name.

    Args:
        model: the encoder.
        layers: how many; by default 3 of 12, as published for a base model, and 2 of any other number, as
            published for a large one.

    Raises:
        InputError: the backbone has fewer layers, recomputes its activations, or keeps parameters elsewhere.
    """
    backbone = model.transformers_model
    stacks = [module for module in backbone.modules() if isinstance(module, nn.ModuleList)]
    stack = max(stacks, key=len, default=None)
    total = len(stack) if stack is not None else 0
    wanted = (3 if total == 12 else 2) if layers is None else layers
    if stack is None or not 1 <= wanted <= total:
        raise InputError(f"gradient_layers is {wanted}, this encoder has {total} layers")
    if _recomputes(backbone):
        raise InputError("cluster gradients need gradient checkpointing to be turned off")
    found: dict[str, nn.Module] = {
        f"{index}.{name}": module
        for index, layer in enumerate(stack[-wanted:], total - wanted)
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear | nn.LayerNorm)
    }
    covered = {id(parameter) for module in found.values() for parameter in module.parameters()}
    if not all(id(parameter) in covered for layer in stack[-wanted:] for parameter in layer.parameters()):
        raise InputError(
            f"{type(backbone).__name__} has parameters outside of Linear and LayerNorm modules in its last "
            "layers, which cluster gradients cannot be taken of; use the weighting groupdro, cvar or erm"
        )
    return found


def _recomputes(backbone: Any) -> bool:
    """Gradient checkpointing, under its name in transformers before 5.20 or after."""
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):
        if hasattr(type(backbone), name):
            return bool(getattr(backbone, name))
    return False
