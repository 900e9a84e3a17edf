"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from beir_cocodr.errors import InputError


def refuse_taken(output: Path) -> None:
    """Refuse an output that is there already, better before hours of encoding than after.

    Raises:
        InputError: it is a file, or a folder that is not empty.
    """
    if output.is_dir() and not any(output.iterdir()):
        return
    if output.exists() or output.is_symlink():
        raise InputError(f"{output} is there already and is not written over; choose another --output")


@contextmanager
def draft_folder(output: Path) -> Iterator[Path]:
    """A folder beside ``output`` that takes its name at the end, and is removed if anything fails.

    Raises:
        InputError: ``output`` is taken, or its parent cannot be written to.
    """
    refuse_taken(output)
    output = output.absolute()
    draft = output.with_name(f".{output.name}.{uuid4().hex}")
    try:
        try:
            draft.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"{output} cannot be made: {error.strerror}; choose another --output") from error
        yield draft
        refuse_taken(output)
        if output.is_dir():
            output.rmdir()
        draft.replace(output)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
