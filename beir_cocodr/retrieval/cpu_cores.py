"""CPU cores, and how many threads want them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

log = logging.getLogger(__name__)


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warn_if_crowded(devices: Sequence[str], threads: int) -> None:
    """Say that processes on the CPU will be in each other's way."""
    wanted, cores = threads * sum(device == "cpu" for device in devices), available_cores()
    if len(devices) > 1 and wanted > cores:
        log.warning(
            "%d processes of %d threads share %d cores: --threads %d is faster, with other last bits",
            len(devices), threads, cores, max(1, cores // len(devices)),
        )  # fmt: skip
