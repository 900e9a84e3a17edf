"""The one reader of text files: loading and validation both stand on it, so that they cannot disagree."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from beir_cocodr.data.files.defects import Report
from beir_cocodr.data.files.line_tally import LineTally

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(path: Path, report: Report) -> Iterator[tuple[int, str]]:
    """Stream the lines of a UTF-8 file, plain or ``.gz``, as (line number from 1, text without line end).

    Lines end at a line feed. Blank lines are left out. A line that is not UTF-8 is reported and left out.

    Args:
        path: the file; ``.gz`` is decompressed on the way.
        report: gets the errors "not UTF-8" and "unreadable file", and once a file the warnings "CRLF",
            "blank lines" and "byte order mark".
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
