"""The training records of a model and of what it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.training.record import RECORD_FILE, read_record


def ancestors(encoder: str) -> list[dict[str, Any]]:
    """The content of training.json of an encoder and of its ancestors, oldest first; [] without a record.

    Raises:
        InputError: a training.json cannot be read.
    """
    try:
        record = read_record(encoder)
    except ValueError as error:
        raise InputError(f"{Path(encoder) / RECORD_FILE} cannot be read ({error})") from error
    found = []
    while record is not None:
        found.append(record)
        record = record.get("parent")
    return found[::-1]
