"""The processes of one training run: what only the first does, and how the others learn of it.

Importing this, and running on one process, does not load torch.
"""

import atexit
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from beir_cocodr.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def world_size() -> int:
    """W, the number of processes; 1 where nothing is distributed."""
    return _group().get_world_size() if _distributed() else 1


def rank() -> int:
    """This process's number, from 0."""
    return _group().get_rank() if _distributed() else 0


def sum_over_ranks(tensor: "Tensor") -> "Tensor":
    """Sum ``tensor`` in place over all processes; nothing happens on one."""
    if world_size() > 1:
        _group().all_reduce(tensor)
    return tensor


def wait_for_all() -> None:
    """Wait until every process is here; does nothing on one."""
    if world_size() > 1:
        _group().barrier()


def _distributed() -> bool:
    # Without torch's own module no group of processes was made.
    return (
        "torch.distributed" in sys.modules and _group().is_available() and _group().is_initialized()
    )


def _group() -> Any:
    import torch.distributed

    return torch.distributed


Result = TypeVar("Result")


def gather(value: Result) -> list[Result]:
    """What each process has, which must be picklable, in the order of their numbers."""
    if world_size() == 1:
        return [value]
    from accelerate.utils import gather_object

    return cast(list[Result], gather_object([value]))


# The others wait while the first process mines a corpus; a dead process is noticed by torchrun, not
# by this.
_PATIENCE = timedelta(days=7)


def devices() -> list[str]:
    """What torch can compute on here: cpu, and the kind of an accelerator, alone and with each
    number.
    """
    import torch

    found = ["cpu", "cpu:0"]
    for name, module in (("cuda", torch.cuda), ("xpu", torch.xpu), ("mps", torch.mps)):
        if count := module.device_count():
            found += [name, *(f"{name}:{number}" for number in range(count))]
    return found


def join_processes(device: str | None) -> None:
    """Meet the other processes of a run that ``torchrun`` started; does nothing on one process.
    They part in order at the end: gloo's threads may abort a process that ends with its group still
    open.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        import torch
        from accelerate import PartialState

        cpu = (
            not torch.cuda.is_available() if device is None else torch.device(device).type == "cpu"
        )
        atexit.register(PartialState(cpu=cpu, timeout=_PATIENCE).destroy_process_group)


def on_main(work: Callable[[], Result]) -> Result:
    """Do something on the first process and give its result, which must be picklable, to all.

    An ``InputError`` of ``work`` is raised on the first process; the others exit with status 2,
    without a message.
    """
    if world_size() == 1:
        return work()
    from accelerate.utils import broadcast_object_list

    message: list[object] = [None]
    if rank() == 0:
        try:
            message = [("result", work())]
        except InputError:
            broadcast_object_list([("failed", None)])
            raise
    kind, result = broadcast_object_list(message)[0]
    if kind == "failed":
        time.sleep(
            2
        )  # torchrun ends everything when one process does; the first has to write its line before
        raise SystemExit(2)
    return cast(Result, result)


def do_each(work: Callable[[], Result]) -> list[Result]:
    """Let every process do its own work, and give all results, which must be picklable, to all, in
    the order of their numbers. An ``InputError`` of any is one of all, see :func:`on_main`, once
    the others are done.
    """
    result, failed = None, None
    try:
        result = work()
    except InputError as error:
        failed = error
    found = gather((result, failed))

    def check() -> None:
        for _, error in found:
            if error is not None:
                raise error

    on_main(check)
    return [cast(Result, one) for one, _ in found]
