"""Writing a file so that a run that dies leaves nothing half-written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from beir_cocodr.errors import InputError


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            yield file
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp's own mode shuts everybody else out
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def output_folder(path: Path) -> Path:
    """Make a folder for results.

    Raises:
        InputError: it cannot be made or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be the output folder: {error.strerror}; choose another") from error
    if not os.access(path, os.W_OK):
        raise InputError(f"{path} cannot be written to; choose another output folder")
    return path


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one step."""
    with atomic_writer(path) as file:
        file.write(text)
