"""Work for processes that may die: how tasks reach them, on which devices, and with how many CPU
threads.
"""

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for_end
from typing import Any, TypeVar

from beir_cocodr.distributed import rank, wait_for_all, world_size
from beir_cocodr.errors import InputError, Limits
from beir_cocodr.models.spec import check_device
from beir_cocodr.progress import Bar

Task = TypeVar("Task")
Result = TypeVar("Result")

#: How tasks are shared out: :func:`share_out`, or the like of it elsewhere.
ShareOut = Callable[
    [Sequence[Any], Callable[[str], Callable[[Any], Any]], Sequence[str]], Iterator[Any]
]

#: How often work goes on after processes died without any of it having been finished in between.
_ATTEMPTS = 3
log = logging.getLogger(__name__)


def share_out(
    tasks: Sequence[Task], start: Callable[[str], Callable[[Task], Result]], devices: Sequence[str]
) -> Iterator[Result]:
    """Do tasks in one new process for each device, and yield the results in the order in which they
    come.

    When a process dies, of a signal or for want of memory, all are started again and what was not
    finished is done again, so a task may be done twice; after three deaths without a task done in
    between, an InputError. Whatever a task raises is raised after the tasks under way. Processes
    are spawned: scripts need ``if __name__ == "__main__"``.

    ``start`` is called in each process with its device, and returns what does a task there; it and
    the tasks, which are held in a list, are picklable.
    """
    left, deaths = list(tasks), 0
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
                    f"a process died {deaths} times with the same work, of which {len(left)} parts are left: "
                    "most likely memory ran out; lower --processes, the shard size or the token budget"
                ) from None
            log.warning("a process died; %d parts of the work are left and go on", len(left))


# Work of fewer seconds is done before processes for it have started.
_WORTH = 10.0


def share_over_ranks(
    tasks: Sequence[Task],
    start: Callable[[str], Callable[[Task], Any]],
    is_done: Callable[[Task], bool],
    seconds: float,
    desc: str | None = None,
) -> None:
    """Do the tasks that are not done, each by one of the processes of a run that ``torchrun``
    started, all of which call this; long work, by the ``seconds`` that a task may take on one core,
    is shared out to the CPU cores of each. A task leaves a file, by which the others know;
    ``is_done`` tells whether it is there, on this machine.
    """
    # The second time there is work only for processes that do not share a disk.
    for mine in (tasks[rank() :: world_size()], tasks):
        left = [task for task in mine if not is_done(task)]
        cores = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        many = len(left) * seconds >= _WORTH and min(cores, len(left)) > 1
        done = (
            share_out(left, start, ["cpu"] * min(cores, len(left)))
            if many
            else map(start("cpu"), left)
        )
        for _ in Bar(done, total=len(left), desc=desc, disable=desc is None or not left):
            pass
        wait_for_all()


def _attempt(
    tasks: Sequence[Task], start: Callable[[str], Callable[[Task], Result]], devices: Sequence[str]
) -> Iterator[tuple[Task, Result]]:
    context, devices = _context(start), devices[: len(tasks)]
    waiting = context.Queue()
    for device in devices:
        waiting.put(device)
    together = context.Barrier(len(devices))
    executor = ProcessPoolExecutor(
        len(devices), context, _initialize, (start, waiting, together, dict(os.environ))
    )
    pending: dict[Future[Result], Task] = {}
    remaining = iter(tasks)
    try:
        while True:
            # Results wait in memory until they are taken, so no more are asked for than keeps all
            # busy.
            while len(pending) < 2 * len(devices) and (task := next(remaining, None)) is not None:
                pending[executor.submit(_work, task)] = task
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                task = pending.pop(future)
                yield task, future.result()
    finally:
        executor.shutdown(cancel_futures=True)
        waiting.cancel_join_thread()
        waiting.close()


def _context(start: Any) -> Any:
    """Processes that are forked from a server, where the system has one: libraries are imported
    once for all of them, and a process that died is replaced at once. The server has no device, and
    nothing else of this process.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, start.__module__])
    return context


# What a spawned process is to do: how it starts, on which device, and what does a task once it has
# started.
_start: Any = None
_device: Any = None
_do: Any = None


def _initialize(start: Any, waiting: Any, together: Any, environment: Mapping[str, str]) -> None:
    global _start, _device
    # Python 3.11 waits forever for a process that it starts while another one dies.
    together.wait()
    os.environ.update(environment)  # the server's own is of the time when it began
    _start, _device = start, waiting.get()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _work(task: Any) -> Any:
    global _do
    if _do is None:  # not before, because what fails here reaches the caller as it is
        _do = _start(_device)
    return _do(task)


def _end_with_parent() -> None:
    """A parent that was killed cannot end its processes, and they would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(1)


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


# Processes, and threads of each.
_MOST = 1_024


def device_list(device: str | None, processes: int) -> list[str]:
    """A device for each process, at least 1: GPUs in turn where none is named, or just "cuda"; else
    all on the same.
    """
    if processes < 1:
        raise InputError(f"{processes} processes can do nothing; give at least 1")
    if processes > _MOST:
        raise InputError(f"{processes} processes are too many; give at most {_MOST}")
    check_device(device)
    import torch

    if device in (None, "cuda") and torch.cuda.is_available():
        return [f"cuda:{number % torch.cuda.device_count()}" for number in range(processes)]
    if device is None:
        device = "mps" if torch.backends.mps.is_available() else "cpu"
    return [device] * processes


@contextmanager
def torch_threads(threads: int | None) -> Iterator[int]:
    """Let PyTorch use that many CPU threads inside, at least 1, and yield their number; None
    changes nothing.
    """
    import torch

    if threads is not None:
        Limits(min=1, max=_MOST).check("threads", threads)
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
