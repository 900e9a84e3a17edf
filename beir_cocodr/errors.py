"""Exceptions for what a person can correct, bad input and a full disk, and checks of values."""

import errno
import math
import os
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path

# Characters of a value that a message quotes.
_QUOTED = 80


class InputError(ValueError):
    """Bad input: a file, line, id or option that the caller has to correct.

    The message is one line that names what is at fault and the way out. The command line prints it
    and exits with status 2; in Python it is an ordinary ``ValueError``.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of a host's message, or the error's type where it has none."""
    for line in str(error).splitlines():
        if line.strip():
            return line.strip()
    return type(error).__name__


@contextmanager
def explained(
    problem: str,
    way_out: str,
    *kinds: type[Exception],
) -> Iterator[None]:
    """Turn exceptions of some kinds into an ``InputError``.

    Its message is the problem, the reason that the exception gives in parentheses, and the way out.

    Args:
        problem: what is wrong, and where.
        way_out: what a person can do.
        *kinds: the types of the exceptions. An ``InputError`` passes unless it is among them.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, InputError) and InputError not in kinds:
            raise
        reason = getattr(error, "strerror", None) or first_line(error)
        raise InputError(f"{problem} ({reason}); {way_out}") from error


#: The largest seed that numpy, torch and transformers all take.
SEED_MAX = 2**32 - 1

#: The most processes of a command, and the most threads of one.
MOST_PROCESSES = 1_024

# The largest number of anything that is counted: a larger one overflows somewhere in the hosts.
_COUNT_MAX = 2**31 - 1

# Bytes of a part of a path, and of a path, that file systems take.
_PART_MAX = 255
_PATH_MAX = 4_095


@dataclass(frozen=True)
class Limits:
    """The values that a number or a name may have.

    Attributes:
        min: the least number.
        max: the largest number.
        above: the number that it must exceed.
        below: the number that it must not reach.
        choices: all values, where they can be listed.
        is_name: whether a text names something, and so may not be empty.
    """

    min: float = -math.inf
    max: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: Collection[object] | None = None
    is_name: bool = False

    def check(self, name: str, value: object) -> None:
        """Check a value; NaN and infinity are never allowed.

        Args:
            name: name of the option, for the message.
            value: a number or a string; other values are not checked, unless there are choices.

        Raises:
            InputError: the value is not allowed; the message says which ones are.
        """
        if self.choices is not None:
            # A list has no hash, which a table of choices asks for, and an array equals no choice.
            if not isinstance(value, Hashable) or value not in list(self.choices):
                choices = ", ".join(str(choice) for choice in self.choices)
                raise InputError(f"unknown {name} {quoted(value)}; choose one of {choices}")
        elif isinstance(value, Real) and not isinstance(value, bool):
            self._check_number(name, value)
        elif isinstance(value, str) and not _is_encodable(value):
            raise InputError(f"{name} is {value!r}, which is not UTF-8; give it in UTF-8")
        elif self.is_name and isinstance(value, str) and not value.strip():
            raise InputError(f"{name} is empty; name one, or leave it out")

    def _check_number(self, name: str, value: Real) -> None:
        if self.max == math.inf and isinstance(value, Integral) and int(value) > _COUNT_MAX:
            replace(self, max=_COUNT_MAX).check(name, value)
        try:
            number = float(value)
        except OverflowError:
            raise InputError(
                f"{name} must be {self.describe()}, not a number of over 300 digits"
            ) from None
        is_between = self.above < number < self.below
        if not (self.min <= number <= self.max and is_between):
            raise InputError(f"{name} must be {self.describe()}, not {value}")

    def describe(self) -> str:
        """Return the limits in words, such as "above 0 and at most 1"."""
        bounds = {
            "at least": self.min,
            "above": self.above,
            "at most": self.max,
            "below": self.below,
        }
        words = []
        for word, bound in bounds.items():
            if math.isfinite(bound):
                words.append(f"{word} {bound}")
        return " and ".join(words) or "finite"


#: The seeds that all hosts take.
SEEDS = Limits(min=0, max=SEED_MAX)


def check_seeds(seeds: Sequence[int]) -> None:
    """Check that at least one seed is given, each once and in range.

    Raises:
        InputError: they are not.
    """
    for seed in seeds:
        SEEDS.check("seed", seed)
    if not seeds or len(set(seeds)) < len(seeds):
        names = ", ".join(str(seed) for seed in seeds) or "none"
        raise InputError(f"seeds {names}: give at least one, and each once")


def check_count(
    name: str,
    value: int | None,
    least: int = 1,
) -> None:
    """Check a number that is counted, unless it is None.

    Raises:
        InputError: it is below ``least``.
    """
    if value is not None:
        Limits(min=least).check(name, value)


def check_type(
    name: str,
    value: object,
    kinds: type | tuple[type, ...],
    expected: str,
) -> None:
    """Check the type of an argument; a truth value is no number.

    Args:
        name: name of the argument, for the message.
        value: its value.
        kinds: the types that it may have.
        expected: what to give, in words.

    Raises:
        InputError: it has another type.
    """
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise InputError(f"{name} is {kind_of(value)}; give {expected}")


def check_flag(name: str, value: object) -> None:
    """Check an argument that is true or false: a text such as "no" would count as true.

    Raises:
        InputError: it is neither.
    """
    if not isinstance(value, bool):
        raise InputError(f"{name} is {kind_of(value)}; give True or False")


def check_integer(name: str, value: object, least: int = 1) -> None:
    """Check an argument that counts something.

    Raises:
        InputError: it is no integer, or below ``least``.
    """
    check_type(name, value, Integral, "an integer")
    Limits(min=least).check(name, value)


def check_characters(name: str, text: str) -> None:
    """Check that a text contains no unpaired surrogate, which UTF-8 cannot encode.

    Args:
        name: what the text is, for the message.
        text: the text.

    Raises:
        InputError: the text contains one; the message gives its position.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = text[error.start]
        context = text[max(0, error.start - 20) : error.start + 20]
        raise InputError(
            f"{name} contains an unpaired surrogate, {surrogate!r}, at position {error.start}: "
            f"{context!r}; write whole characters"
        ) from None


def check_options_type(value: object, kind: type, name: str = "options") -> None:
    """Check that an argument is an object of an options class.

    Raises:
        InputError: it is another object.
    """
    check_type(name, value, kind, f"an object of {kind.__name__}")


def check_name(
    kind: str,
    name: str | Path,
    utf8: bool = False,
) -> None:
    """Check that a file system takes a name.

    Args:
        kind: the noun for it in the message, such as "model".
        name: a name or a path.
        utf8: refuse a name that is not UTF-8: libraries in C++ and Rust take no other paths.

    Raises:
        InputError: the name is too long for any file system, not UTF-8, or has a NUL character.
    """
    text = str(name)
    if utf8 and not _is_encodable(text):
        raise InputError(f"{kind} {quoted(text)} is not UTF-8; rename it, or choose another")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:  # half a character, which no byte encodes
        raise InputError(f"{kind} {quoted(text)} is not UTF-8; choose another") from None
    if b"\0" in encoded:
        raise InputError(f"{kind} {quoted(text)} has a NUL character; choose another")
    longest = max(len(part) for part in encoded.split(b"/"))
    if longest > _PART_MAX or len(encoded) > _PATH_MAX:
        raise InputError(
            f"{kind} {quoted(text)} is too long, {len(text)} characters; "
            f"a part of a path has at most {_PART_MAX} bytes"
        )


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first names and the number of the others, such as "a, b and 3 more"."""
    first = ", ".join(names[:most])
    others = len(names) - most
    if others > 0:
        return f"{first} and {others} more"
    return first


def quoted(value: object) -> str:
    """Return the representation of a value, shortened for a message."""
    text = repr(value)
    if len(text) <= _QUOTED:
        return text
    return f"{text[:_QUOTED]}..."


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_names(kind: str, names: Sequence[str]) -> None:
    """Check the names that ``--KIND`` gives.

    Raises:
        InputError: there is none, or one is given twice.
    """
    if not names:
        raise InputError(f"no {kind}; name at least one with --{kind}")
    for row, name in enumerate(names):
        if name in names[:row]:
            raise InputError(f"{kind} {name!r} is named twice")


#: How the names of folders for unfinished work begin, see :mod:`beir_cocodr.io`.
UNFINISHED = ".unfinished-"

# The errors of the system that mean no room: on the device, for the user, or in a file.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# How libraries report these errors: those in Rust, Arrow and FAISS; NumPy after a short write;
# PyTorch after any; and Python where no folder for temporary files takes one, which some libraries
# look for as they are imported.
_NO_ROOM_MESSAGES = [
    *(re.escape(os.strerror(number)) for number in _NO_ROOM),
    *(rf"\b(?:os error|errno) {number}\b" for number in _NO_ROOM),
    "not enough free space",
    r"\d requested and \d+ written",
    "PytorchStreamWriter failed",
    "inline_container",
    "basic_ios::clear: iostream error",
    "no usable temporary directory",
]
_REPORTED = re.compile("|".join(_NO_ROOM_MESSAGES), re.IGNORECASE)


class DiskFull(OSError):
    """No room is left for a file that was to be written to a folder, its ``filename``.

    Its notes say what is complete in the folder. The command line prints both in one line and exits
    with status 2.
    """


def no_room(error: BaseException | None) -> int | None:
    """Return the system's number of the error behind an exception, if the disk is full."""
    while error is not None and not isinstance(error, InputError):
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error.errno
        text = str(error)
        if isinstance(error, Exception) and _REPORTED.search(text):
            numbers = (number for number in _NO_ROOM if os.strerror(number) in text)
            return next(numbers, errno.ENOSPC)
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def naming(source: object) -> Iterator[None]:
    """Put the name of a collection or file before the message of an error in the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


@contextmanager
def naming_full_disk(
    folder: Path,
    safe: Callable[[], str] | None = None,
) -> Iterator[None]:
    """Turn what any library raises because the disk is full into :class:`DiskFull`.

    Args:
        folder: what is written to. An error that names a folder that stays keeps its own.
        safe: gives a note of what is safe, once it is needed.

    Raises:
        DiskFull: the disk is full.
    """
    try:
        yield
    except Exception as error:
        number = no_room(error)
        if number is None:
            raise
        names_folder = isinstance(error, DiskFull) and UNFINISHED not in error.filename
        full = error if names_folder else _disk_full(number, folder, error)
        if safe is not None:
            full.add_note(safe())
        if full is error:
            raise
        raise full from error


def _disk_full(
    number: int,
    folder: Path,
    error: Exception,
) -> DiskFull:
    full = DiskFull(number, os.strerror(number), str(folder))
    for note in getattr(error, "__notes__", ()):
        full.add_note(note)
    return full


def describe_full_disk(error: BaseException) -> str:
    """Return one line about an error that :func:`no_room` knows.

    It says where the disk is full, what is safe there, and what to do.
    """
    folder = None
    if isinstance(error, OSError) and error.filename:
        folder = error.filename
    reason = os.strerror(no_room(error) or errno.ENOSPC)
    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, DiskFull) and not notes and folder is not None:
        notes = [_describe_complete(Path(folder))]
    where = "the output or a temporary file"
    if folder is not None:
        where = str(folder)
    parts = [f"{where} cannot be written: {reason}", *notes, "make room and run the command again"]
    return "; ".join(parts)


def _describe_complete(folder: Path) -> str:
    names = []
    for path in sorted(folder.glob("*")):
        if not path.name.startswith(UNFINISHED):
            names.append(path.name)
    if names:
        return f"complete there: {listed(names)}"
    return "nothing was written there"


def kind_of(value: object) -> str:
    """Return the type of a value in words, such as "a list of int"."""
    if value is None:
        return "None"
    name = type(value).__name__
    article = "a"
    if name[0].lower() in "aeiou":
        article = "an"
    words = f"{article} {name}"
    if isinstance(value, (list, tuple, set, dict)) and value:
        items = value.values() if isinstance(value, dict) else value
        first = next(iter(items))
        words += f" of {type(first).__name__}"
    return words
