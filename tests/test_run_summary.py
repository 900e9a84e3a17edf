"""The last two lines of a run of the tests: why tests were skipped, and the counts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_summary import WANTS, describe_counts, describe_skips

TESTS = Path(__file__).parent

#: The run has only the plugins that it needs, as loading all of them takes longer than its tests.
PYTEST = [sys.executable, "-m", "pytest"]
for plugin in ("run_summary", "xdist", "no:cacheprovider"):
    PYTEST += ["-p", plugin]

OUTCOMES = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_passes(number):
    pass

def test_is_skipped():
    pytest.skip("needs a CUDA device")
"""

FAILURES = """
import pytest

@pytest.fixture
def broken():
    raise RuntimeError

def test_fails():
    assert False

def test_cannot_be_set_up(broken):
    pass
"""


def run_pytest(folder: Path, *options: str) -> tuple[int, list[str]]:
    """Run the tests of a folder with the hooks of this module; return the status and the lines."""
    result = subprocess.run(
        [*PYTEST, *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout.splitlines()


def test_reasons_are_grouped_by_what_they_need():
    line = describe_skips(
        ["needs a CUDA device", "needs a CUDA device", "could not import 'faiss'", "it rains"]
    )
    assert "2 need a GPU (" in line
    assert "1 need packages (pip install" in line
    assert line.endswith("1 for another reason: it rains")
    assert "\n" not in line
    assert describe_skips([]) == "nothing was skipped"


def test_errors_count_as_failures():
    reports = {"passed": "ab", "failed": "c", "error": "de", "warnings": "fgh"}
    assert describe_counts(reports) == "2 passed, 3 failed, 0 skipped"


@pytest.mark.parametrize("options", [(), ("--numprocesses", "1")], ids=["one process", "a worker"])
def test_the_last_line_has_the_counts_of_the_run(tmp_path, options):
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    status, lines = run_pytest(tmp_path, *options)
    assert status == 0
    assert lines[-1] == "3 passed, 0 failed, 1 skipped"
    assert "a GPU" in lines[-2]


def test_a_run_with_failures_fails(tmp_path):
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    (tmp_path / "test_failures.py").write_text(FAILURES)
    (tmp_path / "test_unreadable.py").write_text("import nothing_of_this_name\n")
    status, lines = run_pytest(tmp_path, "--continue-on-collection-errors")
    assert status != 0
    assert lines[-1] == "3 passed, 3 failed, 1 skipped"


@pytest.mark.parametrize("options", [(), ("--numprocesses", "1")], ids=["one process", "a worker"])
def test_a_run_that_collects_nothing_fails(tmp_path, options):
    status, lines = run_pytest(tmp_path, *options)
    assert status != 0
    assert lines[-1] == "0 passed, 0 failed, 0 skipped"


def test_every_reason_in_the_tests_names_something_that_can_be_provided():
    """Reasons that are the message of an error are tested where the error is raised."""
    pattern = r"""(?:pytest\.skip\(f?|(?:skipif|importorskip)\(.*reason=)"([^"]+)\""""
    reasons = []
    for path in TESTS.rglob("*.py"):
        reasons += re.findall(pattern, path.read_text())
    assert len(reasons) > 10
    patterns = [pattern for pattern, _ in WANTS.values()]
    unknown = [r for r in reasons if not any(re.search(pattern, r) for pattern in patterns)]
    assert unknown == []
