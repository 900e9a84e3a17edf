"""A table and its figures: the rows and columns to make, what was read, and how it is printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.page import markdown_table
from harness.script import origin

from reproduce import cocodr
from reproduce.costs import size
from reproduce.plans import steps_of
from reproduce.shared import TRAIN
from reproduce.significance import mark_significance
from reproduce.specification import AgainstZero, Cell, Cells, Table, mean, names_in, task_of
from reproduce.workshop import Workshop

NOT_COMPARABLE = (
    "Not comparable: it shows that the path runs (tiny random encoders, parts of documentation, "
    "few steps)."
)
NOT_ASKED = "not asked for"
LEFT_OUT = "left out by --without"


def add_models(
    shop: Workshop,
    table: Table,
    models: Sequence[str],
) -> Table:
    """Add a column for each model, and keep only the published figures of the other columns."""
    if not models:
        return table
    assert table.judged is not None
    averages = averaged_rows(table)
    cells: Cells = {}
    for row in table.rows:
        for model in models:
            known = table.cells[row, model].published if model in table.columns else ""
            if row in averages:
                cells[row, model] = mean((cells[task, model] for task in averages[row]), known)
            else:
                cells[row, model] = replace(table.judged(model, row), published=known)
        for column in table.columns:
            if column not in models:
                old = table.cells[row, column]
                parts = tuple(cells[task, column] for task in averages.get(row, ()))
                cells[row, column] = _quoted(old, parts)
    shop.steps |= cocodr.judgements.steps
    return replace(table, cells=cells)


def _quoted(cell: Cell, parts: tuple[Cell, ...]) -> Cell:
    """Keep the published figure of a cell alone."""
    if parts:
        return replace(cell, parts=parts)
    return Cell(
        published=cell.published,
        why=NOT_ASKED,
    )


def averaged_rows(table: Table) -> dict[str, list[str]]:
    """Return the rows of averages, each to the rows that it averages."""
    first = table.columns[0]  # A row that lacks this column is no average.
    cells = {row: table.cells[row, first] for row in table.rows if (row, first) in table.cells}
    row_of = {id(cell): row for row, cell in cells.items()}
    averages = {}
    for row, cell in cells.items():
        if cell.combine != "mean":
            continue
        parts = [row_of.get(id(part)) for part in cell.parts]
        known = [part for part in parts if part is not None]
        if known and len(known) == len(parts):
            averages[row] = known
    return averages


def choose(
    table: Table,
    rows: Sequence[str],
    columns: Sequence[str],
) -> Table:
    """Keep some rows and columns; no names mean all. Averages are over the rows that are left."""
    averages = averaged_rows(table)
    cells: Cells = {}
    for (row, column), cell in table.cells.items():
        if columns and column not in columns:
            continue
        left = [part for part in averages.get(row, ()) if part in rows]
        if rows and left:
            parts = tuple(table.cells[part, column] for part in left)
            cells[row, column] = replace(
                cell,
                parts=parts,
                published="",
            )
        elif not rows or row in rows:
            cells[row, column] = cell
    return replace(table, cells=cells)


def leave_out(shop: Workshop, table: Table) -> Table:
    """Leave the shop's tasks out of a table: their cells, and their part of averages."""
    if not shop.without:
        return table
    cells: Cells = {}
    done: dict[int, Cell] = {}
    for position, cell in table.cells.items():
        cells[position] = _left_out(shop, cell, done)
    return replace(table, cells=cells)


def read_no_more(shop: Workshop, table: Table) -> Table:
    """Let the analyses of a table read only the collections that its cells need.

    An analysis of fewer collections is a step of its own, which a later whole table does not read.
    """
    data: dict[str, set[str]] = {}
    for cell in table.cells.values():
        for part in single_cells(cell):
            data.setdefault(part.step, set()).update(names_in(part.read, "data"))
    renamed = {}
    for name, needed in data.items():
        if not needed or needed >= set(shop.steps[name].needs("data")) - {TRAIN}:
            continue
        tasks = {task_of(one) for one in shop.steps[name].needs("data")}
        kept = sorted({task_of(one) for one in needed})
        renamed[name] = f"{name}-of-{'+'.join(kept)}"
        shop.steps[renamed[name]] = shop.steps[name].without(sorted(tasks - set(kept) - {TRAIN}))
    if not renamed:
        return table
    cells: Cells = {}
    for position, cell in table.cells.items():
        cells[position] = _renamed(cell, renamed)
    return replace(table, cells=cells)


def single_cells(cell: Cell) -> list[Cell]:
    """Return the cells that a cell is made of, which are read from a step each."""
    if not cell.combine:
        return [cell] if cell.step else []
    cells: list[Cell] = []
    for part in cell.parts:
        cells += single_cells(part)
    return cells


def _renamed(cell: Cell, names: Mapping[str, str]) -> Cell:
    """Return a cell that is read from other steps."""
    parts = tuple(_renamed(part, names) for part in cell.parts)
    return replace(cell, step=names.get(cell.step, cell.step), parts=parts)


def _left_out(
    shop: Workshop,
    cell: Cell,
    done: dict[int, Cell],
) -> Cell:
    """Return a cell without the shop's tasks, or one that says that they are left out.

    Args:
        shop: The shop.
        cell: The cell.
        done: The id of a cell to what became of it: an average has the cells of its rows as parts.
    """
    if id(cell) not in done:
        done[id(cell)] = _less(shop, cell, done)
    return done[id(cell)]


def _less(
    shop: Workshop,
    cell: Cell,
    done: dict[int, Cell],
) -> Cell:
    if cell.combine:
        parts = tuple(_left_out(shop, part, done) for part in cell.parts)
        kept = tuple(part for part in parts if not part.why.startswith(LEFT_OUT))
        if len(kept) == len(parts):
            return replace(cell, parts=parts)
        if kept and cell.combine == "mean":
            return replace(cell, parts=kept, published="")
        return Cell(published=cell.published, why=f"{LEFT_OUT} {', '.join(shop.without)}")
    data = names_in(cell.read, "data")
    if cell.step.startswith("judged/"):
        data += shop.steps[cell.step].needs("data")
    missing = sorted({task_of(name) for name in data} & set(shop.without))
    if missing:
        return Cell(published=cell.published, why=f"{LEFT_OUT} {', '.join(missing)}")
    return cell


def read_results(shop: Workshop, table: Table) -> dict[str, Any]:
    """Read all cells: ours, the published figure and the gap, or why there is no figure of ours.

    Averages over rows, ours and published, are over the rows that have a figure of ours.
    """
    is_paper = shop.scale.name == "paper"
    averages = averaged_rows(table)
    with_figures = set()
    for (row, _), cell in table.cells.items():
        if row not in averages and not shop.figure(cell)[1]:
            with_figures.add(row)
    averaged = {
        row: [part for part in parts if part in with_figures] for row, parts in averages.items()
    }
    entries: dict[str, dict[str, Any]] = {}
    for (row, column), cell in table.cells.items():
        left = averaged.get(row, [])
        if left and len(left) < len(averages[row]):
            parts = tuple(table.cells[part, column] for part in left)
            cell = replace(
                cell,
                parts=parts,
                published="",
            )
        entries.setdefault(row, {})[column] = _entry(shop, table, cell)
    mark_significance(shop, table, entries, averaged)
    seconds = {}
    for name in steps_of(shop, table.cells.values()):
        if shop.is_done(name):
            seconds[name] = sum(shop.progress(name)["seconds"])
    shares = {}
    for row, parts in averages.items():
        if averaged[row]:
            shares[row] = f"{len(averaged[row])} of {len(parts)}"
    return {
        "table": table.name,
        "title": table.title,
        "scale": shop.scale.name,
        "comparable": is_paper,
        "without": list(shop.without),
        **origin(),
        "seconds": {
            "all": round(sum(seconds.values()), 1),
            "steps": seconds,
        },
        "other_sizes": other_sizes(shop, table) if is_paper else {},
        "averages": shares,
        "tests": _describe_tests(table),
        "cells": entries,
    }


def _describe_tests(table: Table) -> str:
    """Say what the marks of significance mean; "" if there are none."""
    comparison = table.comparison
    if table.against_zero is not None:
        return _describe_against_zero(table, table.against_zero)
    if comparison is None:
        return ""
    test = f"two-tailed paired t-test over queries, p < {comparison.level:g}"
    if not comparison.of_paper:
        test += "; the paper makes no test here"
    marks: dict[str, list[str]] = {}
    for others in comparison.against.values():
        for other, mark in others.items():
            marks.setdefault(mark, []).append(other)
    if comparison.all_at_once:
        [(mark, names)] = marks.items()
        return (
            f"{mark} better than each of {', '.join(names)} that has a figure: {test}, with "
            "Bonferroni's correction"
        )
    listed = "; ".join(f"{mark} {' or '.join(_some_of(names))}" for mark, names in marks.items())
    return f"significantly better than {listed}: {test}"


def _describe_against_zero(table: Table, tests: AgainstZero) -> str:
    cells: list[Cell] = []
    for cell in table.cells.values():
        cells += single_cells(cell)
    is_correlation = any(cell.p_value for cell in cells)
    test = "test of the correlation" if is_correlation else "paired t-test over queries"
    text = f"{tests.mark} significantly different from zero: two-tailed {test}, p < {tests.level:g}"
    return text if tests.of_paper else f"{text}; the paper makes no test here"


def _some_of(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _entry(
    shop: Workshop,
    table: Table,
    cell: Cell,
) -> dict[str, Any]:
    ours, why = shop.figure(cell)
    entry: dict[str, Any] = (
        {
            "ours": None,
            "why": why,
        }
        if why
        else {"ours": ours}
    )
    if shop.scale.name == "paper":
        published = table.published(cell)
        entry["published"] = published
        if published is not None and isinstance(ours, (int, float)):
            entry["gap"] = ours - published
    return entry


def other_sizes(shop: Workshop, table: Table) -> dict[str, str]:
    """Name the judged collections that have other sizes than published: another version."""
    steps = set()
    for cell in table.cells.values():
        steps.update(step for step in cell.steps() if step.startswith("judged/"))
    others = {}
    for step in steps:
        if not shop.is_done(step):
            continue
        [data] = shop.steps[step].needs("data")
        record = json.loads((shop.folder(step) / "judged" / "results.json").read_text())
        ours = (record["documents"], record["queries"])
        if "/" not in data and ours != size(data):
            published = " and ".join(f"{number:,}" for number in size(data))
            sizes = f"{ours[0]:,} documents and {ours[1]:,} queries, published {published}"
            others[data] = f"{sizes}: another version"
    return others


def markdown(results: dict[str, Any], digits: int) -> str:
    """Format a table: ours, and in brackets the published figure and the gap."""
    columns: dict[str, None] = {}
    for cells in results["cells"].values():
        columns |= dict.fromkeys(cells)
    lines = [f"# {results['table']}: {results['title']}", ""]
    if not results["comparable"]:
        lines += [NOT_COMPARABLE, ""]
    if results["without"]:
        names = ", ".join(results["without"])
        lines += [
            f"Without {names}: no model was pre-trained on these, and averages are over the rest.",
            "",
        ]
    rows = []
    reasons: dict[str, list[str]] = {}
    for row, cells in results["cells"].items():
        share = results["averages"].get(row)
        name = f"{row} ({share} rows)" if share else row
        texts = [_format(cells[column], digits) if column in cells else "" for column in columns]
        rows.append([name, *texts])
        for column, entry in cells.items():
            if entry.get("why"):
                reasons.setdefault(entry["why"], []).append(f"{row}, {column}")
    table = markdown_table(["", *columns], rows).splitlines()
    table[1] = f"| --- {'| ---: ' * len(columns)}|"
    lines += [*table, ""]
    if results.get("tests"):
        lines += [f"Marks: {results['tests']}.", ""]
    lines += [f"- {data}: {text}" for data, text in results["other_sizes"].items()]
    reasons.pop(NOT_ASKED, None)
    for reason, names in reasons.items():
        lines.append(f"- no figure of ours for {_some(names)}: {reason}")
    return "\n".join(lines)


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} cells, such as {names[0]}"


def _format(entry: dict[str, Any], digits: int) -> str:
    ours = entry["ours"]
    if ours is None:
        text = "–"
    elif isinstance(ours, str):
        text = ours
    else:
        text = f"{ours:.{digits}f}{entry.get('marks', '')}"
    published = entry.get("published")
    if published is None:
        return text
    gap = f", {entry['gap']:+.{digits}f}" if "gap" in entry else ""
    return f"{text} ({published:.{digits}f}{gap})"
