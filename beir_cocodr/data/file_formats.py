"""Files that people have, as titles, sections and records: one reader for each format, by a library
that is kept well.

A document (text, Markdown, reStructuredText, HTML, PDF, Word) becomes a title and sections; a table
(CSV, TSV, JSON lines, parquet) becomes records, whose columns are found by their names.
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

from beir_cocodr.data.defects import Report, error
from beir_cocodr.data.readers import json_records
from beir_cocodr.errors import InputError, first_line


class Section(NamedTuple):
    """A part of a document: the headings that it stands below, outermost first, and its text in
    paragraphs.
    """

    headings: tuple[str, ...]
    text: str


class Content(NamedTuple):
    """What a document says: its title, "" where it has none, and its sections in order."""

    title: str
    sections: list[Section]


class _Outline:
    """Collects blocks of text below headings of levels."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._headings: list[tuple[int, str]] = []
        self._blocks: list[str] = []

    def heading(self, level: int, text: str) -> None:
        self.end()
        self._headings = [(above, title) for above, title in self._headings if above < level]
        if text := " ".join(text.split()):
            self._headings.append((level, text))

    def block(self, text: str) -> None:
        if text.strip():
            self._blocks.append(text.strip("\n"))

    def end(self) -> None:
        if self._blocks:
            self.sections.append(
                Section(tuple(text for _, text in self._headings), "\n\n".join(self._blocks))
            )
        self._blocks = []

    def content(self, title: str = "") -> Content:
        """The only heading of the lowest level is the title, where none is given, and stands in no
        section then.
        """
        self.end()
        first = {headings[0] for headings, _ in self.sections if headings}
        if (
            len(first) == 1
            and all(headings for headings, _ in self.sections)
            and (not title or title in first)
        ):
            [title] = first
            return Content(title, [Section(headings[1:], text) for headings, text in self.sections])
        return Content(" ".join(title.split()), self.sections)


_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _decode(data: bytes) -> str:
    """UTF-8, or what a byte order mark names; a ``ValueError`` for all else."""
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    return data.decode(encoding)


def _read_text(data: bytes) -> Content:
    outline = _Outline()
    outline.block(_decode(data))
    return outline.content()


_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)^(?:---|\.\.\.)\s*\n", re.DOTALL | re.MULTILINE)
_TITLE_LINE = re.compile(r"^title:\s*['\"]?(.*?)['\"]?\s*$", re.MULTILINE)


def _read_markdown(data: bytes) -> Content:
    """CommonMark with tables, by markdown-it-py; the title of YAML front matter is the title."""
    from markdown_it import MarkdownIt

    text, title = _decode(data).replace("\r\n", "\n"), ""
    if front := _FRONT_MATTER.match(text):
        found = _TITLE_LINE.search(front[1])
        title, text = found[1] if found else "", text[front.end() :]
    outline, level = _Outline(), 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "heading_open":
            level = int(token.tag[1:])
        elif token.type == "inline":
            shown = _inline(token)
            outline.heading(level, shown) if level else outline.block(shown)
            level = 0
        elif token.type in ("fence", "code_block"):
            outline.block(token.content)
        elif token.type == "html_block":
            for section in _read_html(token.content.encode()).sections:
                outline.block(section.text)
    return outline.content(title)


def _inline(token: Any) -> str:
    """The words of a run of Markdown: of links and pictures their text, of inline HTML nothing but
    what it encloses.
    """
    breaks = {"softbreak": "\n", "hardbreak": "\n", "html_inline": ""}
    return "".join(
        breaks[child.type]
        if child.type in breaks
        else _inline(child)
        if child.children
        else child.content
        for child in token.children or ()
    )


_HEADING = re.compile("h[1-6]")

# Parts of a page that are read as lines of their own.
_BLOCKS = frozenset(
    "address article aside blockquote body caption dd details div dl dt fieldset figcaption figure footer form header "
    "hr li main ol p pre section summary table tbody tfoot thead tr ul".split()
)


def _read_html(data: bytes) -> Content:
    """By Beautiful Soup, in the page's encoding: ``<main>``, or else all, without scripts, styles
    and navigation.
    """
    from bs4 import BeautifulSoup
    from bs4.element import NavigableString

    page = BeautifulSoup(data, "html.parser")
    title = page.title.get_text() if page.title else ""
    for part in page(["script", "style", "template", "noscript", "nav", "head"]):
        part.decompose()
    outline, line = _Outline(), [""]  # the line that is being read

    def flush() -> None:
        outline.block("\n".join(" ".join(found.split()) for found in line[0].splitlines()))
        line[0] = ""

    def visit(node: Any) -> None:
        for child in node.children:
            name = child.name
            if name is None:
                if type(child) is NavigableString:  # and no comment, which is a kind of it
                    line[0] += re.sub(r"\s+", " ", str(child))
            elif _HEADING.fullmatch(name):
                flush()
                outline.heading(int(name[1]), child.get_text())
            elif name == "pre":
                flush()
                outline.block(child.get_text())
            elif name == "br":
                line[0] += "\n"
            else:
                block = name in _BLOCKS
                flush() if block else None
                line[0] += " " if name in ("td", "th") else ""
                visit(child)
                flush() if block else None

    visit(page.main or page)
    flush()
    return outline.content(title)


def _read_rst(data: bytes) -> Content:
    """By docutils, which runs and includes nothing; what only Sphinx knows is read as it stands."""
    from docutils import nodes
    from docutils.core import publish_doctree

    settings = {
        "report_level": 5, "halt_level": 6, "warning_stream": False, "file_insertion_enabled": False,
        "raw_enabled": False, "_disable_config": True, "syntax_highlight": "none", "doctitle_xform": False,
    }  # fmt: skip
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

    visit(publish_doctree(_decode(data), settings_overrides=settings), 0)
    return outline.content()


def _read_pdf(data: bytes) -> Content:
    """By pypdf, a section a page; words that are parted at the end of a line are joined."""
    from pypdf import PdfReader

    reader, outline = PdfReader(io.BytesIO(data)), _Outline()
    for number, page in enumerate(reader.pages, 1):
        outline.heading(1, f"page {number}")
        outline.block(re.sub(r"(?<=\w)-\n(?=[a-z])", "", page.extract_text()))
    title = reader.metadata.title if reader.metadata else None
    outline.end()
    return Content(" ".join(str(title or "").split()), outline.sections)


def _read_docx(data: bytes) -> Content:
    """By python-docx: paragraphs and tables, below headings by their styles."""
    from docx import Document
    from docx.table import Table

    document, outline, title = Document(io.BytesIO(data)), _Outline(), ""
    for part in document.iter_inner_content():
        if isinstance(part, Table):
            for row in part.rows:
                outline.block(" ".join(cell.text for cell in row.cells))
            continue
        style = part.style.name or "" if part.style else ""
        if style.startswith("Heading ") and style[8:].isdecimal():
            outline.heading(int(style[8:]), part.text)
        elif style == "Title" and not title:
            title = part.text
        else:
            outline.block(part.text)
    return outline.content(title or document.core_properties.title or "")


#: Suffixes of documents, and what reads them: bytes to content; it may raise of everything. Add a
#: row for your own.
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

#: Modules that some of them need from the extra ``files``.
PACKAGES = {".pdf": "pypdf", ".docx": "docx"}


def readable(path: Path) -> bool:
    """Whether what reads a document is installed."""
    package = PACKAGES.get(path.suffix.lower())
    return package is None or find_spec(package) is not None


def read_content(path: Path, report: Report) -> Content | None:
    """A document by its suffix; None with the error "unreadable file" where its library cannot read
    it.
    """
    try:
        return DOCUMENTS[path.suffix.lower()](path.read_bytes())
    except RecursionError:
        reason = "nested too deeply"
    except UnicodeDecodeError as cause:
        reason = f"not UTF-8 at byte {cause.start + 1}; convert it"
    except Exception as cause:  # each library raises its own, on files that are broken
        reason = f"{type(cause).__name__}: {first_line(cause)}"
    report(
        error(
            "unreadable file",
            str(path),
            f"cannot be read ({reason}); mend it, or move it out of the folder",
        )
    )
    return None


# Records that are read at a time.
_ROWS = 1_000

#: Suffixes of tables.
TABLES = (".csv", ".tsv", ".jsonl", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".parquet")

#: Names of columns, the first that is there counts; case does not.
TEXTS = ("text", "contents", "content", "body", "passage", "document", "abstract", "description")
TITLES = ("title", "name", "heading", "headline", "subject")
IDS = ("_id", "id", "docid", "doc_id", "document_id", "passage_id")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are read; empty and None for those that are found by name.

    Args:
        texts: several are joined, a line each.
        title, id: "" for none.
    """

    texts: tuple[str, ...] = ()
    title: str | None = None
    id: str | None = None

    def of(self, names: Sequence[str], where: str) -> "Columns":
        """The columns of a table; an InputError where none is the text, or one that was named is
        not there.
        """
        shown = ", ".join(map(repr, names[:20])) or "none"
        for name in (*self.texts, self.title, self.id):
            if name and name not in names:
                raise InputError(f"{where}: no column {name!r}; there are {shown}")
        texts = self.texts or _found(names, TEXTS) or (tuple(names) if len(names) == 1 else ())
        if not texts:
            raise InputError(
                f"{where}: no column is called text or so; name it with --text-column; there are {shown}"
            )
        title, id = (
            given if given is not None else next(iter(_found(names, known)), "")
            for given, known in ((self.title, TITLES), (self.id, IDS))
        )
        return Columns(texts, "" if title in texts else title, "" if id in texts else id)


def _found(names: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    by_name = {name.strip().lower(): name for name in names}
    return next(((by_name[name],) for name in known if name in by_name), ())


class Row(NamedTuple):
    """A record as it was read: its line or number, and raw values; None for an id that there is
    not.
    """

    line: int
    id: Any
    title: Any
    text: Any


def read_table(path: Path, columns: Columns, report: Report) -> Iterator[Row]:
    """Stream the records of a table by its suffix; what is wrong with the file is reported, and
    ends the stream.
    """
    name = path.name.lower()
    try:
        if name.endswith(".parquet"):
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as file:
                chosen = columns.of(file.schema_arrow.names, str(path))
                wanted = [column for column in (*chosen.texts, chosen.title, chosen.id) if column]
                batches = (batch.to_pylist() for batch in file.iter_batches(_ROWS, columns=wanted))
                yield from record_rows((record for batch in batches for record in batch), chosen)
        elif ".jsonl" in name:
            yield from _json_rows(path, columns, report)
        else:
            yield from _csv_rows(path, columns)
    except InputError as cause:
        report(error("no text field", str(path), str(cause).removeprefix(f"{path}: ")))
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as cause:
        report(
            error(
                "unreadable file",
                str(path),
                f"cannot be read to its end ({first_line(cause)}); mend it",
            )
        )


def record_rows(records: Iterable[dict[str, Any]], columns: Columns) -> Iterator[Row]:
    """Rows of records in order, numbered from 1."""
    return (_row(number, record, columns) for number, record in enumerate(records, 1))


def _row(line: int, record: Mapping[str, Any], columns: Columns) -> Row:
    texts = [record.get(name) for name in columns.texts]
    text = (
        texts[0] if len(texts) == 1 else "\n".join(str(part) for part in texts if part is not None)
    )
    return Row(line, record.get(columns.id or ""), record.get(columns.title or "", ""), text)


def _json_rows(path: Path, columns: Columns, report: Report) -> Iterator[Row]:
    """The columns are those of the first record; others may lack some."""
    chosen = None
    for line, record in json_records(path, report):
        if record is not None:
            chosen = chosen or columns.of(list(record), str(path))
            yield _row(line, record, chosen)


def _csv_rows(path: Path, columns: Columns) -> Iterator[Row]:
    """By the csv module; the header line names the columns, and shows what parts them."""
    csv.field_size_limit(2**31 - 1)
    with (gzip.open if path.suffix == ".gz" else open)(
        path, "rt", encoding="utf-8-sig", newline=""
    ) as file:
        mark = "\t" if ".tsv" in path.name.lower() else max(",;\t|", key=file.readline().count)
        file.seek(0)
        lines = csv.reader(file, delimiter=mark, strict=True)
        names = next(lines, [])
        chosen = columns.of(names, str(path))
        for cells in filter(None, lines):
            if len(cells) != len(names):
                raise ValueError(
                    f"line {lines.line_num} has {len(cells)} cells for {len(names)} columns"
                )
            yield _row(lines.line_num, dict(zip(names, cells, strict=True)), chosen)
