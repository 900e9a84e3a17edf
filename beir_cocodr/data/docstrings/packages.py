"""Find the public documentation of one package: its files, and the names that users import."""

from __future__ import annotations

import fnmatch
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from beir_cocodr.data.docstrings.source_file import Docstring, ModuleSource, read_docstrings

# Folders and files that are tests, examples, other people's code, programs or obsolete.
SKIPPED = (
    *("test", "tests", "test_*.py", "*_test.py", "conftest.py", "setup.py", "__main__.py", "examples"),
    *("externals", "vendored", "_vendor", "_vendored", "third_party", "distutils", "__pycache__"),
    *("idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data", "msilib", "encodings"),
    *("site-packages", "dist-packages", "lib-dynload", "config-*", "antigravity.py", "this.py"),
)
_ADDS_TEXTS = (b"add_newdoc(", b"add_docstr(", b"add_docstr_all(")


@dataclass
class PackageDocs:
    """Documentation of one package.

    Attributes:
        docstrings: the public name of every documented object, dotted and with the package's own name,
            and what is written about it; None as name where the object is not public. In the order of
            module names, then of the source.
        modules: counts: files ``read``, ``unreadable``, ``private`` (holding no public name, so not
            read) and ``skipped`` (folders and files of tests, examples, vendored code and the like).
    """

    docstrings: list[tuple[str | None, Docstring]] = field(default_factory=list)
    modules: Counter[str] = field(default_factory=Counter)


def package_docstrings(root: Path, package: str) -> PackageDocs:
    """Read the public documentation of a package from its source files; nothing is imported.

    An object is public if no part of its dotted name begins with an underscore, or if a module with such
    a name exports it (``from ._minimize import minimize`` in a package, ``__all__``) or an instance of it
    (``norm = norm_gen()``). Its public name is then the shortest such path. Modules with private names are
    read when a public name leads to them, or when they document objects written in C.

    Args:
        root: the package's folder, or the folder of the standard library.
        package: name of the package, "" for the standard library, whose modules have no common parent.
    """
    return _Package(root, package).read()


class _Package:
    def __init__(self, root: Path, package: str) -> None:
        self.docs = PackageDocs()
        self.paths = dict(_modules(root, package, self.docs.modules))
        self.sources: dict[str, ModuleSource | None] = {}
        self.aliases: dict[tuple[str, str], str] = {}  # (module, name) -> public path

    def read(self) -> PackageDocs:
        for module in self.paths:
            if _is_public(module) and (source := self.source(module)):
                for name in self.exported(source):
                    self.publish(f"{module}.{name}", module, name)
        for module, path in self.paths.items():
            if module not in self.sources and any(call in path.read_bytes() for call in _ADDS_TEXTS):
                self.source(module)
        for module in self.paths:
            if module not in self.sources:
                self.docs.modules["private"] += 1
            elif source := self.sources[module]:
                self.docs.docstrings += [(self.public_name(found), found) for found in source.docstrings]
        return self.docs

    def source(self, module: str) -> ModuleSource | None:
        if module not in self.sources and module in self.paths:
            source = self.sources[module] = read_docstrings(self.paths[module], module)
            self.docs.modules["read" if source else "unreadable"] += 1
        return self.sources.get(module)

    def exported(self, source: ModuleSource) -> list[str]:
        """Names that a public module offers: ``__all__``, or its own; all it imports if it only gathers."""
        if source.exports is not None:
            return source.exports
        gathers = source.is_package or all(name.startswith("_") for name in source.definitions)
        names = self.star_names(source, frozenset()) if gathers else source.definitions
        return sorted(name for name in names if not name.startswith("_"))

    def star_names(self, source: ModuleSource, seen: frozenset[str]) -> set[str]:
        """Names that ``from source import *`` binds, as far as source files tell."""
        if source.exports is not None:
            return set(source.exports)
        names = {name for name in (*source.definitions, *source.imports) if not name.startswith("_")}
        for star in source.stars:
            if star not in seen and (starred := self.source(star)):
                names |= self.star_names(starred, seen | {source.name})
        return names

    def publish(self, public: str, module: str, name: str) -> None:
        """Give every module on the way to the definition of ``module.name`` the public path."""
        seen: set[tuple[str, str]] = set()
        while (module, name) not in seen:
            seen.add((module, name))
            known = self.aliases.get((module, name))
            if known is None or _preference(public, module) < _preference(known, module):
                self.aliases[module, name] = public
            source = self.source(module)
            if source is None:
                return
            if name in source.definitions:
                called = source.calls.get(name, name)
                if called in source.definitions and not _is_public(f"{module}.{called}"):
                    self.aliases.setdefault((module, called), public)
                return
            if name in source.imports:
                module, name = source.imports[name]
            else:
                module = self.starred(source, name) or module

    def starred(self, source: ModuleSource, name: str, seen: frozenset[str] = frozenset()) -> str | None:
        """The module that ``name`` comes from by ``import *``; ``__all__`` may have been extended unseen."""
        seen |= {source.name}
        found = [star for star in map(self.source, reversed(source.stars)) if star and star.name not in seen]
        for starred in found:
            if name in self.star_names(starred, seen):
                return starred.name
        for starred in found:
            if name in starred.definitions or name in starred.imports or self.starred(starred, name, seen):
                return starred.name
        return None

    def public_name(self, docstring: Docstring) -> str | None:
        head, _, rest = docstring.name.partition(".")
        public = self.aliases.get((docstring.module, head))
        if public is None and docstring.placed:
            # Where C code documents itself, the private module only says where it is built.
            public = ".".join([*(part for part in docstring.module.split(".") if part[:1] != "_"), head])
        elif public is None:
            public = f"{docstring.module}.{head}"
        full = f"{public}.{rest}" if rest else public
        return full if _is_public(full) and "?" not in full else None


def _is_public(dotted: str) -> bool:
    return not any(part.startswith("_") for part in dotted.split("."))


def _preference(public: str, home: str) -> tuple[bool, int, str]:
    """A package that holds the home module goes before one that merely imports the name; then short."""
    exporter = public.rpartition(".")[0]
    return not f"{home}.".startswith(f"{exporter}."), public.count("."), public


def _modules(root: Path, package: str, counts: Counter[str]) -> Iterator[tuple[str, Path]]:
    """Dotted names and paths of a package's source files, by name."""
    found = []
    for folder, folders, files in os.walk(root):
        sources = [name for name in files if name.endswith(".py")]
        counts["skipped"] += sum(_skipped(name) for name in (*folders, *sources))
        folders[:] = [name for name in folders if not _skipped(name)]
        for name in sources:
            if _skipped(name):
                continue
            path = Path(folder, name)
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found.append((".".join([*([package] if package else []), *parts]), path))
    yield from sorted(found)


def _skipped(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in SKIPPED)
