"""MPNet's attention in one fused step.

The MPNet of transformers computes each step of its attention by itself, which takes half of the
time of an encoder in bfloat16. PyTorch's fused attention takes the position bias as a mask.
"""

from __future__ import annotations

from functools import partial
from typing import Any


def fuse_attention(transformer: Any) -> None:
    """Let a model compute its attention in one step, if it is an MPNet.

    Args:
        transformer: Any model of transformers; others than MPNet are left as they are.
    """
    from transformers import MPNetModel

    if isinstance(transformer, MPNetModel):
        for layer in transformer.encoder.layer:
            attention = layer.attention.attn
            attention.forward = partial(_attend, attention)


def _attend(
    attention: Any,
    states: Any,
    mask: Any = None,
    position_bias: Any = None,
    **unused: Any,
) -> tuple[Any]:
    """Return the output of ``MPNetSelfAttention`` without dropout, (B, T, d).

    Args:
        attention: The module.
        states: (B, T, d).
        mask: (B, 1, 1, T), 0 or the lowest number. Default: all tokens are seen.
        position_bias: (1, H, T, T). Default: none.
        unused: Options of the module that change nothing here.
    """
    import torch

    batch, tokens, _ = states.shape
    shape = (batch, tokens, attention.num_attention_heads, -1)
    queries, keys, values = (
        project(states).view(shape).transpose(1, 2)
        for project in (attention.q, attention.k, attention.v)
    )
    bias = None
    for part in (mask, position_bias):
        if part is not None:
            bias = part if bias is None else bias + part
    if bias is not None:
        bias = bias.to(queries.dtype)
    context = torch.nn.functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=bias,
    )
    return (attention.o(context.transpose(1, 2).reshape(batch, tokens, -1)),)
