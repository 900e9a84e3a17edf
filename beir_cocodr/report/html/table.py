"""A table that can be sorted, as the template takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what is shown.
        value: what is sorted by; None sorts last.
        sub: smaller, below the text.
        mark: a class of the style sheet, such as "better".
    """

    text: str
    value: float | str | None = None
    sub: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Column:
    """One column: its header, whether it holds numbers, and what it means."""

    title: str
    number: bool = True
    meaning: str = ""


@dataclass(frozen=True)
class HtmlTable:
    """A table.

    Attributes:
        caption: what it shows.
        columns, rows: each row has a cell for every column; the first cell names the row.
        groups: (title, number of columns) over the columns, or nothing.
        notes: below it.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = field(default_factory=list)


def text_cell(text: str, sub: str = "", mark: str = "") -> Cell:
    """A cell that is sorted by its text."""
    return Cell(text, text.casefold(), sub, mark)


def number_cell(value: float | None, text: str, sub: str = "", mark: str = "") -> Cell:
    """A cell that is sorted by its number; a dash where there is none."""
    return Cell("–" if value is None else text, value, sub, mark)
