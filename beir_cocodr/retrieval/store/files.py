"""The folder of a store: files that appear when they are complete, and one writer at a time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from beir_cocodr.errors import InputError

_UNFINISHED = ".unfinished-"


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """A name to write a file under, which becomes ``path`` when it is complete and on the disk.

    It lies in a folder of its own, as some libraries write under further names, which a kill leaves there.
    """
    place = path.with_name(f"{_UNFINISHED}{uuid4().hex}")
    place.mkdir()
    temporary = place / path.name
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # some libraries write files that shut everybody else out
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep others from writing to a folder, and remove what a writer that was killed left half-written.

    Raises:
        InputError: another process writes to it now.
    """
    handle = _locked(folder)
    try:
        _tidy(folder)
        yield
    finally:
        _tidy(folder)  # processes that were started for the writing may have died
        if handle is not None:
            os.close(handle)


def _tidy(folder: Path) -> None:
    for left_over in folder.glob(f"*{_UNFINISHED}*"):
        if left_over.is_dir():
            shutil.rmtree(left_over, ignore_errors=True)
        else:
            left_over.unlink(missing_ok=True)


def _locked(folder: Path) -> int | None:
    """The folder, open and locked; the lock goes with the process, however that ends. None without locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"another process writes to {folder}; wait for it, or choose another folder"
        ) from None
    except OSError:  # a file system that cannot lock
        with suppress(OSError):
            os.close(handle)
        return None
    return handle
