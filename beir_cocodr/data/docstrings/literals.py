"""Evaluate the string expressions that documentation is written in, without running the module."""

from __future__ import annotations

import ast
import inspect
import string
import textwrap
from collections.abc import Mapping
from typing import Any

_STRING_METHODS = frozenset({"strip", "lstrip", "rstrip", "replace", "lower", "upper", "title", "expandtabs"})
_TEXT_FUNCTIONS = {"dedent": textwrap.dedent, "cleandoc": inspect.cleandoc}


class NotLiteral(Exception):
    """The expression needs values that only exist when the module runs."""


def evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression of string constants, as far as the source alone gives it.

    Understood: constants, tuples, dictionaries, ``+``, ``%``, f-strings, ``str.format``, the plain string
    methods, ``dedent`` and ``cleandoc``, and names in ``names``. A replacement field of an f-string or of
    ``format`` whose value is not known this way is left empty, as those fields carry boilerplate (a list
    of common arguments); everything else that is not known raises ``NotLiteral``.

    Args:
        node: the expression.
        names: module-level names with their values.

    Raises:
        NotLiteral: a value is needed that the source does not give.
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
            return _binary(evaluate(left, names), operator, evaluate(right, names))
        case ast.Call():
            return _call(node, names)
    raise NotLiteral(ast.dump(node)[:60])


def _dictionary(node: ast.Dict, names: Mapping[str, Any]) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            result.update(_mapping(value, names))
        else:
            result[evaluate(key, names)] = evaluate(value, names)
    return result


def _mapping(node: ast.expr, names: Mapping[str, Any]) -> dict[Any, Any]:
    value = evaluate(node, names)
    if not isinstance(value, dict):
        raise NotLiteral("not a dictionary")
    return value


def _piece(node: ast.expr, names: Mapping[str, Any]) -> str:
    if not isinstance(node, ast.FormattedValue):
        return str(evaluate(node, names))
    if node.conversion != -1 or node.format_spec is not None:
        return ""
    try:
        return str(evaluate(node.value, names))
    except NotLiteral:
        return ""


def _binary(left: Any, operator: ast.operator, right: Any) -> Any:
    if not isinstance(left, str):
        raise NotLiteral("not a string")
    try:
        return left + right if isinstance(operator, ast.Add) else left % right
    except (TypeError, ValueError, KeyError) as error:
        raise NotLiteral(str(error)) from error


def _call(node: ast.Call, names: Mapping[str, Any]) -> str:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _TEXT_FUNCTIONS and len(node.args) == 1:
        return _TEXT_FUNCTIONS[name](_text(node.args[0], names))
    if isinstance(function, ast.Attribute) and name == "format":
        return _format(_text(function.value, names), node, names)
    if isinstance(function, ast.Attribute) and name in _STRING_METHODS and not node.keywords:
        arguments = [evaluate(argument, names) for argument in node.args]
        try:
            return str(getattr(_text(function.value, names), name)(*arguments))
        except (TypeError, ValueError) as error:
            raise NotLiteral(str(error)) from error
    raise NotLiteral(f"call of {name or 'an expression'}")


def _text(node: ast.expr, names: Mapping[str, Any]) -> str:
    value = evaluate(node, names)
    if not isinstance(value, str):
        raise NotLiteral("not a string")
    return value


def _format(template: str, node: ast.Call, names: Mapping[str, Any]) -> str:
    known: dict[str, Any] = {}
    for position, argument in enumerate(node.args):
        known.update(_known(str(position), argument, names))
    for keyword in node.keywords:
        known.update(_known(keyword.arg, keyword.value, names))
    pieces: list[str] = []
    automatic = 0
    try:
        for literal, field, _, _ in string.Formatter().parse(template):
            pieces.append(literal)
            if field == "":
                field, automatic = str(automatic), automatic + 1
            if field is not None:
                pieces.append(str(known.get(field, "")))
    except ValueError as error:
        raise NotLiteral(str(error)) from error
    return "".join(pieces)


def _known(name: str | None, node: ast.expr, names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _mapping(node, names) if name is None else {name: evaluate(node, names)}
    except NotLiteral:
        return {}
