"""The one exception for input that a person has to correct, and the checks of single values."""

import math
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

# Characters of a value that a message shows.
_SHOWN = 80


class InputError(ValueError):
    """Bad input: a file, line, id or option that has to be corrected by the caller.

    The message is one line that names what is at fault and the way out. The command line prints it and exits with
    status 2; in Python it is an ordinary ``ValueError``.
    """


def first_line(error: BaseException) -> str:
    """The first line of a host's message, or the error's type where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def explained(what: str, way_out: str, *kinds: type[Exception]) -> Iterator[None]:
    """Inside, an exception of these kinds becomes an ``InputError``: what is wrong (the reason); the way out."""
    try:
        yield
    except kinds as error:
        if isinstance(error, InputError) and InputError not in kinds:
            raise
        raise InputError(f"{what} ({getattr(error, 'strerror', None) or first_line(error)}); {way_out}") from error


#: The largest seed that numpy, torch and transformers all take.
SEED_MAX = 2**32 - 1

# The largest number of anything that is counted: what is beyond overflows somewhere in the hosts.
_COUNT_MAX = 2**31 - 1

# Bytes of a part of a path, and of a path, that file systems take.
_PART_MAX, _PATH_MAX = 255, 4_095


@dataclass(frozen=True)
class Limits:
    """The values that a number or a name may have.

    Args:
        min, max: the least and the largest.
        above, below: the same, where the bound itself is no value.
        choices: all there are.
    """

    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Collection[object] | None = None

    def check(self, name: str, value: object) -> None:
        """Raise an ``InputError`` that names the option, its value and what is allowed; NaN and infinity never are."""
        if self.choices is not None:
            if value not in self.choices:
                raise InputError(f"unknown {name} {_shown(value)}; there are {', '.join(map(str, self.choices))}")
        elif isinstance(value, Real) and not isinstance(value, bool):
            if self.max is None and isinstance(value, Integral) and int(value) > _COUNT_MAX:
                Limits(self.min, _COUNT_MAX, self.above, self.below).check(name, value)
            number, inf = float(value), math.inf
            inside = (-inf if self.min is None else self.min) <= number <= (inf if self.max is None else self.max)
            inside = inside and (-inf if self.above is None else self.above) < number
            if not inside or not number < (inf if self.below is None else self.below):
                raise InputError(f"{name} must be {self.describe()}, not {value}")
        elif isinstance(value, str) and not _encodable(value):
            raise InputError(f"{name} is {value!r}, which is not UTF-8; give it in UTF-8")

    def describe(self) -> str:
        """In words, such as "above 0 and at most 1"."""
        bounds = {"at least": self.min, "above": self.above, "at most": self.max, "below": self.below}
        return " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None) or "finite"


#: Of every seed.
SEEDS = Limits(min=0, max=SEED_MAX)


def check_seeds(seeds: Sequence[int]) -> None:
    """Check that there are seeds, each once and in range."""
    for seed in seeds:
        SEEDS.check("seed", seed)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds {', '.join(map(str, seeds)) or 'none'}: give at least one, and each once")


def check_count(name: str, value: int | None, least: int = 1) -> None:
    """Check a number that is counted, unless it is None; an ``InputError`` where it is below ``least``."""
    if value is not None:
        Limits(min=least).check(name, value)


def check_name(kind: str, name: str | Path, utf8: bool = False) -> None:
    """Check that a file system takes a name; an ``InputError`` where it is too long for any.

    With ``utf8`` for what libraries in C++ and Rust read or write as well: they take paths in UTF-8 alone.
    """
    text = str(name)
    if utf8 and not _encodable(text):
        raise InputError(f"{kind} {_shown(text)} is not UTF-8; rename it, or choose another")
    longest = max(len(os.fsencode(part)) for part in text.split("/"))
    if longest > _PART_MAX or len(os.fsencode(text)) > _PATH_MAX:
        message = f"{_shown(text)} is too long, {len(text)} characters; a part of a path has at most {_PART_MAX} bytes"
        raise InputError(f"{kind} {message}")


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many there are beside: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_names(kind: str, names: Sequence[str]) -> None:
    """Check what ``--KIND`` named; an InputError where it is nothing, or one thing twice."""
    if not names:
        raise InputError(f"no {kind}; name at least one with --{kind}")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(f"{kind} {name!r} is named twice")
