"""Checksums of files, in the folder ``checksums`` beside them: recorded before a file takes its
name, verified when it is first read in a process.

Each has a file of its own, so that many processes can write to a folder, in the format of
``xxhsum``: ``cat checksums/* | xxhsum --check`` verifies a folder without this package.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from beir_cocodr.errors import InputError
from beir_cocodr.io import CHECKSUMS, CLOCK_TICK_NS, atomic_path, unfinished, write_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Read at a time: what is hashed is still in the processor's cache.
_BLOCK = 1 << 18

# Files that this process has verified, as they were then.
_verified: dict[Path, tuple[int, ...]] = {}


@contextmanager
def checked_path(path: Path) -> Iterator[Path]:
    """:func:`~beir_cocodr.io.atomic_path` for a file with a checksum: whatever has its name has its
    checksum too.
    """
    with atomic_path(path) as temporary:
        yield temporary
        write_text(path.parent / CHECKSUMS / path.name, _checksum(temporary))


def add_checksums(folder: Path, names: Iterable[str]) -> None:
    """Record the checksums of files of a folder that has none yet, all in one step."""
    with unfinished(folder) as draft:
        for name in names:
            write_text(draft / CHECKSUMS / name, _checksum(folder / name))
        (draft / CHECKSUMS).replace(folder / CHECKSUMS)


def fault(path: Path, content: memoryview | None = None) -> str | None:
    """What is wrong with a file, by its checksum, or None; it is read once in a process, unless to
    a ``content``.
    """
    recorded = path.parent / CHECKSUMS / path.name
    try:
        state = _state(path) + _state(recorded)
        if content is None and _verified.get(path.absolute()) == state:
            return None
        if recorded.read_bytes() != _checksum(path, content).encode():
            return f"{path} was changed since it was written, by its checksum in {CHECKSUMS}"
    except OSError as error:
        return f"{error.filename or path} cannot be read ({error.strerror or error})"
    if time.time_ns() - max(*state[:2], *state[4:6]) > CLOCK_TICK_NS:  # else a change may not show
        _verified[path.absolute()] = state
    return None


def verify(path: Path, way_out: str) -> None:
    """Raise an InputError that ends in ``way_out`` where a file is not what was written."""
    if found := fault(path):
        raise InputError(f"{found}; {way_out}")


def read(path: Path, way_out: str) -> npt.NDArray[np.uint8]:
    """:func:`verify` a file and read it, both at once."""
    import numpy as np  # reading a record needs none

    if _verified.get(path.absolute()) == _state(path) + _state(path.parent / CHECKSUMS / path.name):
        return np.fromfile(path, np.uint8)
    content = np.empty(path.stat().st_size, np.uint8)
    if found := fault(path, content.data):
        raise InputError(f"{found}; {way_out}")
    return content


def _state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _checksum(path: Path, content: memoryview | None = None) -> str:
    """The line that ``xxhsum -H3`` prints for a file, which is read to ``content`` where that is
    given.
    """
    digest = xxhash.xxh3_64()
    block, place = memoryview(bytearray(_BLOCK)), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block if content is None else content[place : place + _BLOCK]):
            digest.update(block[:count] if content is None else content[place : place + count])
            place += count
    return f"XXH3_{digest.hexdigest()}  {path.name}\n"
