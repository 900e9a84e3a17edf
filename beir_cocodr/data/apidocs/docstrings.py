"""One Python source file, read with ``ast``: what it documents, defines, imports and exports.

Expressions of strings are evaluated without running the module.
"""

import ast
import inspect
import string
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, TypeVar

from beir_cocodr.records import Json

_STRING_METHODS = frozenset(
    {"strip", "lstrip", "rstrip", "replace", "lower", "upper", "title", "expandtabs"}
)
_TEXT_FUNCTIONS = {"dedent": textwrap.dedent, "cleandoc": inspect.cleandoc}
T = TypeVar("T")


class NotLiteral(Exception):
    """The expression needs values that only exist when the module runs."""


def evaluate(node: ast.expr, names: Mapping[str, object]) -> Any:
    """Return the value of an expression of string constants, as far as the source alone gives it.

    Constants, tuples, dictionaries, ``+``, ``%``, f-strings, ``str.format``, the plain string
    methods, ``dedent`` and ``cleandoc`` are evaluated. A replacement field of an f-string or of
    ``format`` whose value is not known this way is left empty, as those fields carry boilerplate (a
    list of common arguments).

    Args:
        node: the expression.
        names: values of module-level names.

    Raises:
        NotLiteral: anything else is not known.
    """
    match node:
        case ast.Constant(value=str() | int() | float() as value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Tuple(elts=elements):
            return tuple(evaluate(element, names) for element in elements)
        case ast.Dict():
            return _dictionary(node, names)
        case ast.JoinedStr(values=values):
            return "".join(_piece(value, names) for value in values)
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod() as operator, right=right):
            return _binary(
                _of_type(str, left, names),
                operator,
                evaluate(right, names),
            )
        case ast.Call():
            return _call(node, names)
    raise NotLiteral(ast.dump(node)[:60])


def _dictionary(
    node: ast.Dict,
    names: Mapping[str, object],
) -> dict[object, object]:
    result: dict[object, object] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            result.update(_of_type(dict, value, names))
        else:
            result[evaluate(key, names)] = evaluate(value, names)
    return result


def _of_type(
    kind: type[T],
    node: ast.expr,
    names: Mapping[str, object],
) -> T:
    value = evaluate(node, names)
    if not isinstance(value, kind):
        raise NotLiteral(f"not of type {kind.__name__}")
    return value


def _piece(node: ast.expr, names: Mapping[str, object]) -> str:
    if not isinstance(node, ast.FormattedValue):
        return str(evaluate(node, names))
    if node.conversion != -1 or node.format_spec is not None:
        return ""
    try:
        return str(evaluate(node.value, names))
    except NotLiteral:
        return ""


def _binary(
    left: str,
    operator: ast.operator,
    right: Any,
) -> Any:
    try:
        if isinstance(operator, ast.Add):
            return left + right
        return left % right
    except (TypeError, ValueError, KeyError) as error:
        raise NotLiteral(str(error)) from error


def _call(node: ast.Call, names: Mapping[str, object]) -> str:
    function = node.func
    name = _called(node)
    if name in _TEXT_FUNCTIONS and len(node.args) == 1:
        text = _of_type(str, node.args[0], names)
        return _TEXT_FUNCTIONS[name](text)
    if isinstance(function, ast.Attribute) and name == "format":
        template = _of_type(str, function.value, names)
        return _format(template, node, names)
    if isinstance(function, ast.Attribute) and name in _STRING_METHODS and not node.keywords:
        arguments = [evaluate(argument, names) for argument in node.args]
        text = _of_type(str, function.value, names)
        method = getattr(text, name)
        try:
            return str(method(*arguments))
        except (TypeError, ValueError) as error:
            raise NotLiteral(str(error)) from error
    raise NotLiteral(f"call of {name or 'an expression'}")


def _format(
    template: str,
    node: ast.Call,
    names: Mapping[str, object],
) -> str:
    known = _format_arguments(node, names)
    pieces: list[str] = []
    automatic = 0
    try:
        for literal, field_name, _, _ in string.Formatter().parse(template):
            pieces.append(literal)
            if field_name == "":
                field_name = str(automatic)
                automatic += 1
            if field_name is not None:
                argument = known.get(field_name, "")
                pieces.append(str(argument))
    except ValueError as error:
        raise NotLiteral(str(error)) from error
    return "".join(pieces)


def _format_arguments(
    node: ast.Call,
    names: Mapping[str, object],
) -> Json:
    """Return the known arguments of ``str.format`` by name or number."""
    known: Json = {}
    for number, argument in enumerate(node.args):
        with suppress(NotLiteral):
            known[str(number)] = evaluate(argument, names)
    for keyword in node.keywords:
        with suppress(NotLiteral):
            if keyword.arg is None:
                known.update(_of_type(dict, keyword.value, names))
            else:
                known[keyword.arg] = evaluate(keyword.value, names)
    return known


# Functions that give a text to an object written in C. numpy's takes (module, object, text) or
# (module, object, (attribute, text)), scipy.special's (object, text), torch's (object, text).
_ADDERS = frozenset({"add_newdoc", "add_docstr", "_add_docstr", "add_docstr_all"})

# torch gives these texts through a helper; their class is known only when the file runs.
_HELPER_CLASSES = {
    "_tensor_docs": "Tensor",
    "_storage_docs": "Storage",
    "_size_docs": "Size",
}
_DEPRECATED = frozenset({"deprecated", "deprecate", "_deprecated"})


@dataclass(frozen=True)
class Docstring:
    """One documented object.

    Attributes:
        module: dotted name of its module.
        name: dotted name inside the module, ``Class.method``.
        text: the text as written; None where it, or the name (then "?"), is computed when the
            module runs.
        deprecated: whether the object is decorated as deprecated.
        placed: whether a call names the object (C code); users import it from ``module`` then.
    """

    module: str
    name: str
    text: str | None
    deprecated: bool = False
    placed: bool = False


@dataclass
class ModuleSource:
    """The statements of one file about itself.

    Attributes:
        name: dotted name of the module.
        is_package: whether the file is an ``__init__.py``.
        docstrings: documented functions and classes in source order, nested classes and methods
            included.
        definitions: names bound at the top level by ``def``, ``class`` or assignment.
        calls: name to what is called, for ``name = function_or_class(...)`` at the top level.
        imports: local name to module and name there, for ``from module import name``.
        stars: modules imported with ``*``, in source order.
        exports: ``__all__`` where it is a plain list, else None.
    """

    name: str
    is_package: bool
    docstrings: list[Docstring] = field(default_factory=list)
    definitions: set[str] = field(default_factory=set)
    calls: dict[str, str] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    exports: list[str] | None = None


def read_docstrings(path: Path, module: str) -> ModuleSource | None:
    """Read what one file documents, by parsing alone.

    Args:
        path: the file.
        module: its dotted name.

    Returns:
        The statements of the file; None where Python cannot parse it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return None
    source = ModuleSource(module, path.name == "__init__.py")
    _Reader(source).body(tree.body, "")
    return source


class _Reader:
    """A walk over the statements of a file, which fills a :class:`ModuleSource`."""

    def __init__(self, source: ModuleSource) -> None:
        self.source = source
        # Values of module-level names, as far as they are known.
        self.names: Json = {}

    def body(self, statements: Sequence[ast.stmt], owner: str) -> None:
        """Read the statements of a module, or of the class ``owner``."""
        for statement in _flattened(statements):
            match statement:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.definition(statement, owner)
                case ast.Assign() | ast.AnnAssign():
                    self.assignment(statement, owner)
                case ast.Expr(value=ast.Call() as call):
                    self.added_text(call, None)
                case ast.ImportFrom() if not owner:
                    self.imported(statement)
                case ast.AugAssign(target=ast.Name(id="__all__"), value=value) if not owner:
                    self.extended_exports(value)

    def extended_exports(self, value: ast.expr) -> None:
        """Read ``__all__ += value``."""
        more = _strings(value)
        if more is None or self.source.exports is None:
            self.source.exports = None
        else:
            self.source.exports = [*self.source.exports, *more]

    def definition(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, owner: str
    ) -> None:
        """Read a class or a function."""
        name = node.name
        if owner:
            name = f"{owner}.{node.name}"
        if not owner:
            self.source.definitions.add(node.name)
        text = ast.get_docstring(node, clean=False)
        if text is not None:
            decorators = [_called(decorator) for decorator in node.decorator_list]
            docstring = Docstring(
                module=self.source.name,
                name=name,
                text=text,
                deprecated=not _DEPRECATED.isdisjoint(decorators),
            )
            self.source.docstrings.append(docstring)
        if isinstance(node, ast.ClassDef):
            self.body(node.body, name)

    def assignment(
        self,
        node: ast.Assign | ast.AnnAssign,
        owner: str,
    ) -> None:
        """Read an assignment to ``__doc__``, to ``__all__`` or to a name."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None:
            return
        match targets:
            case [ast.Name(id="__doc__")] if owner:
                self.documented(owner, node.value)
            case [ast.Attribute(attr="__doc__", value=documented)]:
                name = ast.unparse(documented)
                self.documented(
                    f"{owner}.{name}" if owner else name,
                    node.value,
                )
            case [ast.Name(id="__all__")] if not owner:
                self.source.exports = _strings(node.value)
            case [ast.Name(id=name)] if not owner:
                self.bound(name, node.value)

    def bound(self, name: str, value: ast.expr) -> None:
        """Read the binding of a name at the top level."""
        self.source.definitions.add(name)
        if isinstance(value, ast.Call):
            if self.added_text(value, name):
                return
            self.source.calls[name] = _called(value)
        try:
            evaluated = evaluate(value, self.names)
        except NotLiteral:
            self.names.pop(name, None)
        else:
            self.names[name] = evaluated

    def documented(self, name: str, value: ast.expr) -> None:
        """Record a text assigned to ``__doc__``, unless it is copied from another object."""
        for part in ast.walk(value):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                self.record(self.source.name, name, value)
                return

    def record(
        self,
        module: str,
        name: str,
        text: ast.expr,
        *,
        placed: bool = False,
    ) -> None:
        """Record the docstring of an object."""
        parts = f"{module}.{name}".split(".")
        if all(part.isidentifier() for part in parts):
            docstring = Docstring(module, name, self.text(text), placed=placed)
        else:
            docstring = Docstring(self.source.name, "?", None, placed=placed)
        self.source.docstrings.append(docstring)

    def text(self, node: ast.expr) -> str | None:
        """Return the string of an expression; None where it is not known."""
        with suppress(NotLiteral):
            return _of_type(str, node, self.names)
        return None

    def added_text(self, call: ast.Call, target: str | None) -> bool:
        """Record the text of a call such as ``add_newdoc``.

        Args:
            call: the call.
            target: the name that its result is bound to, if any.

        Returns:
            Whether the call is one.
        """
        if _called(call) not in _ADDERS:
            return False
        if not 2 <= len(call.args) <= 3:
            return False
        module, name = self.documented_object(call, target)
        text: ast.expr = call.args[-1]
        if isinstance(text, ast.Tuple) and len(text.elts) == 2:
            attribute, text = text.elts
            attribute_name = self.text(attribute) or "?"
            name = f"{name}.{attribute_name}"
        self.record(module, name, text, placed=True)
        return True

    def documented_object(
        self,
        call: ast.Call,
        target: str | None,
    ) -> tuple[str, str]:
        """Return module and name of the object that a call documents; "?" for a computed name."""
        here = self.source.name
        if len(call.args) == 3:
            module, name, _ = call.args
            return self.text(module) or here, self.text(name) or "?"
        if target is not None:
            return here, target
        first = call.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            helper = here.rpartition(".")[2]
            owner = _HELPER_CLASSES.get(helper)
            if owner is None or _called(call) != "add_docstr_all":
                return here, first.value
            return here, f"{owner}.{first.value}"
        package = f"{here.partition('.')[0]}."
        dotted = "?"
        if isinstance(first, ast.Attribute):
            dotted = ast.unparse(first)
        if dotted.startswith(package):
            return package[:-1], dotted.removeprefix(package)
        return here, "?"

    def imported(self, node: ast.ImportFrom) -> None:
        """Read ``from module import ...``."""
        home = _absolute(self.source, node)
        for alias in node.names:
            if alias.name == "*":
                self.source.stars.append(home)
                continue
            local_name = alias.asname or alias.name
            self.source.imports[local_name] = (home, alias.name)


def _flattened(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Stream statements in source order, with those in ``if``, ``try``, ``with`` and loops."""
    for statement in statements:
        match statement:
            case ast.If() | ast.For() | ast.While():
                yield from _flattened([*statement.body, *statement.orelse])
            case ast.With():
                yield from _flattened(statement.body)
            case ast.Try():
                yield from _flattened(statement.body)
                for handler in statement.handlers:
                    yield from _flattened(handler.body)
                yield from _flattened([*statement.orelse, *statement.finalbody])
            case _:
                yield statement


def _called(node: ast.expr) -> str:
    """Return the last name of what a call or a decorator names; "" where it has none."""
    function = node
    if isinstance(node, ast.Call):
        function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    if isinstance(function, ast.Name):
        return function.id
    return ""


def _strings(node: ast.expr) -> list[str] | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    if not isinstance(value, list | tuple | set):
        return None
    return [str(name) for name in value]


def _absolute(source: ModuleSource, node: ast.ImportFrom) -> str:
    package = source.name
    if not source.is_package:
        package = source.name.rpartition(".")[0]
    with suppress(ImportError):
        return resolve_name("." * node.level + (node.module or ""), package)
    return node.module or ""
