"""The log of the judgements that a person makes, one line each, and its repair after a crash."""

import errno
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from beir_cocodr.errors import InputError, explained, naming_full_disk
from beir_cocodr.io import (
    atomic_path,
    file_state,
    locked,
    parse_json,
    text_sha256,
    write_qrels,
)
from beir_cocodr.records import Record

#: The log of judgements in a folder, and the same judgements as qrels.
LOG_FILE = "judgements.jsonl"
QRELS_FILE = "qrels.tsv"

#: Ends the name of the file beside a log that keeps its damaged lines.
DAMAGED = ".damaged"

log = logging.getLogger(__name__)

# What the system raises where a log or its folder was moved, replaced or closed to this user.
_NO_ACCESS = (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError)

# Seconds that a judgement waits for another process that holds the folder: a line takes none.
_LONGEST_WAIT = 10.0


@dataclass(frozen=True, kw_only=True)
class LoggedJudgement(Record):
    """A line of a log of judgements (jsonl); where several judge one pair, the last counts.

    Attributes:
        time: ISO 8601, with its zone.
        document_id: id of the document.
        grade: 0 for not relevant, or higher; None takes back what was judged before.
        query_id: None for a query that was typed, whose id is then :func:`typed_id`.
        query: text of the query; may be empty where there is an id.
        query_probability: see :class:`AnnotationCandidate`.
        document_probability: see :class:`AnnotationCandidate`.
        drawn: number of documents of the query that were drawn; the query counts as blank until
            all of them are judged.
    """

    time: str
    document_id: str
    grade: int | None
    query_id: str | None = None
    query: str = ""
    query_probability: float | None = None
    document_probability: float | None = None
    drawn: int | None = None


#: Begins the id of a query that was typed and has none.
TYPED_PREFIX = "typed-"


def typed_id(query: str) -> str:
    """Return the id of a query that was typed and has none."""
    return f"{TYPED_PREFIX}{text_sha256(normalised(query))[:12]}"


def normalised(text: str) -> str:
    """Return a typed query with single spaces between its words."""
    return " ".join(text.split())


def log_judgement(
    path: Path,
    document_id: str,
    grade: int | None,
    query: str,
    **more: object,
) -> LoggedJudgement:
    """Append a judgement to a log; it is on the disk when this returns.

    Several processes may append to one log. A line that cannot be written whole is taken back.

    Args:
        path: the log.
        document_id: id of the judged document.
        grade: 0 for not relevant, or higher; None takes back what was judged before.
        query: text of the query.
        **more: other fields of :class:`LoggedJudgement`.

    Raises:
        DiskFull: there is no room; the log is as it was before.
        InputError: the log cannot be written, another process holds the folder for ten seconds, or
            the query or the id contains half a character.
    """
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    judgement = LoggedJudgement(
        time=time,
        document_id=document_id,
        grade=grade,
        query=query,
        **more,  # type: ignore[arg-type]
    )
    check_encodable(query + document_id)
    line = (json.dumps(judgement.to_json(), ensure_ascii=False) + "\n").encode()
    append_held(path, line)
    return judgement


def append_held(path: Path, line: bytes) -> None:
    """Append a line while no other process writes to the folder, which is made if it is missing.

    Raises:
        DiskFull: there is no room; the file is as it was before.
        InputError: the file cannot be written, or another process holds the folder for ten
            seconds.
    """
    with _naming_file(path), naming_full_disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent, _LONGEST_WAIT):
            append_line(path, line)


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Turn what the system says about a log that was moved or closed into an ``InputError``."""
    way_out = "put it back or allow it to be written, and try again"
    with explained(f"{path} cannot be read or written", way_out, *_NO_ACCESS):
        yield


def check_encodable(text: str) -> None:
    """Check that a text has no half of a character, which no file can hold."""
    with explained("the judgement is not text", "write whole characters", UnicodeEncodeError):
        text.encode()


def append_line(path: Path, line: bytes) -> None:
    """Append a line with one unbuffered write; cut the file back if that fails or is short.

    A line that another process left unfinished stays a line of its own.
    """
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size > 0:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                line = b"\n" + line
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def repair_log(path: Path) -> None:
    """Move the damaged lines of a log to a file beside it, and log one line that says so.

    A kill or a full disk may leave a part of a line. All judgements before and after it stay. A
    last line that lacks only its end gets one.
    """
    if not path.is_file():
        return
    with naming_full_disk(path.parent), locked(path.parent, _LONGEST_WAIT):
        lines = _lines(path)
        damaged = [row for row, line in enumerate(lines) if not _is_json(line)]
        if not damaged:
            if lines and not path.read_bytes().endswith(b"\n"):
                append_line(path, b"")
            return
        aside = path.with_name(path.name + DAMAGED)
        before = _lines(aside) if aside.is_file() else []
        intact = [line for line in lines if _is_json(line)]
        _write_lines(aside, before + [lines[row] for row in damaged])
        _write_lines(path, intact)
    log.warning(
        "%s:%d: %d damaged line(s) moved to %s; the other %d judgements count",
        path,
        damaged[0] + 1,
        len(damaged),
        aside.name,
        len(intact),
    )


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file without their ends."""
    lines = path.read_bytes().split(b"\n")
    if lines[-1]:
        return lines
    return lines[:-1]


def _write_lines(path: Path, lines: list[bytes]) -> None:
    with atomic_path(path) as draft:
        draft.write_bytes(b"".join(line + b"\n" for line in lines))


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line.decode())
    except ValueError:
        return False
    return True


class Asked(NamedTuple):
    """A query: of the collection where it has an id, else typed by the user."""

    text: str
    query_id: str | None = None

    @property
    def id(self) -> str:
        """Return the id of the query."""
        if self.query_id is None:
            return typed_id(self.text)
        return self.query_id


class _Step(NamedTuple):
    """A judgement that can be undone, and the grade of its pair before it."""

    pair: tuple[str, str]
    judgement: LoggedJudgement
    grade_before: int | None


class JudgementLog:
    """The log of judgements of a folder, and what follows from it: grades, qrels, undoing.

    Others may append to the same log, in this process or in another: the log alone counts.

    Attributes:
        grades: query id to document id to grade.
        pairs: all pairs that were ever judged.
        version: number of the judgements in the log.
        lock: for threads that read these.
    """

    def __init__(self, folder: Path) -> None:
        """Open the log of a folder; damaged lines are set aside, see :func:`repair_log`."""
        self.file = folder / LOG_FILE
        self._qrels = folder / QRELS_FILE
        self.lock = threading.RLock()
        self._state: tuple[str, str, str] | None = None
        self._forget()
        with _naming_file(self.file):
            repair_log(self.file)
        self.refresh()

    def refresh(self) -> None:
        """Read what was appended, or all where the log was edited, and bring the qrels up to date.

        Raises:
            InputError: a folder has the place of the log, or the files cannot be read or written.
        """
        with self.lock, _naming_file(self.file):
            if self.file.is_dir():
                raise InputError(f"{self.file} is a folder; move it away, the log is written there")
            size = 0
            if self.file.is_file():
                size = self.file.stat().st_size
            if self._was_edited(size):
                self._forget()
            if size > self._read and not self._read_on():
                repair_log(self.file)  # a writer was killed, and others appended after that
                self._read_on()
            if self._qrels_version != self.version:
                self._write_qrels()

    def judge(
        self,
        asked: Asked,
        document: str,
        grade: int | None,
        **drawn: object,
    ) -> None:
        """Append a judgement, unless the log says the same already.

        Args:
            asked: the query.
            document: id of the document.
            grade: the grade; None takes the judgement back.
            **drawn: other fields of :class:`LoggedJudgement`.
        """
        check_encodable(asked.text + document)
        with self.lock:
            self.refresh()
            if self.grades.get(asked.id, {}).get(document) != grade:
                log_judgement(
                    self.file,
                    document,
                    grade,
                    asked.text,
                    query_id=asked.query_id,
                    **drawn,
                )
                self.refresh()

    def undo(self, version: int) -> None:
        """Take the last judgement back; the one that it replaced counts again.

        Args:
            version: the version in which the person saw it; nothing happens in another one.
        """
        with self.lock:
            self.refresh()
            if version != self.version or not self._undo:
                return
            step = self._undo[-1]
            fields = {**vars(step.judgement), "grade": step.grade_before}
            del fields["time"]
            log_judgement(self.file, **fields)
            self.refresh()

    @property
    def can_undo(self) -> bool:
        """Return whether there is a judgement to undo."""
        return bool(self._undo)

    def _was_edited(self, size: int) -> bool:
        """Return whether what was read of the log is not its beginning any more."""
        if size < self._read:
            return True
        if not self._read:
            return False
        state = file_state(self.file)
        if state == self._state:
            return False
        self._state = state
        with self.file.open("rb") as file:
            return sha256(file.read(self._read)).digest() != self._content.digest()

    def _forget(self) -> None:
        self.version = 0
        self.grades: dict[str, dict[str, int]] = {}
        self.pairs: set[tuple[str, str]] = set()
        self._read = 0
        self._content = sha256()
        self._state = None
        self._qrels_version = 0
        self._undo: list[_Step] = []

    def _read_on(self) -> bool:
        """Apply the complete lines that were not read yet; return False at a damaged one."""
        with self.file.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    break
                if not _is_json(line):
                    return False
                self._read += len(line)
                self._content.update(line)
                self._apply(line)
        return True

    def _apply(self, line: bytes) -> None:
        self.version += 1
        where = f"{self.file}:{self.version}"
        judgement = LoggedJudgement.from_json(parse_json(line.decode()), where)
        query = Asked(judgement.query, judgement.query_id).id
        document = judgement.document_id
        self.pairs.add((query, document))
        grades = self.grades.setdefault(query, {})
        before = grades.pop(document, None)
        if judgement.grade is not None:
            grades[document] = judgement.grade
        if not grades:
            del self.grades[query]
        step = _Step((query, document), judgement, before)
        if self._undo and self._takes_back(step):
            self._undo.pop()
        else:
            self._undo.append(step)

    def _takes_back(self, step: _Step) -> bool:
        last = self._undo[-1]
        return last.pair == step.pair and last.grade_before == step.judgement.grade

    def _write_qrels(self) -> None:
        rows = []
        for query, grades in self.grades.items():
            for document, grade in grades.items():
                rows.append((query, document, grade))
        write_qrels(self._qrels, rows)
        self._qrels_version = self.version
