"""Overlap of a training and a test set as tables in a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

_PAIRS = 10
_RULES = {1: "any passage", 2: "more than one"}


def overlap_tables(report: dict[str, Any]) -> list[Table]:
    """Label overlap, repeated queries and the most similar pairs, from the content of overlap.json."""
    return [_labels(report), _queries(report), _pairs(report)]


def label_overlap_cells(rows: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    """(grade, minimum) to the share of test queries, for tables."""
    return {(row["grade"], row["minimum"]): f"{row['share']:.0%}" for row in rows}


def _labels(report: dict[str, Any]) -> Table:
    train, test = report["train"], report["test"]
    title = (
        f"{escape(test['dataset'])} ({test['split']}), {test['queries']:,} queries, against "
        f"{escape(train['dataset'])} ({train['split']}), {train['queries']:,} queries"
    )
    table = Table(title=title)
    table.add_column("test queries with passages relevant in training, of grade at least")
    rows = report["label_overlap"]
    grades = list(dict.fromkeys(row["grade"] for row in rows))
    for grade in grades:
        table.add_column(str(grade), justify="right")
    cells = label_overlap_cells(rows)
    for minimum, name in _RULES.items():
        table.add_row(name, *(cells[grade, minimum] for grade in grades))
    if not report["same_corpus"]:
        table.caption = "the corpora differ: passages are compared by their ids"
        table.caption_justify = "left"
    return table


def _queries(report: dict[str, Any]) -> Table:
    table = Table(title="test queries that stand in the training set")
    table.add_column("")
    table.add_column("queries", justify="right")
    table.add_column("share", justify="right")
    for key, name in (
        ("exact_duplicates", "the same text"),
        ("near_duplicates", "other text, the same words but for stop words and endings"),
    ):
        found = report[key]
        table.add_row(name, f"{found['queries']:,}", f"{found['share']:.1%}")
    return table


def _pairs(report: dict[str, Any]) -> Table:
    nearest = report["nearest"]
    kind = "Jaccard similarity of words" if nearest["encoder"] is None else "cosine similarity"
    table = Table(
        title=f"nearest training queries by {kind}: mean {nearest['mean']:.3f}, "
        f"median {nearest['median']:.3f}, {nearest['least']:.3f} to {nearest['most']:.3f}"
    )
    for column in ("test query", "nearest training query"):
        table.add_column(column, overflow="fold")
    table.add_column("similarity", justify="right")
    best = sorted(nearest["queries"], key=lambda row: -row["similarity"])
    for row in best[:_PAIRS]:
        table.add_row(escape(row["text"]), escape(row["training_text"] or "–"), f"{row['similarity']:.3f}")
    if len(best) > _PAIRS:
        table.caption = f"the {_PAIRS} most similar of {len(best):,}; --json or --output has all"
        table.caption_justify = "left"
    return table
