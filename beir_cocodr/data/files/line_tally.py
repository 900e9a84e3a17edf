"""Counting lines of one kind, to be reported once a file."""

from __future__ import annotations

from beir_cocodr.data.files.defects import Report


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
            report("warning", kind, file, self.first, None, message.format(self.times), self.times)
