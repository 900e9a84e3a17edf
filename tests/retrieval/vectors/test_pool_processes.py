"""Real processes, really killed; none of them imports PyTorch, so that they start at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.vectors.pool import share_out
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores


def squares(folder: Path, device: str) -> Callable[[int], tuple[int, str, int]]:
    (folder / f"started-{os.getpid()}").touch()

    def work(task: int) -> tuple[int, str, int]:
        (folder / f"did-{task}-{os.getpid()}").touch()
        time.sleep(0.02)
        return task**2, device, os.getpid()

    return work


def dying(folder: Path, times: int, device: str) -> Callable[[int], int]:
    """Task 5 kills its process, the first ``times`` times."""

    def work(task: int) -> int:
        died = len(list(folder.glob("died-*")))
        if task == 5 and died < times:
            (folder / f"died-{died}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / f"did-{task}").touch()
        return task

    return work


def failing(error: Exception, where: str, device: str) -> Callable[[int], int]:
    if where == "start":
        raise error

    def work(task: int) -> int:
        if task == 3:
            raise error
        return task

    return work


# A device that is no CPU has a new interpreter; one is enough.
@pytest.mark.parametrize("names", [["cpu:0", "cpu:1"], ["a"]])
def test_every_task_is_done_once_by_processes_that_start_once(names, tmp_path):
    found = list(share_out(range(20), partial(squares, tmp_path), names))
    assert sorted(square for square, _, _ in found) == [task**2 for task in range(20)]
    devices = {(device, process) for _, device, process in found}
    assert {device for device, _ in devices} <= set(names)
    processes = {process for _, process in devices}
    assert len(devices) == len(processes) <= len(names)  # a process keeps its device
    assert os.getpid() not in processes
    assert len(list(tmp_path.glob("did-*"))) == 20
    assert len(list(tmp_path.glob("started-*"))) == len(devices)


def test_what_a_dead_process_had_is_done_again(tmp_path, caplog):
    found = sorted(share_out(range(12), partial(dying, tmp_path, 2), ["cpu", "cpu"]))
    assert found == list(range(12))
    assert len(list(tmp_path.glob("died-*"))) == 2
    assert caplog.text.count("a process died") == 2


def test_a_process_that_dies_while_another_is_started(tmp_path, monkeypatch):
    starting = BaseProcess.start

    def slowly(process):
        time.sleep(0.3)
        starting(process)

    monkeypatch.setattr(BaseProcess, "start", slowly)
    assert sorted(share_out(range(5, 8), partial(dying, tmp_path, 1), ["cpu", "cpu"])) == [5, 6, 7]


def test_work_that_always_kills_ends_with_a_clear_error(tmp_path):
    with pytest.raises(InputError, match=r"3 times .*memory"):
        list(share_out(range(12), partial(dying, tmp_path, 99), ["cpu"]))
    # Deaths count anew while others of the tasks are still being finished.
    assert 3 <= len(list(tmp_path.glob("died-*"))) <= 8


@pytest.mark.parametrize("where", ["start", "work"])
@pytest.mark.parametrize("error", [InputError("look at 'd7'"), NonFiniteScores(["d7"], ["q1"])])
def test_errors_come_back_as_they_are(where, error):
    with pytest.raises(type(error)) as caught:
        list(share_out(range(12), partial(failing, error, where), ["cpu", "cpu"]))
    assert str(caught.value) == str(error)


ORPHANS = """
import sys, time
from functools import partial
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_pool_processes import slow
from beir_cocodr.retrieval.vectors.pool import share_out
if __name__ == "__main__":
    list(share_out(range(100), partial(slow, Path({folder!r})), ["cpu", "cpu"]))
"""


def slow(folder: Path, device: str) -> Callable[[int], int]:
    (folder / f"process-{os.getpid()}").touch()

    def work(task: int) -> int:
        time.sleep(60)
        return task

    return work


def test_processes_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(ORPHANS.format(tests=str(Path(__file__).parent), folder=str(tmp_path)))
    parent = subprocess.Popen([sys.executable, str(script)])
    wait_for(lambda: len(list(tmp_path.glob("process-*"))) == 2)
    children = [int(path.name.removeprefix("process-")) for path in tmp_path.glob("process-*")]
    assert all(alive(child) for child in children)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not any(alive(child) for child in children))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")  # what has ended and nobody waits for is no longer alive
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.05)
