"""Results on stdout: JSON, tables, and what ``doctor`` finds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.markup import escape
from rich.table import Table

from beir_cocodr.provenance import TrainingRecord

#: Columns of a table that goes to a file or a pipe.
_WIDTH = 160


def print_tables(*tables: Table) -> None:
    """Print tables as wide as the terminal."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for table in tables:
        console.print(table)


def make_table(
    title: str, left: Iterable[str], right: Iterable[str] = (), notes: Iterable[str] = ()
) -> Table:
    """A table with columns of text, then columns of numbers, intervals dim; ``notes`` stand below it."""
    table = Table(title=title)
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right", style="dim" if column == "95%" else None)
    table.caption = "\n".join(notes) or None
    table.caption_justify = "left"
    return table


def print_json(content: Any) -> None:
    """Print one JSON value."""
    print(json.dumps(content, indent=2, ensure_ascii=False))


def print_training(record: TrainingRecord) -> None:
    """Print the record of a training as JSON, once for all processes of a run."""
    from beir_cocodr.distributed import rank

    if rank() == 0:
        print_json(record.to_json())


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
