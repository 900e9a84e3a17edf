"""The notebooks of examples/ run from top to bottom, and print what they show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("shared_vectors")

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))

#: Code whose figures differ between machines, or with a new calibration.
VARIES = "compare("


def cells(path: Path) -> list[tuple[str, str]]:
    """Return the code of each cell with what it printed."""
    pairs = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            printed = ["".join(output["text"]) for output in cell["outputs"]]
            pairs.append(("".join(cell["source"]), "".join(printed)))
    return pairs


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path, tmp_path, monkeypatch, capsys):
    for name in ("handbook", "handbook-beir"):
        shutil.copytree(EXAMPLES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for code, shown in cells(path):
        exec(compile(code, path.name, "exec"), namespace)
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        if VARIES in code:
            assert len(printed) == len(shown.splitlines()) > 0
        else:
            assert printed == shown.splitlines()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_form_that_jupyter_reads(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    assert notebook["metadata"]["kernelspec"]["language"] == "python"
    assert [cell["cell_type"] for cell in notebook["cells"][:2]] == ["markdown", "code"]
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    for code, _ in cells(path):
        compile(code, path.name, "exec")


def test_the_list_of_examples_has_both_notebooks():
    text = (EXAMPLES / "README.md").read_text()
    assert len(NOTEBOOKS) == 2
    assert all(path.name in text for path in NOTEBOOKS)
