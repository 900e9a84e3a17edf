"""Rows of tables; each describes a loss, weighting, objective, teacher or stage.

The tables are read by the command line's help and by the checks of options, so nothing here imports
torch: what a row builds is imported when it is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from beir_cocodr import load_object
from beir_cocodr.models.spec import Options

#: The end of a column's name that means several numbered columns.
NUMBERED = "_n"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The facts of one kind of thing; whoever needs them reads them here.

    Attributes:
        build: ``module:object`` of what makes it; None if there is nothing to make.
        help: a remark for ``--help``.
        options: the class of its own options; None if it has none.
        columns: column of the training data to its task, "query" or "document". A name that ends
            in ``_n`` means columns numbered from 1.
        rehearses: what its training practises, see
            :attr:`~beir_cocodr.provenance.TrainingRecord.rehearsed`.
        citations: keys of ``models/papers.bib``, or BibTeX entries, for the model card.
        ignores: options of other rows that it accepts without using them, with a warning.
    """

    build: str | None = None
    help: str = ""
    options: type[Options] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    rehearses: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()
    ignores: type[Options] | None = None

    def load(self) -> Any:
        """Import what the row builds."""
        assert self.build is not None
        return load_object(self.build)

    def column_tasks(self, count: int) -> dict[str, str]:
        """Return column to task, with ``count`` columns for each numbered name."""
        tasks: dict[str, str] = {}
        for name, task in self.columns.items():
            if not name.endswith(NUMBERED):
                tasks[name] = task
                continue
            stem = name.removesuffix("n")
            for number in range(1, count + 1):
                tasks[f"{stem}{number}"] = task
        return tasks


#: Name of a kind, such as "weighting", to its table.
Tables = Mapping[str, Mapping[str, Row]]


def joined_citations(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the citations of several rows, each once."""
    citations: dict[str, None] = {}
    for row in rows:
        citations |= dict.fromkeys(row.citations)
    return tuple(citations)


def rows_with_option(table: Mapping[str, Row], option: str) -> list[str]:
    """Return the names of the rows whose own options have a field of this name."""
    names = []
    for name, row in table.items():
        if row.options is None:
            continue
        if option in row.options.__dataclass_fields__:
            names.append(name)
    return names


def own_fields(tables: Tables) -> Iterator[tuple[type[Options], Field[Any]]]:
    """Yield the fields of all rows' options, with the class that has each."""
    for table in tables.values():
        for row in table.values():
            if row.options is None:
                continue
            for option_field in fields(row.options):
                yield row.options, option_field


def choices(names: Iterable[str], remark: str, last: str = "") -> str:
    """Return names for a help text, such as "coco (default), mlm or ict".

    Args:
        names: the names, the default first.
        remark: said of the first.
        last: the word before the last name, in place of a comma.
    """
    first, *others = names
    listed = [f"{first} ({remark})", *others]
    if not last:
        return ", ".join(listed)
    before_last = ", ".join(listed[:-1])
    return f"{before_last} {last} {listed[-1]}"
