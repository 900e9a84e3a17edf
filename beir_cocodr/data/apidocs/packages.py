"""The public documentation of a package: its files, and the names that users import."""

import fnmatch
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from beir_cocodr.data.apidocs.docstrings import Docstring, ModuleSource, read_docstrings

# Folders and files of tests, examples, other people's code and programs, and obsolete ones.
SKIPPED = (
    "test",
    "tests",
    "test_*.py",
    "*_test.py",
    "conftest.py",
    "setup.py",
    "__main__.py",
    "examples",
    "externals",
    "vendored",
    "_vendor",
    "_vendored",
    "third_party",
    "distutils",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "ensurepip",
    "pydoc_data",
    "msilib",
    "encodings",
    "site-packages",
    "dist-packages",
    "lib-dynload",
    "config-*",
    "antigravity.py",
    "this.py",
)

# Calls that document objects written in C.
_ADDS_TEXTS = (b"add_newdoc(", b"add_docstr(", b"add_docstr_all(")


def package_docstrings(
    root: Path, package: str
) -> tuple[list[tuple[str | None, Docstring]], Counter[str]]:
    """Read the public documentation of a package from its source files; nothing is imported.

    An object is public if no part of its dotted name begins with an underscore, or if a module with
    such a name exports it (``from ._minimize import minimize`` in a package, ``__all__``) or an
    instance of it (``norm = norm_gen()``). Its public name is then the shortest such path. Modules
    with private names are read when a public name leads to them, or when they document objects
    written in C.

    Args:
        root: folder of the sources.
        package: name of the package; "" for the standard library, whose modules have no common
            parent.

    Returns:
        Each documented object by its dotted public name (None where it is not public) and its
        docstring, in the order of module names, then of the source; and counts of files: ``read``,
        ``unreadable``, ``private`` (without a public name, so not read) and ``skipped`` (folders
        and files of tests, examples, vendored code and others).
    """
    reader = _Package(root, package)
    return reader.read(), reader.modules


class _Package:
    """The source files of a package, and the public paths to its objects."""

    def __init__(self, root: Path, package: str) -> None:
        self.modules = Counter[str]()
        self.paths = dict(_modules(root, package, self.modules))
        self.sources: dict[str, ModuleSource | None] = {}
        # Module and name to the public path.
        self.aliases: dict[tuple[str, str], str] = {}

    def read(self) -> list[tuple[str | None, Docstring]]:
        """Return the public name and the docstring of every documented object."""
        self._publish_all()
        self._read_added_texts()
        private = len(self.paths.keys() - self.sources.keys())
        if private:
            self.modules["private"] = private
        documented = []
        for module in self.paths:
            source = self.sources.get(module)
            if source is not None:
                for docstring in source.docstrings:
                    documented.append((self.public_name(docstring), docstring))
        return documented

    def _publish_all(self) -> None:
        """Publish the names that all public modules offer."""
        for module in self.paths:
            source = None
            if _is_public(module):
                source = self.source(module)
            if source is not None:
                for name in self.exported(source):
                    self.publish(f"{module}.{name}", module, name)

    def _read_added_texts(self) -> None:
        """Read the other modules that document objects written in C."""
        for module, path in self.paths.items():
            if module not in self.sources:
                content = path.read_bytes()
                if any(call in content for call in _ADDS_TEXTS):
                    self.source(module)

    def source(self, module: str) -> ModuleSource | None:
        """Return what a module states about itself; None where it cannot be read."""
        if module not in self.sources and module in self.paths:
            source = read_docstrings(self.paths[module], module)
            self.sources[module] = source
            self.modules["read" if source else "unreadable"] += 1
        return self.sources.get(module)

    def exported(self, source: ModuleSource) -> list[str]:
        """Return the names that a public module offers.

        They are those of ``__all__``, or its own; or all it imports if it only gathers names.
        """
        if source.exports is not None:
            return source.exports
        only_private = all(name.startswith("_") for name in source.definitions)
        if source.is_package or only_private:
            names = self.star_names(source, frozenset())
        else:
            names = source.definitions
        return sorted(name for name in names if not name.startswith("_"))

    def star_names(
        self,
        source: ModuleSource,
        seen: frozenset[str],
    ) -> set[str]:
        """Return the names that ``from source import *`` binds, as far as source files show."""
        if source.exports is not None:
            return set(source.exports)
        names = {
            name for name in (*source.definitions, *source.imports) if not name.startswith("_")
        }
        for star in source.stars:
            starred = None
            if star not in seen:
                starred = self.source(star)
            if starred is not None:
                names |= self.star_names(starred, seen | {source.name})
        return names

    def publish(
        self,
        public: str,
        module: str,
        name: str,
    ) -> None:
        """Give the public path to every module on the way to the definition of a name."""
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

    def starred(
        self,
        source: ModuleSource,
        name: str,
        seen: frozenset[str] = frozenset(),
    ) -> str | None:
        """Return the module from which ``import *`` takes a name.

        A module whose ``__all__`` may be extended where the source does not show it comes last.
        """
        seen |= {source.name}
        modules = []
        for star in reversed(source.stars):
            module = self.source(star)
            if module is not None and module.name not in seen:
                modules.append(module)
        for module in modules:
            if name in self.star_names(module, seen):
                return module.name
        for module in modules:
            binds_name = name in module.definitions or name in module.imports
            if binds_name or self.starred(module, name, seen):
                return module.name
        return None

    def public_name(self, docstring: Docstring) -> str | None:
        """Return the dotted public name of an object; None where it is not public."""
        head, _, rest = docstring.name.partition(".")
        public = self.aliases.get((docstring.module, head))
        if public is None and docstring.placed:
            # Where C code documents itself, the private module is only where it is built.
            parts = [part for part in docstring.module.split(".") if not part.startswith("_")]
            public = ".".join([*parts, head])
        elif public is None:
            public = f"{docstring.module}.{head}"
        full = public
        if rest:
            full = f"{public}.{rest}"
        if _is_public(full) and "?" not in full:
            return full
        return None


def _is_public(dotted: str) -> bool:
    return not any(part.startswith("_") for part in dotted.split("."))


def _preference(public: str, home: str) -> tuple[bool, int, str]:
    """Return a key that sorts the public paths of one object, the best first.

    A package that holds the home module precedes one that merely imports the name; then the shorter
    path precedes.
    """
    exporter = public.rpartition(".")[0]
    is_outside = not f"{home}.".startswith(f"{exporter}.")
    return is_outside, public.count("."), public


def _modules(
    root: Path,
    package: str,
    counts: Counter[str],
) -> Iterator[tuple[str, Path]]:
    """Stream dotted names and paths of a package's source files, sorted by name."""
    modules = []
    for folder, folders, files in os.walk(root):
        # Which modules have been compiled is not a fact about the package.
        folders[:] = [name for name in folders if name != "__pycache__"]
        sources = [name for name in files if name.endswith(".py")]
        counts["skipped"] += sum(_is_skipped(name) for name in (*folders, *sources))
        folders[:] = [name for name in folders if not _is_skipped(name)]
        for name in sources:
            if _is_skipped(name):
                continue
            path = Path(folder, name)
            parts = list(path.relative_to(root).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            if package:
                parts.insert(0, package)
            modules.append((".".join(parts), path))
    yield from sorted(modules)


def _is_skipped(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in SKIPPED)
