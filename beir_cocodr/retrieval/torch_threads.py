"""The CPU threads of a computation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from beir_cocodr.errors import InputError


@contextmanager
def torch_threads(threads: int | None) -> Iterator[int]:
    """Let PyTorch use that many CPU threads inside, and yield their number; None leaves them as they are.

    Raises:
        InputError: fewer than one.
    """
    if threads is not None and threads < 1:
        raise InputError(f"{threads} threads can do nothing; give at least 1")
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
