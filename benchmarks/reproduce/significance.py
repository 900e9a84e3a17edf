"""Paired tests between the models of a table, and the papers' marks of significance.

The scores of every query stay in the folder of a judgement, so that a table can be tested at any
time. A mean of forums is tested over the queries of all forums, and an average over the scores of
the rows or columns that it averages. A gain is tested as a difference of two models, and a
correlation has the p-value of its analysis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from beir_cocodr.evaluation.evaluate import read_per_query
from reproduce.scales import resolve
from reproduce.specification import AgainstZero, Cell, Comparison, Table, read
from reproduce.workshop import Workshop

#: Query, with its collection, to its score; "" where the models have one collection.
Scores = dict[tuple[str, str], float]


def p_value(first: Scores, second: Scores) -> float | None:
    """Return the two-tailed p-value of a paired t-test; None if the pairs differ or are too few."""
    if set(first) != set(second) or len(first) < 2:
        return None
    keys = list(first)
    differences = np.array([first[key] - second[key] for key in keys])
    if np.ptp(differences) == 0:
        return 1.0 if differences[0] == 0 else 0.0
    return float(stats.ttest_1samp(differences, 0).pvalue)


def query_scores(shop: Workshop, cell: Cell) -> Scores:
    """Return the scores of the queries of a judged cell, or of the forums that it averages."""
    scores: Scores = {}
    if cell.combine == "mean":
        for part in cell.parts:
            scores |= query_scores(shop, part)
        return scores
    if cell.queries is not None:
        if shop.is_done(cell.step):
            for query, score in cell.queries(shop.folder(cell.step)).items():
                scores["", query] = score
        return scores
    if not cell.step.startswith("judged/") or not shop.is_done(cell.step):
        return {}
    measure = cell.read.rpartition("|")[2]
    for file in sorted((shop.folder(cell.step) / "judged").glob("*.per_query.tsv")):
        for query, [score] in read_per_query(file, [measure]).items():
            scores[_collection(cell), query] = score
    return scores


def _collection(cell: Cell) -> str:
    """Return the collection of a judged cell."""
    return cell.step.removeprefix("judged/").split("/", 1)[1]


#: Row to column to the entry of a cell in the results.
Entries = dict[str, dict[str, dict[str, Any]]]


def mark_significance(
    shop: Workshop,
    table: Table,
    entries: Entries,
    averages: Mapping[str, list[str]],
) -> None:
    """Add p-values and marks to the entries of a table, as its tests ask.

    Args:
        shop: The finished steps.
        table: The table.
        entries: Row to column to an entry, which gets ``p_values`` and ``marks``.
        averages: Rows of averages, each to the rows that have a figure.
    """
    if table.comparison is not None:
        _compare(shop, table, table.comparison, entries, averages)
    if table.against_zero is not None:
        _test_against_zero(shop, table, table.against_zero, entries)


def _compare(
    shop: Workshop,
    table: Table,
    comparison: Comparison,
    entries: Entries,
    averages: Mapping[str, list[str]],
) -> None:
    """Add p-values and marks of models that are compared with others."""
    if comparison.in_rows:
        averages = averaged_columns(table)
    for row, column in table.cells:
        model, place = (row, column) if comparison.in_rows else (column, row)
        entry = entries[row][column]
        if model not in comparison.against or entry["ours"] is None:
            continue
        scores = {}
        for name in (model, *comparison.against[model]):
            position = (name, place) if comparison.in_rows else (place, name)
            if place in averages:
                scores[name] = _averaged_scores(comparison, entries, averages[place], name)
            elif position in table.cells:
                scores[name] = query_scores(shop, table.cells[position])
        entry |= _tested(comparison, model, scores)


def averaged_columns(table: Table) -> dict[str, list[str]]:
    """Return the columns of averages, each to the columns that it averages."""
    columns: dict[str, list[str]] = {}
    for (row, column), cell in table.cells.items():
        if cell.combine != "mean":
            continue
        parts = {id(part) for part in cell.parts}
        known = [name for name in table.columns if id(table.cells.get((row, name))) in parts]
        if len(known) == len(parts):
            columns[column] = known
    return columns


def _averaged_scores(
    comparison: Comparison,
    entries: Entries,
    places: Sequence[str],
    model: str,
) -> Scores:
    """Return the figures of a model in the rows or columns of an average."""
    scores: Scores = {}
    for place in places:
        row, column = (model, place) if comparison.in_rows else (place, model)
        figure = entries[row].get(column, {}).get("ours")
        if isinstance(figure, (int, float)):
            scores[place, ""] = figure
    return scores


def _test_against_zero(
    shop: Workshop,
    table: Table,
    tests: AgainstZero,
    entries: Entries,
) -> None:
    """Add p-values and marks of gains and correlations."""
    for (row, column), cell in table.cells.items():
        entry = entries[row][column]
        value = None if entry["ours"] is None else _p_value_of(shop, cell)
        if value is not None:
            is_marked = row in (tests.rows or table.rows) and value < tests.level
            entry |= {"p_values": {"0": value}, "marks": tests.mark if is_marked else ""}


def _p_value_of(shop: Workshop, cell: Cell) -> float | None:
    """Return the p-value of a gain or correlation; None if there is none."""
    if cell.combine == "mean" and len(cell.parts) == 1:
        return _p_value_of(shop, cell.parts[0])
    if cell.combine == "difference":
        first, second = (query_scores(shop, part) for part in cell.parts)
        return p_value(first, second)
    if not cell.p_value:
        return None
    value = read(shop.folder(cell.step), resolve(cell.p_value, shop.scale, shop.folder))
    return None if value is None else float(value)


def _tested(comparison: Comparison, model: str, scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Return the p-values of a model and its marks; nothing if no test can be made."""
    p_values = {}
    is_better = {}
    ours = scores[model]
    for other in comparison.against[model]:
        theirs = scores.get(other, {})
        value = p_value(ours, theirs)
        if value is not None:
            p_values[other] = value
            is_better[other] = sum(ours.values()) > sum(theirs.values())
    if not p_values:
        return {}
    tests = len(p_values) if comparison.all_at_once else 1
    marks = []
    for other, value in p_values.items():
        if is_better[other] and value * tests < comparison.level:
            marks.append(comparison.against[model][other])
    if comparison.all_at_once:
        marks = marks[:1] if len(marks) == len(p_values) else []
    return {"p_values": p_values, "marks": "".join(marks)}
