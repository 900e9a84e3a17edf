"""Former signatures of public functions: old names are accepted, an old order is refused."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Characters of an argument that a message shows.
_SHOWN = 40

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Former:
    """The former signature of a function.

    A present name may be dotted: ``options.top_k`` is the field ``top_k`` of the parameter
    ``options``, whose default is a dataclass.

    Args:
        order: the present names of the former positional parameters, in the former order; an empty
            name is of a parameter that no longer exists.
        renamed: former keyword name to present name.
        swapped: says of the first two positional arguments that they are in the former order.
    """

    order: Sequence[str]
    renamed: Mapping[str, str]
    swapped: Callable[[object, object], bool] | None = None


def former_signature(
    order: Sequence[str] = (),
    swapped: Callable[[object, object], bool] | None = None,
    **renamed: str,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept the former keyword names of a function, and refuse its former positional order.

    Args:
        order: the present names of the former positional parameters, in the former order. A name
            may be dotted, as ``options.top_k`` for a field of the parameter ``options``; unless
            ``renamed`` has it, ``top_k`` was its keyword.
        swapped: a function of the first two positional arguments that is true if they are in the
            former order. Without it only the number of arguments and their names tell.
        **renamed: former keyword name to present name, which may be dotted.

    Returns:
        A decorator. The decorated function emits a ``DeprecationWarning`` for each former name.

    Raises:
        TypeError: By the decorated function, if a former and a present name are both given, or if
            positional arguments are in the former order; the message prints the new call.

    Example:
        >>> from beir_cocodr.deprecation import former_signature
        >>> @former_signature(order=("dataset", "model"), base="model")
        ... def train(model, dataset, *, epochs=1):
        ...     return f"{model} on {dataset}"
        >>> train(base="minilm", dataset="scifact")
        'minilm on scifact'
        >>> train("scifact", "minilm", 3)
        Traceback (most recent call last):
        ...
        TypeError: train() takes only model, dataset by position; write train('minilm', 'scifact')
    """
    kept = {}
    for name in order:
        _, dot, field = name.partition(".")
        if dot and name not in renamed.values():
            kept[field] = name
    former = Former(order, kept | renamed, swapped)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if _in_former_order(signature, former, args, kwargs):
                raise TypeError(_refusal(function.__name__, signature, former, args, kwargs))
            present = _present_keywords(function.__name__, signature, former, kwargs)
            return function(*args, **present)

        return call

    return decorate


def _positional(signature: inspect.Signature) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]


def _in_former_order(
    signature: inspect.Signature,
    former: Former,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> bool:
    """Return true if the positional arguments fit the former order alone."""
    if not args or not former.order:
        return False
    names = _positional(signature)
    if len(args) > len(names):
        return True
    by_position = names[: len(args)]
    by_name = {former.renamed.get(name, name) for name in kwargs}
    if not by_name.isdisjoint(by_position):
        return True
    if former.swapped is None or len(args) < 2:
        return False
    return former.swapped(args[0], args[1])


def _refusal(
    function: str,
    signature: inspect.Signature,
    former: Former,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> str:
    """Return the message that prints the new call for arguments in the former order."""
    values: Arguments = dict(zip(former.order, args, strict=False))
    values.pop("", None)
    values |= {former.renamed.get(name, name): value for name, value in kwargs.items()}
    names = _positional(signature)
    parts = [_shown(values.pop(name)) for name in names if name in values]
    nested: dict[str, list[str]] = {}
    for name, value in values.items():
        parameter, _, field = name.partition(".")
        if field:
            nested.setdefault(parameter, []).append(f"{field}={_shown(value)}")
        else:
            parts.append(f"{name}={_shown(value)}")
    for parameter, fields in nested.items():
        options = type(signature.parameters[parameter].default).__name__
        parts.append(f"{parameter}={options}({', '.join(fields)})")
    return (
        f"{function}() takes only {', '.join(names)} by position; "
        f"write {function}({', '.join(parts)})"
    )


def _present_keywords(
    function: str,
    signature: inspect.Signature,
    former: Former,
    kwargs: Mapping[str, Any],
) -> Arguments:
    """Return keyword arguments by their present names, after a warning for each former one."""
    present: Arguments = {}
    fields: dict[str, Arguments] = {}
    for name, value in kwargs.items():
        new = former.renamed.get(name, name)
        parameter, _, field = new.partition(".")
        if new != name:
            if not field:
                _check_given_once(function, name, parameter, kwargs)
            # Past this function and the wrapper, to the line of the caller.
            warnings.warn(
                f"{function}(): {name} is now {new}; use that name",
                DeprecationWarning,
                stacklevel=3,
            )
        if field:
            fields.setdefault(parameter, {})[field] = value
        else:
            present[new] = value
    for parameter, values in fields.items():
        options = kwargs.get(parameter, signature.parameters[parameter].default)
        present[parameter] = replace(options, **values)
    return present


def _check_given_once(
    function: str,
    name: str,
    new: str,
    kwargs: Mapping[str, object],
) -> None:
    if new in kwargs:
        raise TypeError(f"{function}() got both {name} and {new}; give only {new}")


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    return "..."
