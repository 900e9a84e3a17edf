"""Telling whether a file is still the one that was read."""

from __future__ import annotations

import time
from pathlib import Path

_CLOCK_TICK_NS = 20_000_000


def file_state(path: Path) -> tuple[str, str, str]:
    """Resolved path, size in bytes and time of last change in nanoseconds, as strings.

    Raises:
        OSError: if the file is not there.
    """
    resolved = path.resolve()
    state = resolved.stat()
    # File times advance in ticks: two writes within one would look the same, so let the tick pass.
    if abs(time.time_ns() - state.st_mtime_ns) < _CLOCK_TICK_NS:
        time.sleep(_CLOCK_TICK_NS / 1e9)
        state = resolved.stat()
    return str(resolved), str(state.st_size), str(state.st_mtime_ns)
