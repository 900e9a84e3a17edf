"""What a table of a paper is made of: steps, which fill folders by commands, and cells, which read
what steps wrote.

A command is a line of ``beir-cocodr`` without its name, or one of ``make`` (:mod:`reproduce.make`).
In it stand, for what a scale puts there, ``{out}`` for the step's own folder, ``{step:NAME}`` for
another one's, ``{data:NAME}`` for a collection, ``{model:NAME}`` for published weights, ``{gpus}``
for their number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parents[1] / "published"

PLACEHOLDER = re.compile(r"\{(step|data|model):([^{}]+)\}")


@cache
def published(name: str) -> Any:
    """A whole file of the papers' figures, by its stem."""
    return json.loads((PUBLISHED / f"{name}.json").read_text())


def figures(name: str, path: str) -> Any:
    """What stands in such a file at a path of keys parted by "|"."""
    found = published(name)
    for key in path.split("|"):
        found = found[key]
    return found


@dataclass(frozen=True)
class Step:
    """Commands that fill one folder.

    Args:
        commands: run one after another; each can be run again after a kill, and goes on.
        discard: subfolders of no use once all are done.
    """

    commands: tuple[str, ...]
    discard: tuple[str, ...] = ()

    def needs(self, kind: str) -> list[str]:
        """Names of the steps, collections or models that stand in the commands, each once."""
        found = (match for command in self.commands for match in PLACEHOLDER.finditer(command))
        return list(dict.fromkeys(match[2] for match in found if match[1] == kind))


#: How a figure is made of others.
COMBINATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "difference": lambda values: values[0] - values[1],
    "product": prod,
    "improved": lambda values: sum(value > 0 for value in values),
}


@dataclass(frozen=True)
class Cell:
    """One figure: read from a step's folder, made of others, or quoted from the paper alone.

    Args:
        step: the step that is read; "" for a figure that others make, or none does.
        read: FILE:PATH, see :func:`read`.
        published: path of the paper's figure in the table's file; "" where it prints none (a plot).
        factor: on what is read, such as 100 for percents.
        combine: of ``parts``: a key of :data:`COMBINATIONS`.
        why: why there is no command.
    """

    step: str = ""
    read: str = ""
    published: str = ""
    factor: float = 1.0
    combine: str = ""
    parts: tuple[Cell, ...] = ()
    why: str = ""

    def reasons(self) -> list[str]:
        """Why it, or one of its parts, has no command."""
        return [self.why] * bool(self.why) + [why for part in self.parts for why in part.reasons()]

    def steps(self) -> list[str]:
        """Names of all steps that it is read from."""
        return list(
            dict.fromkeys(
                [self.step] * bool(self.step) + [s for part in self.parts for s in part.steps()]
            )
        )


@dataclass(frozen=True)
class Table:
    """A table: cells by row and column.

    Args:
        name: PAPER-tableN, as the command line has it.
        title: what it shows.
        file: of ``benchmarks/published`` with the paper's figures.
        of: keys of that file whose figures it has to have, each; () for a plot.
        digits: after the point.
        judged: how a further model is judged in a row; None where no model can be added.
    """

    name: str
    title: str
    file: str
    cells: Mapping[tuple[str, str], Cell]
    of: tuple[str, ...] = ()
    digits: int = 3
    judged: Callable[[str, str], Cell] | None = field(default=None, compare=False)

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for _, column in self.cells))

    def published(self, cell: Cell) -> float | None:
        """The paper's figure; of a mean of rows that it does not print, the mean of its figures."""
        if not cell.published and cell.combine == "mean":
            parts = [self.published(part) for part in cell.parts]
            known = [part for part in parts if part is not None]
            return sum(known) / len(known) if known and len(known) == len(parts) else None
        found = figures(self.file, cell.published) if cell.published else None
        return found if isinstance(found, (int, float)) else None


@dataclass(frozen=True)
class Paper:
    """Steps by name, and the tables that are read from them."""

    name: str
    title: str
    steps: Mapping[str, Step]
    tables: Sequence[Table]


def grid(
    rows: Iterable[str], columns: Iterable[str], cell: Callable[[str, str], Cell]
) -> dict[tuple[str, str], Cell]:
    """A cell for every row and column."""
    columns = list(columns)
    return {(row, column): cell(row, column) for row in rows for column in columns}


def mean(cells: Iterable[Cell], published: str = "") -> Cell:
    """The mean of cells that all have a figure."""
    return Cell(combine="mean", parts=tuple(cells), published=published)


def difference(first: Cell, second: Cell, published: str = "") -> Cell:
    return Cell(combine="difference", parts=(first, second), published=published)


_SELECTOR = re.compile(r"([^\[\]]+)\[([^\[\]]*)\](?:#(\d+))?")


def read(folder: Path, what: str) -> Any:
    """What FILE:PATH names: keys parted by "|"; "*" is a mapping's only key, KEY[a=1,b=x] the
    record of a list that has these values, with #1 behind it the second one. A LookupError where
    there is none.
    """
    name, path = what.split(":", 1)
    found: Any = json.loads((folder / name).read_text())
    for part in path.split("|"):
        selected = _SELECTOR.fullmatch(part)
        if selected:
            wanted = dict(pair.split("=", 1) for pair in selected[2].split(",") if pair)
            matching = [
                one
                for one in found[selected[1]]
                if all(str(one[k]) == v for k, v in wanted.items())
            ]
            found = matching[int(selected[3] or 0)]
        elif part == "*":
            [found] = found.values()
        else:
            found = found[part]
    return found


def leaves(part: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Path and value of every number below, paths as :func:`figures` takes them."""
    if isinstance(part, Mapping):
        for name, below in part.items():
            yield from leaves(below, f"{path}|{name}" if path else name)
    elif isinstance(part, (int, float)) and not isinstance(part, bool):
        yield path, part
