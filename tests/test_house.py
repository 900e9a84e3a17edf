"""The order of the house: rooms import leftwards only, in no circle, and reach plugins through one
table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE, PLUGINS = ROOT / "beir_cocodr", ROOT / "plugins"

#: A room imports only rooms to its left; those of one place know nothing of each other.
ROOMS = [
    {"data"},
    {"models"},
    {"losses"},
    {"retrieval"},
    {"generation"},
    {"evaluation"},
    {"training"},
    {"analysis", "resampling"},
    {"report"},
    {"serve"},
    {"cli"},
]

#: What all rooms share, and what each may import: other files of this list, and rooms.
SHARED = {
    "arrays": {"errors"},
    "errors": set(),
    "same_run": {"errors"},
    "io": {"errors"},
    "run_folder": {"errors", "io", "same_run"},
    "checksums": {"errors", "io"},
    "deprecation": set(),
    "distributed": {"errors"},
    "records": {"errors", "io"},
    "progress": set(),
    "provenance": {"arrays", "errors", "io", "records", "distributed", "data", "models"},
}

#: Lines that one idea may take.
MOST_LINES = 700


def files() -> Iterator[tuple[str, Path]]:
    for prefix, folder in (("beir_cocodr", CORE), ("beir_cocodr.plugins", PLUGINS)):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((prefix, *(part for part in parts if part != "__init__"))), path


MODULES = dict(files())


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of ours that one imports, inside functions too, but not for type checkers alone."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(names & MODULES.keys() or {node.module} & MODULES.keys())
        if isinstance(node, ast.Import):
            found.update({alias.name for alias in node.names} & MODULES.keys())
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(MODULES[module].read_text()))
    return frozenset(found - {module})


def closure(module: str) -> set[str]:
    reached, todo = set(), [module]
    while todo:
        for other in imports(todo.pop()) - reached:
            reached.add(other)
            todo.append(other)
    return reached


def room(module: str) -> str:
    """The first part below the package, such as "data"; the package itself is ""."""
    return [*module.split("."), ""][1]


def place(name: str) -> int | None:
    return next((i for i, names in enumerate(ROOMS) if name in names), None)


def test_no_module_reaches_itself():
    assert [module for module in MODULES if module in closure(module)] == []


def test_rooms_import_leftwards():
    wrong = set()
    for module in MODULES:
        here = place(room(module))
        for other in imports(module):
            there = place(room(other))
            if (
                here is not None
                and there is not None
                and room(other) != room(module)
                and there >= here
            ):
                wrong.add(f"{room(module)} -> {other.removeprefix('beir_cocodr.')}")
    assert wrong == set()


def test_every_folder_is_a_room():
    folders = {path.name for path in CORE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set().union(*ROOMS)


@pytest.mark.parametrize("name", SHARED)
def test_what_is_shared_stands_left_of_all(name):
    assert {room(module) for module in imports(f"beir_cocodr.{name}")} <= SHARED[name] | {""}


def test_nothing_imports_the_command_line():
    outside = {module for module in MODULES if room(module) not in ("cli", "plugins")}
    assert [m for m in outside for other in imports(m) if room(other) == "cli"] == []


def test_the_core_reaches_plugins_through_one_table():
    """No import, and no string that is the name of a plugin, but in the table of the package
    itself.
    """
    for module, path in MODULES.items():
        if module.startswith("beir_cocodr.plugins") or module == "beir_cocodr":
            continue
        assert not {other for other in imports(module) if room(other) == "plugins"}, module
        strings = [
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
        ]
        assert not [
            text for text in strings if re.fullmatch(r"beir_cocodr\.plugins[\w.:]*", str(text))
        ], module
    import beir_cocodr

    for home in beir_cocodr.PLUGINS.values():
        plugin, _, name = home.partition(":")
        defined = {
            getattr(node, "name", None) for node in ast.parse(MODULES[plugin].read_text()).body
        }
        assert name.split(".")[0] in defined


def test_the_house_does_not_grow_without_a_decision():
    """An idea is a file of at most 700 lines; the number of files is free."""
    long = {
        module: n
        for module, path in MODULES.items()
        if (n := path.read_text().count("\n")) > MOST_LINES
    }
    assert long == {}


def test_tests_stand_where_their_modules_do():
    """tests/ROOM/test_MODULE.py, or test_MODULE_ASPECT.py; a room's own name stands for several
    modules.
    """
    tests, lost = ROOT / "tests", []
    for path in sorted(tests.glob("*/**/test_*.py")):
        place = path.parent.relative_to(tests)
        folder = ROOT / place if place.parts[0] == "plugins" else CORE / place
        known = {entry.stem for entry in folder.iterdir()} | {place.name}
        name = path.stem.removeprefix("test_")
        if not any(name == module or name.startswith(f"{module}_") for module in known):
            lost.append(str(path.relative_to(tests)))
    assert lost == []
