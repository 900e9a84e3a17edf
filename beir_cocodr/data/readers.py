"""The one reader of text files: documents, queries and judgements, as JSON lines or tab-separated.

Loading and validation both stand on it, so that they cannot disagree. What every document and query has to satisfy,
wherever it was read, is checked by :class:`RecordChecker`.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from beir_cocodr.data.defects import LineTally, Report

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(path: Path, report: Report) -> Iterator[tuple[int, str]]:
    """Stream the lines of a UTF-8 file, plain or ``.gz``, as (line number from 1, text without line end).

    Lines end at a line feed. Blank lines are left out. A line that is not UTF-8 is reported and left out.

    Args:
        path: the file; ``.gz`` is decompressed on the way.
        report: gets the errors "not UTF-8" and "unreadable file", and once a file the warnings "CRLF", "blank lines"
            and "byte order mark".
    """
    file = str(path)
    crlf, blank = LineTally(), LineTally()
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream, 1):
                raw = line.removesuffix(b"\n")
                if raw.endswith(b"\r"):
                    raw = raw[:-1]
                    crlf.add(number)
                if number == 1 and raw.startswith(_BYTE_ORDER_MARK):
                    raw = raw[3:]
                    report("warning", "byte order mark", file, 1, None, "a byte order mark was left out")
                if not raw or raw.isspace():
                    blank.add(number)
                    continue
                try:
                    text = raw.decode()
                except UnicodeDecodeError as error:
                    message = f"not UTF-8 at byte {error.start + 1} of the line; convert the file to UTF-8"
                    report("error", "not UTF-8", file, number, None, message)
                    continue
                yield number, text
    except (OSError, EOFError, zlib.error) as error:
        message = f"cannot be read to its end ({error}); check it, or copy it again"
        report("error", "unreadable file", file, None, None, message)
    crlf.report(report, "CRLF", file, "{} lines end with CRLF, read as LF")
    blank.report(report, "blank lines", file, "{} blank lines were left out")


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb", 1 << 20)


def json_records(path: Path, report: Report) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Stream (line number, object) of a JSON lines file; None in place of an object that was refused.

    Args:
        path: the file, plain or ``.gz``.
        report: gets the error "broken JSON", next to what `numbered_lines` reports.
    """
    file = str(path)
    for line, text in numbered_lines(path, report):
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            message = f"broken JSON at column {error.colno} ({error.msg}); write one JSON object a line"
            report("error", "broken JSON", file, line, None, message)
        except (ValueError, RecursionError):
            message = "broken JSON: too long a number or too deep a nesting; write one flat JSON object a line"
            report("error", "broken JSON", file, line, None, message)
        else:
            if isinstance(record, dict):
                yield line, record
                continue
            message = "broken JSON: not an object; write {...} with _id and text on every line"
            report("error", "broken JSON", file, line, None, message)
        yield line, None


#: Line, id, title, text.
Document = tuple[int, str, str, str]

#: Line, id, text.
Query = tuple[int, str, str]

# TREC runs and qrels separate by white space, and their C readers end a string at a control character.
_UNSAFE_IN_ID = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


class RecordChecker:
    """Turns raw field values of one file into documents or queries, and reports what is wrong with them.

    Args:
        file: the name used in reports.
        report: gets the errors "missing ids", "ids not strings", "white space in ids", "text not a string" and "not
            UTF-8", and the warnings "integer ids", "title null or absent", "title-only documents", "empty documents"
            and "empty queries".
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


CORPUS_SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")


def read_documents(path: Path, report: Report) -> Iterator[Document]:
    """Stream the documents of a ``.jsonl`` or ``.tsv`` file, plain or ``.gz``, as (line, id, title, text).

    JSON lines take ``_id``, else ``id``; ``text``, else ``contents``; ``title`` may be absent. A tab-separated file is
    ``id<TAB>text`` or ``id<TAB>title<TAB>text``, without quoting: its first line decides which of the two the whole
    file is. A first line whose first cell is ``id`` or ``_id`` and whose last is ``text`` or ``contents`` is a header.

    Args:
        path: the file.
        report: gets the defects, among them the errors "broken JSON", "wrong columns", "no text field" and "empty
            corpus".
    """
    checker = RecordChecker(str(path), report)
    read = _read_tsv if path.name.endswith((".tsv", ".tsv.gz")) else _read_jsonl
    yield from read(path, checker)
    checker.finish()


def _read_jsonl(path: Path, checker: RecordChecker) -> Iterator[Document]:
    seen = with_text = False
    for line, record in json_records(path, checker.report):
        seen = True
        if record is None:
            # What its fields are is not known, so that "no text field" would be one claim too many.
            with_text = True
            continue
        raw_id = record.get("_id")
        text = record.get("text")
        if text is None:
            text = record.get("contents")
        if "title" in record:
            title = record["title"]
        else:
            checker.absent_title(line)
            title = ""
        with_text = with_text or text is not None or bool(title)
        document = checker.document(line, record.get("id") if raw_id is None else raw_id, title, text)
        if document is not None:
            yield document
    if not seen:
        _report_empty(checker)
    elif not with_text:
        message = "no document has a field text, contents or title; rename the field that holds the text"
        checker.report("error", "no text field", checker.file, None, None, message)


def _read_tsv(path: Path, checker: RecordChecker) -> Iterator[Document]:
    columns = 0
    seen = False
    for line, text in numbered_lines(path, checker.report):
        cells = text.split("\t")
        if not columns:
            columns = min(max(len(cells), 2), 3)
            if cells[0] in {"id", "_id"} and cells[-1] in {"text", "contents"}:
                checker.report("warning", "header line", checker.file, line, None, "read as a header")
                continue
        seen = True
        if len(cells) != columns:
            message = (
                f"{len(cells)} columns where the first line asks for {columns} "
                f"(id, {'title, ' if columns == 3 else ''}text); replace the tabs in texts"
            )
            checker.report("error", "wrong columns", checker.file, line, cells[0] or None, message)
            continue
        document = checker.document(line, cells[0], cells[1] if columns == 3 else "", cells[-1])
        if document is not None:
            yield document
    if not seen:
        _report_empty(checker)


def _report_empty(checker: RecordChecker) -> None:
    message = "empty: no document can be read from it; it needs at least one"
    checker.report("error", "empty corpus", checker.file, None, None, message)


def read_queries(path: Path, report: Report) -> Iterator[Query]:
    """Stream the queries of a ``queries.jsonl`` file, plain or ``.gz``, as (line, id, text).

    Args:
        path: the file; objects with ``_id``, else ``id``, and ``text``.
        report: gets the defects, those of `json_records` and of `RecordChecker`.
    """
    checker = RecordChecker(str(path), report)
    for line, record in json_records(path, report):
        if record is None:
            continue
        raw_id = record.get("_id")
        query = checker.query(line, record.get("id") if raw_id is None else raw_id, record.get("text"))
        if query is not None:
            yield query
    checker.finish()


#: Line, query id, document id, grade.
Judgement = tuple[int, str, str, int]

_GRADE = re.compile(r" *[+-]?[0-9]{1,9} *")

_GRADE_HEADERS = {"score", "relevance", "rel", "label", "grade"}


def read_judgements(path: Path, report: Report) -> Iterator[Judgement]:
    """Stream the judgements of a qrels file, plain or ``.gz``, as (line, query id, document id, grade).

    Two layouts, told apart by the first line: BEIR's three columns (query, document, grade; a header line such as
    ``query-id corpus-id score`` is recognised by its last cell) and TREC's four (query, iteration, document, grade). A
    line with tabs is cut at its tabs, another at white space. A grade is an integer: ``1.0`` is refused, as tools
    disagree on what to make of it.

    Args:
        path: the file.
        report: gets the errors "wrong columns", "non-integer grades" and those of the ids, and the warning "qrels
            without header" (BEIR's own loader would lose the first judgement of such a file).
    """
    checker = RecordChecker(str(path), report)
    columns = 0
    for line, text in numbered_lines(path, report):
        cells = text.split("\t") if "\t" in text else text.split()
        if not columns:
            columns = 4 if len(cells) == 4 else 3
            if cells[-1].strip().lower() in _GRADE_HEADERS:
                continue
            if columns == 3:
                message = "no header line, which BEIR's loader expects; put query-id, corpus-id, score on top"
                report("warning", "qrels without header", checker.file, line, None, message)
        if len(cells) != columns:
            message = f"{len(cells)} columns where {columns} are expected; write query, document, grade"
            report("error", "wrong columns", checker.file, line, None, message)
            continue
        judgement = _judgement(line, cells, checker)
        if judgement is not None:
            yield judgement
    checker.finish()


def integer_grade(text: str) -> int | None:
    """The grade that a text states, None if that is not an integer in plain decimal digits."""
    return int(text) if _GRADE.fullmatch(text) else None


def _judgement(line: int, cells: list[str], checker: RecordChecker) -> Judgement | None:
    query, document = checker.identifier(line, cells[0]), checker.identifier(line, cells[-2])
    grade = integer_grade(cells[-1])
    if grade is None:
        message = f"grade {cells[-1]!r} is not an integer; write 0, 1, 2, ..."
        checker.report("error", "non-integer grades", checker.file, line, query, message)
        return None
    if query is None or document is None:
        return None
    return line, query, document, grade
