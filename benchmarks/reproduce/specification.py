"""The parts of a paper's table: steps, which fill folders by commands, and cells.

A cell reads what a step wrote. A command is a line of ``beir-cocodr`` without its name, or one of
``make`` (:mod:`reproduce.make`). It has placeholders that a scale fills: ``{out}`` is the step's
own folder, ``{step:NAME}`` another step's, ``{data:NAME}`` a collection, ``{model:NAME}`` published
weights, ``{size:N}`` a size of ReSTrain's sets as their names have it, and ``{gpus}`` the number of
GPUs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from reproduce.lineage import Making

PUBLISHED = Path(__file__).parents[1] / "published"

PLACEHOLDER = re.compile(r"\{(step|data|model|size):([^{}]+)\}")


@cache
def published(name: str) -> Any:
    """Read a file of the papers' figures, by its stem."""
    return json.loads((PUBLISHED / f"{name}.json").read_text())


def figures(name: str, path: str) -> Any:
    """Return what such a file has at a path of keys, which ``|`` separates."""
    value = published(name)
    for key in path.split("|"):
        value = value[key]
    return value


def names_in(command: str, kind: str) -> list[str]:
    """Return the names of the placeholders of one kind, in order."""
    return [match[2] for match in PLACEHOLDER.finditer(command) if match[1] == kind]


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


#: A collection of a command that reads several.
_ONE_OF_SEVERAL = re.compile(r" --(?:dataset|target) \{data:([^{}]+)\}")


def task_of(data: str) -> str:
    """Return the task of a collection, which may be one of its parts."""
    return data.split("/")[0]


def _without_tasks(command: str, tasks: frozenset[str]) -> str:
    """Leave some tasks out of a command; one that would read nothing stays as it is."""
    kept = [name for name in _ONE_OF_SEVERAL.findall(command) if task_of(name) not in tasks]
    if not kept:
        return command

    def unless_left_out(option: re.Match[str]) -> str:
        return "" if task_of(option[1]) in tasks else option[0]

    return _ONE_OF_SEVERAL.sub(unless_left_out, command)


@dataclass(frozen=True)
class Step:
    """Commands that fill one folder.

    Attributes:
        commands: Run one after another. Each can be run again after a kill, and continues.
        discard: Subfolders that are of no use when all commands are done.
    """

    commands: tuple[str, ...]
    discard: tuple[str, ...] = ()

    def without(self, tasks: Sequence[str]) -> Step:
        """Return the step without some tasks, where a command reads other collections as well."""
        left_out = frozenset(tasks)
        commands = [_without_tasks(command, left_out) for command in self.commands]
        return replace(self, commands=tuple(commands))

    def needs(self, kind: str) -> list[str]:
        """Return the steps, collections or models that the commands name."""
        names: list[str] = []
        for command in self.commands:
            names += names_in(command, kind)
        return _unique(names)


#: How a figure is made of others.
COMBINATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "difference": lambda values: values[0] - values[1],
    "product": prod,
    "ratio": lambda values: values[0] / values[1],
    "improved": lambda values: sum(value > 0 for value in values),
}


@dataclass(frozen=True)
class Cell:
    """One figure: read from a step's folder, made of others, or quoted from the paper alone.

    Attributes:
        step: The step that is read; "" for a figure that is made of others or quoted.
        read: FILE:PATH, see :func:`read`.
        published: The path of the paper's figure in the table's file; "" if it prints none.
        factor: A factor of what is read, such as 100 for percents.
        combine: A key of :data:`COMBINATIONS`, which makes the figure of ``parts``.
        parts: The cells that it is made of.
        why: Why no command makes the figure.
        model: The folder of the model that is judged, with placeholders; "" if none is trained.
        making: What its training.json must say that it was made of.
        others: Further models that the step reads, folder to making, such as that of an analysis.
        expects: Further values that the step's files must have: FILE:PATH, and the value.
        queries: Reads query id to score from the step's folder, for tests of significance; None
            where the figure is no mean over queries, or the step judges by ``evaluate``.
        p_value: FILE:PATH of the p-value of a correlation; "" for any other figure.
    """

    step: str = ""
    read: str = ""
    published: str = ""
    factor: float = 1.0
    combine: str = ""
    parts: tuple[Cell, ...] = ()
    why: str = ""
    model: str = ""
    making: Making | None = None
    others: tuple[tuple[str, Making], ...] = ()
    expects: tuple[tuple[str, str], ...] = ()
    queries: Callable[[Path], dict[str, float]] | None = None
    p_value: str = ""

    def reasons(self) -> list[str]:
        """Return why the cell, or its parts, have no command."""
        reasons = [self.why] if self.why else []
        for part in self.parts:
            reasons += part.reasons()
        return reasons

    def steps(self) -> list[str]:
        """Return the steps from which the cell is read."""
        names = [self.step] if self.step else []
        for part in self.parts:
            names += part.steps()
        return _unique(names)


#: Cells by row and column.
Cells = dict[tuple[str, str], Cell]


@dataclass(frozen=True)
class Comparison:
    """Which models of a table are tested against which others, as its paper does.

    A model that is significantly better gets the mark of the other one.

    Attributes:
        against: A model that is tested, to the other models, each to the mark of a gain over it.
        level: The two-tailed p-value must be below it.
        all_at_once: Whether the mark is given only for a gain over all others that have figures,
            with Bonferroni's correction for their number.
        in_rows: Whether the models are the rows of the table; else they are its columns.
        of_paper: Whether the paper makes these tests; else they are made here alone.
    """

    against: Mapping[str, Mapping[str, str]]
    level: float
    all_at_once: bool = False
    in_rows: bool = False
    of_paper: bool = True


@dataclass(frozen=True)
class AgainstZero:
    """Tests of single figures against zero: gains over the same queries, and correlations.

    A gain is the difference of two models' scores, of which a paired test is made. A correlation
    has the p-value that its analysis recorded.

    Attributes:
        level: The two-tailed p-value must be below it.
        mark: The mark of a significant figure, of either sign.
        rows: The rows whose figures get marks; () for all. All figures get p-values.
        of_paper: Whether the paper makes these tests; else they are made here alone.
    """

    level: float
    mark: str = "†"
    rows: tuple[str, ...] = ()
    of_paper: bool = True


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    Attributes:
        name: PAPER-tableN, as on the command line.
        title: What it shows.
        file: The file of ``benchmarks/published`` with the paper's figures.
        cells: The cells by row and column.
        of: Keys of that file whose every figure the table must have; () for a plot.
        digits: The digits after the point.
        comparison: The tests of significance; None if there are none.
        against_zero: The tests of single figures; None if there are none.
        judged: Makes the cell of a further model in a row; None if the table takes none.
    """

    name: str
    title: str
    file: str
    cells: Mapping[tuple[str, str], Cell]
    of: tuple[str, ...] = ()
    digits: int = 3
    comparison: Comparison | None = None
    against_zero: AgainstZero | None = None
    judged: Callable[[str, str], Cell] | None = field(
        default=None,
        compare=False,
    )

    @property
    def rows(self) -> list[str]:
        """Return the names of the rows."""
        return _unique(row for row, _ in self.cells)

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns."""
        return _unique(column for _, column in self.cells)

    def published(self, cell: Cell) -> float | None:
        """Return the paper's figure; if it prints no mean, the mean of its figures."""
        if not cell.published and cell.combine == "mean":
            values = [self.published(part) for part in cell.parts]
            known = [value for value in values if value is not None]
            is_complete = bool(known) and len(known) == len(values)
            return sum(known) / len(known) if is_complete else None
        value = figures(self.file, cell.published) if cell.published else None
        return value if isinstance(value, (int, float)) else None


@dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes:
        name: Its name on the command line.
        title: Its title.
        steps: Its steps by name.
        tables: The tables that are read from them.
    """

    name: str
    title: str
    steps: Mapping[str, Step]
    tables: Sequence[Table]


def grid(
    rows: Iterable[str],
    columns: Iterable[str],
    cell: Callable[[str, str], Cell],
) -> Cells:
    """Make a cell for every row and column."""
    names = list(columns)
    cells = {}
    for row in rows:
        for column in names:
            cells[row, column] = cell(row, column)
    return cells


def mean(cells: Iterable[Cell], published: str = "") -> Cell:
    """Make the mean of cells that all have a figure."""
    return Cell(
        combine="mean",
        parts=tuple(cells),
        published=published,
    )


def difference(
    first: Cell,
    second: Cell,
    published: str = "",
) -> Cell:
    """Make the difference of two cells."""
    return Cell(
        combine="difference",
        parts=(first, second),
        published=published,
    )


_SELECTOR = re.compile(r"([^\[\]]+)\[([^\[\]]*)\](?:#(\d+))?")


def read(folder: Path, address: str) -> Any:
    """Read what FILE:PATH names.

    A path has keys, which ``|`` separates. ``*`` is the only key of a mapping, and ``?`` are its
    keys, with commas between. ``KEY[a=1,b=x]`` is the record of a list that has these values, and
    ``#1`` behind it the second such record.

    Raises:
        LookupError: There is no such value.
    """
    name, path = address.split(":", 1)
    value: Any = json.loads((folder / name).read_text())
    for part in path.split("|"):
        selector = _SELECTOR.fullmatch(part)
        if selector:
            matching = _matching(value[selector[1]], selector[2])
            value = matching[int(selector[3] or 0)]
        elif part == "*":
            [value] = value.values()
        elif part == "?":
            value = ", ".join(value)
        else:
            value = value[part]
    return value


def _matching(records: list[Any], conditions: str) -> list[Any]:
    """Return the records that have certain values."""
    wanted = dict(pair.split("=", 1) for pair in conditions.split(",") if pair)
    matching = []
    for record in records:
        if all(str(record[key]) == value for key, value in wanted.items()):
            matching.append(record)
    return matching


def leaves(part: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield path and value of every number below, with paths as :func:`figures` takes them."""
    if isinstance(part, Mapping):
        for name, below in part.items():
            yield from leaves(below, f"{path}|{name}" if path else name)
    elif isinstance(part, (int, float)) and not isinstance(part, bool):
        yield path, part
