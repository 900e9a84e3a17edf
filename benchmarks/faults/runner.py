"""Processes that run a command in milliseconds: forks of a process that has imported everything.

A fork runs the same ``main`` as the command line, from the arguments to the exit status. It can be
killed, starved of disk, or raced like any process, and what it breaks in memory ends with it. Needs
Linux.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from faults.ordinary import become_ordinary

#: The environment of every command: one thread, no network, no GPU.
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

#: The most memory of a command in a tiny world, beyond what its imports take.
MOST_MEMORY = 8 << 30
#: The largest file of a tiny world.
LARGEST_FILE = 1 << 30

#: Set in the environment of a command, to make it write the names of its modules beside its logs.
LIST_MODULES = "FAULTS_MODULES"

#: The folder for temporary files of a command, in the folder of its case.
TEMPORARY = "temporary"

COMMAND = Path(sys.executable).with_name("beir-cocodr")


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: The exit status, minus a signal, or None if it reached its time limit.
        stdout: What it printed.
        stderr: Its messages.
        seconds: How long it took.
    """

    status: int | None
    stdout: str
    stderr: str
    seconds: float


class Running:
    """A command that is running, as the leader of a process group."""

    def __init__(self, pid: int, logs: Path) -> None:
        self.pid = pid
        self.logs = logs
        self.began = time.perf_counter()
        self.descriptor = os.pidfd_open(pid)

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end, and say whether it came in time."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(max(0, seconds) * 1000))

    def kill(self) -> None:
        """Send SIGKILL to all processes of the command."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, limit: float) -> Ended:
        """Wait for the end, and force it after ``limit`` seconds."""
        in_time = self.ends_within(limit)
        seconds = round(time.perf_counter() - self.began, 3)
        self.kill()  # Processes that the command started die with it.
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        return Ended(
            os.waitstatus_to_exitcode(status) if in_time else None,
            self._read("stdout"),
            self._read("stderr"),
            seconds,
        )

    def _read(self, name: str) -> str:
        return (self.logs / name).read_bytes().decode(errors="replace")


class Warm:
    """A process that has imported modules and forks commands."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        os.environ.update(ENVIRONMENT)
        self.learn(modules)

    def learn(self, modules: Iterable[str]) -> None:
        """Import modules that commands were seen to import."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in modules:
                if name not in sys.modules:
                    with suppress(BaseException):
                        importlib.import_module(name)
        gc.collect()
        gc.freeze()  # Collections of a fork then leave the shared pages alone.

    def start(
        self,
        arguments: list[str],
        folder: Path,
        environment: Mapping[str, str] = {},
        logs: str = "log",
    ) -> Running:
        """Start a command in a folder.

        Args:
            arguments: Its arguments.
            folder: The folder.
            environment: Additions to the environment.
            logs: The folder of its output, below ``folder`` or elsewhere.
        """

        return self.fork(
            partial(run_command_line, arguments),
            folder,
            environment,
            logs,
        )

    def fork(
        self,
        work: Callable[[], None],
        folder: Path,
        environment: Mapping[str, str] = {},
        logs: str = "log",
    ) -> Running:
        """Start a function in a process of its own."""
        log_folder = folder / logs
        log_folder.mkdir(
            parents=True,
            exist_ok=True,
        )
        for name in ("stdout", "stderr"):
            (log_folder / name).write_bytes(b"")
        pid = os.fork()
        if pid == 0:
            _become(
                work,
                folder,
                environment,
                log_folder,
            )
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        return Running(pid, log_folder)

    def run(
        self,
        arguments: list[str],
        folder: Path,
        limit: float,
        environment: Mapping[str, str] = {},
        logs: str = "log",
    ) -> Ended:
        """Run a command, and wait at most ``limit`` seconds."""
        return self.start(
            arguments,
            folder,
            environment,
            logs,
        ).wait(limit)

    def run_and_learn(
        self,
        arguments: list[str],
        folder: Path,
        environment: Mapping[str, str] = {},
    ) -> Ended:
        """Run a command of the unbroken world, and import what it imported."""
        ended = self.run(
            arguments,
            folder,
            300,
            {
                **environment,
                LIST_MODULES: "1",
            },
        )
        if ended.status == 0:
            self.learn((folder / "log" / "modules").read_text().split())
        return ended


def _become(
    work: Callable[[], None],
    folder: Path,
    environment: Mapping[str, str],
    logs: Path,
) -> None:
    """Run ``work`` in the fork as a program of its own, and end."""
    status = 1
    try:
        with suppress(PermissionError):
            os.setpgid(0, 0)
        _redirect(0, os.devnull, os.O_RDONLY)
        _redirect(1, logs / "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        _redirect(2, logs / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if "TMPDIR" not in environment:
            os.environ.update(temporary_files(folder))
        os.environ.update(environment)
        tempfile.tempdir = None  # the parent may have asked for it
        os.chdir(folder)
        _limit_resources()
        become_ordinary()
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    with suppress(BaseException):
        atexit._run_exitfuncs()  # as a program does that ends by itself
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    if os.environ.get(LIST_MODULES):
        (logs / "modules").write_text("\n".join(list(sys.modules)))
    os._exit(status)


def temporary_files(folder: Path) -> dict[str, str]:
    """Return the environment in which temporary files lie in the folder of the case."""
    place = folder.absolute() / TEMPORARY
    place.mkdir(exist_ok=True)
    return {"TMPDIR": str(place)}


def run_command_line(arguments: list[str]) -> None:
    """Run a command of the package, or the script that makes the papers' tables again."""
    if arguments[0] == "reproduce":
        from reproduce.runner import main as reproduce

        reproduce(arguments[1:])
        return
    from beir_cocodr.cli.__main__ import main

    main(arguments)


def _redirect(
    number: int,
    path: str | Path,
    flags: int,
) -> None:
    """Let a standard stream be a file."""
    descriptor = os.open(path, flags, 0o644)
    os.dup2(descriptor, number)
    os.close(descriptor)


def _limit_resources() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * os.sysconf("SC_PAGE_SIZE") + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_installed(
    arguments: list[str],
    folder: Path,
    limit: float,
    environment: Mapping[str, str] = {},
) -> Ended:
    """Run the installed command, as a user starts it."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [COMMAND, *arguments],
        cwd=folder,
        env=os.environ | ENVIRONMENT | temporary_files(folder) | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    status: int | None = None
    try:
        stdout, stderr = process.communicate(timeout=limit)
        status = process.returncode
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
    seconds = round(time.perf_counter() - began, 3)
    return Ended(
        status,
        stdout.decode(errors="replace"),
        stderr.decode(errors="replace"),
        seconds,
    )


def remove(path: Path) -> None:
    """Remove a file or folder, however it was damaged; root removes what nobody may read."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path, ignore_errors=True)
