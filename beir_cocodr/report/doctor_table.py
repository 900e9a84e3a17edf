"""What is within reach, as a table in a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

_MARKS = {"ok": "ok", "absent": "–", "problem": "problem"}


def doctor_table(report: dict[str, Any]) -> Table:
    """One row a finding, from what ``doctor`` returns."""
    own = report["versions"].get("beir-cocodr", "not installed")
    table = Table(title=f"beir-cocodr {own}, Python {report['python']}, {escape(report['platform'])}")
    for column in ("", "", "found", "enables", "how to get it"):
        table.add_column(column, overflow="fold")
    for finding in report["findings"]:
        cells = [finding[key] for key in ("name", "found", "enables", "how")]
        table.add_row(_MARKS[finding["status"]], *map(escape, cells))
    shown = ("torch", "transformers", "sentence-transformers", "beir", "ir-measures", "ir-datasets", "bm25s")
    table.caption = ", ".join(
        f"{name} {report['versions'][name]}" for name in shown if name in report["versions"]
    )
    table.caption_justify = "left"
    return table
