"""The processes of one training run."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """W, the number of processes; 1 where nothing is distributed."""
    return dist.get_world_size() if _distributed() else 1


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if _distributed() else 0


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Sum ``tensor`` in place over all processes; nothing happens on one."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
