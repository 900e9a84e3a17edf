"""Work for processes that may die: how tasks reach them, on which devices, with which threads."""

import logging
import multiprocessing
import os
import threading
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_end
from typing import Any, TypeVar

from beir_cocodr.distributed import rank, wait_for_all, world_size
from beir_cocodr.errors import MOST_PROCESSES, InputError, Limits
from beir_cocodr.models.spec import check_device
from beir_cocodr.progress import Bar

Task = TypeVar("Task")
Result = TypeVar("Result")

#: How tasks are shared out: :func:`share_out`, or a function of the same arguments elsewhere.
ShareOut = Callable[
    [Sequence[object], Callable[[str], Callable[[Any], Any]], Sequence[str]], Iterator[Any]
]

# How often processes may die before a task is finished in between.
_ATTEMPTS = 3

# Work of fewer seconds is done before processes for it have started.
_WORTH = 10.0

log = logging.getLogger(__name__)


def share_out(
    tasks: Sequence[Task],
    start: Callable[[str], Callable[[Task], Result]],
    devices: Sequence[str],
) -> Iterator[Result]:
    """Do tasks in one new process for each device, and yield their results as they come.

    When a process dies, from a signal or because memory ran out, all are started again, and
    unfinished tasks are done again: a task may be done twice. An exception of a task is raised
    after the tasks under way. Processes are spawned: scripts need ``if __name__ == "__main__"``.

    Args:
        tasks: The tasks, which must be picklable.
        start: Called in each process with its device; returns the function that does a task there.
            It must be picklable.
        devices: A device for each process.

    Raises:
        InputError: Processes died three times without a finished task in between.
    """
    left = list(tasks)
    deaths = 0
    while left:
        try:
            for task, result in _attempt(tuple(left), start, devices):
                left.remove(task)
                deaths = 0
                yield result
        except BrokenProcessPool:
            deaths += 1
            if deaths == _ATTEMPTS:
                raise InputError(
                    f"a process died {deaths} times in the same work, and {len(left)} parts of it "
                    "are left: most likely memory ran out; lower --processes, the shard size or "
                    "the token budget"
                ) from None
            log.warning(
                "a process died; %d parts of the work are left and continue",
                len(left),
            )


@dataclass(frozen=True)
class Workers:
    """Processes that share out work.

    Attributes:
        processes: How many there are; the tasks of a dead one are done again.
        threads: CPU threads of each; PyTorch's own number by default, whatever the number of
            processes.
        share: How tasks are shared out; by default, to processes on this machine.
    """

    processes: int = 1
    threads: int | None = None
    share: ShareOut = share_out


def share_over_ranks(
    tasks: Sequence[Task],
    start: Callable[[str], Callable[[Task], Any]],
    is_done: Callable[[Task], bool],
    seconds: float,
    desc: str | None = None,
) -> None:
    """Do the tasks that are not done, each by one process of a run that ``torchrun`` started.

    All processes of the run call this. Long work is also shared out to the CPU cores of each.

    Args:
        tasks: The tasks; each leaves a file, by which other processes know that it is done.
        start: As for :func:`share_out`.
        is_done: Returns true if a task's file exists on this machine.
        seconds: Seconds that a task takes on one core.
        desc: Label of a progress bar; without it none is shown.
    """
    # In the second round there is work only for processes that do not share a disk.
    for mine in (tasks[rank() :: world_size()], tasks):
        left = [task for task in mine if not is_done(task)]
        done = _do_here(left, start, seconds)
        for _ in Bar(done, total=len(left), desc=desc, disable=desc is None or not left):
            pass
        wait_for_all()


def _do_here(
    tasks: Sequence[Task],
    start: Callable[[str], Callable[[Task], Any]],
    seconds: float,
) -> Iterator[Any]:
    """Do tasks in this process, or, if they take long, on the CPU cores that it may use."""
    cores = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    processes = min(cores, len(tasks))
    if len(tasks) * seconds >= _WORTH and processes > 1:
        return share_out(tasks, start, ["cpu"] * processes)
    return map(start("cpu"), tasks)


def _attempt(
    tasks: Sequence[Task],
    start: Callable[[str], Callable[[Task], Result]],
    devices: Sequence[str],
) -> Iterator[tuple[Task, Result]]:
    """Yield tasks with their results, until a process dies."""
    used = devices[: len(tasks)]
    context = _context(start, used)
    waiting = context.Queue()
    for device in used:
        waiting.put(device)
    arguments = (
        start,
        waiting,
        context.Barrier(len(used)),
        dict(os.environ),
    )
    executor = ProcessPoolExecutor(len(used), context, _initialize, arguments)
    pending: dict[Future[Result], Task] = {}
    remaining = iter(tasks)
    try:
        while True:
            # Results wait in memory until they are taken, so no more are asked for than keeps all
            # busy.
            while len(pending) < 2 * len(used):
                task = next(remaining, None)
                if task is None:
                    break
                pending[executor.submit(_work, task)] = task
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future.result()
    finally:
        executor.shutdown(cancel_futures=True)
        waiting.cancel_join_thread()
        waiting.close()


def _context(start: Any, devices: Sequence[str]) -> Any:
    """Return how processes are started: forked from a server, where the system has one.

    Libraries are then imported once for all of them, and a process that died is replaced at once.
    The server has nothing of this process. Processes with an accelerator are not forked: CUDA
    cannot be used in a forked process if a library counted the GPUs before the fork.
    """
    has_server = "forkserver" in multiprocessing.get_all_start_methods()
    on_host = all(device.partition(":")[0] == "cpu" for device in devices)
    if not (has_server and on_host):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, start.__module__])
    return context


# What a spawned process does: how it starts, on which device, and what does a task after that.
_start: Any = None
_device: Any = None
_do: Any = None


def _initialize(
    start: Any,
    waiting: Any,
    together: Any,
    environment: Mapping[str, str],
) -> None:
    global _start, _device
    # Python 3.11 waits forever for a process that it starts while another one dies.
    together.wait()
    # The server's own environment is of the time when it began.
    os.environ.update(environment)
    _start = start
    _device = waiting.get()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _work(task: object) -> Any:
    global _do
    if _do is None:  # not before, because what fails here reaches the caller as it is
        _do = _start(_device)
    return _do(task)


def _end_with_parent() -> None:
    """End this process with its parent: a killed parent cannot, and it would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(1)


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def warn_if_crowded(devices: Sequence[str], threads: int) -> None:
    """Warn if processes on the CPU would slow each other down."""
    cores = available_cores()
    wanted = threads * sum(device == "cpu" for device in devices)
    if len(devices) > 1 and wanted > cores:
        log.warning(
            "%d processes of %d threads share %d cores: --threads %d is faster, but changes the "
            "last bits of the vectors",
            len(devices),
            threads,
            cores,
            max(1, cores // len(devices)),
        )


def device_list(device: str | None, processes: int) -> list[str]:
    """Return a device for each process.

    Args:
        device: A device for all; None or "cuda" spreads the processes over the GPUs, if any.
        processes: The number of processes, at least 1.

    Raises:
        InputError: The number is out of range, or there is no such device.
    """
    if processes < 1:
        raise InputError(f"{processes} processes cannot work; give at least 1")
    if processes > MOST_PROCESSES:
        raise InputError(f"{processes} processes are too many; give at most {MOST_PROCESSES}")
    check_device(device)
    import torch

    if device in (None, "cuda") and torch.cuda.is_available():
        count = torch.cuda.device_count()
        return [f"cuda:{number % count}" for number in range(processes)]
    if device is None:
        device = "mps" if torch.backends.mps.is_available() else "cpu"
    return [device] * processes


@contextmanager
def torch_threads(threads: int | None) -> Iterator[int]:
    """Let PyTorch use a number of CPU threads inside, and yield it.

    Args:
        threads: The number, at least 1; None changes nothing.
    """
    import torch

    if threads is not None:
        Limits(min=1, max=MOST_PROCESSES).check("threads", threads)
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
