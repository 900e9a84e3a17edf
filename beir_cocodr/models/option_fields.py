"""Fields of options classes: their limits, their flags and help, and the check of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from beir_cocodr.errors import InputError, Limits, check_options_type, quoted

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


_cached_type_hints = cache(get_type_hints)


def type_hints(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a class, which are evaluated only once."""
    return _cached_type_hints(kind)


class LimitValues(TypedDict, total=False):
    """The arguments of :class:`~beir_cocodr.errors.Limits`."""

    min: float
    max: float
    above: float
    below: float
    choices: Collection[object] | None
    is_name: bool


def option(
    default: T,
    help: str | Callable[[], str] = "",
    flag: str | None = None,
    **limits: Unpack[LimitValues],
) -> T:
    """Return a field of an options class, with the values that it may have.

    A class that gives an inherited field another default keeps its limits.

    Args:
        default: its default.
        help: help of its flag on the command line; without it the field has no flag, and ``--set``
            sets it. A function returns a text that names the rows of a table at that time.
        flag: name of the flag, if it is not the field's.
        **limits: ``min`` and ``max``, or ``above`` and ``below``, which are no values themselves,
            or all ``choices``, or ``named`` for the name of something.
    """
    metadata: dict[str, object] = {"limits": Limits(**limits)}
    if help:
        metadata |= {"help": help, "flag": flag}
    return field(default=default, metadata=metadata)


def described(
    kind: type,
    name: str,
    key: str,
) -> Any:
    """Return what :func:`option` says of a field, in the nearest class that says it.

    Args:
        kind: the options class.
        name: the field.
        key: "limits", "help" or "flag".

    Returns:
        Its value; None if no class says it.
    """
    for base in kind.__mro__:
        if not is_dataclass(base):
            continue
        known = base.__dataclass_fields__.get(name)
        if known is not None and key in known.metadata:
            value = known.metadata[key]
            return value() if callable(value) else value
    return None


# Types of fields that are checked although the field has no limits.
_PLAIN = (bool, int, float, str, Path, NoneType)


@cache
def _allowed_types(kind: type) -> dict[str, tuple[object, ...]]:
    """Return the types that every field with limits, or with a plain type, may have."""
    hints = type_hints(kind)
    types = {}
    for known in fields(kind):
        hint = hints[known.name]
        is_union = get_origin(hint) in (UnionType, Union)
        allowed = get_args(hint) if is_union else (hint,)
        has_limits = described(kind, known.name, "limits") is not None
        if has_limits or all(_is_plain(member) for member in allowed):
            types[known.name] = allowed
    return types


def _is_plain(hint: Any) -> bool:
    return hint in _PLAIN or get_origin(hint) is Mapping or is_dataclass(hint)


def check_options(options: DataclassInstance) -> None:
    """Check the limits of every field of :func:`option`, and the type of every field.

    A field whose type only its reader can judge, such as names of measures, is not checked here.

    Raises:
        InputError: For the first wrong value; says which are right.
    """
    kind = type(options)
    for name, allowed in _allowed_types(kind).items():
        value = getattr(options, name)
        flag = described(kind, name, "flag")
        limits = described(kind, name, "limits") or Limits()
        _check_value(f"{name} ({flag})" if flag else name, value, allowed, limits)


def _check_value(
    name: str,
    value: object,
    allowed: tuple[object, ...],
    limits: Limits,
) -> None:
    if value is None and NoneType in allowed:
        return
    for hint in allowed:
        if get_origin(hint) is Literal:
            Limits(choices=get_args(hint)).check(name, value)
            return
    if not any(_fits(value, hint) for hint in allowed):
        only = allowed[0]
        if len(allowed) == 1 and isinstance(only, type) and is_dataclass(only):
            check_options_type(value, only, name)
        types = [getattr(hint, "__name__", str(hint)) for hint in allowed if hint is not NoneType]
        raise InputError(f"{name} is {quoted(value)}; it must be {' or '.join(types)}")
    limits.check(name, value)


def _fits(value: object, hint: Any) -> bool:
    """Return true if a value is of a type; an int is a float too, and a bool is neither."""
    kind = {int: Integral, float: Real}.get(hint, get_origin(hint) or hint)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


@dataclass(frozen=True)
class Options:
    """Base of options classes, which are checked when they are made."""

    def __post_init__(self) -> None:
        """Check every field of :func:`option`."""
        check_options(self)
