"""How long a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
