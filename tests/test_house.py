"""The order of the house: rooms, the table of plugins, names, sizes, and first words of docstrings.

Rooms import leftwards only, in no circle, and reach plugins through one table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "beir_cocodr"
PLUGINS = ROOT / "plugins"

#: A room imports only rooms to its left; rooms of one place do not know each other.
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

#: Modules that all rooms share, and what each may import: other such modules, and rooms.
SHARED = {
    "arrays": {"errors"},
    "errors": set(),
    "same_run": {"errors"},
    "temporary": {"errors"},
    "io": {"errors"},
    "run_folder": {"errors", "io", "same_run"},
    "cache": {"errors", "io", "records"},
    "checksums": {"errors", "io"},
    "deprecation": set(),
    "distributed": {"errors"},
    "endpoints": {"errors", "http_requests", "io"},
    "http_requests": {"errors"},
    "records": {"errors", "io"},
    "progress": set(),
    "provenance": {
        "arrays",
        "checksums",
        "errors",
        "io",
        "records",
        "distributed",
        "data",
        "models",
    },
}

#: The most lines of a file, which holds one idea.
MOST_LINES = 700

#: Names that files of several rooms may have.
COMMON_FILES = {"__init__", "__main__"}

#: Words with which the docstring of a function does not begin, as it begins with a verb.
NO_VERB = set(
    (
        "a all an and any as at both by each either every for from how if in it its less like many "
        "more most no none of on one only other others over same so some such that the their these "
        "they this those to two under what when where whether which while who whose why with "
        "without"
    ).split()
)

#: A function or method.
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of every module."""
    for prefix, folder in (("beir_cocodr", CORE), ("beir_cocodr.plugins", PLUGINS)):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            names = [part for part in parts if part != "__init__"]
            yield ".".join([prefix, *names]), path


MODULES = dict(files())


@cache
def tree_of(module: str) -> ast.Module:
    """Parse a module."""
    return ast.parse(MODULES[module].read_text())


@cache
def imports(module: str) -> frozenset[str]:
    """Return the modules of ours that one imports, except for type checkers alone."""
    imported: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = names & MODULES.keys()
            imported.update(modules or {node.module} & MODULES.keys())
        if isinstance(node, ast.Import):
            imported.update({alias.name for alias in node.names} & MODULES.keys())
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree_of(module))
    return frozenset(imported - {module})


def closure(module: str) -> set[str]:
    """Return all modules that a module imports, also through others."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        for other in imports(waiting.pop()) - reached:
            reached.add(other)
            waiting.append(other)
    return reached


def room(module: str) -> str:
    """Return the first part below the package, such as "data"; the package itself is ""."""
    _, *parts = module.split(".")
    return parts[0] if parts else ""


def position(name: str) -> int | None:
    """Return the place of a room, from the left; None for what is no room."""
    for number, names in enumerate(ROOMS):
        if name in names:
            return number
    return None


def documented_functions(tree: ast.Module) -> Iterator[tuple[Function, str]]:
    """Yield every function that has a docstring, except properties."""
    for node in ast.walk(tree):
        if not isinstance(node, Function):
            continue
        docstring = ast.get_docstring(node)
        is_property = any("property" in ast.dump(one) for one in node.decorator_list)
        if docstring and not is_property:
            yield node, docstring


def test_no_module_reaches_itself():
    assert [module for module in MODULES if module in closure(module)] == []


def test_rooms_import_leftwards():
    wrong = set()
    for module in MODULES:
        here = position(room(module))
        for other in imports(module):
            there = position(room(other))
            if here is None or there is None or room(other) == room(module):
                continue
            if there >= here:
                wrong.add(f"{room(module)} -> {other.removeprefix('beir_cocodr.')}")
    assert wrong == set()


def test_every_folder_is_a_room():
    folders = {path.name for path in CORE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set().union(*ROOMS)


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_module_imports_only_what_it_may(name):
    assert {room(module) for module in imports(f"beir_cocodr.{name}")} <= SHARED[name] | {""}


def test_nothing_imports_the_command_line():
    wrong = []
    for module in MODULES:
        if room(module) not in ("cli", "plugins"):
            wrong += [module for other in imports(module) if room(other) == "cli"]
    assert wrong == []


def test_the_core_reaches_plugins_through_one_table():
    """Only the package itself imports a plugin, or has a string that names one."""
    for module in MODULES:
        if module.startswith("beir_cocodr.plugins") or module == "beir_cocodr":
            continue
        assert not {other for other in imports(module) if room(other) == "plugins"}, module
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Constant):
                assert not re.fullmatch(r"beir_cocodr\.plugins[\w.:]*", str(node.value)), module


def test_the_table_names_what_the_plugins_define():
    import beir_cocodr

    for home in beir_cocodr.PLUGINS.values():
        plugin, _, name = home.partition(":")
        defined = {getattr(node, "name", None) for node in tree_of(plugin).body}
        assert name.split(".")[0] in defined


def test_a_file_has_at_most_700_lines():
    long = {}
    for module, path in MODULES.items():
        lines = path.read_text().count("\n")
        if lines > MOST_LINES:
            long[module] = lines
    assert long == {}


def test_no_two_files_of_different_rooms_have_one_name():
    rooms_of: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if room(module) != "plugins" and path.stem not in COMMON_FILES:
            rooms_of.setdefault(path.stem, set()).add(room(module))
    assert {name: rooms for name, rooms in rooms_of.items() if len(rooms) > 1} == {}


def test_no_two_classes_have_one_name():
    modules_of: dict[str, list[str]] = {}
    for module in MODULES:
        if room(module) == "plugins":
            continue  # A plugin names its classes as its host does.
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef):
                modules_of.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in modules_of.items() if len(modules) > 1} == {}


def test_docstrings_of_functions_begin_with_a_verb():
    wrong = []
    for module, path in MODULES.items():
        for node, docstring in documented_functions(tree_of(module)):
            first = re.split(r"\W+", docstring.strip(), maxsplit=1)[0].lower()
            if first in NO_VERB:
                line = docstring.splitlines()[0]
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {line}")
    assert wrong == []


def test_tests_are_where_their_modules_are():
    """tests/ROOM/test_MODULE.py or test_MODULE_ASPECT.py; a room's name means several modules."""
    tests = ROOT / "tests"
    lost = []
    for path in sorted(tests.glob("*/**/test_*.py")):
        inner = path.parent.relative_to(tests)
        folder = ROOT / inner if inner.parts[0] == "plugins" else CORE / inner
        known = {entry.stem for entry in folder.iterdir()} | {inner.name}
        name = path.stem.removeprefix("test_")
        if not any(name == module or name.startswith(f"{module}_") for module in known):
            lost.append(str(path.relative_to(tests)))
    assert lost == []
