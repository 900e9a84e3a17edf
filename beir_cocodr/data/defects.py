"""What is wrong with a collection, as data: the reader reports, the caller decides; loading stops
at errors.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np

from beir_cocodr.arrays import Ints
from beir_cocodr.errors import InputError

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect of a collection.

    Attributes:
        severity: ``"error"`` is what stops loading, ``"warning"`` what it accepts and counts.
        kind: the category, the same words as the keys of ``Collection.counts``.
        file: the file it stands in, or ``irds:ID``.
        line: line in that file from 1 (the record's number for ir_datasets), None if it is the
            whole file.
        id: of the query or document at fault, None where there is none.
        message: one line, what is wrong and the way out.
        times: how many lines this one defect stands for (CRLF, absent titles, ... are reported once
        a file).
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


def error(
    kind: str, file: str, message: str, line: int | None = None, id: str | None = None
) -> Defect:
    return Defect("error", kind, file, line, id, message)


def warning(
    kind: str,
    file: str,
    message: str,
    line: int | None = None,
    id: str | None = None,
    times: int = 1,
) -> Defect:
    return Defect("warning", kind, file, line, id, message, times)


#: Receives the defects that a reader finds.
Report = Callable[[Defect], None]


def ignore(defect: Defect) -> None:
    """A `Report` for reading a file again whose defects are already known."""


def raise_errors(defect: Defect) -> None:
    """A `Report` for a file that belongs to no collection: raises `InputError` at the first
    error.
    """
    if defect.severity == "error":
        raise InputError(str(defect))


class StrictReport:
    """A `Report` that raises `InputError` at the first error with the way to a full list; counts
    warnings by kind.
    """

    def __init__(self, dataset: str | None) -> None:
        self.dataset = dataset
        self.counts: Counter[str] = Counter()

    def __call__(self, defect: Defect) -> None:
        """Count a warning, and raise an error."""
        if defect.severity == "error":
            if self.dataset is None:
                raise InputError(str(defect))
            raise InputError(
                f"{defect} (all defects: beir-cocodr validate --dataset {self.dataset})"
            )
        self.counts[defect.kind] += defect.times


class Duplicate(NamedTuple):
    """A record that has stood before."""

    line: int
    id: str
    first_line: int


class Repeats:
    """Finds repeated values by 8-byte hashes; values whose hashes meet are read again and compared
    themselves.
    """

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, values: Iterable[Hashable]) -> None:
        self._hashes.extend(map(hash, values))

    def hashes(self) -> Ints:
        """(N,) int64 hashes in the order in which they were added."""
        return np.asarray(self._hashes, dtype=np.int64)

    def repeated(self) -> Ints:
        """The hashes of all values but the first of each, int64, ascending."""
        ordered = np.sort(self.hashes())
        repeated: Ints = ordered[1:][ordered[1:] == ordered[:-1]]
        return repeated

    def find(
        self, read_again: Callable[[], Iterable[tuple[int, str, Hashable]]]
    ) -> Iterator[Duplicate]:
        """Stream the duplicates in the order of their lines; where there are any, (line, id, value)
        are read again.
        """
        suspects = set(self.repeated().tolist())
        if not suspects:
            return
        first_lines: dict[Hashable, int] = {}
        for line, id, value in read_again():
            if hash(value) in suspects and (first := first_lines.setdefault(value, line)) != line:
                yield Duplicate(line, id, first)


def report_duplicates(duplicates: Iterable[Duplicate], file: str, report: Report) -> None:
    """Report every duplicate id as an error of its own."""
    for line, id, first_line in duplicates:
        message = (
            f"id {id!r} already stands on line {first_line}; give every record an id of its own"
        )
        report(error("duplicate ids", file, message, line, id))


def check_duplicates(duplicates: Iterable[Duplicate], file: str, report: Report) -> None:
    """Report the first three duplicate ids, if there are any, as one error: for a caller that stops
    there.
    """
    first = list(islice(duplicates, 4))
    if first:
        places = [
            f"id {id!r} on lines {first_line} and {line}" for line, id, first_line in first[:3]
        ]
        more = ", and more" if len(first) > 3 else ""
        message = f"duplicate ids: {', '.join(places)}{more}; give every record an id of its own"
        report(error("duplicate ids", file, message, first[0].line, first[0].id))


class LineTally:
    """Counts lines of one kind and reports them as a single warning, at the first of them.

    For what may be true of every line (CRLF, no title): ten million equal warnings help nobody.
    """

    def __init__(self) -> None:
        self.times = 0
        self.first: int | None = None

    def add(self, line: int) -> None:
        self.times += 1
        if self.first is None:
            self.first = line

    def report(self, report: Report, kind: str, file: str, message: str) -> None:
        """Report the count, if there is one; ``{}`` in the message stands for it."""
        if self.times:
            report(warning(kind, file, message.format(self.times), self.first, times=self.times))
