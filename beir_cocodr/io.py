"""Files and folders that appear when they are complete, locks, hashes, and the cache folder.

Everything is written beside its final place, in a folder whose name begins with ``.unfinished-``,
and takes its name in one step: a run that dies leaves nothing half-written under a name that is
read. What such a run leaves is removed by the next one that holds the folder (:func:`sole_writer`),
or after a day (:func:`cache_folder`). Results of one run stand in a folder of their own
(:func:`results_folder`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from fnmatch import fnmatchcase
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
    listed,
    naming_full_disk,
)
from beir_cocodr.same_run import as_read, check_same_run

if TYPE_CHECKING:
    import numpy.typing as npt

Json = dict[str, object]
_LOCK = ".lock"

# A writer in the cache that is not older than this may still be alive.
_LEFT_OVER_SECONDS = 86_400

#: Two changes of a file within this time may look the same.
CLOCK_TICK_NS = 20_000_000


@contextmanager
def unfinished(folder: Path, mark: str = "") -> Iterator[Path]:
    """A new folder in ``folder``, which is made if need be, with the ``mark`` in its name; removed
    at the end with what is left in it. Where the disk is full,
    :class:`~beir_cocodr.errors.DiskFull` names ``folder``, for any library.
    """
    place = folder / f"{UNFINISHED}{mark}{uuid4().hex}"
    with naming_full_disk(folder):
        place.mkdir(parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A name to write a file under, which becomes ``path`` when it is complete and on the disk.

    It lies in a folder of its own, as some libraries write under further names, which a kill leaves
    there.
    """
    with unfinished(path.parent) as place:
        yield place / path.name
        _replace(path, place / path.name)


def _replace(path: Path, temporary: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o666 & ~umask)  # some libraries write files that shut everybody else out
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    with explained(
        f"{path} is a folder, where a file is to be written", "move it away", IsADirectoryError
    ):
        temporary.replace(path)


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """:func:`atomic_path` for the one file that a command makes; removes what a command that was
    killed left of it.
    """
    mark = _mark(path)
    _remove_dead(path, mark)
    with unfinished(path.parent, mark) as place, locked(place):
        yield place / path.name
        _replace(path, place / path.name)


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name only when it is complete.

    A path that is not UTF-8 stands in it with the escapes that JSON has for it.
    """
    with (
        atomic_path(path) as draft,
        draft.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        yield file


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one step."""
    with atomic_writer(path) as file:
        file.write(text)


def write_jsonl(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON object a line to ``path`` in one step."""
    with atomic_writer(path) as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_qrels(path: Path, rows: Iterable[tuple[str, str, int]]) -> None:
    """Write query id, document id and grade of judgements, as BEIR reads them, to ``path`` in one
    step.
    """
    with atomic_writer(path) as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(f"{query}\t{document}\t{grade}\n" for query, document, grade in rows)


def text_cell(text: str) -> str:
    """A text as a cell of a table, which a spreadsheet takes for no formula: tabs and line ends
    become spaces, and what begins with = + - @ gets an apostrophe. Ids are written as they are:
    they are joined with runs and qrels.
    """
    line = " ".join(text.split())
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a ``.npy`` file in one step."""
    import numpy as np  # reading the sources of packages imports none of them

    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def parse_json(text: str) -> Any:
    """What is written as JSON; a ``ValueError`` also where it is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def output_folder(path: Path, utf8: bool = False) -> Path:
    """Make a folder for results; ``InputError`` where it cannot be made or written to, or see
    :func:`check_name`.
    """
    check_name("the output", path, utf8)
    with explained(f"{path} cannot be the output folder", "choose another", OSError):
        path.mkdir(parents=True, exist_ok=True)
    try:  # for root and on network drives, permissions say little
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
    """Check that an output is no file and no folder with content, better before hours of encoding
    than after.
    """
    check_name("the output", output)
    is_empty = output.is_dir() and not any(output.iterdir())
    if not is_empty and (output.exists() or output.is_symlink()):
        raise InputError(
            f"{output} is there already, not empty, and is not written over; choose another --output"
        )


@contextmanager
def draft_folder(output: Path, replace: bool = False) -> Iterator[Path]:
    """A folder that takes the name of ``output`` at the end, and is removed if anything fails; what
    else is put beside it is removed in any case.

    With ``replace`` it takes the place of an ``output`` that is there, which stays whole until
    then; without, such an ``output`` is an ``InputError``, as is a parent that cannot be written
    to.
    """
    if not replace:
        check_output_free(output)
    output = output.absolute()
    with ExitStack() as stack:
        with explained(f"{output} cannot be made", "choose another --output", OSError):
            mark = _mark(output)
            _remove_dead(output, mark)
            place = stack.enter_context(unfinished(output.parent, mark))
            stack.enter_context(locked(place))
        draft, former = place / "new", place / "former"
        draft.mkdir()
        stack.enter_context(naming_full_disk(output))
        yield draft
        if not replace:
            check_output_free(output)
        if output.is_dir():
            output.replace(former)
        try:
            draft.replace(output)
        except OSError:
            if former.is_dir():
                former.replace(output)
            raise


def _mark(output: Path) -> str:
    return f"{text_sha256(output.name)[:16]}-"


def _remove_dead(output: Path, mark: str) -> None:
    """Remove an output's drafts that no process holds any more; what one was about to replace is
    put back.
    """
    for place in output.parent.glob(f"{UNFINISHED}{mark}*"):
        with suppress(OSError, Timeout):
            if (place / _LOCK).is_file():
                with FileLock(place / _LOCK, timeout=0):
                    if (place / "former").is_dir() and not output.exists():
                        (place / "former").replace(output)
                    shutil.rmtree(place)


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Hold a folder against other processes; the lock goes with the process, however that ends.
    Nothing is held where the file system has no locks. Without ``wait``, a folder that another
    process holds is an ``InputError``.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(folder / _LOCK, timeout=-1 if wait else 0))
            # Before it is let go: those who wait notice, and lock the next file of this name.
            stack.callback((folder / _LOCK).unlink, missing_ok=True)
        except Timeout:
            raise InputError(
                f"another process writes to {folder}; wait for it, or choose another folder"
            ) from None
        except OSError:  # a file system that cannot lock
            pass
        yield


# Folders that the running thread holds, so that a part of its work may ask for them again.
_HELD: ContextVar[frozenset[Path]] = ContextVar("_HELD", default=frozenset())


@contextmanager
def _holding(folder: Path) -> Iterator[None]:
    held = _HELD.get()
    _HELD.set(held | {folder.resolve()})
    try:
        yield
    finally:
        _HELD.set(held)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep others from writing to a folder (else ``InputError``), and remove what a killed writer
    left unfinished.

    Within the block the same thread may ask for the folder again.
    """
    if folder.resolve() in _HELD.get():
        yield
        return
    with locked(folder, wait=False), _holding(folder):
        for place in (folder, folder / CHECKSUMS):
            remove_unfinished(place)
        try:
            yield
        finally:
            for place in (
                folder,
                folder / CHECKSUMS,
            ):  # processes that were started for the writing may have died
                remove_unfinished(place)


#: The folder of the checksums of the files of a folder, see :mod:`beir_cocodr.checksums`.
CHECKSUMS = "checksums"

#: Beside results: which run they are of, and which files are its own.
RUN_FILE = "run.json"

# Names of all files that commands write as results of a run. Nothing else is ever replaced or
# removed, whatever a folder's record says.
_RESULTS = (
    "*.run",
    "*.per_query.tsv",
    "results.json",
    "comparison.json",
    "labels_wanted.tsv",
    "report.html",
    "parity.json",
    "overlap.json",
    "nearest.tsv",
    "similarity.png",
    "predictors.tsv",
    "qpp.json",
    "qpp.png",
    "shift.json",
    "shift.png",
    "representation.json",
    "representation.png",
    "source_clusters.json",
    "source_clusters.png",
    RUN_FILE,
)

# Records of folders of another kind, which never become a folder of results.
_OTHERS = ("training", "adapt", "plan", "generation", "store", "manifest", "regimes", "modules")


@contextmanager
def results_folder(
    output: Path, run: Mapping[str, object], overwrite: bool = False
) -> Iterator[Path]:
    """A draft for the results of one run, which go to ``output`` together at the end; what was
    there stays until then.

    A folder holds the results of one run. The same run again replaces them; those of another run
    are an ``InputError``, unless ``overwrite`` replaces them all, which needs a folder with nothing
    else in it. Files that are no results stay as they are. Two processes do not write to one
    folder. Within the block, and in a folder that the thread holds as :func:`sole_writer`, parts of
    the run may write their results the same way.

    Args:
        output: the folder, made if need be.
        run: what makes two runs the same, the command and its settings; anything that JSON or
            ``str`` can express.
        overwrite: replace the results of another run.
    """
    content = as_read(run)
    within = output_folder(output).resolve() in _HELD.get()
    with sole_writer(output):
        if not within:
            _check_run(output, content, overwrite)
        with unfinished(output) as draft:
            with _holding(draft):
                yield draft
            _deliver(draft, output, content)


def _read_run(folder: Path) -> tuple[object, set[str]]:
    """Return a folder's run and the names of its files.

    Where no run is on record, it is None, and the files are those that look like results.

    Raises:
        InputError: the record names a file that is no result of a run in this folder.
    """
    record = folder / RUN_FILE
    try:
        content = parse_json(record.read_text(encoding="utf-8"))
        run = content["run"]
        files = list(content["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, {path.name for path in folder.iterdir() if _is_result(folder, path.name)}
    for name in files:
        if not _is_result(folder, name):
            raise InputError(
                f"{record} names {name!r:.200}, which is no result in this folder; nothing was "
                f"removed; choose another --output, or take {RUN_FILE} away"
            )
    return run, {RUN_FILE, *files}


def _is_result(folder: Path, name: object) -> bool:
    """Return whether a name is that of a result, and no link or folder has it."""
    if not isinstance(name, str) or "/" in name or "\\" in name or "\0" in name:
        return False
    path = folder / name
    is_ordinary = path.is_file() or not path.exists()
    return is_ordinary and not path.is_symlink() and any(fnmatchcase(name, p) for p in _RESULTS)


def _check_run(output: Path, run: Json, overwrite: bool) -> None:
    """Check that an output holds nothing, results of the same run, or results to be replaced."""
    before, files = _read_run(output)
    others = {path.name for path in output.iterdir() if not is_incidental(path)} - files
    kept = sorted(others & {f"{name}.json" for name in _OTHERS})
    if before == run or not (files or kept):
        return
    if kept or (overwrite and others):
        first = (kept or sorted(others))[0]
        raise InputError(
            f"{output} holds {first}, which is no result of this command and is not written over; "
            "choose another --output"
        )
    if overwrite:
        return
    way_out = "choose another --output, or replace the results with --overwrite"
    if not isinstance(before, dict):
        raise InputError(
            f"{output} holds results ({listed(sorted(files), 1)}), and {RUN_FILE} does not say of "
            f"which run; {way_out}"
        )
    check_same_run(output, before, run, way_out)


def _deliver(draft: Path, output: Path, run: Json) -> None:
    """Move results to their folder, records last, in place of those that are there."""
    new = {path.name for path in draft.iterdir() if not is_incidental(path)} - {RUN_FILE}
    for name in new:
        assert _is_result(draft, name), f"{name} is not among the names of results in {__name__}"
    _, old = _read_run(output)
    # Until all are there both count as the run's, so that the same run again replaces what a kill
    # leaves.
    _write_run(output, run, old | new)
    for name in old - {RUN_FILE}:
        if name.endswith(".json") or name not in new:
            (output / name).unlink(missing_ok=True)
    for name in sorted(new, key=lambda name: (name.endswith(".json"), name)):
        (draft / name).replace(output / name)
    _write_run(output, run, new)


def _write_run(folder: Path, run: object, files: set[str]) -> None:
    write_text(folder / RUN_FILE, json.dumps({"run": run, "files": sorted(files)}, indent=2) + "\n")


def add_result(path: Path) -> None:
    """Count a file that was made of a run's results among them."""
    run, files = _read_run(path.parent)
    if run is not None:
        _write_run(path.parent, run, files - {RUN_FILE} | {path.name})


def is_incidental(path: Path) -> bool:
    """Whether a path is a lock or the unfinished work of a process that runs or was killed."""
    return path.name == _LOCK or path.name.startswith(UNFINISHED)


def files_below(folder: Path) -> list[Path]:
    """All files of a folder and of those in it, in order; locks and unfinished work are left
    out.
    """
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        path
        for path in files
        if not any(map(is_incidental, map(Path, path.relative_to(folder).parts)))
    ]


def remove_unfinished(folder: Path, older_than: float = 0.0) -> None:
    """Remove what writers left half-written, where it was not touched for ``older_than``
    seconds.
    """
    for left_over in folder.glob(f"{UNFINISHED}*"):
        with suppress(FileNotFoundError):  # another process was faster
            if older_than and time.time() - left_over.stat().st_mtime <= older_than:
                continue
            shutil.rmtree(
                left_over, ignore_errors=True
            ) if left_over.is_dir() else left_over.unlink()


def cache_root() -> Path:
    """The folder below which everything derived is kept: ``BEIR_COCODR_CACHE`` if that is set, else
    the platform's own place (on Linux ``~/.cache/beir-cocodr``). It may be deleted at any time.
    """
    override = os.environ.get("BEIR_COCODR_CACHE")
    return Path(override).expanduser() if override else Path(user_cache_dir("beir-cocodr"))


def cache_folder(name: str) -> Path:
    """A folder below the cache root, made if need be; what a killed writer left there is removed
    after a day.
    """
    folder = cache_root() / name
    with explained(
        f"{folder} cannot be used",
        "point BEIR_COCODR_CACHE elsewhere, to a writable folder",
        OSError,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder, _LEFT_OVER_SECONDS)
    return folder


@contextmanager
def filling_cache(folder: Path) -> Iterator[None]:
    """While a new entry is written to a folder below the cache root: a full disk is ``DiskFull``
    with a note of what is complete there, whatever else keeps it from being written an
    ``InputError``.
    """

    def safe() -> str:
        entries = sum(not is_incidental(path) for path in folder.glob("*"))
        return f"what the cache has there is complete ({entries} entries); BEIR_COCODR_CACHE can name another place"

    try:
        with naming_full_disk(folder, safe):
            yield
    except DiskFull:
        raise
    except OSError as error:
        raise InputError(
            f"{folder}: {error.strerror}; point BEIR_COCODR_CACHE elsewhere"
        ) from error


def file_state(path: Path) -> tuple[str, str, str]:
    """Resolved path, size in bytes and time of last change in nanoseconds: whether a file is the
    one that was read.
    """
    resolved = path.resolve()
    state = resolved.stat()
    # File times advance in ticks: two writes within one would look the same, so let the tick pass.
    if abs(time.time_ns() - state.st_mtime_ns) < CLOCK_TICK_NS:
        time.sleep(CLOCK_TICK_NS / 1e9)
        state = resolved.stat()
    return str(resolved), str(state.st_size), str(state.st_mtime_ns)


def text_sha256(*parts: str) -> str:
    """A hash of strings, in hexadecimal."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def json_sha256(content: object, ensure_ascii: bool = True) -> str:
    """A hash of what JSON holds, whatever the order of its keys; of all else its ``str`` counts."""
    text = json.dumps(content, sort_keys=True, default=str, ensure_ascii=ensure_ascii)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_sha256(path: Path) -> str:
    """A hash of the bytes of a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def files_sha256(folder: Path) -> dict[str, str]:
    """A hash of each file below a folder, by its path in it; locks and unfinished work left out."""
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in files_below(folder)}


def content_sha256(path: str | Path) -> str | None:
    """A hash of a file or of all files of a folder, whatever its own name; None where there is
    neither.
    """
    place = Path(path)
    if place.is_dir():
        return json_sha256(files_sha256(place))
    return file_sha256(place) if place.is_file() else None
