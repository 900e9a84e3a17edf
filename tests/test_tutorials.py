"""The tutorials do what they say, and print what they show."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("shared_vectors")

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def outputs():
    return load("outputs")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_prints_what_it_shows(path, outputs, tmp_path, monkeypatch, request):
    if path.stem == "train-on-one-gpu":  # its figures vary, so that a part of the model will do
        request.getfixturevalue("fast_minilm")
    monkeypatch.chdir(tmp_path)
    outputs.copy_collections(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    compared = 0
    for step in outputs.steps(path.read_text()):
        printed = outputs.run(step, namespace)
        if step.output is not None:
            shown = outputs.comparable(step.output, step.varies)
            assert outputs.comparable(printed, step.varies) == shown
            compared += 1
    assert compared >= 2


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_has_a_picture_and_says_where_to_go_next(path):
    page = path.read_text()
    assert page.count("](../pictures/") >= 1
    assert "## Where to go next\n" in page


def test_outputs_that_vary_are_compared_by_the_first_word_of_each_line(outputs):
    page = "```python\nprint('a 1')\n```\n\n<!-- output: figures vary -->\n```text\na 2\n```\n"
    [step] = outputs.steps(page)
    printed = outputs.run(step, {})
    assert outputs.comparable(printed, True) == outputs.comparable(step.output, True)
    assert outputs.comparable(printed, False) != outputs.comparable(step.output, False)
    assert outputs.comparable("b 1\n", True) != outputs.comparable(step.output, True)
    assert outputs.steps(f"{outputs.NEEDS}a GPU -->\n```\nbeir-cocodr x\n```\n") == []


def test_both_forms_of_the_handbook_have_the_same_texts():
    examples = ROOT / "examples"
    lines = (examples / "handbook-beir" / "corpus.jsonl").read_text().splitlines()
    documents = {line["_id"]: line for line in map(json.loads, lines)}
    files = {path.stem: path.read_text() for path in (examples / "handbook").glob("*.md")}
    assert documents.keys() == files.keys()
    for name, line in documents.items():
        assert files[name] == f"# {line['title']}\n\n{line['text']}\n"


def test_the_tables_of_kinds_are_made_of_the_rows():
    # A process of its own, as other tests add kinds to the tables.
    check = [sys.executable, str(ROOT / "docs" / "kinds.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0
