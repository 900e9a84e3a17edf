"""Files read within bounds, plain or compressed by gzip: no file fills the memory.

A small compressed file can hold any number of bytes, and a file can be one line.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

#: The most bytes of a document that is read as a whole, uncompressed.
MOST_BYTES = 1 << 28

#: The most bytes of one line of a table or a collection, uncompressed.
MOST_LINE = 1 << 29


class TooLarge(ValueError):
    """A file, or a line of one, that is larger than what is read."""


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading; the content of one that ends in ``.gz`` is uncompressed."""
    if path.suffix.lower() == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb", 1 << 20)


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file.

    Args:
        path: the file, plain or ``.gz``.
        most: the most bytes that are read.

    Raises:
        TooLarge: the file has more.
        OSError, EOFError, zlib.error: it cannot be read to its end.
    """
    with open_bytes(path) as file:
        # The file itself would be asked for all of them at once.
        parts = []
        size = 0
        while part := file.read(1 << 20):
            size += len(part)
            if size > most:
                raise TooLarge(
                    f"more than {most >> 20} MiB; split it into smaller files, or into records of "
                    "a table"
                )
            parts.append(part)
    return b"".join(parts)


def lines(stream: BinaryIO, most: int = MOST_LINE) -> Iterator[bytes]:
    """Stream the lines of an open file, each with its line feed.

    Args:
        stream: the file.
        most: the most bytes of a line.

    Raises:
        TooLarge: a line has more.
    """
    while line := stream.readline(most):
        if len(line) == most and not line.endswith(b"\n"):
            raise TooLarge(f"a line of more than {most >> 20} MiB; write one record a line")
        yield line
