"""The processes of a run that ``torchrun`` started, and the work that only the first of them does.

Importing this module, and running on one process, does not load torch.
"""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from beir_cocodr.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")

# The others wait while the first process mines a corpus; torchrun notices a dead process, this
# limit does not.
_PATIENCE = timedelta(days=7)

# torchrun ends all processes when one ends: the first has this long to print its message.
_SECONDS_TO_REPORT = 2


# True while a process works alone; its calls into this module then meet no other process.
_is_alone = False


def world_size() -> int:
    """Return W, the number of processes; 1 where nothing is distributed."""
    return _group().get_world_size() if _is_distributed() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return _group().get_rank() if _is_distributed() else 0


@contextmanager
def working_alone() -> Iterator[None]:
    """Let this process work as if it were the only one of its run.

    What it calls inside then waits for nobody. It is for work of the first process that may use
    what all processes could share, such as a search, while the others wait for its end.
    """
    global _is_alone
    before = _is_alone
    _is_alone = True
    try:
        yield
    finally:
        _is_alone = before


def sum_over_ranks(tensor: "Tensor") -> "Tensor":
    """Sum a tensor in place over all processes; nothing happens on one."""
    if world_size() > 1:
        _group().all_reduce(tensor)
    return tensor


def wait_for_all() -> None:
    """Wait until every process is here; nothing happens on one."""
    if world_size() > 1:
        _group().barrier()


def _is_distributed() -> bool:
    if _is_alone:
        return False
    # Without this module of torch no group of processes was made.
    if "torch.distributed" not in sys.modules:
        return False
    return bool(_group().is_available() and _group().is_initialized())


def _group() -> Any:
    import torch.distributed

    return torch.distributed


def gather(value: Result) -> list[Result]:
    """Return the values of all processes, which must be picklable, by the number of the process."""
    if world_size() == 1:
        return [value]
    from accelerate.utils import gather_object

    return cast(list[Result], gather_object([value]))


def devices() -> list[str]:
    """Return the devices that torch can compute on here.

    They are the CPU and the accelerators, by kind alone (``cuda``) and with each number
    (``cuda:1``).
    """
    import torch

    names = ["cpu", "cpu:0"]
    for kind, module in (("cuda", torch.cuda), ("xpu", torch.xpu), ("mps", torch.mps)):
        count = module.device_count()
        if count:
            names.append(kind)
            names.extend(f"{kind}:{number}" for number in range(count))
    return names


def join_processes(device: str | None) -> None:
    """Meet the other processes of a run that ``torchrun`` started; nothing happens on one.

    At the end they leave the group in order: gloo's threads may abort a process that ends while its
    group is open.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    import torch
    from accelerate import PartialState

    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    state = PartialState(cpu=chosen.type == "cpu", timeout=_PATIENCE)
    atexit.register(state.destroy_process_group)


def on_main(work: Callable[[], Result]) -> Result:
    """Do something on the first process and give its result to all.

    An ``InputError`` is raised on the first process; the others exit with status 2, without a
    message.

    Args:
        work: what is done; its result must be picklable.
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
        time.sleep(_SECONDS_TO_REPORT)
        raise SystemExit(2)
    return cast(Result, result)


def do_each(work: Callable[[], Result]) -> list[Result]:
    """Let every process do its own work, and give the results of all to all.

    An ``InputError`` of any process ends all of them once the others are done, as in
    :func:`on_main`.

    Args:
        work: what is done; its result must be picklable.

    Returns:
        The results by the number of the process.
    """
    result = None
    failure = None
    try:
        result = work()
    except InputError as error:
        failure = error
    outcomes = gather((result, failure))

    def raise_first_failure() -> None:
        for _, error in outcomes:
            if error is not None:
                raise error

    on_main(raise_first_failure)
    return [cast(Result, outcome) for outcome, _ in outcomes]
