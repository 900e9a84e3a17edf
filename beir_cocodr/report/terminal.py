"""Results on stdout: JSON, tables, and what ``doctor`` finds."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from rich.markup import escape
from rich.table import Table

from beir_cocodr.data.analyzers import Snippet, one_line
from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.records import Record

if TYPE_CHECKING:
    from beir_cocodr.doctor import Surroundings
    from beir_cocodr.retrieval.searcher import Hit

R = TypeVar("R", bound=Record)

#: Columns of a table that goes to a file or a pipe.
_WIDTH = 160


def print_tables(*tables: Table) -> None:
    """Print tables as wide as the terminal."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for table in tables:
        console.print(table)


def make_table(
    title: str,
    left: Iterable[str],
    right: Iterable[str] = (),
    rows: Iterable[Iterable[str]] = (),
    notes: Iterable[str] = (),
    last: Iterable[str] = (),
) -> Table:
    """A table with columns of text, of numbers (intervals dim) and of text again; ``notes`` stand
    below it.
    """
    table = Table(title=title, caption="\n".join(notes) or None, caption_justify="left")
    for column in left:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right", style="dim" if column == "95%" else None)
    for column in last:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def print_json(content: object) -> None:
    """Print one JSON value, in ASCII where the terminal or the pipe takes no UTF-8."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(content, indent=2, ensure_ascii=not utf8))


def print_record(record: R, as_json: bool, tables: Callable[[R], Iterable[Table]]) -> None:
    """Print a record as JSON, or the tables that are made of it."""
    if as_json:
        print_json(record.to_json())
    else:
        print_tables(*tables(record))


def print_training(record: TrainingRecord) -> None:
    """Print the record of a training as JSON, once for all processes of a run."""
    from beir_cocodr.distributed import rank

    if rank() == 0:
        print_json(record.to_json())


def print_hits(hits: "Iterable[Hit]") -> None:
    """Print what was found, best first: rank, score, file or id and heading, and below it what
    matches.

    Words that match are bold on a terminal, and stand between asterisks elsewhere.
    """
    marks = (
        ("\x1b[1m", "\x1b[0m")
        if sys.stdout.isatty() and "NO_COLOR" not in os.environ
        else ("**", "**")
    )
    for hit in hits:
        parts = (
            ""
            if None in (hit.dense, hit.lexical)
            else f" (dense {hit.dense:.3f}, BM25 {hit.lexical:.3f})"
        )
        heading = "".join(f"  {one_line(part)}" for part in (hit.title, hit.section) if part)
        print(f"{hit.rank:>3}  {hit.score:.3f}{parts}  {hit.place}{heading}")
        print(f"     {Snippet(hit.snippet, hit.matches).marked(*marks)}")
    sys.stdout.flush()


_MARKS = {"ok": "ok", "absent": "–", "problem": "problem"}


def doctor_table(found: "Surroundings") -> Table:
    """One row a finding of ``doctor``."""
    own = found.versions.get("beir-cocodr", "not installed")
    shown = (
        "torch",
        "transformers",
        "sentence-transformers",
        "beir",
        "ir-measures",
        "ir-datasets",
        "bm25s",
    )
    return make_table(
        f"beir-cocodr {own}, Python {found.python}, {escape(found.platform)}",
        ["", "", "found", "enables", "how to get it"],
        rows=(
            [
                _MARKS[finding.status],
                *map(escape, (finding.name, finding.found, finding.enables, finding.how)),
            ]
            for finding in found.findings
        ),
        notes=[
            ", ".join(f"{name} {found.versions[name]}" for name in shown if name in found.versions)
        ],
    )
