"""What every document and query has to satisfy, wherever it was read."""

from __future__ import annotations

import re

from beir_cocodr.data.files.defects import Report
from beir_cocodr.data.files.line_tally import LineTally

Document = tuple[int, str, str, str]
"""(line, id, title, text)"""

Query = tuple[int, str, str]
"""(line, id, text)"""

# TREC runs and qrels separate by white space, and their C readers end a string at a control character.
_UNSAFE_IN_ID = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


class RecordChecker:
    """Turns raw field values of one file into documents or queries, and reports what is wrong with them.

    Args:
        file: the name used in reports.
        report: gets the errors "missing ids", "ids not strings", "white space in ids", "text not a string"
            and "not UTF-8", and the warnings "integer ids", "title null or absent", "title-only documents",
            "empty documents" and "empty queries".
    """

    def __init__(self, file: str, report: Report) -> None:
        self.file = file
        self.report = report
        self._integer_ids = LineTally()
        self._absent_titles = LineTally()

    def identifier(self, line: int, raw: object) -> str | None:
        """The id as a string, None if it cannot serve; white space is reported and let through."""
        if isinstance(raw, int) and not isinstance(raw, bool):
            self._integer_ids.add(line)
            return str(raw)
        if raw is None or raw == "":
            self._error("missing ids", line, None, "no id; give every record an _id of its own")
            return None
        if not isinstance(raw, str):
            self._error("ids not strings", line, None, f"the id is {_kind(raw)}; write it as a string")
            return None
        if _UNSAFE_IN_ID.search(raw):
            message = f"id {raw!r} has white space or control characters, which runs and qrels cannot hold"
            self._error("white space in ids", line, raw, f"{message}; replace them")
        return raw if self._encodable(line, None, raw) else None

    def document(self, line: int, raw_id: object, title: object, text: object) -> Document | None:
        """(line, id, title, text), None if the record cannot be used; a null title or text becomes ""."""
        id = self.identifier(line, raw_id)
        if id is None:
            return None
        if title is None:
            message = "the title is null, read as empty; write a string"
            self.report("warning", "title null or absent", self.file, line, id, message)
        checked_title, checked_text = self._text(line, id, "title", title), self._text(line, id, "text", text)
        if checked_title is None or checked_text is None:
            return None
        if not checked_text or checked_text.isspace():
            if not checked_title or checked_title.isspace():
                message = "neither title nor text; it stays in the corpus and can hardly be found"
                self.report("warning", "empty documents", self.file, line, id, message)
            else:
                message = "no text, only a title"
                self.report("warning", "title-only documents", self.file, line, id, message)
        return line, id, checked_title, checked_text

    def query(self, line: int, raw_id: object, text: object) -> Query | None:
        """(line, id, text), None if the record cannot be used; a null text becomes ""."""
        id = self.identifier(line, raw_id)
        if id is None:
            return None
        checked = self._text(line, id, "text", text)
        if checked is None:
            return None
        if not checked or checked.isspace():
            self.report("warning", "empty queries", self.file, line, id, "the query has no text")
        return line, id, checked

    def absent_title(self, line: int) -> None:
        """Count a record without a title field; the caller passes "" on."""
        self._absent_titles.add(line)

    def finish(self) -> None:
        """Report what is counted once a file."""
        message = "{} ids are JSON integers, read as their decimal strings"
        self._integer_ids.report(self.report, "integer ids", self.file, message)
        message = "{} documents have no title field, read as an empty title"
        self._absent_titles.report(self.report, "title null or absent", self.file, message)

    def _text(self, line: int, id: str, field: str, raw: object) -> str | None:
        if raw is None:
            return ""
        if isinstance(raw, str):
            return raw if self._encodable(line, id, raw) else None
        self._error("text not a string", line, id, f"the {field} is {_kind(raw)}; write it as a string")
        return None

    def _encodable(self, line: int, id: str | None, value: str) -> bool:
        # JSON can escape half of a surrogate pair, which no UTF-8 file or tokenizer can take.
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                message = "an escape such as \\ud800 stands for half a character; write the whole character"
                self._error("not UTF-8", line, id, message)
                return False
        return True

    def _error(self, kind: str, line: int, id: str | None, message: str) -> None:
        self.report("error", kind, self.file, line, id, message)


def _kind(raw: object) -> str:
    names = {bool: "a boolean", float: "a decimal number", int: "a number", list: "a list", dict: "an object"}
    return names.get(type(raw), f"of type {type(raw).__name__}")
