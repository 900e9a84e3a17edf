"""JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beir_cocodr.data.files.defects import Report
from beir_cocodr.data.files.lines import numbered_lines


def json_records(path: Path, report: Report) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Stream (line number, object) of a JSON lines file; None in place of an object that was refused.

    Args:
        path: the file, plain or ``.gz``.
        report: gets the error "broken JSON", next to what `numbered_lines` reports.
    """
    file = str(path)
    for line, text in numbered_lines(path, report):
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            message = f"broken JSON at column {error.colno} ({error.msg}); write one JSON object a line"
            report("error", "broken JSON", file, line, None, message)
        except (ValueError, RecursionError):
            message = (
                "broken JSON: too long a number or too deep a nesting; write one flat JSON object a line"
            )
            report("error", "broken JSON", file, line, None, message)
        else:
            if isinstance(record, dict):
                yield line, record
                continue
            message = "broken JSON: not an object; write {...} with _id and text on every line"
            report("error", "broken JSON", file, line, None, message)
        yield line, None
