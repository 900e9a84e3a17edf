"""Time, memory and separate processes: how a script measures our code and its rivals."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 2**20

#: Environment variables that set the number of threads of numeric libraries.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Timing:
    """Seconds of a call.

    Attributes:
        wall: Seconds by the clock.
        processor: Seconds of this process's threads. They vary less on a busy machine.
    """

    wall: float
    processor: float


def timed(call: Callable[[], Any]) -> tuple[Any, Timing]:
    """Return the result of a call and its seconds."""
    wall = time.perf_counter()
    processor = time.process_time()
    result = call()
    spent = time.process_time() - processor
    return result, Timing(time.perf_counter() - wall, spent)


def seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of a call by the clock."""
    return timed(call)[1].wall


def processor_seconds() -> float:
    """Return the processor seconds of this process and of the children that it waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def peak_memory() -> int:
    """Return the most bytes that this process has held so far.

    The usage that the system reports for a process includes the most that its parent held, so that
    Linux is asked for the process alone.
    """
    if Path("/proc/self/status").is_file():
        return 1024 * process_status("VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def peak_memory_of_any() -> int:
    """Return the most bytes that this process or one of its children has held so far."""
    peaks = []
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        peaks.append(resource.getrusage(who).ru_maxrss)
    return 1024 * max(peaks)


def process_status(name: str) -> int:
    """Return a number of /proc/self/status, in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise SystemExit(f"the system does not report {name}; this benchmark needs Linux")


class AllocatedMemory:
    """The most memory that this process allocates inside a ``with`` block.

    Mapped files do not count. The memory is read every 20 milliseconds.

    Attributes:
        before_mib: What the process held at the beginning, in MiB.
        peak_mib: The most that it held meanwhile, in MiB.
    """

    def __enter__(self) -> AllocatedMemory:
        self.before_mib = self._held()
        self.peak_mib = self.before_mib
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.peak_mib = max(self.peak_mib, self._held())

    @staticmethod
    def _held() -> float:
        return process_status("RssAnon") / 1024


def thread_environment(threads: int) -> dict[str, str]:
    """Return this process's environment with a number of threads for numeric libraries."""
    return os.environ | dict.fromkeys(_THREADS, str(threads))


def as_options(values: Mapping[str, object]) -> list[str]:
    """Return options of a command line; the value True makes a flag."""
    options = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        options.append(option if value is True else f"{option}={value}")
    return options


def run_child(
    script: str,
    values: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run a script again in a separate process, and return what its last line says in JSON.

    A separate process has its own peak memory.

    Args:
        script: The path of the script, mostly ``__file__``.
        values: Its options. One of them makes it the child.
        environment: The environment of the child. Default: this process's.
    """
    completed = subprocess.run(
        [sys.executable, script, *as_options(values)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    return json.loads(completed.stdout.splitlines()[-1])


def say(answer: Mapping[str, object]) -> None:
    """Print JSON for the process that started this one."""
    print(json.dumps(answer), flush=True)


class Worker:
    """A child that is asked line by line, so that several rivals can take turns."""

    def __init__(
        self,
        script: str,
        values: Mapping[str, object],
        environment: Mapping[str, str],
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, script, *as_options(values)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, command: str) -> dict[str, Any]:
        """Send a line, and return the answer."""
        assert self._process.stdin is not None
        print(
            command,
            file=self._process.stdin,
            flush=True,
        )
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for one line of JSON."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise SystemExit(f"a worker ended with status {status}; see its messages above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process, and wait for it."""
        self._process.communicate()


def check_bound(
    value: float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> dict[str, Any]:
    """Return the bounds of an aim, and whether a value meets them."""
    bounds: dict[str, Any] = {}
    is_met = True
    if at_least is not None:
        bounds["at_least"] = at_least
        is_met = value >= at_least
    if at_most is not None:
        bounds["at_most"] = at_most
        is_met = is_met and value <= at_most
    return bounds | {"met": is_met}


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """Divide times that were measured in turns: their medians, and round by round."""
    return {
        "median": statistics.median(above) / statistics.median(below),
        "rounds": [a / b for a, b in zip(above, below, strict=True)],
    }


def describe_target(
    name: str,
    value: float,
    target: Mapping[str, Any],
) -> str:
    """Say in one line whether an aim was met."""
    bounds = []
    for key, words in (("at_least", "at least"), ("at_most", "at most")):
        if target.get(key) is not None:
            bounds.append(f"{words} {target[key]}")
    if not bounds:
        return f"{name}: {value:.2f}"
    verdict = "met" if target["met"] else "MISSED"
    return f"{name}: {value:.2f}, {' and '.join(bounds)}: {verdict}"


def vector_instructions() -> str:
    """Name the instructions with which torch multiplies, and whether bytes are multiplied too."""
    import torch

    from beir_cocodr.retrieval.vectors.products import multiplies_bytes

    instructions: str = torch.backends.cpu.get_cpu_capability()
    return f"{instructions} with VNNI" if multiplies_bytes() else instructions
