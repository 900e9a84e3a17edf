"""One run on several processes: what only the first does, and how the others learn of it."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from beir_cocodr.errors import InputError
from beir_cocodr.ranks import rank, world_size

Result = TypeVar("Result")

# The others wait while the first process mines a corpus; a dead process is noticed by torchrun, not by this.
_PATIENCE = timedelta(days=7)


def join_processes(device: str | None) -> None:
    """Meet the other processes of a run that ``torchrun`` started; does nothing on one process.

    They part in order at the end: gloo's threads may abort a process that ends with its group still open.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        cpu = not torch.cuda.is_available() if device is None else torch.device(device).type == "cpu"
        atexit.register(PartialState(cpu=cpu, timeout=_PATIENCE).destroy_process_group)


def on_main(work: Callable[[], Result]) -> Result:
    """Do something on the first process and give its result, which must be picklable, to all.

    Raises:
        InputError: of ``work``, on the first process; the others leave with status 2, unsaid.
    """
    if world_size() == 1:
        return work()
    message: list[Any] = [None]
    if rank() == 0:
        try:
            message = [("result", work())]
        except InputError:
            broadcast_object_list([("failed", None)])
            raise
    kind, result = broadcast_object_list(message)[0]
    if kind == "failed":
        time.sleep(2)  # torchrun ends everything when one process does; the first has to say its line before
        raise SystemExit(2)
    found: Result = result
    return found
