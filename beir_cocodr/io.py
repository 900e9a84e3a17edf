"""Files and folders that appear when they are complete; locks, the cache folder and hashes.

Everything is written beside its final place, in a folder whose name begins with ``.unfinished-``,
and takes its name in one step: a process that dies leaves nothing half-written under a name that
is read. The next process that holds the folder (:func:`sole_writer`) removes what the dead one
left; in the cache (:func:`cache_folder`) it is removed after a day.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from beir_cocodr.errors import (
    UNFINISHED,
    DiskFull,
    InputError,
    check_name,
    explained,
    kind_of,
    naming_full_disk,
)

if TYPE_CHECKING:
    import numpy.typing as npt

Json = dict[str, object]
#: Keyword arguments of a host's function, each of the type that the host asks for.
Keywords = dict[str, Any]

_LOCK = ".lock"

# What a spreadsheet takes for a formula, also behind apostrophes.
_FORMULA = re.compile(r"'*[=+\-@]")

# A writer in the cache that is not older than this may still be alive.
_LEFT_OVER_SECONDS = 86_400

#: Two changes of a file within this time may look the same.
CLOCK_TICK_NS = 20_000_000

#: The folder of the checksums of the files of a folder, see :mod:`beir_cocodr.checksums`.
CHECKSUMS = "checksums"


@contextmanager
def unfinished(folder: Path, mark: str = "") -> Iterator[Path]:
    """Make a folder for unfinished work, and remove it at the end with what is left in it.

    Args:
        folder: where it is made; created where it does not exist.
        mark: part of its name.

    Raises:
        DiskFull: the disk is full, whichever library noticed it; the error names ``folder``.
    """
    draft = folder / f"{UNFINISHED}{mark}{uuid4().hex}"
    with naming_full_disk(folder):
        draft.mkdir(parents=True)
        try:
            yield draft
        finally:
            _remove_tree(draft)


def _remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # A folder that may not be read, as the umask made it, is not removed so far; it is empty.
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path to write to; its file becomes ``path`` once it is complete and on disk.

    The path lies in a folder of its own: some libraries write further files beside the one that
    they are asked for, and a kill would leave these.
    """
    with unfinished(path.parent) as folder:
        yield folder / path.name
        _replace(path, folder / path.name)


def _replace(path: Path, temporary: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    # Some libraries write files that nobody else may read.
    temporary.chmod(0o666 & ~umask)
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    is_folder = f"{path} is a folder, where a file is to be written"
    with explained(is_folder, "move it away", IsADirectoryError):
        temporary.replace(path)


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Write the one file that a command makes, as :func:`atomic_path` does.

    What killed commands left of it is removed first.
    """
    with _held_draft(path) as folder:
        yield folder / path.name
        _replace(path, folder / path.name)


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[str]]:
    """Open a text file that appears under its name once it is complete.

    Characters that UTF-8 does not have, as in some paths, are written as the escapes of JSON.
    """
    with (
        atomic_path(path) as draft,
        draft.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        yield file


def write_text(path: Path, text: str) -> None:
    """Write a text to a file in one step."""
    with atomic_writer(path) as file:
        file.write(text)


def write_jsonl(
    path: Path,
    records: Iterable[Mapping[str, object]],
) -> None:
    """Write a file with one JSON object a line in one step."""
    with atomic_writer(path) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_qrels(
    path: Path,
    rows: Iterable[tuple[str, str, int]],
) -> None:
    """Write judgements as BEIR reads them, in one step.

    Args:
        path: the file.
        rows: query id, document id and grade of each judgement.
    """
    with atomic_writer(path) as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query, document, grade in rows:
            file.write(f"{query}\t{document}\t{grade}\n")


def text_cell(text: str) -> str:
    """Return a text as a cell of a table that no spreadsheet takes for a formula.

    Tabs and line ends become spaces, and what begins with = + - @ gets an apostrophe, which
    :func:`cell_text` removes. So does a text that has apostrophes before such a sign, so that it is
    read back with as many. Ids need no such change: they are written as they are, because runs and
    qrels refer to them.
    """
    line = " ".join(text.split())
    if _FORMULA.match(line):
        return f"'{line}"
    return line


def cell_text(cell: str) -> str:
    """Return the text of a cell that :func:`text_cell` wrote."""
    if cell.startswith("'") and _FORMULA.match(cell):
        return cell[1:]
    return cell


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a ``.npy`` file in one step."""
    import numpy as np  # reading the sources of packages needs no numpy

    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def parse_json(text: str, *, finite: bool = False) -> Any:
    """Parse JSON.

    Args:
        text: the text.
        finite: refuse NaN and Infinity, which Python reads and JSON does not have.

    Raises:
        ValueError: the text is no JSON, or is nested too deeply to be read.
    """
    try:
        check_nesting(text)
        return json.loads(text, parse_constant=_refuse_constant if finite else None)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


#: The most lists and objects that may be nested in JSON.
_DEEPEST = 500

# Brackets in texts do not nest. A text without an end goes to the end of the file.
_TEXTS_AND_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|$)|[\[\]{}]', re.DOTALL)


def check_nesting(text: str) -> None:
    """Check that JSON is not nested more deeply than in any real file.

    Python's own parser may overflow the stack before it raises RecursionError, which ends the
    process (seen with Python 3.13.0).

    Raises:
        RecursionError: More than 500 lists and objects are nested.
    """
    # No list or object begins straight after a quotation mark. Vocabularies have many such texts.
    opened = sum(text.count(bracket) - text.count(f'"{bracket}') for bracket in "[{")
    if opened <= _DEEPEST:
        return
    depth = 0
    for part in _TEXTS_AND_BRACKETS.finditer(text):
        bracket = part[0]
        if bracket in ("[", "{"):
            depth += 1
        elif bracket in ("]", "}"):
            depth -= 1
        if depth > _DEEPEST:
            raise RecursionError(f"more than {_DEEPEST} lists and objects are nested")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def output_path(output: object) -> Path:
    """Return the path of an output that a caller names.

    Raises:
        InputError: it is neither text nor a path.
    """
    if not isinstance(output, str | os.PathLike):
        raise InputError(f"output is {kind_of(output)}; give the path of a folder")
    name = os.fsdecode(output)
    if not name.strip():
        raise InputError("output has no name; give the path of a folder")
    check_name("the output", name)
    return Path(name)


def output_folder(path: Path, utf8: bool = False) -> Path:
    """Make a folder for results.

    Args:
        path: the folder.
        utf8: refuse a path that is not UTF-8, see :func:`~beir_cocodr.errors.check_name`.

    Returns:
        The same path.

    Raises:
        InputError: the folder cannot be made or written to.
    """
    check_name("the output", path, utf8)
    with explained(f"{path} cannot be the output folder", "choose another", OSError):
        path.mkdir(parents=True, exist_ok=True)
    # Permissions say little for root and on network drives: only a file shows that one can write.
    try:
        with naming_full_disk(path), TemporaryFile(dir=path):
            pass
    except DiskFull:
        raise
    except OSError as error:
        raise InputError(
            f"{path} cannot be written to: {error.strerror}; choose another output folder"
        ) from error
    return path


def check_output_free(output: Path) -> None:
    """Check that an output does not exist, or is an empty folder.

    Commands ask before hours of work, not after.

    Raises:
        InputError: a file, a link or a folder with content is there.
    """
    check_name("the output", output)
    is_empty = output.is_dir() and not any(output.iterdir())
    if not is_empty and (output.exists() or output.is_symlink()):
        # A process that was killed when its output was complete left the rest of its draft.
        _remove_dead(output)
        raise InputError(f"{output} is not empty and is not overwritten; choose another --output")


@contextmanager
def draft_folder(
    output: Path,
    replace: bool = False,
) -> Iterator[Path]:
    """Yield a folder that takes the name of ``output`` at the end; it is removed on any failure.

    Args:
        output: the folder that is made.
        replace: take the place of an output that is there, which stays complete until then.

    Raises:
        InputError: an output is there and may not be replaced, or the folder that it lies in
            cannot be written to, or was moved meanwhile.
    """
    if not replace:
        check_output_free(output)
    output = output.absolute()
    with ExitStack() as stack:
        with explained(f"{output} cannot be made", "choose another --output", OSError):
            folder = stack.enter_context(_held_draft(output))
        draft = folder / "new"
        draft.mkdir()
        stack.enter_context(naming_full_disk(output))
        with _noticing_moves(draft, output):
            yield draft
        if not replace:
            check_output_free(output)
        _exchange(output, draft, folder / _FORMER)


@contextmanager
def _noticing_moves(folder: Path, output: Path) -> Iterator[None]:
    """Check, also after an error, that a folder is still the one that it was.

    A file's folder is made where it does not exist, so that the content of a folder that was moved
    would otherwise end up in two places.

    Args:
        folder: the folder.
        output: what it becomes, for the message.

    Raises:
        InputError: the folder was moved, removed or replaced.
    """
    before = folder.stat()

    def is_there() -> bool:
        return folder.is_dir() and os.path.samestat(folder.stat(), before)

    try:
        yield
    except (OSError, InputError):
        if is_there():
            raise
    if not is_there():
        raise InputError(
            f"{output} was moved or removed while it was being written; if it was moved, run the "
            "command again with its present name"
        )


# The name of an output that is about to be replaced, in the folder of unfinished work.
_FORMER = "former"


def _exchange(
    output: Path,
    draft: Path,
    former: Path,
) -> None:
    if output.is_dir():
        output.replace(former)
    try:
        draft.replace(output)
    except OSError:
        if former.is_dir():
            former.replace(output)
        raise


@contextmanager
def _held_draft(output: Path) -> Iterator[Path]:
    """Remove the drafts of an output that no process holds, and make and hold one.

    Until it is held, another process may take it for a dead one; then the next is made.
    """
    _remove_dead(output)
    with ExitStack() as stack:
        is_made = False
        while not is_made:
            stack.close()
            folder = stack.enter_context(unfinished(output.parent, _mark(output)))
            stack.enter_context(locked(folder))
            is_made = folder.is_dir()
        yield folder


def _mark(output: Path) -> str:
    """Return the part of a draft's name that says which output it is to become."""
    return f"{text_sha256(output.name)[:16]}-"


def _remove_dead(output: Path) -> None:
    """Remove the drafts of an output that no process holds any more.

    An output that a dead process was about to replace is put back. A draft without a lock is of a
    process that was killed before its work or after it.
    """
    for folder in output.parent.glob(f"{UNFINISHED}{_mark(output)}*"):
        lock = folder / _LOCK
        with suppress(OSError, Timeout):
            was_at_work = lock.is_file()
            with FileLock(lock, timeout=0):
                former = folder / _FORMER
                if was_at_work and former.is_dir() and not output.exists():
                    former.replace(output)
                shutil.rmtree(folder)


@contextmanager
def locked(folder: Path, seconds: float | None = None) -> Iterator[None]:
    """Hold a folder against other processes and threads.

    The lock ends with the process, however that ends. Where the file system has no locks, nothing
    is held.

    Args:
        folder: what is held.
        seconds: the longest wait until whoever holds the folder lets it go; None has no limit.

    Raises:
        InputError: another process holds the folder for longer.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(
                FileLock(
                    folder / _LOCK,
                    timeout=-1 if seconds is None else seconds,
                )
            )
            # The file goes before the lock: those who wait notice, and lock the next file of the
            # same name.
            stack.callback((folder / _LOCK).unlink, missing_ok=True)
        except Timeout:
            raise InputError(
                f"another process writes to {folder}; wait for it, or choose another folder"
            ) from None
        except OSError:  # a file system that cannot lock
            pass
        yield


class _HeldFolders:
    """The folders that threads of this process hold, each by the number of its thread.

    A lock cannot be taken twice, and a part of a thread's work may write to a folder that the
    thread holds already.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[Path, int] = {}

    def holds(self, folder: Path) -> bool:
        """Return whether the running thread holds a folder."""
        with self._lock:
            return self._threads.get(real_path(folder)) == threading.get_ident()

    @contextmanager
    def holding(self, folder: Path) -> Iterator[None]:
        """Count a folder as held by the running thread."""
        folder = real_path(folder)
        with self._lock:
            self._threads[folder] = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._threads.pop(folder, None)


#: The folders that this process holds.
HELD = _HeldFolders()


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep others from writing to a folder, and remove what a killed writer left unfinished.

    Inside, the same thread may ask for the folder again.

    Raises:
        InputError: another process or thread holds the folder, or the folder was moved meanwhile.
    """
    if HELD.holds(folder):
        yield
        return
    with locked(folder, seconds=0), HELD.holding(folder), _noticing_moves(folder, folder):
        _remove_all_unfinished(folder)
        try:
            yield
        finally:
            # Processes that were started for the writing may have died.
            _remove_all_unfinished(folder)


def _remove_all_unfinished(folder: Path) -> None:
    remove_unfinished(folder)
    remove_unfinished(folder / CHECKSUMS)


def is_incidental(path: Path) -> bool:
    """Return whether a path is a lock, or unfinished work of a process that runs or was killed."""
    return path.name == _LOCK or path.name.startswith(UNFINISHED)


def files_below(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted, without locks and unfinished work."""
    files = []
    for path in sorted(folder.rglob("*")):
        parts = (Path(part) for part in path.relative_to(folder).parts)
        if path.is_file() and not any(is_incidental(part) for part in parts):
            files.append(path)
    return files


def remove_unfinished(folder: Path, older_than: float = 0.0) -> None:
    """Remove what writers left half-written.

    Args:
        folder: where they wrote.
        older_than: seconds; what was touched later than that stays.
    """
    for left_over in folder.glob(f"{UNFINISHED}*"):
        with suppress(FileNotFoundError):  # another process was faster
            if older_than and time.time() - left_over.stat().st_mtime <= older_than:
                continue
            if left_over.is_dir():
                shutil.rmtree(left_over, ignore_errors=True)
            else:
                left_over.unlink()


def cache_root() -> Path:
    """Return the folder below which everything derived is kept; it may be deleted at any time.

    It is ``BEIR_COCODR_CACHE`` where that is set, and else the platform's folder for caches, on
    Linux ``~/.cache/beir-cocodr``.
    """
    override = os.environ.get("BEIR_COCODR_CACHE")
    if not override:
        return Path(user_cache_dir("beir-cocodr"))
    return named_folder("BEIR_COCODR_CACHE", override)


def named_folder(variable: str, value: str) -> Path:
    """Return the folder that a variable of the environment names.

    Raises:
        InputError: the libraries that write to it cannot, or ``~`` is that of no user.
    """
    check_name(variable, value, utf8=True)
    with explained(f"{variable} is {value}", "name another folder", RuntimeError):
        return Path(value).expanduser()


def cache_folder(name: str) -> Path:
    """Return a folder below the cache root, and make it where it does not exist.

    What a killed writer left there is removed after a day.

    Raises:
        InputError: the folder cannot be used.
    """
    folder = cache_root() / name
    way_out = "point BEIR_COCODR_CACHE elsewhere, to a writable folder"
    with explained(f"{folder} cannot be used", way_out, OSError):
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder, _LEFT_OVER_SECONDS)
    return folder


@contextmanager
def filling_cache(folder: Path) -> Iterator[None]:
    """Explain what goes wrong while a new entry is written to a folder below the cache root.

    Raises:
        DiskFull: the disk is full; a note says what is complete in the cache.
        InputError: anything else keeps the entry from being written.
    """

    def describe_entries() -> str:
        paths = [path for path in folder.glob("*") if path.name != CHECKSUMS]
        entries = sum(not is_incidental(path) for path in paths)
        return (
            f"what the cache has there is complete ({entries} entries); "
            "BEIR_COCODR_CACHE can name another folder"
        )

    try:
        with naming_full_disk(folder, describe_entries):
            yield
    except DiskFull:
        raise
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written to: {error.strerror}; point BEIR_COCODR_CACHE elsewhere"
        ) from error


def real_path(path: Path) -> Path:
    """Return the path that links lead to; a link that leads to itself stays what it is.

    ``Path.resolve`` raises a ``RuntimeError`` there.
    """
    return Path(os.path.realpath(path))


def file_state(path: Path) -> tuple[str, str, str]:
    """Return the resolved path, the size in bytes and the time of change in nanoseconds of a file.

    A file whose state is the same as before was not changed in between.
    """
    resolved = real_path(path)
    state = resolved.stat()
    # File times advance in ticks, and two writes within one look the same: let the tick pass.
    if abs(time.time_ns() - state.st_mtime_ns) < CLOCK_TICK_NS:
        time.sleep(CLOCK_TICK_NS / 1e9)
        state = resolved.stat()
    return str(resolved), str(state.st_size), str(state.st_mtime_ns)


def text_sha256(*parts: str) -> str:
    """Hash strings: sha256 in hexadecimal, as all functions here."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def json_sha256(content: object, ensure_ascii: bool = True) -> str:
    """Hash what JSON can hold, whatever the order of keys; other objects count as their ``str``."""
    text = json.dumps(
        content,
        sort_keys=True,
        default=str,
        ensure_ascii=ensure_ascii,
    )
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_sha256(path: Path) -> str:
    """Hash the bytes of a file.

    Raises:
        InputError: the file cannot be read to its end.
    """
    with path.open("rb") as content:
        try:
            return hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:  # names no file
            reason = error.strerror or str(error)
            raise InputError(f"{path} cannot be read ({reason}); name another file") from None


def files_sha256(folder: Path) -> dict[str, str]:
    """Hash each file below a folder, by its path in it; locks and unfinished work are left out."""
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in files_below(folder)}


def content_sha256(path: str | Path) -> str | None:
    """Hash a model: a file, or all files of a folder but its card, whatever its own name.

    Whoever edits the card, ``README.md``, has the same model still.

    Returns:
        The hash; None where there is neither.
    """
    path = Path(path)
    if path.is_dir():
        hashes = files_sha256(path)
        hashes.pop("README.md", None)
        return json_sha256(hashes)
    if path.is_file():
        return file_sha256(path)
    return None
