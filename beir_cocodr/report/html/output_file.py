"""Where the page goes."""

from __future__ import annotations

from pathlib import Path

from beir_cocodr.errors import InputError
from beir_cocodr.files import output_folder
from beir_cocodr.report.html.page import GENERATOR

_HEAD = 2_000


def output_file(path: Path) -> Path:
    """Check that the page may be written there: nothing stands there yet, or a report of ours.

    Raises:
        InputError: something else stands there, or the folder cannot be written to.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file with --output")
    if path.exists():
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
        if f'<meta name="generator" content="{GENERATOR}">' not in head:
            raise InputError(f"{path} is no report of ours and is left as it is; choose another --output")
    output_folder(path.parent)
    return path
