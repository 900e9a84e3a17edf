"""The names in CONTRIBUTING.md and CHANGELOG.md exist, and the settings agree with each other."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import beir_cocodr

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
PATH = r"(?:beir_cocodr|plugins|tests|benchmarks|examples)/[\w/.]*"
WALKS = GUIDE.split("## Three walks")[1].split("\n### ")[1:]


@cache
def defined(path: str) -> set[str]:
    """Names at the top of a file, and ``Class.method``."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            found.update(f"{node.name}.{part.name}" for part in methods)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found.update(target.id for target in targets if isinstance(target, ast.Name))
    return found


@pytest.mark.parametrize("path", sorted(set(re.findall(f"`({PATH})`", GUIDE))))
def test_every_path_of_the_guide_exists(path):
    if path != "benchmarks/results/NAME.json":
        assert (ROOT / path).exists()


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.split("\n")[0])
def test_a_walk_names_what_is_there(walk):
    """Before the colon of each step stand a file and names that it defines."""
    steps = re.findall(r"^\d+\. (.*?):", walk, flags=re.MULTILINE | re.DOTALL)
    assert len(steps) >= 9
    for step in steps:
        path, *names = re.findall(r"`([^`]+)`", step)
        assert names
        assert set(names) <= defined(path), f"{path} has not all of {names}"


def test_the_tables_of_kinds_are_where_the_guide_says():
    rows = re.findall(rf"`({PATH}\.py)`, `([A-Z_]+)`", GUIDE)
    assert len(rows) >= 5
    for path, name in rows:
        assert name in defined(path)


def test_hooks_and_workflow_call_what_the_machine_calls():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    called = re.findall(r"^make (.*)$", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert re.findall(r"- run: make (.*)$", workflow, flags=re.MULTILINE) == called
    assert {line.split()[0] for line in called} <= targets
    assert called[-1] == "test"
    assert "entry: make lint\n" in (ROOT / ".pre-commit-config.yaml").read_text()


def test_every_marker_is_explained():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    for marker in options["markers"]:
        assert f"`{marker.split(':')[0]}`" in GUIDE


def test_the_citation_is_of_this_version_and_of_four_papers():
    citation = (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]
    assert f"version: {beir_cocodr.__version__}\n" in citation
    assert f"license: {project['license']}\n" in citation
    assert citation.count("type: conference-paper") == 4
