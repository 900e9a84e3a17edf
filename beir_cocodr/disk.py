"""A full disk: known however a library reports it, and made one exception, which says what is safe."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from beir_cocodr.errors import InputError, listed

#: Of folders for what is not complete, see :mod:`beir_cocodr.io`.
UNFINISHED = ".unfinished-"

# No room on the device, for the user, or for a file of this size.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What libraries make of these errors: those in Rust, Arrow and FAISS; NumPy after a short write; PyTorch after any; and
# Python where no folder for temporary files takes one, which some libraries look for as they are imported.
_REPORTED = re.compile(
    "|".join(rf"{re.escape(os.strerror(number))}|\b(?:os error|errno) {number}\b" for number in _NO_ROOM)
    + r"|not enough free space|\d requested and \d+ written|PytorchStreamWriter failed|inline_container"
    + r"|basic_ios::clear: iostream error|no usable temporary directory",
    re.IGNORECASE,
)


class DiskFull(OSError):
    """There is no room for what was to be written to a folder, its ``filename``; its notes say what is complete there.
    The command line prints both in a line and exits with status 2.
    """


def no_room(error: BaseException | None) -> int | None:
    """The system's number of the error behind an exception, if that is a full disk; else None."""
    while error is not None and not isinstance(error, InputError):
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error.errno
        if isinstance(error, Exception) and _REPORTED.search(text := str(error)):
            return next((number for number in _NO_ROOM if os.strerror(number) in text), errno.ENOSPC)
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def naming_full_disk(folder: Path, safe: Callable[[], str] | None = None) -> Iterator[None]:
    """What any library raises inside because a disk is full becomes :class:`DiskFull`, with a note of what is ``safe``.

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
    """The line for a person, of an error that :func:`no_room` knows: where, what is safe, and the way out."""
    folder = error.filename if isinstance(error, OSError) and error.filename else None
    reason = os.strerror(no_room(error) or errno.ENOSPC)
    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, DiskFull) and not notes and folder is not None:
        notes = [_complete(Path(folder))]
    where = "the output or a temporary file" if folder is None else str(folder)
    return "; ".join([f"{where} cannot be written: {reason}", *notes, "make room and run the command again"])


def _complete(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob("*") if not path.name.startswith(UNFINISHED))
    return f"complete there: {listed(names)}" if names else "nothing was written there"
