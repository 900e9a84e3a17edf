"""generation.json: how the queries of a folder were generated, and what they were generated from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.files import write_text

GENERATION_FILE = "generation.json"


def read_generation(folder: Path) -> dict[str, Any]:
    """The record of a folder that ``generate-queries`` finished.

    Raises:
        InputError: there is none, or it is not one of ours.
    """
    path = folder / GENERATION_FILE
    if not path.is_file():
        raise InputError(
            f"{folder} has no {GENERATION_FILE}; make the folder with beir-cocodr generate-queries"
        )
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); generate the queries again") from error
    if not isinstance(record, dict) or not {"settings", "dataset", "counts"} <= record.keys():
        raise InputError(f"{path} is not the record of generated queries; generate them again")
    return record


def write_generation(folder: Path, record: dict[str, Any]) -> None:
    """Write the record last: its presence says that the folder is complete."""
    write_text(folder / GENERATION_FILE, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
