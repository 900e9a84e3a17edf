"""The formats of documents that people have, each read by a well-kept library.

A document (text, Markdown, reStructuredText, HTML, PDF, Word) becomes a title and sections. A file
whose suffix says nothing is read as text if it is text.
"""

import io
import re
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from beir_cocodr.data.files.bounded import MOST_BYTES, TooLarge, open_bytes, read_bytes
from beir_cocodr.data.files.encodings import (
    NUL,
    as_utf8,
    begins_as_utf8,
    decode,
    is_utf8,
    likely_encodings,
    marked_encoding,
)
from beir_cocodr.errors import first_line


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
            text = "\n\n".join(self._blocks)
            self.sections.append(Section(headings, text))
        self._blocks = []

    def content(self, title: str = "") -> Content:
        """Return all that was collected.

        Where no title is given, a heading that is above all sections is the title; it is then left
        out of the headings of the sections.
        """
        self.end()
        outermost = {headings[0] for headings, _ in self.sections if headings}
        is_below_one = len(outermost) == 1 and all(headings for headings, _ in self.sections)
        is_no_other_title = not title or title in outermost
        if is_below_one and is_no_other_title:
            [title] = outermost
            return Content(
                title,
                [Section(headings[1:], text) for headings, text in self.sections],
            )
        return Content(" ".join(title.split()), self.sections)


def _read_text(data: bytes) -> Content:
    outline = _Outline()
    outline.block(decode(data))
    return outline.content()


_FRONT_MATTER = re.compile(
    r"\A---\s*\n(.*?)^(?:---|\.\.\.)\s*\n",
    re.DOTALL | re.MULTILINE,
)
_TITLE_LINE = re.compile(r"^title:\s*['\"]?(.*?)['\"]?\s*$", re.MULTILINE)


def _read_markdown(data: bytes) -> Content:
    """Read CommonMark with tables by markdown-it-py; YAML front matter may give the title."""
    from markdown_it import MarkdownIt

    markdown = decode(data).replace("\r\n", "\n")
    title, text = _split_front_matter(markdown)
    outline = _Outline()
    level = 0
    parser = MarkdownIt("commonmark").enable("table")
    for token in parser.parse(text):
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
            page = _read_html(token.content.encode())
            for section in page.sections:
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

    if marked_encoding(data) is None:
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
    behind = data[end:].replace(b"<", b"&lt;")
    return data[:end] + behind


class _HtmlReader:
    """A walk over the elements of a page, which collects their text."""

    def __init__(self) -> None:
        self.outline = _Outline()
        self._line = ""

    def end_line(self) -> None:
        """Add what was read since the last block as a block."""
        lines = []
        for line in self._line.splitlines():
            lines.append(" ".join(line.split()))
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

    document = publish_doctree(decode(data), settings_overrides=_RST_SETTINGS)
    visit(document, 0)
    return outline.content()


def _read_pdf(data: bytes) -> Content:
    """Read a PDF by pypdf, a section a page; words that a line end divides are joined."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    outline = _Outline()
    for number, page in enumerate(reader.pages, 1):
        outline.heading(1, f"page {number}")
        joined = re.sub(r"(?<=\w)-\n(?=[a-z])", "", page.extract_text())
        outline.block(joined)
    title = reader.metadata.title if reader.metadata else None
    outline.end()
    words = str(title or "").split()
    return Content(" ".join(words), outline.sections)


def _read_docx(data: bytes) -> Content:
    """Read a Word document by python-docx; the styles of paragraphs say which are headings."""
    from docx import Document
    from docx.table import Table

    _check_unpacked_size(data)
    document = Document(io.BytesIO(data))
    outline = _Outline()
    title = ""
    for part in document.iter_inner_content():
        if isinstance(part, Table):
            for row in part.rows:
                outline.block(" ".join(cell.text for cell in row.cells))
            continue
        style = ""
        if part.style:
            style = part.style.name or ""
        level = style.removeprefix("Heading ")
        if level != style and level.isdecimal():
            outline.heading(int(level), part.text)
        elif style == "Title" and not title:
            title = part.text
        else:
            outline.block(part.text)
    return outline.content(title or document.core_properties.title or "")


def _check_unpacked_size(data: bytes) -> None:
    """Check the size of what a zip file holds.

    Raises:
        TooLarge: it is more than is read of any document.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
        if unpacked > MOST_BYTES:
            raise TooLarge(f"more than {MOST_BYTES >> 20} MiB unpacked; split it")


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


# Documents that are no text files.
_BINARY = frozenset({".pdf", ".docx"})

# Bytes of a file of an unknown kind that are read to see if it is text.
_START = 1 << 16

# The encoding that a page names itself.
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset|<\?xml[^>]{0,200}encoding", re.IGNORECASE)

# A line of a TREC run: query, Q0, document, rank, score, name.
_RUN_LINE = re.compile(rb"\S+[ \t]+Q0[ \t]+\S+[ \t]+\d+[ \t]+\S+[ \t]+\S+\s*")


class Unreadable(ValueError):
    """A file that cannot be read, with the reason and the way out."""


def document_suffix(path: PurePath) -> str:
    """Return the suffix that says how a document is read; that before ``.gz`` counts.

    Returns:
        A key of :data:`DOCUMENTS`, or "" for a file that is read if it is text.
    """
    name = path.name.lower().removesuffix(".gz")
    suffix = PurePath(name).suffix
    return suffix if suffix in DOCUMENTS else ""


def missing_package(path: PurePath) -> str | None:
    """Return the package that reads a document and is not installed, None where nothing is."""
    package = PACKAGES.get(document_suffix(path))
    if package is None or find_spec(package) is not None:
        return None
    return package


def read_document(path: Path) -> bytes:
    """Return the bytes of a document.

    Raises:
        Unreadable: the file cannot be read, is too large, needs a package, or is no document.
    """
    if missing_package(path) is not None:
        raise Unreadable("its format needs a package: pip install 'beir-cocodr[files]'")
    try:
        if not document_suffix(path):
            _check_start(path)
        return read_bytes(path)
    except Unreadable:
        raise
    except PermissionError:
        raise Unreadable(NO_PERMISSION) from None
    except TooLarge as cause:
        raise Unreadable(f"it has {cause}") from None
    except Exception as cause:  # gzip raises several kinds on broken files
        raise Unreadable(describe_failure(cause)) from None


def describe_failure(cause: BaseException) -> str:
    """Return what is said of a file that ends before it should."""
    return f"cannot be read to its end ({first_line(cause)}); repair it"


def _check_start(path: Path) -> None:
    """Check that a file of an unknown kind is text, by its beginning: it may be a film.

    Raises:
        Unreadable: it is none, or it is a run.
    """
    with open_bytes(path) as file:
        start = file.read(_START)
    if _RUN_LINE.match(start):
        raise Unreadable("it is a TREC run, not a document")
    if len(start) < _START:
        return
    is_known = marked_encoding(start) is not None or begins_as_utf8(start)
    if not is_known and not likely_encodings(start):
        raise Unreadable(NO_TEXT)


#: What is said of a file that the user may not read.
NO_PERMISSION = "no permission to read it; make it readable"

#: What is said of a file that is none of the formats.
NO_TEXT = "it is not text; save it as text, Markdown, HTML, PDF, Word or a table to have it read"


def guesses(path: PurePath, data: bytes) -> tuple[str, ...]:
    """Return the encodings that a document may have; none where it says its encoding itself.

    Args:
        path: its name.
        data: its bytes.

    Returns:
        What :func:`~beir_cocodr.data.files.encodings.likely_encodings` returns; () for UTF-8, a
        byte order mark, a page that names its encoding, PDF and Word.

    Raises:
        Unreadable: the bytes are no text.
    """
    suffix = document_suffix(path)
    if suffix in _BINARY or marked_encoding(data) is not None or is_utf8(data):
        return ()
    has_nul = b"\0" in data
    if suffix in (".html", ".htm") and not has_nul and _CHARSET.search(data[:2048]):
        return ()
    likely = likely_encodings(data)
    if not likely:
        raise Unreadable(NUL if suffix and has_nul else NO_TEXT)
    return likely


def read_content(path: PurePath, data: bytes, encoding: str | None = None) -> Content:
    """Read a document by its suffix.

    Args:
        path: its name.
        data: its bytes.
        encoding: its encoding, where it was guessed.

    Raises:
        Unreadable: its library cannot read it.
    """
    reader = DOCUMENTS.get(document_suffix(path), _read_text)
    try:
        if encoding is not None:
            data = as_utf8(data, encoding)
        return reader(data)
    except RecursionError:
        reason = "nested too deeply"
    except UnicodeDecodeError as cause:
        name = _NAMES.get(cause.encoding, cause.encoding)
        reason = f"not {name} at byte {cause.start + 1}"
    except Exception as cause:  # each library raises its own on broken files
        reason = f"{type(cause).__name__}: {first_line(cause)}"
    raise Unreadable(f"cannot be read ({reason}); repair it, or move it out of the folder")


_NAMES = {"utf-8": "UTF-8"}
