"""The exceptions for what a person has to correct, bad input and a full disk, and the checks of
single values.
"""

import errno
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path

# Characters of a value that a message shows.
_SHOWN = 80


class InputError(ValueError):
    """Bad input: a file, line, id or option that has to be corrected by the caller.

    The message is one line that names what is at fault and the way out. The command line prints it
    and exits with status 2; in Python it is an ordinary ``ValueError``.
    """


def first_line(error: BaseException) -> str:
    """The first line of a host's message, or the error's type where it has none."""
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


@contextmanager
def explained(what: str, way_out: str, *kinds: type[Exception]) -> Iterator[None]:
    """Inside, an exception of these kinds becomes an ``InputError``: what is wrong (the reason);
    the way out.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, InputError) and InputError not in kinds:
            raise
        raise InputError(
            f"{what} ({getattr(error, 'strerror', None) or first_line(error)}); {way_out}"
        ) from error


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

    min: float = -math.inf
    max: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: Collection[object] | None = None

    def check(self, name: str, value: object) -> None:
        """Raise an ``InputError`` that names the option, its value and what is allowed; NaN and
        infinity never are.
        """
        if self.choices is not None:
            if value not in self.choices:
                raise InputError(
                    f"unknown {name} {_shown(value)}; there are {', '.join(map(str, self.choices))}"
                )
        elif isinstance(value, Real) and not isinstance(value, bool):
            if self.max == math.inf and isinstance(value, Integral) and int(value) > _COUNT_MAX:
                replace(self, max=_COUNT_MAX).check(name, value)
            number = float(value)
            if not (self.min <= number <= self.max and self.above < number < self.below):
                raise InputError(f"{name} must be {self.describe()}, not {value}")
        elif isinstance(value, str) and not _encodable(value):
            raise InputError(f"{name} is {value!r}, which is not UTF-8; give it in UTF-8")

    def describe(self) -> str:
        """In words, such as "above 0 and at most 1"."""
        bounds = {
            "at least": self.min,
            "above": self.above,
            "at most": self.max,
            "below": self.below,
        }
        return (
            " and ".join(
                f"{word} {bound}" for word, bound in bounds.items() if math.isfinite(bound)
            )
            or "finite"
        )


#: Of every seed.
SEEDS = Limits(min=0, max=SEED_MAX)


def check_seeds(seeds: Sequence[int]) -> None:
    """Check that there are seeds, each once and in range."""
    for seed in seeds:
        SEEDS.check("seed", seed)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(
            f"seeds {', '.join(map(str, seeds)) or 'none'}: give at least one, and each once"
        )


def check_count(name: str, value: int | None, least: int = 1) -> None:
    """Check a number that is counted, unless it is None; an ``InputError`` where it is below
    ``least``.
    """
    if value is not None:
        Limits(min=least).check(name, value)


def check_name(kind: str, name: str | Path, utf8: bool = False) -> None:
    """Check that a file system takes a name; an ``InputError`` where it is too long for any.

    With ``utf8`` for what libraries in C++ and Rust read or write as well: they take paths in UTF-8
    alone.
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


#: Of folders for what is not complete, see :mod:`beir_cocodr.io`.
UNFINISHED = ".unfinished-"

# No room on the device, for the user, or for a file of this size.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What libraries make of these errors: those in Rust, Arrow and FAISS; NumPy after a short write;
# PyTorch after any; and Python where no folder for temporary files takes one, which some libraries
# look for as they are imported.
_REPORTED = re.compile(
    "|".join(
        rf"{re.escape(os.strerror(number))}|\b(?:os error|errno) {number}\b" for number in _NO_ROOM
    )
    + r"|not enough free space|\d requested and \d+ written|PytorchStreamWriter failed|inline_container"
    + r"|basic_ios::clear: iostream error|no usable temporary directory",
    re.IGNORECASE,
)


class DiskFull(OSError):
    """There is no room for what was to be written to a folder, its ``filename``; its notes say what
    is complete there. The command line prints both in a line and exits with status 2.
    """


def no_room(error: BaseException | None) -> int | None:
    """The system's number of the error behind an exception, if that is a full disk; else None."""
    while error is not None and not isinstance(error, InputError):
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error.errno
        if isinstance(error, Exception) and _REPORTED.search(text := str(error)):
            return next(
                (number for number in _NO_ROOM if os.strerror(number) in text), errno.ENOSPC
            )
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def naming_full_disk(folder: Path, safe: Callable[[], str] | None = None) -> Iterator[None]:
    """What any library raises inside because a disk is full becomes :class:`DiskFull`, with a note
    of what is ``safe``.

    Where it went to a folder below that stays, that is its folder, else ``folder``.
    """
    try:
        yield
    except Exception as error:
        if (number := no_room(error)) is None:
            raise
        full = error
        if not isinstance(error, DiskFull) or UNFINISHED in error.filename:
            full = DiskFull(number, os.strerror(number), str(folder))
            for note in getattr(error, "__notes__", ()):
                full.add_note(note)
        if safe is not None:
            full.add_note(safe())
        if full is error:
            raise
        raise full from error


def describe_full_disk(error: BaseException) -> str:
    """The line for a person, of an error that :func:`no_room` knows: where, what is safe, and the
    way out.
    """
    folder = error.filename if isinstance(error, OSError) and error.filename else None
    reason = os.strerror(no_room(error) or errno.ENOSPC)
    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, DiskFull) and not notes and folder is not None:
        notes = [_complete(Path(folder))]
    where = "the output or a temporary file" if folder is None else str(folder)
    return "; ".join(
        [f"{where} cannot be written: {reason}", *notes, "make room and run the command again"]
    )


def _complete(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob("*") if not path.name.startswith(UNFINISHED))
    return f"complete there: {listed(names)}" if names else "nothing was written there"


def kind_of(value: object) -> str:
    """Return the type of a value in words, such as "a list of int"."""
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    words = f"{article} {name}"
    if isinstance(value, (list, tuple, set, dict)) and value:
        items = value.values() if isinstance(value, dict) else value
        words += f" of {type(next(iter(items))).__name__}"
    return words
