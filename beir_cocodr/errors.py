"""The one exception for input that a person has to correct."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: a file, line, id or option that has to be corrected by the caller.

    The message is one line that names what is at fault and the way out. The command line prints it and exits with
    status 2; in Python it is an ordinary ``ValueError``.
    """


def check_at_least(options: object, least: int, *names: str) -> None:
    """Check that the named options are not below ``least``; the first that is raises ``InputError``."""
    for name in names:
        if getattr(options, name) < least:
            raise InputError(f"{name} must be at least {least}, not {getattr(options, name)}")
