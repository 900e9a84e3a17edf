"""Where processes compute."""

from __future__ import annotations

import torch

from beir_cocodr.errors import InputError


def device_list(device: str | None, processes: int) -> list[str]:
    """A device for each process: GPUs in turn where none is named, or just "cuda"; else all on the same.

    Raises:
        InputError: fewer than one process.
    """
    if processes < 1:
        raise InputError(f"{processes} processes can do nothing; give at least 1")
    if device in (None, "cuda") and torch.cuda.is_available():
        return [f"cuda:{number % torch.cuda.device_count()}" for number in range(processes)]
    if device is None:
        device = "mps" if torch.backends.mps.is_available() else "cpu"
    return [device] * processes
