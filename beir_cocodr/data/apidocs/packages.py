"""The public documentation of one package: its files, the names that users import, and texts as
summary and rest.
"""

import fnmatch
import inspect
import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import filterfalse
from pathlib import Path

from beir_cocodr.data.apidocs.docstrings import Docstring, ModuleSource, read_docstrings

# Folders and files that are tests, examples, other people's code, programs or obsolete.
SKIPPED = (
    *(
        "test",
        "tests",
        "test_*.py",
        "*_test.py",
        "conftest.py",
        "setup.py",
        "__main__.py",
        "examples",
    ),
    *("externals", "vendored", "_vendor", "_vendored", "third_party", "distutils", "__pycache__"),
    *("idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data", "msilib", "encodings"),
    *("site-packages", "dist-packages", "lib-dynload", "config-*", "antigravity.py", "this.py"),
)

_ADDS_TEXTS = (b"add_newdoc(", b"add_docstr(", b"add_docstr_all(")


def package_docstrings(
    root: Path, package: str
) -> tuple[list[tuple[str | None, Docstring]], Counter[str]]:
    """Read the public documentation of a package from its source files; nothing is imported. Gives
    the dotted public name of every documented object (None where it is not public) and what is
    written about it, in the order of module names, then of the source; and counts of files:
    ``read``, ``unreadable``, ``private`` (holding no public name, so not read) and ``skipped``
    (folders and files of tests, examples, vendored code and the like).

    An object is public if no part of its dotted name begins with an underscore, or if a module with
    such a name exports it (``from ._minimize import minimize`` in a package, ``__all__``) or an
    instance of it (``norm = norm_gen()``). Its public name is then the shortest such path. Modules
    with private names are read when a public name leads to them, or when they document objects
    written in C.

    ``package`` is "" for the standard library, whose modules have no common parent.
    """
    found = _Package(root, package)
    return found.read(), found.modules


class _Package:
    def __init__(self, root: Path, package: str) -> None:
        self.modules = Counter[str]()
        self.paths = dict(_modules(root, package, self.modules))
        self.sources: dict[str, ModuleSource | None] = {}
        self.aliases: dict[tuple[str, str], str] = {}  # (module, name) -> public path

    def read(self) -> list[tuple[str | None, Docstring]]:
        for module in self.paths:
            if _is_public(module) and (source := self.source(module)):
                for name in self.exported(source):
                    self.publish(f"{module}.{name}", module, name)
        for module, path in self.paths.items():
            if module not in self.sources and any(
                call in path.read_bytes() for call in _ADDS_TEXTS
            ):
                self.source(module)
        if private := len(self.paths.keys() - self.sources.keys()):
            self.modules["private"] = private
        sources = [source for module in self.paths if (source := self.sources.get(module))]
        return [
            (self.public_name(found), found) for source in sources for found in source.docstrings
        ]

    def source(self, module: str) -> ModuleSource | None:
        if module not in self.sources and module in self.paths:
            source = self.sources[module] = read_docstrings(self.paths[module], module)
            self.modules["read" if source else "unreadable"] += 1
        return self.sources.get(module)

    def exported(self, source: ModuleSource) -> list[str]:
        """Names that a public module offers: ``__all__``, or its own; all it imports if it only
        gathers.
        """
        if source.exports is not None:
            return source.exports
        gathers = source.is_package or all(name.startswith("_") for name in source.definitions)
        names = self.star_names(source, frozenset()) if gathers else source.definitions
        return sorted(name for name in names if not name.startswith("_"))

    def star_names(self, source: ModuleSource, seen: frozenset[str]) -> set[str]:
        """Names that ``from source import *`` binds, as far as source files show."""
        if source.exports is not None:
            return set(source.exports)
        names = {
            name for name in (*source.definitions, *source.imports) if not name.startswith("_")
        }
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

    def starred(
        self, source: ModuleSource, name: str, seen: frozenset[str] = frozenset()
    ) -> str | None:
        """The module that ``name`` comes from by ``import *``; ``__all__`` may have been extended
        unseen.
        """
        seen |= {source.name}
        found = [
            star
            for star in map(self.source, reversed(source.stars))
            if star and star.name not in seen
        ]
        for starred in found:
            if name in self.star_names(starred, seen):
                return starred.name
        for starred in found:
            if (
                name in starred.definitions
                or name in starred.imports
                or self.starred(starred, name, seen)
            ):
                return starred.name
        return None

    def public_name(self, docstring: Docstring) -> str | None:
        head, _, rest = docstring.name.partition(".")
        public = self.aliases.get((docstring.module, head))
        if public is None and docstring.placed:
            # Where C code documents itself, the private module is only where it is built.
            public = ".".join(
                [*(part for part in docstring.module.split(".") if part[:1] != "_"), head]
            )
        elif public is None:
            public = f"{docstring.module}.{head}"
        full = f"{public}.{rest}" if rest else public
        return full if _is_public(full) and "?" not in full else None


def _is_public(dotted: str) -> bool:
    return not any(part.startswith("_") for part in dotted.split("."))


def _preference(public: str, home: str) -> tuple[bool, int, str]:
    """A package that holds the home module goes before one that merely imports the name; then
    short.
    """
    exporter = public.rpartition(".")[0]
    return not f"{home}.".startswith(f"{exporter}."), public.count("."), public


def _modules(root: Path, package: str, counts: Counter[str]) -> Iterator[tuple[str, Path]]:
    """Dotted names and paths of a package's source files, by name."""
    found = []
    for folder, folders, files in os.walk(root):
        sources = [name for name in files if name.endswith(".py")]
        counts["skipped"] += sum(map(_skipped, (*folders, *sources)))
        folders[:] = filterfalse(_skipped, folders)
        for name in filterfalse(_skipped, sources):
            path = Path(folder, name)
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found.append((".".join([package, *parts] if package else parts), path))
    yield from sorted(found)


def _skipped(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in SKIPPED)


# Longer "summaries" are lists and run-on texts.
MIN_QUERY_WORDS, MAX_QUERY_WORDS, MIN_PASSAGE_WORDS = 3, 40, 20
_ROLE = re.compile(r":([a-z]+(?::[a-z]+)*):`([^`]*)`", re.IGNORECASE)
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
_LITERAL = re.compile(r"(`{1,2})([^`]+)\1_?")
_DIRECTIVE = re.compile(r"^(\s*)\.\. +([\w-]+(?::[\w-]+)?)::?(?:\s+(.*))?$")
_LEADING_DIRECTIVE = re.compile(r"\.\. +[\w-]+::.*(?:\n[ \t]+.*|\n(?=\s))*(?:\n|\Z)")
_SILENT_DIRECTIVES = ("version", "math", "code", "plot", "index")  # their argument is for machines
_RULE = re.compile(r"^\s*([-=~^*#])\1{2,}\s*$")
_PLACEHOLDER = re.compile(r"^\s*(%\(\w+\)s|\$?\{\w*\})\s*$")
_TARGET = re.compile(r"^\s*\.\. (?:_[^:]+:|\|)")

# The object itself is deprecated: in the first word, or by a directive before the first section.
_DEPRECATED = re.compile(r"\A\W*deprecated\b|^\.\. deprecated::", re.IGNORECASE | re.MULTILINE)
_SECTION_RULE = re.compile(r"^-{3,}\s*$", re.MULTILINE)
_CALL = re.compile(r"\s*[A-Za-z_][\w.]*\s*\(")
_SIGNATURE_TAIL = re.compile(r"\s*(?:[-=]>.*|:|--)?\s*")

# Words whose full stop does not end a sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|eqs?|fig|resp|approx|incl|no|al|[A-Z])\.$", re.I
)
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s)")
_SECTION = re.compile(
    r"^(parameters?|args?|arguments?|keyword arg(ument)?s|attributes|methods|inputs?|outputs?|returns?"
    r"|yields?|raises?|warnings?|notes?|examples?|references?|see also|usage|shape|todo|summary)\s*:{0,2}$",
    re.IGNORECASE,
)


def split_docstring(text: str) -> tuple[str, str] | str:
    """Split a text into its summary and the rest.

    The summary is the first sentence of the first paragraph that is neither a call signature nor a
    section; a directive that opens the text (a warning, a note) goes to the end of the passage.
    Both sides read as on the rendered page: without underlines, role and directive names, back
    quotes, link targets and placeholders on lines of their own. White space inside the summary is
    folded; the passage keeps its lines.

    Returns:
        (query, passage), or the reason for leaving the text out: ``deprecated``, ``no summary``,
        ``short summary`` (under 3 words), ``long summary`` (over 40 words), ``short passage``
        (under 20 words), ``summary in passage`` (the passage repeats it word for word), ``not
        Unicode`` (half a surrogate pair, which UTF-8 cannot hold).
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "not Unicode"
    text = inspect.cleandoc(text)
    if _DEPRECATED.search(_SECTION_RULE.split(text, maxsplit=1)[0]):
        return "deprecated"
    summary, passage = _first_sentence(
        _without_marks(_sentence_first(_without_signatures(text))).strip()
    )
    if not summary:
        return "no summary"
    if len(summary.split()) < MIN_QUERY_WORDS:
        return "short summary"
    if len(summary.split()) > MAX_QUERY_WORDS:
        return "long summary"
    if len(passage.split()) < MIN_PASSAGE_WORDS:
        return "short passage"
    return "summary in passage" if fold(summary) in fold(passage) else (summary, passage)


def fold(text: str) -> str:
    """Text as it counts for equality: one space between words, no case, no full stop at the end."""
    return " ".join(text.split()).casefold().rstrip(".")


def _without_marks(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if _RULE.match(line) or _PLACEHOLDER.match(line) or _TARGET.match(line):
            continue
        if directive := _DIRECTIVE.match(line):
            indent, kind, argument = directive.groups()
            line = "" if kind.startswith(_SILENT_DIRECTIVES) else f"{indent}{argument or ''}"
        lines.append(re.sub(r"^(\s*)\.\. \[", r"\1[", line.rstrip()))
    text = _ROLE.sub(_shown, "\n".join(lines))
    text = _LINK.sub(lambda link: link[1], text)
    text = _LITERAL.sub(lambda literal: literal[2].removeprefix("~"), text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text)


def _shown(role: re.Match[str]) -> str:
    """What a reader sees of ``:role:`text <target>``` or ``:role:`~package.name```."""
    if role[1] == "math":
        return role[2]
    text = re.sub(r"\s*<[^<>]*>$", "", role[2])
    return text.rpartition(".")[2] if text.startswith("~") else text.lstrip(".!")


def _without_signatures(text: str) -> str:
    """Text without leading call signatures, ``name(...) -> type``, as C objects carry them."""
    while opening := _CALL.match(text):
        end = _closing(text, opening.end())
        tail, _, rest = text[end:].partition("\n")
        if end < 0 or not _SIGNATURE_TAIL.fullmatch(tail):
            break
        text = re.sub(r"\A--\n", "", rest)  # the line that ends a signature for the C compiler
    return text


def _closing(text: str, start: int) -> int:
    """Position after the bracket that closes the one before ``start``; -1 where none does."""
    depth = 1
    for position in range(start, len(text)):
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if depth == 0:
            return position + 1
    return -1


def _sentence_first(text: str) -> str:
    """Text with the directives that open it (a warning, a note) moved to its end."""
    text, directives = text.lstrip(), []
    while opening := _LEADING_DIRECTIVE.match(text):
        directives.append(opening[0].rstrip())
        text = text[opening.end() :].lstrip()
    return "\n\n".join([text.rstrip(), *directives]) if text else ""


def _first_sentence(text: str) -> tuple[str, str]:
    """The first sentence on one line, and all that follows it; "" where the text opens with no
    sentence.
    """
    block, rest = _first_block(text)
    if not block or block.count("=") > 2:  # a list of arguments with their defaults
        return "", text
    for end in _SENTENCE_END.finditer(block):
        if not _ABBREVIATION.search(block[: end.start() + 1]):
            return " ".join(block[: end.end()].split()), f"{block[end.end() :]}{rest}".strip()
    return " ".join(block.split()).rstrip(":").rstrip(), rest.strip()


def _first_block(text: str) -> tuple[str, str]:
    """Lines up to the first that is blank, opens a section or is a doctest; and all that
    follows.
    """
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        bare = line.strip()
        if not bare or bare.startswith(">>>") or _SECTION.match(bare):
            return "".join(lines[:number]), "".join(lines[number:])
    return text, ""
