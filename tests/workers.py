"""``--workers N``: files of tests in N processes, each forked from the one that has imported and collected everything.

Nothing is imported or collected twice, so a worker more costs next to nothing, and one that waits leaves its core to
the others. Each has a server of its own, forked before any test, from which tests fork processes (conftest.process).
"""

from __future__ import annotations

import logging
import multiprocessing.connection
import os
import signal
import socket
import sys
import traceback
import warnings
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

import pytest

# Asking how many GPUs there are while tests are collected must not start CUDA, which no forked process could use then.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run files of tests in N forked processes")


class Messenger:
    """What happens in a worker goes to the process that prints it."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self.config, self.connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.connection.send(("report", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.connection.send(("finish", {"nodeid": nodeid, "location": location}))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"  # a class may not travel
        shown = (text, UserWarning, warning_message.filename, warning_message.lineno)
        about = {"when": when, "nodeid": nodeid, "location": location}
        self.connection.send(("warning", {"warning_message": warnings.WarningMessage(*shown), **about}))


def serve_forks(connection: Connection) -> None:
    """The server of multiprocessing's method ``forkserver``, forked from here instead of started in a new Python.

    Private names of it, as it knows no other way to start: test_workers.py fails where they move.
    """
    server = forkserver._forkserver  # type: ignore[attr-defined]
    listener = socket.socket(socket.AF_UNIX)
    address = multiprocessing.connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    listener.bind(address)
    listener.listen()
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        os.close(writer)
        connection.close()
        # As in a new Python, nothing of pytest's stands between a process and its output.
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        logging.root.handlers.clear()
        try:
            forkserver.main(listener.detach(), reader, [])
        finally:
            os._exit(0)
    os.close(reader)
    listener.close()
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, writer, pid


def work(session: pytest.Session, connection: Connection) -> None:
    """Run the tests whose numbers come, as long as some do."""
    config = session.config
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    if capture.is_globally_capturing():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where nothing is captured there is only what pytest prints
    capture.start_global_capturing()
    serve_forks(connection)
    config.pluginmanager.register(Messenger(config, connection))

    def more() -> list[int]:
        connection.send(("more", None))
        return list(connection.recv())

    numbers = more()
    while numbers:
        tests = [session.items[number] for number in numbers]
        for test, after in zip(tests, [*tests[1:], None], strict=True):
            # Before the last one ends, the next file is known: what both need stays.
            numbers = numbers if after else more()
            following = after or (session.items[numbers[0]] if numbers else None)
            config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                return


@dataclass
class Worker:
    pid: int
    #: The tests that it was given and has not finished.
    numbers: deque[int] = field(default_factory=deque)
    error: str = ""


class Pool:
    """The workers, and the files of tests that none has yet."""

    def __init__(self, session: pytest.Session) -> None:
        self.session, self.workers = session, dict[Connection, Worker]()
        by_file = groupby(range(len(session.items)), key=lambda number: session.items[number].path)
        self.files = deque([*numbers] for _, numbers in by_file)

    def fork(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        if pid := os.fork():
            theirs.close()
            self.workers[ours] = Worker(pid)
            return
        status = 0
        try:
            for connection in (ours, *self.workers):
                connection.close()
            work(self.session, theirs)
        except BaseException:
            theirs.send(("error", traceback.format_exc()))
            status = 1
        finally:
            os._exit(status)

    def receive(self, connection: Connection) -> None:
        """One message of a worker."""
        worker, hook = self.workers[connection], self.session.config.hook
        try:
            kind, value = connection.recv()
        except EOFError:
            return self.end(connection)
        if kind == "more":
            stopped = self.session.shouldfail or self.session.shouldstop
            numbers = [] if stopped or not self.files else self.files.popleft()
            worker.numbers.extend(numbers)
            connection.send(numbers)
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self.session.config, data=value)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "finish":
            worker.numbers.popleft()
            hook.pytest_runtest_logfinish(**value)
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=value)
        elif kind == "error":
            worker.error = value
        return None

    def end(self, connection: Connection) -> None:
        """A worker is gone: the test in which it died has failed, and another takes those it leaves."""
        worker = self.workers.pop(connection)
        connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if not worker.numbers or self.session.shouldfail or self.session.shouldstop:
            return
        test = self.session.items[worker.numbers.popleft()]
        text = f"the worker ended in this test with status {code}\n{worker.error}"
        report = pytest.TestReport(test.nodeid, test.location, {}, "failed", text, "call")
        self.session.config.hook.pytest_runtest_logreport(report=report)
        if worker.numbers:
            self.files.appendleft([*worker.numbers])
        if self.files:
            self.fork()

    def run(self, count: int) -> None:
        try:
            for _ in range(min(count, len(self.files))):
                self.fork()
            while self.workers:
                for connection in multiprocessing.connection.wait([*self.workers]):
                    self.receive(connection)  # type: ignore[arg-type]
        finally:
            for worker in self.workers.values():
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count, config = session.config.option.workers, session.config
    if not count or config.option.collectonly or session.testsfailed:
        return None
    if reporter := config.pluginmanager.getplugin("terminalreporter"):
        reporter.showfspath = False
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all, locked as long as this lives
    Pool(session).run(count)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True
