"""The one exception for input that a person has to correct."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class InputError(ValueError):
    """Bad input: a file, line, id or option that has to be corrected by the caller.

    The message is one line that names what is at fault and the way out. The command line prints it and exits with
    status 2; in Python it is an ordinary ``ValueError``.
    """


def first_line(error: BaseException) -> str:
    """The first line of a host's message, or the error's type where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def check_at_least(options: object, least: int, *names: str) -> None:
    """Check that the named options are not below ``least`` or are None; the first that is raises ``InputError``."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < least:
            raise InputError(f"{name} must be at least {least}, not {value}")


def check_positive(options: object, *names: str) -> None:
    """Check that the named options are above 0 or None; the first that is not raises ``InputError``."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise InputError(f"{name} must be positive, not {value}")


def check_choice(options: object, **choices: Iterable[object]) -> None:
    """Check that every named option is one of its choices; the first that is not raises ``InputError``."""
    for name, known in choices.items():
        if getattr(options, name) not in known:
            listed = ", ".join(map(str, known))
            raise InputError(f"unknown {name} {getattr(options, name)!r}; there are {listed}")


def check_names(kind: str, names: Sequence[str]) -> None:
    """Check what ``--KIND`` named.

    Raises:
        InputError: nothing, or one thing twice.
    """
    if not names:
        raise InputError(f"no {kind}; name at least one with --{kind}")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(f"{kind} {name!r} is named twice")
