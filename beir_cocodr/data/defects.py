"""Defects of a collection as data: readers report them, and the caller decides what stops."""

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

# Duplicate ids that one error names.
_NAMED_DUPLICATES = 3


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect of a collection.

    Attributes:
        severity: an ``"error"`` stops loading, a ``"warning"`` is accepted and counted.
        kind: the category, as in the keys of ``Collection.counts``.
        file: the file with the defect, or ``irds:ID``.
        line: the line in that file, from 1 (for ir_datasets the number of the record); None for the
            whole file.
        id: the id of the query or document at fault; None if there is none.
        message: one line that says what is wrong, and the way out.
        times: the number of lines with this defect. Defects such as CRLF or absent titles are
            reported once for each file.
    """

    severity: Severity
    kind: str
    file: str
    line: int | None
    id: str | None
    message: str
    times: int = 1

    def __str__(self) -> str:
        """Return the defect as one line that begins with its file and line."""
        position = self.file
        if self.line is not None:
            position = f"{self.file}:{self.line}"
        return f"{position}: {self.message}"


def error(
    kind: str, file: str, message: str, line: int | None = None, id: str | None = None
) -> Defect:
    """Return a defect that stops loading."""
    return Defect("error", kind, file, line, id, message)


def warning(
    kind: str,
    file: str,
    message: str,
    line: int | None = None,
    id: str | None = None,
    times: int = 1,
) -> Defect:
    """Return a defect that is accepted and counted."""
    return Defect("warning", kind, file, line, id, message, times)


#: Receives the defects that a reader finds.
Report = Callable[[Defect], None]


def ignore(defect: Defect) -> None:
    """Ignore a defect, when a file is read again whose defects are known."""


def raise_errors(defect: Defect) -> None:
    """Raise the first error of a file that belongs to no collection.

    Raises:
        InputError: If the defect is an error.
    """
    if defect.severity == "error":
        raise InputError(str(defect))


class StrictReport:
    """A report that counts warnings by kind and raises the first error.

    Args:
        dataset: the collection, whose full list of defects the error points to; None if the file
            belongs to no collection.

    Attributes:
        counts: kind of warning to its number.
    """

    def __init__(self, dataset: str | None) -> None:
        """Begin with no warnings."""
        self.dataset = dataset
        self.counts: Counter[str] = Counter()

    def __call__(self, defect: Defect) -> None:
        """Count a warning, or raise an error.

        Raises:
            InputError: If the defect is an error.
        """
        if defect.severity == "error":
            if self.dataset is None:
                raise InputError(str(defect))
            raise InputError(
                f"{defect} (all defects: beir-cocodr validate --dataset {self.dataset})"
            )
        self.counts[defect.kind] += defect.times


class Duplicate(NamedTuple):
    """A record whose id or text an earlier record has."""

    line: int
    id: str
    first_line: int


class Repeats:
    """Repeated values, found by 8-byte hashes.

    Values whose hashes are equal are read again and compared themselves.
    """

    def __init__(self) -> None:
        """Begin with no values."""
        self._hashes = array("q")

    def add(self, values: Iterable[Hashable]) -> None:
        """Add values in the order of their records."""
        self._hashes.extend(map(hash, values))

    def hashes(self) -> Ints:
        """Return the (N,) int64 hashes in the order in which the values were added."""
        return np.asarray(self._hashes, dtype=np.int64)

    def repeated(self) -> Ints:
        """Return the int64 hashes of all values except the first of each, in ascending order."""
        ordered = np.sort(self.hashes())
        repeated: Ints = ordered[1:][ordered[1:] == ordered[:-1]]
        return repeated

    def find(
        self, read_again: Callable[[], Iterable[tuple[int, str, Hashable]]]
    ) -> Iterator[Duplicate]:
        """Yield the duplicates in the order of their lines.

        Args:
            read_again: yields (line, id, value) of all records; called only if hashes are equal.
        """
        suspects = set(self.repeated().tolist())
        if not suspects:
            return
        first_lines: dict[Hashable, int] = {}
        for line, id, value in read_again():
            if hash(value) not in suspects:
                continue
            first_line = first_lines.setdefault(value, line)
            if first_line != line:
                yield Duplicate(line, id, first_line)


def report_duplicates(
    duplicates: Iterable[Duplicate],
    file: str,
    report: Report,
) -> None:
    """Report every duplicate id as a separate error."""
    for line, id, first_line in duplicates:
        message = f"id {id!r} is already on line {first_line}; give every record a unique id"
        report(error("duplicate ids", file, message, line, id))


def check_duplicates(
    duplicates: Iterable[Duplicate],
    file: str,
    report: Report,
) -> None:
    """Report duplicate ids as one error that names the first three; the caller stops there."""
    first = list(islice(duplicates, _NAMED_DUPLICATES + 1))
    if not first:
        return
    pairs = []
    for line, id, first_line in first[:_NAMED_DUPLICATES]:
        pairs.append(f"id {id!r} on lines {first_line} and {line}")
    more = ""
    if len(first) > _NAMED_DUPLICATES:
        more = ", and more"
    message = f"duplicate ids: {', '.join(pairs)}{more}; give every record a unique id"
    report(error("duplicate ids", file, message, first[0].line, first[0].id))


class LineTally:
    """The number of lines with one defect, reported as a single warning at the first of them.

    It is for defects that every line may have, such as CRLF or an absent title: ten million equal
    warnings help nobody.
    """

    def __init__(self) -> None:
        """Begin with no lines."""
        self.times = 0
        self.first: int | None = None

    def add(self, line: int) -> None:
        """Count a line."""
        self.times += 1
        if self.first is None:
            self.first = line

    def report(
        self,
        report: Report,
        kind: str,
        file: str,
        message: str,
    ) -> None:
        """Report the count if it is above 0; it replaces ``{}`` in the message."""
        if self.times:
            report(warning(kind, file, message.format(self.times), self.first, times=self.times))
