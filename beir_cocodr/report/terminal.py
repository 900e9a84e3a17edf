"""Results on stdout: JSON, tables, hits, and the findings of ``doctor``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from beir_cocodr.data.analyzers import Snippet, one_line
from beir_cocodr.records import Record

if TYPE_CHECKING:
    from rich.table import Table

    from beir_cocodr.doctor import Environment
    from beir_cocodr.provenance import TrainingRecord
    from beir_cocodr.retrieval.searcher import Hit

R = TypeVar("R", bound=Record)

#: Columns of a table that is written to a file or a pipe.
_WIDTH = 160


def print_tables(*tables: Table) -> None:
    """Print tables as wide as the terminal."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH, emoji=False)
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
    """Return a table with columns of text, of numbers, and of text again.

    All texts are shown as they are; brackets in them are no markup.

    Args:
        title: line above the table.
        left: titles of the first columns of text.
        right: titles of the columns of numbers; intervals ("95%") are dim.
        rows: cells of each row.
        notes: lines below the table.
        last: titles of the last columns of text.
    """
    # Imported here because a search prints no table.
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title),
        caption=escape("\n".join(notes)) or None,
        caption_justify="left",
    )
    for column in left:
        table.add_column(escape(column), overflow="fold")
    for column in right:
        table.add_column(
            escape(column),
            justify="right",
            style="dim" if column == "95%" else None,
        )
    for column in last:
        table.add_column(escape(column), overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def print_json(content: object) -> None:
    """Print one JSON value, in ASCII if the terminal or the pipe does not take UTF-8."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    print(json.dumps(content, indent=2, ensure_ascii=encoding != "utf8"))


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


def print_hits(hits: Iterable[Hit]) -> None:
    """Print hits, best first: rank, score, file or id, heading, and the matching passage.

    Matching words are bold on a terminal, and between asterisks elsewhere.
    """
    has_styles = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    marks = ("\x1b[1m", "\x1b[0m") if has_styles else ("**", "**")
    for hit in hits:
        parts = ""
        if hit.dense is not None and hit.lexical is not None:
            parts = f" (dense {hit.dense:.3f}, BM25 {hit.lexical:.3f})"
        heading = "".join(f"  {one_line(part)}" for part in (hit.title, hit.section) if part)
        print(f"{hit.rank:>3}  {hit.score:.3f}{parts}  {hit.place}{heading}")
        print(f"     {Snippet(hit.snippet, hit.matches).marked(*marks)}")
    sys.stdout.flush()


#: Packages whose versions are printed below the findings of ``doctor``.
_VERSIONS = (
    "torch",
    "transformers",
    "sentence-transformers",
    "beir",
    "ir-measures",
    "ir-datasets",
    "bm25s",
)

_MARKS = {"ok": "ok", "absent": "–", "problem": "problem"}


def doctor_table(environment: Environment) -> Table:
    """Return a table with one row for each finding of ``doctor``."""
    versions = environment.versions
    rows = []
    for finding in environment.findings:
        texts = (finding.name, finding.state, finding.enables, finding.how)
        rows.append([_MARKS[finding.status], *texts])
    own_version = versions.get("beir-cocodr", "not installed")
    return make_table(
        f"beir-cocodr {own_version}, Python {environment.python}, {environment.platform}",
        ["", "", "state", "enables", "how to get it"],
        rows=rows,
        notes=[", ".join(f"{name} {versions[name]}" for name in _VERSIONS if name in versions)],
    )
