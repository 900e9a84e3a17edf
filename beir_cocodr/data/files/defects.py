"""What is wrong with a collection, as data: the reader reports, the caller decides what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect of a collection.

    Attributes:
        severity: ``"error"`` is what loading refuses, ``"warning"`` what it accepts and counts.
        kind: the category, the same words as the keys of ``Collection.counts``.
        file: the file it stands in, or ``irds:ID``.
        line: line in that file from 1 (the record's number for ir_datasets), None if it is the whole file.
        id: the id of the query or document at fault, None where there is none.
        message: one line, what is wrong and the way out.
        times: how many lines this one defect stands for (CRLF, absent titles, ... are reported once a file).
    """

    severity: Severity
    kind: str
    file: str
    line: int | None
    id: str | None
    message: str
    times: int = 1

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}"


class Report(Protocol):
    """Receives the fields of a `Defect`, so that a caller that only counts makes no objects."""

    def __call__(
        self,
        severity: Severity,
        kind: str,
        file: str,
        line: int | None,
        id: str | None,
        message: str,
        times: int = 1,
    ) -> None: ...


def ignore(
    severity: Severity,
    kind: str,
    file: str,
    line: int | None,
    id: str | None,
    message: str,
    times: int = 1,
) -> None:
    """A `Report` for reading a file again whose defects are already known."""
