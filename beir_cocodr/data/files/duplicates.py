"""Finding ids that stand twice, without keeping the ids."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from beir_cocodr.data.files.defects import Report


class Duplicate(NamedTuple):
    """An id that has stood before."""

    line: int
    id: str
    first_line: int


class DuplicateIds:
    """Collects ids as 8-byte hashes; ids whose hashes meet are read again and compared themselves."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, ids: Iterable[str]) -> None:
        self._hashes.extend(map(hash, ids))

    def find(self, read_again: Callable[[], Iterable[tuple[int, str]]]) -> Iterator[Duplicate]:
        """Stream the duplicates in the order of their lines.

        Args:
            read_again: gives the (line, id) pairs a second time. Not called if there are no duplicates.
        """
        hashes = np.sort(np.asarray(self._hashes, dtype=np.int64))
        suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        if not suspects:
            return
        first_lines: dict[str, int] = {}
        for line, id in read_again():
            if hash(id) in suspects:
                first_line = first_lines.setdefault(id, line)
                if first_line != line:
                    yield Duplicate(line, id, first_line)


def report_duplicates(duplicates: Iterable[Duplicate], file: str, report: Report) -> None:
    """Report every duplicate as an error of its own."""
    for line, id, first_line in duplicates:
        message = f"id {id!r} already stands on line {first_line}; give every record an id of its own"
        report("error", "duplicate ids", file, line, id, message)


def refuse_duplicates(duplicates: Iterable[Duplicate], file: str, report: Report) -> None:
    """Report the first three duplicates, if there are any, as one error: for a caller that stops there."""
    first = list(islice(duplicates, 4))
    if first:
        places = [f"id {id!r} on lines {first_line} and {line}" for line, id, first_line in first[:3]]
        more = ", and more" if len(first) > 3 else ""
        message = f"duplicate ids: {', '.join(places)}{more}; give every record an id of its own"
        report("error", "duplicate ids", file, first[0].line, first[0].id, message)
