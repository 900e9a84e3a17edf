"""The judgements of a folder, as they stand in its log: grades, qrels, and what can be undone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

from beir_cocodr.data.judgements import LoggedJudgement, log_judgement, typed_id
from beir_cocodr.errors import InputError
from beir_cocodr.io import parse_json, write_text

LOG_FILE, QRELS_FILE = "judgements.jsonl", "qrels.tsv"


class Asked(NamedTuple):
    """A query: of the collection where it has an id, else typed."""

    text: str
    query_id: str | None = None

    @property
    def id(self) -> str:
        return typed_id(self.text) if self.query_id is None else self.query_id


class JudgementLog:
    """The log of judgements of a folder and what follows from it: grades, what can be undone, and qrels.

    Others may append to the same log, here or in another process: what counts is what stands in it. The version is the
    number of its lines.

    Attributes:
        grades: query id to document id to grade.
        pairs: all that were ever judged.
    """

    def __init__(self, folder: Path) -> None:
        self.file, self._qrels = folder / LOG_FILE, folder / QRELS_FILE
        self._lock = threading.RLock()
        self._forget()
        self.refresh()

    def refresh(self) -> None:
        """Read what was appended, and bring the qrels to it."""
        with self._lock:
            size = self.file.stat().st_size if self.file.is_file() else 0
            if size < self._read:
                self._forget()
            if size == self._read:
                return
            with self.file.open("rb") as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):  # it is being written
                        break
                    self._read += len(line)
                    self._apply(line)
            rows = ((id, *pair) for id, found in self.grades.items() for pair in found.items())
            text = "".join(f"{id}\t{document}\t{grade}\n" for id, document, grade in rows)
            write_text(self._qrels, f"query-id\tcorpus-id\tscore\n{text}")

    def judge(self, asked: Asked, document: str, grade: int | None, **drawn: object) -> None:
        """Append a judgement, unless that is what the log says already.

        Args:
            asked: the query.
            document: its id.
            grade: None takes back.
            drawn: further fields of :class:`~beir_cocodr.data.judgements.LoggedJudgement`.
        """
        with self._lock:
            self.refresh()
            if self.grades.get(asked.id, {}).get(document) != grade:
                log_judgement(self.file, document, grade, asked.text, query_id=asked.query_id, **drawn)
                self.refresh()

    def undo(self, version: int) -> None:
        """Take the last judgement back, if it is the last in that version; what it replaced counts again."""
        with self._lock:
            self.refresh()
            if version == self.version and self._undo:
                _, last, before = self._undo[-1]
                fields = {name: value for name, value in vars(last).items() if name != "time"}
                log_judgement(self.file, **fields | {"grade": before})
                self.refresh()

    @property
    def can_undo(self) -> bool:
        return bool(self._undo)

    def _forget(self) -> None:
        self.version, self._read = 0, 0
        self.grades: dict[str, dict[str, int]] = {}
        self.pairs: set[tuple[str, str]] = set()
        self._undo: list[tuple[tuple[str, str], LoggedJudgement, int | None]] = []

    def _apply(self, line: bytes) -> None:
        self.version += 1
        where = f"{self.file}:{self.version}"
        try:
            judged = LoggedJudgement.from_json(parse_json(line.decode()), where)
        except ValueError as error:
            raise (
                error
                if isinstance(error, InputError)
                else InputError(f"{where}: no judgement ({error}); take the line away")
            ) from error
        key = Asked(judged.query, judged.query_id).id, judged.document_id
        self.pairs.add(key)
        grades = self.grades.setdefault(key[0], {})
        before = grades.pop(judged.document_id, None)
        if judged.grade is not None:
            grades[judged.document_id] = judged.grade
        if not grades:
            del self.grades[key[0]]
        last = self._undo[-1] if self._undo else None
        if last is not None and (last[0], last[2]) == (key, judged.grade):
            self._undo.pop()  # this line took that one back
        else:
            self._undo.append((key, judged, before))
