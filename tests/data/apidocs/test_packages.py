"""Public names of a package: importing the package is the oracle for names that were found
without.
"""

from __future__ import annotations

import compileall
import importlib
import sys
from functools import reduce
from pathlib import Path

import pytest

from beir_cocodr.data.apidocs.packages import package_docstrings

FILES = {
    "__init__.py": """
from ._solve import solve, _hidden
from .facade import *
from .sub import *
""",
    "_solve.py": '''
def solve():
    """Solve text."""
def unexported():
    """Unexported text."""
def _hidden():
    """Hidden text."""
class _Machine:
    """Machine text."""
    def run(self):
        """Run text."""
machine = _Machine()
''',
    "facade.py": """
from ._late import extended
from ._solve import machine
""",
    "_late.py": '''
__all__ = []
__all__ += list(["extended"])
def extended():
    """Extended text."""
''',
    "sub/__init__.py": "from ._deep import *\n__all__ = ['deep', 'Deep']\n",
    "sub/_deep.py": '''
__all__ = ["Deep"]
__all__.append("deep")
def deep():
    """Deep text."""
class Deep:
    """Deep class text."""
    def method(self):
        """Method text."""
''',
    "sub/plain.py": '''
from .._solve import solve
def plain():
    """Plain text."""
''',
    "_never.py": 'def never():\n    """Never text."""\n',
    "_c_docs.py": """
def add_newdoc(*arguments): pass
add_newdoc("synthetic._core", "in_c", "C text.")
""",
    "broken.py": "def broken(:\n",
    "tests/test_it.py": 'def test_it():\n    """Test text."""\n',
    "test_top.py": 'def test_top():\n    """Test text."""\n',
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "synthetic"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _public(root: Path, name: str) -> dict[str, str | None]:
    return {
        name: docstring.text
        for name, docstring in package_docstrings(root, name)[0]
        if name is not None
    }


def test_public_names_are_where_python_finds_the_objects(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = _public(package, "synthetic")
    assert "synthetic" not in sys.modules
    assert public.pop("synthetic.in_c") == "C text."  # there is no C code in this package
    monkeypatch.syspath_prepend(package.parent)
    try:
        for name in ("synthetic", "synthetic.sub.plain", "synthetic.facade"):
            importlib.import_module(name)
        for name, text in public.items():
            found = reduce(getattr, name.split(".")[1:], sys.modules["synthetic"])
            assert found.__doc__ == text, name
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "synthetic"]:
            del sys.modules[name]


def test_what_is_public(package: Path) -> None:
    assert set(_public(package, "synthetic")) == {
        "synthetic.solve",
        "synthetic.machine",
        "synthetic.machine.run",
        "synthetic.extended",
        "synthetic.deep",
        "synthetic.Deep",
        "synthetic.Deep.method",
        "synthetic.sub.plain.plain",
        "synthetic.in_c",
    }


def test_private_objects_are_counted_not_lost(package: Path) -> None:
    docstrings, _ = package_docstrings(package, "synthetic")
    private = sorted(found.name for name, found in docstrings if name is None)
    assert private == ["_hidden", "unexported"]


def test_modules_are_counted(package: Path) -> None:
    _, modules = package_docstrings(package, "synthetic")
    assert modules == {"read": 8, "unreadable": 1, "private": 1, "skipped": 2}


def test_compiled_modules_are_not_counted(package: Path) -> None:
    _, modules = package_docstrings(package, "synthetic")
    compileall.compile_dir(package, quiet=2)  # one file of it is no Python
    assert list(package.rglob("__pycache__"))
    assert package_docstrings(package, "synthetic")[1] == modules


def test_modules_of_a_library_without_a_common_package(package: Path) -> None:
    assert {"sub.plain.plain", "sub.deep", "sub.Deep.method"} <= set(_public(package, ""))
