"""Commands of beir-cocodr in processes of their own that cost milliseconds: forks of one that has
imported everything.

A fork runs the same ``main`` as the command line, from parsed arguments to the exit status, and can
be killed, starved of disk, or raced like any process; what it breaks in memory ends with it. Needs
Linux.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Of every command, warm or not: one thread, no network, no GPU.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
    "COLUMNS": "120",
}

#: More memory than this, beyond what the imports take, and larger files are no tiny world's.
MEMORY, FILE = 8 << 30, 1 << 30

COMMAND = Path(sys.executable).with_name("beir-cocodr")


@dataclass(frozen=True)
class Ended:
    """How a command ended: ``status`` is its exit status, minus a signal, or None where it was
    ended for its time.
    """

    status: int | None
    stdout: str
    stderr: str
    seconds: float


class Running:
    """A command on its way, leader of a group of its own."""

    def __init__(self, pid: int, logs: Path) -> None:
        self.pid, self.logs, self.began = pid, logs, time.perf_counter()
        self.descriptor = os.pidfd_open(pid)

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end; whether it came."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(max(0, seconds) * 1000))

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, limit: float) -> Ended:
        """Its end, forced after ``limit`` seconds."""
        in_time = self.ends_within(limit)
        seconds = time.perf_counter() - self.began
        self.kill()  # what it started dies with it
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        texts = [
            (self.logs / name).read_bytes().decode(errors="replace")
            for name in ("stdout", "stderr")
        ]
        return Ended(
            os.waitstatus_to_exitcode(status) if in_time else None, *texts, round(seconds, 3)
        )


class Warm:
    """A process that has imported ``modules`` and forks commands."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        os.environ.update(ENVIRONMENT)
        self.learn(modules)

    def learn(self, modules: Iterable[str]) -> None:
        """Import what commands were seen to import."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in modules:
                if name not in sys.modules:
                    with suppress(BaseException):
                        importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a fork's collections leave the shared pages alone

    def start(
        self,
        arguments: list[str],
        folder: Path,
        environment: Mapping[str, str] = {},
        logs: str = "log",
    ) -> Running:
        """A command in ``folder``; its output goes to files in the subfolder ``logs``, or to a
        folder elsewhere.
        """

        def work() -> None:
            from beir_cocodr.cli.__main__ import main

            main(arguments)

        return self.fork(work, folder, environment, logs)

    def fork(
        self,
        work: Callable[[], None],
        folder: Path,
        environment: Mapping[str, str] = {},
        logs: str = "log",
    ) -> Running:
        """A function in a process of its own."""
        place = folder / logs
        place.mkdir(parents=True, exist_ok=True)
        for name in ("stdout", "stderr"):
            (place / name).write_bytes(b"")
        pid = os.fork()
        if pid == 0:
            _become(work, folder, environment, place)
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        return Running(pid, place)

    def run(
        self,
        arguments: list[str],
        folder: Path,
        limit: float,
        environment: Mapping[str, str] = {},
        logs: str = "log",
    ) -> Ended:
        return self.start(arguments, folder, environment, logs).wait(limit)


def _become(
    work: Callable[[], None], folder: Path, environment: Mapping[str, str], logs: Path
) -> None:
    """In the fork: run ``work`` as a program of its own, and end."""
    status = 1
    try:
        with suppress(PermissionError):
            os.setpgid(0, 0)
        for number, name, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, logs / "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, logs / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            descriptor = os.open(name, flags, 0o644)
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.update(environment)
        os.chdir(folder)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        memory = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    (logs / "modules").write_text("\n".join(list(sys.modules))) if os.environ.get(
        "FAULTS_MODULES"
    ) else None
    os._exit(status)


def run_command(
    arguments: list[str], folder: Path, limit: float, environment: Mapping[str, str] = {}
) -> Ended:
    """The installed command, as a user starts it."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [COMMAND, *arguments],
        cwd=folder,
        env=os.environ | ENVIRONMENT | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=limit)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        status = None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
    seconds = round(time.perf_counter() - began, 3)
    return Ended(status, stdout.decode(errors="replace"), stderr.decode(errors="replace"), seconds)


def remove(folder: Path) -> None:
    """Remove a folder, however it was damaged."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
