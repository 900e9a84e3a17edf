"""Temporary folders, which are removed although the process that made them was killed.

Each has a file that its process holds locked as long as it runs. The next process that makes one in
the same place removes those whose lock nobody holds any more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Self

from beir_cocodr.errors import UNFINISHED, naming_full_disk

try:
    import fcntl
except ImportError:  # Windows: such folders are removed only by the process that made them
    fcntl = None  # type: ignore[assignment]

#: The beginning of the names of our folders in the system's folder for temporary files.
PREFIX = "beir-cocodr-temporary-"

# Elsewhere they are unfinished work, which whoever writes there removes as well. Other unfinished
# work has no lock of this kind and is left alone.
_PREFIX_ELSEWHERE = f"{UNFINISHED}temporary-"

_LOCK = "in-use"
_CONTENT = "content"

# The folders of this process: a network drive may grant a process the lock that it has already.
_OWN: set[str] = set()


class TemporaryFolder:
    """A folder that exists as long as this object, and no longer than its process.

    A process that was forked from this one holds the folder too, but never removes it.

    Args:
        parent: the folder in which it is made; None is the system's folder for temporary files.

    Attributes:
        path: the folder, which is empty at first.

    Example:
        >>> from beir_cocodr.temporary import TemporaryFolder
        >>> with TemporaryFolder() as folder:
        ...     size = (folder / "notes.txt").write_text("wing")
        >>> folder.exists()
        False
    """

    def __init__(self, parent: Path | None = None) -> None:
        """Remove the folders of dead processes, and make one."""
        directory = Path(tempfile.gettempdir()) if parent is None else parent
        prefix = PREFIX if parent is None else _PREFIX_ELSEWHERE
        remove_dead_folders(directory, prefix)
        with naming_full_disk(directory):
            folder, lock = _make_held(directory, prefix)
            self._finalizer = weakref.finalize(self, _end, folder, lock, os.getpid())
            self.path = folder / _CONTENT
            self.path.mkdir()

    def remove(self) -> None:
        """Remove the folder now."""
        self._finalizer()

    def __enter__(self) -> Path:
        """Return the folder, which exists within the block."""
        return self.path

    def __exit__(self, *error: object) -> None:
        """Remove the folder."""
        self.remove()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Make a new, empty folder of a copy, which is removed with the copy."""
        return type(self), ()


def remove_dead_folders(parent: Path, prefix: str = PREFIX) -> None:
    """Remove the folders that killed processes left; whatever cannot be locked is left alone.

    Args:
        parent: the folder in which they were made.
        prefix: the beginning of their names.
    """
    if fcntl is None:
        return
    with suppress(OSError):
        for folder in parent.absolute().glob(f"{prefix}*"):
            if str(folder) not in _OWN:
                with suppress(OSError):  # another process was faster, or it is not ours
                    _remove_if_dead(folder)


def _remove_if_dead(folder: Path) -> None:
    """Remove a folder unless a process holds its lock; one without a lock only if it is empty."""
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        return
    if (folder / _LOCK).is_symlink():
        return
    if not (folder / _LOCK).exists():  # its process was killed before it made the lock
        folder.rmdir()
        return
    lock = _hold(folder)
    _remove(folder)
    os.close(lock)


def _make_held(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """Make a folder, and lock it until this process ends.

    Another process may take the folder for a dead one until it is locked; then the next is made.

    Returns:
        The folder, and the descriptor of its lock; None where the file system cannot lock.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).absolute()
        if fcntl is None:
            return folder, None
        _OWN.add(str(folder))
        try:
            return folder, _hold(folder)
        except (FileNotFoundError, BlockingIOError):  # another process removes it
            _OWN.discard(str(folder))
        except PermissionError:  # the umask lets nobody write to it
            folder.rmdir()
            raise
        except OSError:  # a file system that cannot lock
            return folder, None


def _hold(folder: Path) -> int:
    """Lock a folder, and return the descriptor, which holds the lock as long as it is open.

    Raises:
        FileNotFoundError: the folder was removed meanwhile.
        BlockingIOError: another process holds it, in order to remove it.
    """
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), (folder / _LOCK).stat()):
            raise FileNotFoundError(folder)
    except OSError:
        os.close(lock)
        raise
    return lock


def _end(folder: Path, lock: int | None, process: int) -> None:
    """Remove a folder if this is the process that made it, and let its lock go."""
    if os.getpid() == process:
        _remove(folder)
        _OWN.discard(str(folder))
    if lock is not None:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder, its lock last: whoever is killed here leaves the rest to the next."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name == _LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        (folder / _LOCK).unlink(missing_ok=True)
        folder.rmdir()
