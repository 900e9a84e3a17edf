"""Tables that people have: CSV, TSV, JSON lines and parquet.

The columns of text, title and id are recognised by their names, or named by the user.
"""

import csv
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from beir_cocodr.data.defects import Report, error, ignore, warning
from beir_cocodr.data.files.bounded import MOST_LINE, TooLarge, open_bytes
from beir_cocodr.data.files.encodings import marked_encoding, without_nul
from beir_cocodr.data.files.readers import json_records
from beir_cocodr.errors import InputError, first_line

# Records that are read at a time.
_ROWS = 1_000

#: Suffixes of tables.
TABLES = (".csv", ".tsv", ".jsonl", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".parquet")

#: Names of columns, in any case; the first that a table has counts.
TEXTS = ("text", "contents", "content", "body", "passage", "document", "abstract", "description")
TITLES = ("title", "name", "heading", "headline", "subject")
IDS = ("_id", "id", "docid", "doc_id", "document_id", "passage_id")


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read.

    Attributes:
        texts: columns of the text, joined with a line each; empty: recognised by name.
        title: column of the title; "" for none, None: recognised by name.
        id: the same for the id.
    """

    texts: tuple[str, ...] = ()
    title: str | None = None
    id: str | None = None

    def of(self, names: Sequence[str], where: str) -> "Columns":
        """Return the columns of one table, each by its name there.

        Args:
            names: names of all columns of the table, in order.
            where: the file, for messages.

        Raises:
            InputError: no column is the text, one that was named does not exist, or two have the
                name of one that is read.
        """
        quoted = [repr(name) for name in names[:20]]
        existing = ", ".join(quoted) or "none"
        for name in (*self.texts, self.title, self.id):
            if name and name not in names:
                raise InputError(f"{where}: no column {name!r}; the columns are {existing}")
        texts = self.texts or _recognise(names, TEXTS, where)
        if not texts and len(names) == 1:
            texts = tuple(names)
        if not texts:
            raise InputError(
                f"{where}: no column is recognised as the text; name it with --text-column; the "
                f"columns are {existing}"
            )
        title = _named_or_recognised(self.title, names, TITLES, where)
        id = _named_or_recognised(self.id, names, IDS, where)
        if title in texts:
            title = ""
        if id in texts:
            id = ""
        chosen = Columns(texts, title, id)
        chosen.check_unique(names, where)
        return chosen

    def check_unique(self, names: Sequence[str], where: str) -> None:
        """Check that no two columns have the name of one that is read.

        Raises:
            InputError: two have, and it is unclear which is meant.
        """
        for name in filter(None, (*self.texts, self.title, self.id)):
            if names.count(name) > 1:
                raise InputError(
                    f"{where}: {names.count(name)} columns are named {name!r}; rename all but one"
                )


def _named_or_recognised(
    column: str | None,
    names: Sequence[str],
    known: Sequence[str],
    where: str,
) -> str:
    """Return the column that was named, or the one that is recognised; "" without either."""
    if column is not None:
        return column
    return next(iter(_recognise(names, known, where)), "")


def _recognise(
    names: Sequence[str],
    known: Sequence[str],
    where: str,
) -> tuple[str, ...]:
    """Return the first of some known names that a table has, as it is written there.

    Raises:
        InputError: the table has it twice.
    """
    for name in known:
        written = [column for column in names if column.strip().lower() == name]
        if len(written) > 1:
            columns = " and ".join(repr(column) for column in written)
            raise InputError(f"{where}: the columns {columns} have one name; rename all but one")
        if written:
            return (written[0],)
    return ()


class RawRecord(NamedTuple):
    """A record as it was read: its line or number, and raw values; None for an absent id."""

    line: int
    id: Any
    title: Any
    text: Any


def is_table(path: Path) -> bool:
    """Return whether the suffix of a file is that of a table."""
    return path.name.lower().endswith(TABLES)


def is_separated(path: Path) -> bool:
    """Return whether the suffix of a file is that of a table whose cells a character separates."""
    return path.name.lower().endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz"))


def read_table(
    path: Path,
    columns: Columns,
    report: Report,
    encoding: str | None = None,
) -> Iterator[RawRecord]:
    """Stream the records of a table, read by its suffix.

    What is wrong with the file is reported, and ends the stream. The warning "files without text"
    is reported of a table without records.

    Args:
        path: the file.
        columns: the columns that are read.
        report: receives the defects.
        encoding: the encoding of a CSV or TSV file. Default: that of its byte order mark, else
            UTF-8. The others have one of their own.
    """
    name = path.name.lower()
    is_empty = True
    try:
        if name.endswith(".parquet"):
            rows = _parquet_rows(path, columns)
        elif ".jsonl" in name:
            rows = _json_rows(path, columns, report)
        else:
            rows = _csv_rows(path, columns, encoding)
        for row in rows:
            is_empty = False
            yield row
        if is_empty:
            report(warning("files without text", str(path), "it has no records"))
    except InputError as cause:
        report(error("no text field", str(path), str(cause).removeprefix(f"{path}: ")))
    except (OSError, EOFError, ValueError, OverflowError, csv.Error, zlib.error) as cause:
        message = f"cannot be read to its end ({first_line(cause)}); repair it"
        report(error("unreadable file", str(path), message))


def record_rows(
    records: Iterable[dict[str, Any]],
    columns: Columns,
) -> Iterator[RawRecord]:
    """Stream the rows of records in order, numbered from 1."""
    for number, record in enumerate(records, 1):
        yield _row(number, record, columns)


def _row(
    line: int,
    record: Mapping[str, object],
    columns: Columns,
) -> RawRecord:
    texts = [record.get(name) for name in columns.texts]
    if len(texts) == 1:
        text = texts[0]
    else:
        text = "\n".join(str(part) for part in texts if part is not None)
    # A table may have a column without a name, which is not the one that is not read.
    id = record.get(columns.id) if columns.id else None
    title = record.get(columns.title, "") if columns.title else ""
    return RawRecord(line, id, title, text)


def _parquet_rows(path: Path, columns: Columns) -> Iterator[RawRecord]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        chosen = columns.of(file.schema_arrow.names, str(path))
        names = [name for name in (*chosen.texts, chosen.title, chosen.id) if name]
        batches = file.iter_batches(_ROWS, columns=names)
        records = (record for batch in batches for record in batch.to_pylist())
        yield from record_rows(records, chosen)


def _json_rows(
    path: Path,
    columns: Columns,
    report: Report,
) -> Iterator[RawRecord]:
    """Stream the records of JSON lines; the names in all records decide which columns are read.

    The file is read twice.
    """
    names: dict[str, None] = {}
    for _, record in json_records(path, ignore):
        names.update(dict.fromkeys(record or ()))
    if not names:
        # What is wrong with the lines is still to be reported.
        for _ in json_records(path, report):
            pass
        return
    chosen = columns.of(list(names), str(path))
    for line, record in json_records(path, report):
        if record is not None:
            _check_fields(path, line, record, columns, chosen)
            yield _row(line, record, chosen)


def _check_fields(
    path: Path,
    line: int,
    record: Mapping[str, Any],
    wanted: Columns,
    chosen: Columns,
) -> None:
    """Check that a record has no other field for one that it lacks.

    Args:
        path: the file.
        line: the record's line.
        record: the record.
        wanted: the columns that were named.
        chosen: the columns that are read.

    Raises:
        InputError: it has one; which of the two is meant is unclear.
    """
    recognised = {
        "text": (TEXTS, [] if wanted.texts else chosen.texts),
        "title": (TITLES, [] if wanted.title is not None else [chosen.title]),
        "id": (IDS, [] if wanted.id is not None else [chosen.id]),
    }
    for part, (known, columns) in recognised.items():
        for column in filter(None, columns):
            if column in record:
                continue
            others = _recognise(list(record), known, str(path))
            if others:
                raise InputError(
                    f"{path}: line {line} has {others[0]!r} where others have {column!r} for the "
                    f"{part}; name the columns that are read (--text-column, or ?text= ?title= and "
                    "?id= after the name of the file), or rename the field"
                )


def _csv_rows(
    path: Path,
    columns: Columns,
    encoding: str | None,
) -> Iterator[RawRecord]:
    """Stream the records of a CSV or TSV file by the csv module.

    The header line names the columns and shows which character separates them.
    """
    csv.field_size_limit(2**31 - 1)
    if encoding is None:
        with open_bytes(path) as start:
            encoding = marked_encoding(start.read(4)) or "utf-8"
    with io.TextIOWrapper(open_bytes(path), encoding=encoding, newline="") as file:
        header = _next_line(file)
        file.seek(0)
        marks = "\t" if ".tsv" in path.name.lower() else ",;\t|"
        lines = csv.reader(
            iter(lambda: _next_line(file), ""),
            delimiter=max(marks, key=header.count),
            strict=True,
        )
        names = next(lines, [])
        if not names:
            return
        _check_header(names, columns, str(path))
        chosen = columns.of(names, str(path))
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(names):
                raise ValueError(
                    f"line {lines.line_num} has {len(cells)} cells for {len(names)} columns"
                )
            yield _row(
                lines.line_num,
                dict(zip(names, cells, strict=True)),
                chosen,
            )


def _next_line(file: io.TextIOWrapper) -> str:
    """Return the next line of a table, "" at its end.

    Raises:
        ValueError: it has NUL characters, or is too long.
    """
    line = without_nul(file.readline(MOST_LINE))
    if len(line) == MOST_LINE:
        raise TooLarge(f"a line of more than {MOST_LINE >> 20} Mi characters")
    return line


def _check_header(names: Sequence[str], columns: Columns, where: str) -> None:
    """Check that the first line of a table of one column is surely its header.

    Raises:
        InputError: it may as well be the first text.
    """
    if len(names) == 1 and not columns.texts and not _recognise(names, TEXTS, where):
        raise InputError(
            f"{where}: its one column begins with {names[0]!r:.80}, which may be its name or its "
            "first text; write the line text above it, or name the column with --text-column"
        )
