"""Checksums of files, in the folder ``checksums`` beside them.

They are recorded before a file takes its name, and verified when it is first read in a process.
Each file has a checksum file of its own, so that many processes can write to a folder. The format
is that of ``xxhsum``: ``cat checksums/* | xxhsum --check`` verifies a folder without this package.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from beir_cocodr.errors import InputError
from beir_cocodr.io import CHECKSUMS, CLOCK_TICK_NS, atomic_path, unfinished, write_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

log = logging.getLogger(__name__)

# Bytes read at a time: what is hashed is still in the processor's cache.
_BLOCK = 1 << 18

# The files that this process has verified, with their states then.
_verified: dict[Path, tuple[int, ...]] = {}

# The checksums of files that this process has read, with the states of the files then.
_known: dict[Path, tuple[tuple[int, ...], str]] = {}


@contextmanager
def checked_path(path: Path) -> Iterator[Path]:
    """Write a file as :func:`~beir_cocodr.io.atomic_path` does, with its checksum.

    Whatever has the file's name has its checksum too.
    """
    with atomic_path(path) as temporary:
        yield temporary
        write_text(_record_of(path), _checksum(temporary))


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a ``.npy`` file in one step, with its checksum."""
    import numpy as np  # reading a record needs none

    with checked_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def move_checked(draft: Path, path: Path) -> None:
    """Give a complete file its name, and record its checksum."""
    checksum = f"{_digest(draft)}  {path.name}\n"
    write_text(_record_of(path), checksum)
    draft.replace(path)


def is_sound(*files: Path) -> bool:
    """Return true if files of the cache are as they were written.

    A warning says what is wrong with the first that is not, and that it is made anew: this is how
    a cache repairs itself.
    """
    for file in files:
        problem = fault(file)
        if problem:
            log.warning("%s; it is made again", problem)
            return False
    return True


def is_kept(file: Path) -> bool:
    """Return true if a file of the cache exists and :func:`is_sound`."""
    return file.is_file() and is_sound(file)


def add_checksums(folder: Path, names: Iterable[str]) -> None:
    """Record the checksums of files in a folder that has none yet, all in one step."""
    with unfinished(folder) as draft:
        records = draft / CHECKSUMS
        for name in names:
            checksum = _checksum(folder / name)
            write_text(records / name, checksum)
        records.replace(folder / CHECKSUMS)


def fault(path: Path, content: memoryview | None = None) -> str | None:
    """Describe what is wrong with a file by its checksum; return None where nothing is.

    A file is read once in a process, and whenever ``content`` is given.

    Args:
        path: the file.
        content: memory of the file's size that takes what is read.
    """
    record = _record_of(path)
    try:
        state = _state(path)
        record_state = _state(record)
        if content is None and _verified.get(path.absolute()) == state + record_state:
            return None
        if record.read_bytes() != _checksum(path, content).encode():
            return (
                f"{path} was changed since it was written, according to its checksum in {CHECKSUMS}"
            )
    except OSError as error:
        file = error.filename or path
        reason = error.strerror or error
        return f"{file} cannot be read ({reason})"
    if _is_settled(state) and _is_settled(record_state):
        _verified[path.absolute()] = state + record_state
    return None


def file_checksum(path: Path) -> str:
    """Return the checksum of a file; a file that has not changed is read once in a process."""
    state = _state(path)
    before = _known.get(path.absolute())
    if before is not None and before[0] == state:
        return before[1]
    checksum = _digest(path)
    if _is_settled(state):
        _known[path.absolute()] = (state, checksum)
    return checksum


def verify(path: Path, way_out: str) -> None:
    """Check that a file is what was written.

    Raises:
        InputError: it is not; the message ends in ``way_out``.
    """
    problem = fault(path)
    if problem:
        raise InputError(f"{problem}; {way_out}")


def read(path: Path, way_out: str) -> npt.NDArray[np.uint8]:
    """Read and :func:`verify` a file in one pass."""
    import numpy as np  # reading a record needs none

    if _verified.get(path.absolute()) == _state(path) + _state(_record_of(path)):
        return np.fromfile(path, np.uint8)
    content = np.empty(path.stat().st_size, np.uint8)
    problem = fault(path, content.data)
    if problem:
        raise InputError(f"{problem}; {way_out}")
    return content


def _record_of(path: Path) -> Path:
    return path.parent / CHECKSUMS / path.name


def _state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _is_settled(state: tuple[int, ...]) -> bool:
    """Return true if a file would show a further change; within a tick, it may show none."""
    last_change = max(state[:2])
    return time.time_ns() - last_change > CLOCK_TICK_NS


def _checksum(path: Path, content: memoryview | None = None) -> str:
    """Return the line that ``xxhsum -H3`` prints for a file; see :func:`_digest`."""
    return f"{_digest(path, content)}  {path.name}\n"


def _digest(path: Path, content: memoryview | None = None) -> str:
    """Return the checksum of a file, which is read to ``content`` where that is given."""
    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(_BLOCK))
    start = 0
    with path.open("rb", buffering=0) as file:
        while True:
            block = buffer
            if content is not None:
                block = content[start : start + _BLOCK]
            count = file.readinto(block)
            if not count:
                return f"XXH3_{digest.hexdigest()}"
            digest.update(block[:count])
            start += count
