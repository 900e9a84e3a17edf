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
MOST_LINE = MOST_BYTES


class TooLarge(ValueError):
    """A file, or a line of one, that is larger than what is read."""


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading; the content of one that ends in ``.gz`` is uncompressed."""
    if path.suffix.lower() == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb", 1 << 20)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, plain or ``.gz``.

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
            if size > MOST_BYTES:
                raise TooLarge(
                    f"more than {MOST_BYTES >> 20} MiB; split it into smaller files, or into "
                    "records of a table"
                )
            parts.append(part)
    return b"".join(parts)


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Stream the lines of an open file, each with its line feed.

    Raises:
        TooLarge: a line has more.
    """
    while line := stream.readline(MOST_LINE):
        if len(line) == MOST_LINE and not line.endswith(b"\n"):
            raise TooLarge(f"a line of more than {MOST_LINE >> 20} MiB; write one record per line")
        yield line
