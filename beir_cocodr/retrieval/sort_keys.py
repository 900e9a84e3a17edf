"""Scores and tie ranks as one integer each, so that every ranking has exactly one right order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_LOW_WORD = 0xFFFFFFFF
_MAGNITUDE = 0x7FFFFFFF


def to_keys(scores: Tensor, ranks: Tensor) -> Tensor:
    """float32 scores and int64 tie ranks below 2³², of one shape, to int64 keys: larger is better.

    The score stands above in an order-preserving form, the complement of the tie rank below.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0, to which it is equal
    ordered = bits ^ ((bits >> 31) & _MAGNITUDE)
    return (ordered.to(torch.int64) << 32) | (_LOW_WORD - ranks)


def scores_of(keys: Tensor) -> Tensor:
    """int64 keys to the float32 scores in them."""
    ordered = (keys >> 32).to(torch.int32)
    return (ordered ^ ((ordered >> 31) & _MAGNITUDE)).view(torch.float32)


def ranks_of(keys: Tensor) -> Tensor:
    """int64 keys to the int64 tie ranks in them."""
    return _LOW_WORD - (keys & _LOW_WORD)


def merge_keys(parts: Sequence[Tensor], top_k: int) -> Tensor:
    """The ``top_k`` largest keys of each query, descending, from (Q, k_i) keys of parts of one corpus.

    Tie ranks count over the whole corpus, so no two keys of a query are equal: what comes out does not depend
    on how the corpus was parted, nor on the order of the parts.
    """
    keys = torch.cat(list(parts), dim=1)
    return keys.topk(min(top_k, keys.shape[1]), dim=1).values
