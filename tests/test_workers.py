"""What forked workers report is what one process reports, and a test that kills its worker is all that is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KINDS = """
import warnings
import pytest

@pytest.fixture(scope="module")
def shared():
    yield 1
    print("the end of shared")

def test_passes(shared, capsys):
    print("a word")
    assert capsys.readouterr().out == "a word\\n"

def test_fails(shared):
    print("what was printed")
    assert shared == 2

@pytest.mark.skip(reason="nothing to see")
def test_skipped(): pass

@pytest.mark.xfail(reason="a known bug")
def test_known(): assert False

@pytest.mark.parametrize("n", range(3))
def test_warns(n): warnings.warn(f"careful {n}")

@pytest.fixture
def broken(): raise OSError("no disk")

def test_errs(broken): pass
"""
DIES = """
import multiprocessing, os, signal

COLLECTED_BY = os.getpid()

def check(): assert COLLECTED_BY != os.getpid()

def test_a_process_is_forked_with_everything_imported():
    process = multiprocessing.get_context("forkserver").Process(target=check)
    process.start()
    process.join()
    assert process.exitcode == 0

def test_dies(): os.kill(os.getpid(), signal.SIGKILL)

def test_comes_after(): pass
"""


def run(folder: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "workers", "-p", "no:cacheprovider", *options, str(folder)]
    paths = {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def summary(text: str) -> list[str]:
    """The short lines of all tests, in any order, and the counts."""
    _, _, lines = text.partition("short test summary info")
    return sorted(re.sub(r" in [\d.]+s.*| =+|=+ ", "", line) for line in lines.splitlines())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name in "abc":
        (tmp_path / f"test_kinds_{name}.py").write_text(KINDS)
    return tmp_path


def test_workers_report_what_one_process_does(folder):
    (status, one), (status_of_two, two) = run(folder), run(folder, "--workers", "2")
    assert status == status_of_two == 1
    assert summary(one) == summary(two)
    assert "3 failed, 12 passed, 3 skipped, 3 xfailed, 9 warnings, 3 errors" in two
    for word in ("what was printed", "assert 1 == 2", "careful 2", "no disk", "nothing to see"):
        assert one.count(word) == two.count(word) > 0


def test_a_worker_that_dies_loses_one_test(tmp_path):
    (tmp_path / "test_dies.py").write_text(DIES)
    status, text = run(tmp_path, "--workers", "2")
    assert status == 1
    assert "1 failed, 2 passed" in text
    assert "status -9" in text
    assert re.search(r"FAILED .*::test_dies", text)


def test_the_first_failure_can_be_the_last(folder):
    status, text = run(folder, "--workers", "2", "-x")
    assert status == 1
    assert re.search(r"stopping after [12] failures", text)
    assert re.search(r" [12] failed, [12] passed", text)
