"""The reader of text files, for loading and validation: documents, queries and judgements.

The files are JSON lines or TSV. :class:`RecordChecker` checks what every document, query and
judgement must satisfy, wherever it was read.
"""

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beir_cocodr.data.defects import LineTally, Report, error, raise_errors, warning
from beir_cocodr.data.files.bounded import TooLarge, lines, open_bytes
from beir_cocodr.data.files.encodings import NUL
from beir_cocodr.errors import InputError
from beir_cocodr.io import Json, check_nesting

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(
    path: Path,
    report: Report,
) -> Iterator[tuple[int, str]]:
    """Stream the lines of a UTF-8 file, plain or ``.gz``, with their numbers from 1.

    Lines end at a line feed, which is cut off. Blank lines and lines that are not UTF-8 are left
    out. The errors "not UTF-8" and "unreadable file" are reported, and once a file the warnings
    "CRLF", "blank lines" and "byte order mark".
    """
    file = str(path)
    crlf_lines = LineTally()
    blank_lines = LineTally()
    try:
        with open_bytes(path) as stream:
            for number, line in enumerate(lines(stream), 1):
                content = line.removesuffix(b"\n")
                if content.endswith(b"\r"):
                    content = content[:-1]
                    crlf_lines.add(number)
                if number == 1 and content.startswith(_BYTE_ORDER_MARK):
                    content = content[3:]
                    report(warning("byte order mark", file, "a byte order mark was left out", 1))
                if not content or content.isspace():
                    blank_lines.add(number)
                    continue
                text = _decode(content, file, number, report)
                if text is not None:
                    yield number, text
    except (OSError, EOFError, TooLarge, zlib.error) as cause:
        message = f"cannot be read to its end ({cause}); check it, or copy it again"
        report(error("unreadable file", file, message))
    crlf_lines.report(
        report,
        "CRLF",
        file,
        "{} lines end with CRLF, read as LF",
    )
    blank_lines.report(
        report,
        "blank lines",
        file,
        "{} blank lines were left out",
    )


def _decode(
    content: bytes,
    file: str,
    line: int,
    report: Report,
) -> str | None:
    if b"\0" in content:
        report(error("not UTF-8", file, NUL, line))
        return None
    try:
        return content.decode()
    except UnicodeDecodeError as cause:
        message = f"not UTF-8 at byte {cause.start + 1} of the line; convert the file to UTF-8"
        report(error("not UTF-8", file, message, line))
        return None


def json_records(
    path: Path,
    report: Report,
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Stream the objects of JSON lines, plain or ``.gz``, with their line numbers.

    A line that holds no object gives None, and "broken JSON" is reported.
    """
    for line, text in numbered_lines(path, report):
        record = None
        try:
            check_nesting(text)
            record = json.loads(text)
            problem = ": not an object; write {...} with _id and text on every line"
        except json.JSONDecodeError as cause:
            problem = f" at column {cause.colno} ({cause.msg}); write one JSON object per line"
        except (ValueError, RecursionError):
            problem = (
                ": too long a number or too deep a nesting; write one flat JSON object per line"
            )
        if isinstance(record, dict):
            yield line, record
        else:
            report(error("broken JSON", str(path), f"broken JSON{problem}", line))
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
    """A check of the documents, queries and judgements of one file, made of raw field values.

    The errors "missing ids", "ids not strings", "white space in ids", "text not a string", "not
    UTF-8", "non-integer grades" and "empty corpus" are reported, and the warnings "integer ids",
    "title null or absent", "title-only documents", "empty documents" and "empty queries".
    """

    def __init__(self, file: str, report: Report) -> None:
        """Check the records of one file.

        Args:
            file: the name used in reports.
            report: gets the defects.
        """
        self.file = file
        self.report = report
        self._integer_ids = LineTally()
        self._absent_titles = LineTally()

    def error(
        self,
        kind: str,
        message: str,
        line: int | None = None,
        id: str | None = None,
    ) -> None:
        """Report an error in the file."""
        self.report(error(kind, self.file, message, line, id))

    def warning(
        self,
        kind: str,
        message: str,
        line: int | None = None,
        id: str | None = None,
    ) -> None:
        """Report a warning about the file."""
        self.report(warning(kind, self.file, message, line, id))

    def identifier(self, line: int, value: object) -> str | None:
        """Return an id as a string, or None where the value cannot be one.

        White space in an id is reported, and the id is returned.
        """
        if isinstance(value, int) and not isinstance(value, bool):
            self._integer_ids.add(line)
            return str(value)
        if value is None or value == "":
            self.error(
                "missing ids",
                "no id; give every record an _id of its own",
                line,
            )
            return None
        if not isinstance(value, str):
            message = f"the id is {_describe_type(value)}; write it as a string"
            self.error("ids not strings", message, line)
            return None
        if _UNSAFE_IN_ID.search(value):
            message = (
                f"id {value!r} has white space or control characters, which runs and qrels cannot "
                "contain; replace them"
            )
            self.error("white space in ids", message, line, value)
        return value if self._is_encodable(line, None, value) else None

    def document(
        self,
        line: int,
        id: object,
        title: object,
        text: object,
    ) -> Document | None:
        """Return a document, or None where the record cannot be used.

        A title or text that is null becomes the empty string.
        """
        checked_id = self.identifier(line, id)
        if checked_id is None:
            return None
        if title is None:
            message = "the title is null, read as empty; write a string"
            self.warning("title null or absent", message, line, checked_id)
        checked_title = self._text(line, checked_id, "title", title)
        checked_text = self._text(line, checked_id, "text", text)
        if checked_title is None or checked_text is None:
            return None
        has_title = bool(checked_title.strip())
        has_text = bool(checked_text.strip())
        if has_title and not has_text:
            self.warning(
                "title-only documents",
                "no text, only a title",
                line,
                checked_id,
            )
        elif not has_text:
            message = (
                "neither title nor text; it stays in the corpus, but searches will hardly ever "
                "return it"
            )
            self.warning("empty documents", message, line, checked_id)
        return line, checked_id, checked_title, checked_text

    def query(
        self,
        line: int,
        id: object,
        text: object,
    ) -> Query | None:
        """Return a query, or None where the record cannot be used; a null text becomes empty."""
        checked_id = self.identifier(line, id)
        if checked_id is None:
            return None
        checked_text = self._text(line, checked_id, "text", text)
        if checked_text is None:
            return None
        if not checked_text or checked_text.isspace():
            self.warning(
                "empty queries",
                "the query has no text",
                line,
                checked_id,
            )
        return line, checked_id, checked_text

    def judgement(
        self,
        line: int,
        query: object,
        document: object,
        grade: object,
    ) -> Judgement | None:
        """Return a judgement, or None where the record cannot be used."""
        query_id = self.identifier(line, query)
        document_id = self.identifier(line, document)
        if not _GRADE.fullmatch(str(grade)):
            message = f"grade {grade!r} is not an integer; write integer grades: 0, 1, 2, ..."
            self.error("non-integer grades", message, line, query_id)
            return None
        if query_id is None or document_id is None:
            return None
        return line, query_id, document_id, int(str(grade))

    def empty_corpus(self) -> None:
        """Report that the file gives no document."""
        self.error(
            "empty corpus",
            "empty: no document can be read from it; it needs at least one",
        )

    def absent_title(self, line: int) -> None:
        """Count a record without a title field, which the caller reads as an empty title."""
        self._absent_titles.add(line)

    def finish(self) -> None:
        """Report the defects that are counted once a file."""
        message = "{} ids are JSON integers, read as their decimal strings"
        self._integer_ids.report(
            self.report,
            "integer ids",
            self.file,
            message,
        )
        message = "{} documents have no title field, read as an empty title"
        self._absent_titles.report(
            self.report,
            "title null or absent",
            self.file,
            message,
        )

    def _text(
        self,
        line: int,
        id: str,
        field: str,
        value: object,
    ) -> str | None:
        if value is None:
            return ""
        if isinstance(value, str):
            return value if self._is_encodable(line, id, value) else None
        message = f"the {field} is {_describe_type(value)}; write it as a string"
        self.error("text not a string", message, line, id)
        return None

    def _is_encodable(
        self,
        line: int,
        id: str | None,
        value: str,
    ) -> bool:
        # JSON can escape half of a surrogate pair, which no UTF-8 file or tokenizer can take.
        if value.isascii():
            return True
        try:
            value.encode()
        except UnicodeEncodeError:
            message = (
                "an unpaired surrogate, such as the escape \\ud800, is half a character; write the "
                "whole character"
            )
            self.error("not UTF-8", message, line, id)
            return False
        return True


_TYPES = {
    bool: "a boolean",
    float: "a decimal number",
    int: "a number",
    list: "a list",
    dict: "an object",
}


def _describe_type(value: object) -> str:
    return _TYPES.get(type(value), f"of type {type(value).__name__}")


CORPUS_SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")


def read_documents(path: Path, report: Report) -> Iterator[Document]:
    """Stream the documents of a ``.jsonl`` or ``.tsv`` file, plain or ``.gz``.

    JSON lines take ``_id``, else ``id``; ``text``, else ``contents``; ``title`` may be absent. A
    tab-separated file is ``id<TAB>text`` or ``id<TAB>title<TAB>text``, without quoting: its first
    line decides which of the two the whole file is. A first line whose first cell is ``id`` or
    ``_id`` and whose last is ``text`` or ``contents`` is a header.

    Among others, the errors "broken JSON", "wrong columns", "no text field" and "empty corpus" are
    reported.
    """
    checker = RecordChecker(str(path), report)
    is_table = path.name.endswith((".tsv", ".tsv.gz"))
    yield from _read_tsv(path, checker) if is_table else _read_jsonl(path, checker)
    checker.finish()


def _read_jsonl(
    path: Path,
    checker: RecordChecker,
) -> Iterator[Document]:
    is_empty = True
    has_text = False
    for line, record in json_records(path, checker.report):
        is_empty = False
        if record is None:
            # Its fields are not known, and "no text field" would be one claim too many.
            has_text = True
            continue
        id = _first(record, "_id", "id")
        text = _first(record, "text", "contents")
        title = record.get("title", "")
        if "title" not in record:
            checker.absent_title(line)
        has_text = has_text or text is not None or bool(title)
        document = checker.document(line, id, title, text)
        if document is not None:
            yield document
    if is_empty:
        checker.empty_corpus()
    elif not has_text:
        message = (
            "no document has a field text, contents or title; rename the field that contains the "
            "text, or name it with --text-column"
        )
        checker.error("no text field", message)


def _first(
    record: Json,
    name: str,
    other: str,
) -> Any:
    value = record.get(name)
    return record.get(other) if value is None else value


def _read_tsv(
    path: Path,
    checker: RecordChecker,
) -> Iterator[Document]:
    columns = 0
    is_empty = True
    for line, text in numbered_lines(path, checker.report):
        cells = text.split("\t")
        if columns == 0:
            columns = min(max(len(cells), 2), 3)
            if cells[0] in {"id", "_id"} and cells[-1] in {"text", "contents"}:
                checker.warning("header line", "read as a header", line)
                continue
        is_empty = False
        if len(cells) != columns:
            layout = "id, title, text" if columns == 3 else "id, text"
            message = (
                f"{len(cells)} columns where the first line asks for {columns} ({layout}); "
                "replace the tabs in texts"
            )
            checker.error("wrong columns", message, line, cells[0] or None)
            continue
        title = cells[1] if columns == 3 else ""
        document = checker.document(line, cells[0], title, cells[-1])
        if document is not None:
            yield document
    if is_empty:
        checker.empty_corpus()


def read_queries(path: Path, report: Report) -> Iterator[Query]:
    """Stream the queries of a ``queries.jsonl`` file: ``_id``, else ``id``, and ``text``."""
    checker = RecordChecker(str(path), report)
    for line, record in json_records(path, report):
        if record is None:
            continue
        query = checker.query(
            line,
            _first(record, "_id", "id"),
            record.get("text"),
        )
        if query is not None:
            yield query
    checker.finish()


def read_query_file(path: Path) -> dict[str, str]:
    """Read the queries of a file that a person wrote.

    Args:
        path: JSON lines (``.jsonl``), ``id<TAB>text`` (``.tsv``), or any other text file with one
            query a line, whose ids are the numbers of the lines.

    Returns:
        Query ids and their texts.

    Raises:
        InputError: the file cannot be read, repeats an id, or has no query; file and line are
            named.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file of queries; check the path")
    queries: dict[str, str] = {}
    for line, id, text in _lines_as_queries(path):
        if id in queries:
            raise InputError(f"{path}:{line}: query {id!r} occurs twice; correct the line")
        if not text.strip():
            raise InputError(f"{path}:{line}: query {id!r} has no text; correct the line")
        queries[id] = text
    if not queries:
        raise InputError(f"{path} has no queries; write one per line")
    return queries


def _lines_as_queries(path: Path) -> Iterator[Query]:
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from read_queries(path, raise_errors)
        return
    checker = RecordChecker(str(path), raise_errors)
    is_table = path.name.endswith((".tsv", ".tsv.gz"))
    for number, line in numbered_lines(path, raise_errors):
        if not is_table:
            yield number, str(number), line
            continue
        id, tab, text = line.partition("\t")
        if not tab:
            raise InputError(f"{path}:{number}: no tab; write id<TAB>text")
        query = checker.query(number, id, text)
        if query is not None:
            yield query


_GRADE_HEADERS = {"score", "relevance", "rel", "label", "grade"}


def read_judgements(path: Path, report: Report) -> Iterator[Judgement]:
    """Stream the judgements of a qrels file, plain or ``.gz``.

    The first line distinguishes two layouts: BEIR's three columns (query, document, grade; a header
    line such as ``query-id corpus-id score`` is recognised by its last cell) and TREC's four
    (query, iteration, document, grade). A line that has tabs is split at tabs, any other at white
    space. A grade is an integer: ``1.0`` is an error, as tools read it differently.

    The errors "wrong columns", "non-integer grades" and those of the ids are reported, and the
    warning "qrels without header" (BEIR's own loader would lose the first judgement of such a
    file).
    """
    checker = RecordChecker(str(path), report)
    columns = 0
    for line, text in numbered_lines(path, report):
        cells = text.split("\t") if "\t" in text else text.split()
        if columns == 0:
            columns = 4 if len(cells) == 4 else 3
            if cells[-1].strip().lower() in _GRADE_HEADERS:
                continue
            if columns == 3:
                message = (
                    "no header line, which BEIR's loader expects; "
                    "put query-id, corpus-id, score on top"
                )
                checker.warning("qrels without header", message, line)
        if len(cells) != columns:
            message = (
                f"{len(cells)} columns where {columns} are expected; write query, document, grade, "
                "separated by tabs"
            )
            checker.error("wrong columns", message, line)
            continue
        query = cells[0]
        document, grade = cells[-2:]
        judgement = checker.judgement(line, query, document, grade)
        if judgement is not None:
            yield judgement
    checker.finish()
