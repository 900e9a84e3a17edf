"""The last line of a run of the tests: what was skipped for want of what."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import WANTS, describe_skips

TESTS = Path(__file__).parent


def test_reasons_are_grouped_by_what_is_wanted():
    line = describe_skips(
        ["needs a CUDA device", "needs a CUDA device", "could not import 'faiss'", "it rains"]
    )
    assert "2 for want of a GPU (" in line
    assert "1 for want of packages (pip install" in line
    assert line.endswith("1 otherwise: it rains")
    assert "\n" not in line
    assert describe_skips([]) == "nothing was skipped"


def test_every_reason_in_the_tests_names_something_that_can_be_had():
    """Reasons that are a message of an error are looked at where they come from."""
    pattern = r"""(?:pytest\.skip\(f?|(?:skipif|importorskip)\(.*reason=)"([^"]+)\""""
    reasons = [
        found for path in TESTS.rglob("*.py") for found in re.findall(pattern, path.read_text())
    ]
    assert len(reasons) > 10
    assert [r for r in reasons if not any(re.search(name, r) for name, _ in WANTS.values())] == []
