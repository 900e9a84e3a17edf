"""Lower bounds are the versions that were tried and documented, and extras keep their promises."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
from harness.page import PAGE
from packaging.version import Version

script = import_module("versions")


@pytest.fixture(scope="module")
def found():
    return json.loads(script.RESULTS.read_text())


def test_the_page_has_what_was_tried(found):
    assert script.MARKS.read(PAGE.read_text()) == script.markdown(found)
    assert all(row["failed"] == 0 for row in found["tried"])


def test_every_lower_bound_was_tried(found):
    [oldest] = [row for row in found["tried"] if row["kind"] == "oldest"]
    bounds = script.bounds() | script.bounds(script.KINDS["oldest"].extras)
    tried = {name: Version(known) for name, known in oldest["versions"].items()}
    wanted = {name: Version(bound) for name, bound in bounds.items()}
    assert tried == wanted
    for hosts in (row for row in found["tried"] if row["kind"] == "oldest-hosts"):
        for name in script.KINDS["oldest-hosts"].extras:
            assert Version(hosts["versions"][name]) == Version(script.bounds([name])[name])


def test_the_first_and_the_last_python_that_are_named_were_tried(found):
    project = script.project()
    named = sorted(
        Version(line.rpartition(" ")[2])
        for line in project["classifiers"]
        if "Python :: 3." in line
    )
    tried = {Version(row["python"].rpartition(".")[0]) for row in found["tried"]}
    assert {named[0], named[-1]} <= tried
    assert named[0] == Version(project["requires-python"].removeprefix(">="))


def test_every_extra_was_tried_alone(found):
    extras = script.project()["optional-dependencies"].keys()
    assert extras == script.PROMISES.keys() >= {row["extra"] for row in found["extras"]}
    for row in found["extras"]:
        assert (row["imports"], row["problem"]) == ([*script.PROMISES[row["extra"]]], "")


def test_tools_are_those_of_the_tests():
    assert len(script.tools()) == len(script.TOOLS)
    assert script.bounds(["test"]).keys() >= set(script.TOOLS)


def test_tests_are_counted_by_their_ends(tmp_path):
    (tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="2"'
        ' skipped="3"></testsuite></testsuites>'
    )
    assert script.count_tests(tmp_path / "junit.xml") == {"passed": 3, "failed": 3, "skipped": 3}
