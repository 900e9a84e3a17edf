"""The one reader of text files, for loading and validation: documents, queries and judgements, as
JSON lines or TSV. What every document and query has to satisfy, wherever it was read, is checked by
:class:`RecordChecker`.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from beir_cocodr.data.defects import LineTally, Report, error, raise_errors, warning
from beir_cocodr.errors import InputError
from beir_cocodr.io import Json

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(path: Path, report: Report) -> Iterator[tuple[int, str]]:
    """Stream the lines of a UTF-8 file, plain or ``.gz``, as (line number from 1, text without line
    end).

    Lines end at a line feed. Blank lines, and lines that are not UTF-8, are left out. Reported are
    the errors "not UTF-8" and "unreadable file", and once a file the warnings "CRLF", "blank lines"
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
                    report(warning("byte order mark", file, "a byte order mark was left out", 1))
                if not raw or raw.isspace():
                    blank.add(number)
                    continue
                try:
                    text = raw.decode()
                except UnicodeDecodeError as cause:
                    message = f"not UTF-8 at byte {cause.start + 1} of the line; convert the file to UTF-8"
                    report(error("not UTF-8", file, message, number))
                    continue
                yield number, text
    except (OSError, EOFError, zlib.error) as cause:
        report(
            error(
                "unreadable file",
                file,
                f"cannot be read to its end ({cause}); check it, or copy it again",
            )
        )
    crlf.report(report, "CRLF", file, "{} lines end with CRLF, read as LF")
    blank.report(report, "blank lines", file, "{} blank lines were left out")


def _open(path: Path) -> BinaryIO:
    return (
        cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb", 1 << 20)
    )


def json_records(path: Path, report: Report) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Stream (line number, object) of JSON lines, plain or ``.gz``; where none, None, and "broken
    JSON" is counted.
    """
    for line, text in numbered_lines(path, report):
        record = None
        try:
            record = json.loads(text)
            message = "broken JSON: not an object; write {...} with _id and text on every line"
        except json.JSONDecodeError as cause:
            message = (
                f"broken JSON at column {cause.colno} ({cause.msg}); write one JSON object a line"
            )
        except (ValueError, RecursionError):
            message = "broken JSON: too long a number or too deep a nesting; write one flat JSON object a line"
        if isinstance(record, dict):
            yield line, record
        else:
            report(error("broken JSON", str(path), message, line))
            yield line, None


#: Line, id, title, text.
Document = tuple[int, str, str, str]

#: Line, id, text.
Query = tuple[int, str, str]

#: Line, query id, document id, grade.
Judgement = tuple[int, str, str, int]
_GRADE = re.compile(r" *[+-]?[0-9]{1,9} *")

# TREC runs and qrels separate by white space, and their C readers end a string at a control
# character.
_UNSAFE_IN_ID = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


class RecordChecker:
    """Turns raw field values of one file into documents, queries or judgements, and reports what is
    wrong with them.

    Reported are the errors "missing ids", "ids not strings", "white space in ids", "text not a
    string", "not UTF-8", "non-integer grades" and "empty corpus", and the warnings "integer ids",
    "title null or absent", "title-only documents", "empty documents" and "empty queries".

    Args:
        file: the name used in reports.
        report: gets the defects.
    """

    def __init__(self, file: str, report: Report) -> None:
        self.file, self.report = file, report
        self._integer_ids, self._absent_titles = LineTally(), LineTally()

    def error(
        self, kind: str, message: str, line: int | None = None, id: str | None = None
    ) -> None:
        self.report(error(kind, self.file, message, line, id))

    def warning(
        self, kind: str, message: str, line: int | None = None, id: str | None = None
    ) -> None:
        self.report(warning(kind, self.file, message, line, id))

    def identifier(self, line: int, raw: object) -> str | None:
        """The id as a string, None if it cannot serve; white space is reported and let through."""
        if isinstance(raw, int) and not isinstance(raw, bool):
            self._integer_ids.add(line)
            return str(raw)
        if raw is None or raw == "":
            self.error("missing ids", "no id; give every record an _id of its own", line)
            return None
        if not isinstance(raw, str):
            self.error("ids not strings", f"the id is {_kind(raw)}; write it as a string", line)
            return None
        if _UNSAFE_IN_ID.search(raw):
            message = f"id {raw!r} has white space or control characters, which runs and qrels cannot hold"
            self.error("white space in ids", f"{message}; replace them", line, raw)
        return raw if self._encodable(line, None, raw) else None

    def document(self, line: int, raw_id: object, title: object, text: object) -> Document | None:
        """(line, id, title, text), None if the record cannot be used; a null title or text becomes
        "".
        """
        id = self.identifier(line, raw_id)
        if id is None:
            return None
        if title is None:
            self.warning(
                "title null or absent", "the title is null, read as empty; write a string", line, id
            )
        checked_title, checked_text = (
            self._text(line, id, "title", title),
            self._text(line, id, "text", text),
        )
        if checked_title is None or checked_text is None:
            return None
        if not checked_text or checked_text.isspace():
            if not checked_title or checked_title.isspace():
                message = "neither title nor text; it stays in the corpus and can hardly be found"
                self.warning("empty documents", message, line, id)
            else:
                self.warning("title-only documents", "no text, only a title", line, id)
        return line, id, checked_title, checked_text

    def query(self, line: int, raw_id: object, text: object) -> Query | None:
        """(line, id, text), None if the record cannot be used; a null text becomes ""."""
        id = self.identifier(line, raw_id)
        checked = None if id is None else self._text(line, id, "text", text)
        if id is None or checked is None:
            return None
        if not checked or checked.isspace():
            self.warning("empty queries", "the query has no text", line, id)
        return line, id, checked

    def judgement(
        self, line: int, raw_query: object, raw_document: object, raw_grade: object
    ) -> Judgement | None:
        """(line, query id, document id, grade), None if the record cannot be used."""
        query, document = self.identifier(line, raw_query), self.identifier(line, raw_document)
        if not _GRADE.fullmatch(str(raw_grade)):
            message = f"grade {raw_grade!r} is not an integer; write or choose integer grades: 0, 1, 2, ..."
            self.error("non-integer grades", message, line, query)
            return None
        return (
            None
            if query is None or document is None
            else (line, query, document, int(str(raw_grade)))
        )

    def empty_corpus(self) -> None:
        self.error("empty corpus", "empty: no document can be read from it; it needs at least one")

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
        self.error(
            "text not a string", f"the {field} is {_kind(raw)}; write it as a string", line, id
        )
        return None

    def _encodable(self, line: int, id: str | None, value: str) -> bool:
        # JSON can escape half of a surrogate pair, which no UTF-8 file or tokenizer can take.
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                message = "an escape such as \\ud800 stands for half a character; write the whole character"
                self.error("not UTF-8", message, line, id)
                return False
        return True


def _kind(raw: object) -> str:
    names = {
        bool: "a boolean",
        float: "a decimal number",
        int: "a number",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(raw), f"of type {type(raw).__name__}")


CORPUS_SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")


def read_documents(path: Path, report: Report) -> Iterator[Document]:
    """Stream the documents of a ``.jsonl`` or ``.tsv`` file, plain or ``.gz``, as (line, id, title,
    text).

    JSON lines take ``_id``, else ``id``; ``text``, else ``contents``; ``title`` may be absent. A
    tab-separated file is ``id<TAB>text`` or ``id<TAB>title<TAB>text``, without quoting: its first
    line decides which of the two the whole file is. A first line whose first cell is ``id`` or
    ``_id`` and whose last is ``text`` or ``contents`` is a header.

    Reported are, among others, the errors "broken JSON", "wrong columns", "no text field" and
    "empty corpus".
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
        text, title = _first(record, "text", "contents"), record.get("title", "")
        if "title" not in record:
            checker.absent_title(line)
        with_text = with_text or text is not None or bool(title)
        if (
            document := checker.document(line, _first(record, "_id", "id"), title, text)
        ) is not None:
            yield document
    if not seen:
        checker.empty_corpus()
    elif not with_text:
        message = (
            "no document has a field text, contents or title; rename the field that holds the text"
        )
        message += ", or name it with --text-column"
        checker.error("no text field", message)


def _first(record: Json, name: str, other: str) -> Any:
    value = record.get(name)
    return record.get(other) if value is None else value


def _read_tsv(path: Path, checker: RecordChecker) -> Iterator[Document]:
    columns, seen = 0, False
    for line, text in numbered_lines(path, checker.report):
        cells = text.split("\t")
        if not columns:
            columns = min(max(len(cells), 2), 3)
            if cells[0] in {"id", "_id"} and cells[-1] in {"text", "contents"}:
                checker.warning("header line", "read as a header", line)
                continue
        seen = True
        if len(cells) != columns:
            message = (
                f"{len(cells)} columns where the first line asks for {columns} "
                f"(id, {'title, ' if columns == 3 else ''}text); replace the tabs in texts"
            )
            checker.error("wrong columns", message, line, cells[0] or None)
            continue
        title = cells[1] if columns == 3 else ""
        if (document := checker.document(line, cells[0], title, cells[-1])) is not None:
            yield document
    if not seen:
        checker.empty_corpus()


def read_queries(path: Path, report: Report) -> Iterator[Query]:
    """Stream the queries of a ``queries.jsonl`` file (``_id``, else ``id``, and ``text``) as (line,
    id, text).
    """
    checker = RecordChecker(str(path), report)
    for line, record in json_records(path, report):
        if record is None:
            continue
        if (
            query := checker.query(line, _first(record, "_id", "id"), record.get("text"))
        ) is not None:
            yield query
    checker.finish()


def read_query_file(path: Path) -> dict[str, str]:
    """Query ids and texts of a file that a person wrote: JSON lines (``.jsonl``), ``id<TAB>text``
    (``.tsv``), or any other text file with a query a line, whose ids are the numbers of the lines.
    An InputError names file and line: it cannot be read, an id stands twice, or there is no query.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file of queries")
    found: dict[str, str] = {}
    for line, id, text in _queries_of(path):
        if id in found or not text.strip():
            fault = (
                f"query {id!r} stands there a second time"
                if id in found
                else f"query {id!r} has no text"
            )
            raise InputError(f"{path}:{line}: {fault}; correct the line")
        found[id] = text
    if not found:
        raise InputError(f"{path} has no queries; write one a line")
    return found


def _queries_of(path: Path) -> Iterator[Query]:
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from read_queries(path, raise_errors)
        return
    checker = RecordChecker(str(path), raise_errors)
    for line, text in numbered_lines(path, raise_errors):
        id, tab, own = text.partition("\t")
        if not path.name.endswith((".tsv", ".tsv.gz")):
            yield line, str(line), text
        elif not tab:
            raise InputError(f"{path}:{line}: no tab; write id<TAB>text")
        elif (query := checker.query(line, id, own)) is not None:
            yield query


_GRADE_HEADERS = {"score", "relevance", "rel", "label", "grade"}


def read_judgements(path: Path, report: Report) -> Iterator[Judgement]:
    """Stream the judgements of a qrels file, plain or ``.gz``, as (line, query id, document id,
    grade).

    Two layouts, distinguished by the first line: BEIR's three columns (query, document, grade; a
    header line such as ``query-id corpus-id score`` is recognised by its last cell) and TREC's four
    (query, iteration, document, grade). A line with tabs is cut at its tabs, another at white
    space. A grade is an integer: ``1.0`` is an error, as tools disagree on what to make of it.

    Reported are the errors "wrong columns", "non-integer grades" and those of the ids, and the
    warning "qrels without header" (BEIR's own loader would lose the first judgement of such a
    file).
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
                checker.warning("qrels without header", message, line)
        if len(cells) != columns:
            message = (
                f"{len(cells)} columns where {columns} are expected; write query, document, grade"
            )
            checker.error("wrong columns", message, line)
            continue
        if (judgement := checker.judgement(line, cells[0], cells[-2], cells[-1])) is not None:
            yield judgement
    checker.finish()
