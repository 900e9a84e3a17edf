"""Writing a file so that a run that dies leaves nothing half-written.

Telling whether a file is still the one that was read.

The user's cache folder.

Arrays that several processes may write and read.

The folder of a store: files that appear when they are complete, and one writer at a time.

A folder that appears under its name only when it is complete.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from platformdirs import user_cache_dir

from beir_cocodr.errors import InputError


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            yield file
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp's own mode shuts everybody else out
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def output_folder(path: Path) -> Path:
    """Make a folder for results.

    Raises:
        InputError: it cannot be made or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be the output folder: {error.strerror}; choose another") from error
    if not os.access(path, os.W_OK):
        raise InputError(f"{path} cannot be written to; choose another output folder")
    return path


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one step."""
    with atomic_writer(path) as file:
        file.write(text)


_CLOCK_TICK_NS = 20_000_000


def file_state(path: Path) -> tuple[str, str, str]:
    """Resolved path, size in bytes and time of last change in nanoseconds, as strings.

    Raises:
        OSError: if the file is not there.
    """
    resolved = path.resolve()
    state = resolved.stat()
    # File times advance in ticks: two writes within one would look the same, so let the tick pass.
    if abs(time.time_ns() - state.st_mtime_ns) < _CLOCK_TICK_NS:
        time.sleep(_CLOCK_TICK_NS / 1e9)
        state = resolved.stat()
    return str(resolved), str(state.st_size), str(state.st_mtime_ns)


def cache_root() -> Path:
    """The folder below which everything derived is kept: ``BEIR_COCODR_CACHE`` if that is set, else the
    platform's own place (on Linux ``~/.cache/beir-cocodr``). It may be deleted at any time."""
    override = os.environ.get("BEIR_COCODR_CACHE")
    return Path(override).expanduser() if override else Path(user_cache_dir("beir-cocodr"))


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a ``.npy`` file in one step."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, array)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


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


def check_output_free(output: Path) -> None:
    """Refuse an output that is there already, better before hours of encoding than after.

    Raises:
        InputError: it is a file, or a folder that is not empty.
    """
    if output.is_dir() and not any(output.iterdir()):
        return
    if output.exists() or output.is_symlink():
        raise InputError(f"{output} is there already and is not written over; choose another --output")


@contextmanager
def draft_folder(output: Path) -> Iterator[Path]:
    """A folder beside ``output`` that takes its name at the end, and is removed if anything fails.

    Raises:
        InputError: ``output`` is taken, or its parent cannot be written to.
    """
    check_output_free(output)
    output = output.absolute()
    draft = output.with_name(f".{output.name}.{uuid4().hex}")
    try:
        try:
            draft.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"{output} cannot be made: {error.strerror}; choose another --output") from error
        yield draft
        check_output_free(output)
        if output.is_dir():
            output.rmdir()
        draft.replace(output)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
