"""The formats of files that people have, each read by a well-kept library.

A document (text, Markdown, reStructuredText, HTML, PDF, Word) becomes a title and sections. A table
(CSV, TSV, JSON lines, parquet) becomes records; the columns of text, title and id are recognised by
their names.
"""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from beir_cocodr.data.defects import Report, error, ignore, warning
from beir_cocodr.data.files.readers import NUL, json_records
from beir_cocodr.errors import InputError, first_line


class Section(NamedTuple):
    """A part of a document: the headings above it, outermost first, and its text in paragraphs."""

    headings: tuple[str, ...]
    text: str


class Content(NamedTuple):
    """The content of a document: its title, "" where it has none, and its sections in order."""

    title: str
    sections: list[Section]


class _Outline:
    """A collector of blocks of text below headings of several levels."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._headings: list[tuple[int, str]] = []
        self._blocks: list[str] = []

    def heading(self, level: int, text: str) -> None:
        """Begin a section below a heading; it replaces those of its level and deeper ones."""
        self.end()
        self._headings = [(above, title) for above, title in self._headings if above < level]
        text = " ".join(text.split())
        if text:
            self._headings.append((level, text))

    def block(self, text: str) -> None:
        """Add a block of text to the current section."""
        if text.strip():
            self._blocks.append(text.strip("\n"))

    def end(self) -> None:
        """End the current section."""
        if self._blocks:
            headings = tuple(text for _, text in self._headings)
            self.sections.append(Section(headings, "\n\n".join(self._blocks)))
        self._blocks = []

    def content(self, title: str = "") -> Content:
        """Return all that was collected.

        Where no title is given, a heading that is above all sections is the title; it is then left
        out of the headings of the sections.
        """
        self.end()
        outermost = {headings[0] for headings, _ in self.sections if headings}
        has_headings = all(headings for headings, _ in self.sections)
        if len(outermost) == 1 and has_headings and (not title or title in outermost):
            [title] = outermost
            return Content(
                title,
                [Section(headings[1:], text) for headings, text in self.sections],
            )
        return Content(" ".join(title.split()), self.sections)


# The mark of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _encoding(data: bytes) -> str:
    """Return the encoding that a byte order mark names; UTF-8 without one."""
    return next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "utf-8")


def _decode(data: bytes) -> str:
    """Decode UTF-8, or what a byte order mark names.

    Raises:
        ValueError: the bytes are something else.
    """
    return _without_nul(data.decode(_encoding(data)))


def _without_nul(text: str) -> str:
    """Return a text as it is, unless it has NUL characters.

    Raises:
        ValueError: it has some: it is UTF-16 or UTF-32 without a byte order mark, or no text.
    """
    if "\0" in text:
        raise ValueError(NUL)
    return text


def _read_text(data: bytes) -> Content:
    outline = _Outline()
    outline.block(_decode(data))
    return outline.content()


_FRONT_MATTER = re.compile(
    r"\A---\s*\n(.*?)^(?:---|\.\.\.)\s*\n",
    re.DOTALL | re.MULTILINE,
)
_TITLE_LINE = re.compile(r"^title:\s*['\"]?(.*?)['\"]?\s*$", re.MULTILINE)


def _read_markdown(data: bytes) -> Content:
    """Read CommonMark with tables by markdown-it-py; YAML front matter may give the title."""
    from markdown_it import MarkdownIt

    title, text = _split_front_matter(_decode(data).replace("\r\n", "\n"))
    outline = _Outline()
    level = 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "heading_open":
            level = int(token.tag[1:])
        elif token.type == "inline" and level:
            outline.heading(level, _inline_text(token))
            level = 0
        elif token.type == "inline":
            outline.block(_inline_text(token))
        elif token.type in ("fence", "code_block"):
            outline.block(token.content)
        elif token.type == "html_block":
            for section in _read_html(token.content.encode()).sections:
                outline.block(section.text)
    return outline.content(title)


def _split_front_matter(text: str) -> tuple[str, str]:
    """Return the title that the front matter of a Markdown file gives, and the rest of the file."""
    front_matter = _FRONT_MATTER.match(text)
    if front_matter is None:
        return "", text
    title_line = _TITLE_LINE.search(front_matter[1])
    title = title_line[1] if title_line else ""
    return title, text[front_matter.end() :]


# What inline marks of Markdown are read as: breaks of lines, and inline HTML, whose tags are no
# text.
_INLINE_MARKS = {
    "softbreak": "\n",
    "hardbreak": "\n",
    "html_inline": "",
}


def _inline_text(token: Any) -> str:
    """Return the words of a run of Markdown; links and pictures give their text."""
    words = []
    for child in token.children or ():
        if child.type in _INLINE_MARKS:
            words.append(_INLINE_MARKS[child.type])
        elif child.children:
            words.append(_inline_text(child))
        else:
            words.append(child.content)
    return "".join(words)


_HEADING = re.compile("h[1-6]")

# Parts of a page that are read as lines of their own.
_BLOCKS = frozenset(
    "address article aside blockquote body caption dd details div dl dt fieldset figcaption figure "
    "footer form header hr li main ol p pre section summary table tbody tfoot thead tr ul".split()
)

# Parts of a page that hold no text of its own.
_NO_TEXT = ["script", "style", "template", "noscript", "nav", "head"]


def _read_html(data: bytes) -> Content:
    """Read a page by Beautiful Soup, in its own encoding.

    ``<main>`` is read where there is one, and else all except scripts, styles and navigation.
    """
    from bs4 import BeautifulSoup

    if _encoding(data) == "utf-8":
        if b"\0" in data:
            raise ValueError(NUL)
        data = _without_open_tag(data)
    page = BeautifulSoup(data, "html.parser")
    title = page.title.get_text() if page.title else ""
    for part in page(_NO_TEXT):
        part.decompose()
    reader = _HtmlReader()
    reader.visit(page.main or page)
    reader.end_line()
    return reader.outline.content(title)


def _without_open_tag(data: bytes) -> bytes:
    """Return a page without a tag that never ends; what is behind the last end of a tag is text.

    The parser would look for the end of each such tag, which takes quadratic time.
    """
    end = data.rfind(b">") + 1
    return data[:end] + data[end:].replace(b"<", b"&lt;")


class _HtmlReader:
    """A walk over the elements of a page, which collects their text."""

    def __init__(self) -> None:
        self.outline = _Outline()
        self._line = ""

    def end_line(self) -> None:
        """Add what was read since the last block as a block."""
        lines = (" ".join(line.split()) for line in self._line.splitlines())
        self.outline.block("\n".join(lines))
        self._line = ""

    def visit(self, node: Any) -> None:
        """Read all children of an element."""
        from bs4.element import NavigableString

        for child in node.children:
            name = child.name
            if name is None:
                # Comments are of a type below this one, and are no text.
                if type(child) is NavigableString:
                    self._line += re.sub(r"\s+", " ", str(child))
            elif _HEADING.fullmatch(name):
                self.end_line()
                self.outline.heading(int(name[1]), child.get_text())
            elif name == "pre":
                self.end_line()
                self.outline.block(child.get_text())
            elif name == "br":
                self._line += "\n"
            elif name in _BLOCKS:
                self.end_line()
                self.visit(child)
                self.end_line()
            else:
                if name in ("td", "th"):
                    self._line += " "
                self.visit(child)


# docutils includes no other file, runs nothing and prints nothing.
_RST_SETTINGS = {
    "report_level": 5,
    "halt_level": 6,
    "warning_stream": False,
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "_disable_config": True,
    "syntax_highlight": "none",
    "doctitle_xform": False,
}


def _read_rst(data: bytes) -> Content:
    """Read reStructuredText by docutils; what only Sphinx knows is read as it is written."""
    from docutils import nodes
    from docutils.core import publish_doctree

    outline = _Outline()

    def visit(node: Any, depth: int) -> None:
        for child in node.children:
            if isinstance(child, nodes.section):
                visit(child, depth + 1)
            elif isinstance(child, nodes.title):
                outline.heading(depth, child.astext())
            elif isinstance(child, nodes.system_message):
                for block in child.findall(nodes.literal_block):
                    outline.block(block.astext())
            elif isinstance(child, nodes.TextElement) and not isinstance(child, nodes.comment):
                outline.block(child.astext())
            elif not isinstance(child, nodes.Invisible):
                visit(child, depth)

    visit(publish_doctree(_decode(data), settings_overrides=_RST_SETTINGS), 0)
    return outline.content()


def _read_pdf(data: bytes) -> Content:
    """Read a PDF by pypdf, a section a page; words that a line end divides are joined."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    outline = _Outline()
    for number, page in enumerate(reader.pages, 1):
        outline.heading(1, f"page {number}")
        outline.block(re.sub(r"(?<=\w)-\n(?=[a-z])", "", page.extract_text()))
    title = reader.metadata.title if reader.metadata else None
    outline.end()
    return Content(" ".join(str(title or "").split()), outline.sections)


def _read_docx(data: bytes) -> Content:
    """Read a Word document by python-docx; the styles of paragraphs say which are headings."""
    from docx import Document
    from docx.table import Table

    document = Document(io.BytesIO(data))
    outline = _Outline()
    title = ""
    for part in document.iter_inner_content():
        if isinstance(part, Table):
            for row in part.rows:
                outline.block(" ".join(cell.text for cell in row.cells))
            continue
        style = (part.style.name or "") if part.style else ""
        level = style.removeprefix("Heading ")
        if level != style and level.isdecimal():
            outline.heading(int(level), part.text)
        elif style == "Title" and not title:
            title = part.text
        else:
            outline.block(part.text)
    return outline.content(title or document.core_properties.title or "")


#: Suffixes of documents, and their readers, from bytes to content. A reader may raise any
#: exception. Add a row for a format of your own.
DOCUMENTS: dict[str, Callable[[bytes], Content]] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".rst": _read_rst,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
    ".docx": _read_docx,
}

#: Modules of the extra ``files`` that some readers need.
PACKAGES = {".pdf": "pypdf", ".docx": "docx"}


def readable(path: Path) -> bool:
    """Return whether the library that reads a document is installed."""
    package = PACKAGES.get(path.suffix.lower())
    return package is None or find_spec(package) is not None


def read_content(path: Path, report: Report) -> Content | None:
    """Read a document by its suffix.

    Returns:
        The content; None where its library cannot read it, and the error "unreadable file" is
        reported.
    """
    try:
        return DOCUMENTS[path.suffix.lower()](path.read_bytes())
    except RecursionError:
        reason = "nested too deeply"
    except UnicodeDecodeError as cause:
        reason = f"not UTF-8 at byte {cause.start + 1}; convert it"
    except Exception as cause:  # each library raises its own on broken files
        reason = f"{type(cause).__name__}: {first_line(cause)}"
    message = f"cannot be read ({reason}); repair it, or move it out of the folder"
    report(error("unreadable file", str(path), message))
    return None


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


def read_table(
    path: Path,
    columns: Columns,
    report: Report,
) -> Iterator[RawRecord]:
    """Stream the records of a table, read by its suffix.

    What is wrong with the file is reported, and ends the stream. The warning "files without text"
    is reported of a table without records.
    """
    name = path.name.lower()
    is_empty = True
    try:
        if name.endswith(".parquet"):
            rows = _parquet_rows(path, columns)
        elif ".jsonl" in name:
            rows = _json_rows(path, columns, report)
        else:
            rows = _csv_rows(path, columns)
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


def _csv_rows(path: Path, columns: Columns) -> Iterator[RawRecord]:
    """Stream the records of a CSV or TSV file by the csv module.

    The header line names the columns and shows which character separates them.
    """
    csv.field_size_limit(2**31 - 1)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as start:
        encoding = _encoding(start.read(4))
    with opened(path, "rt", encoding=encoding, newline="") as file:
        header = _without_nul(file.readline())
        file.seek(0)
        marks = "\t" if ".tsv" in path.name.lower() else ",;\t|"
        lines = csv.reader(
            file,
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
                dict(zip(names, map(_without_nul, cells), strict=True)),
                chosen,
            )


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
