"""One run under three tools, and why their numbers differ, as tables in a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

_TOOLS = {"ir_measures": "ir-measures", "beir": "BEIR", "pytrec_eval": "pytrec_eval"}


def parity_tables(report: dict[str, Any]) -> list[Table]:
    """Measures by tools, then each difference with its causes, from what ``parity`` returns."""
    return [_values(report), _differences(report)]


def _values(report: dict[str, Any]) -> Table:
    queries = report["queries"]
    table = Table(
        title=f"{escape(report['run'])} on {escape(report['dataset'])} ({report['split']}): "
        f"{queries['judged']:,} judged queries, {queries['judged_with_results']:,} with results"
    )
    table.add_column("measure")
    for title in _TOOLS.values():
        table.add_column(title, justify="right")
        table.add_column("its name", style="dim")
    for row in report["measures"]:
        cells: list[str] = []
        for tool in _TOOLS:
            cells += [f"{row['tools'][tool]['value']:.6f}", row["tools"][tool]["name"]]
        table.add_row(row["measure"], *cells)
    table.caption = "\n".join(escape(note) for note in report["notes"]) or None
    table.caption_justify = "left"
    return table


def _differences(report: dict[str, Any]) -> Table:
    table = Table(title="differences to ir-measures, each cause applied after those above it")
    for column in ("measure", "tool", "cause"):
        table.add_column(column)
    for column in ("queries", "changed", "before", "after", "effect"):
        table.add_column(column, justify="right")
    table.add_column("reason", overflow="fold")
    for row in report["measures"]:
        for found in row["differences"]:
            head = [row["measure"], _TOOLS[found["tool"]]]
            for cause in found["causes"]:
                figures = [f"{cause['queries']:,}", f"{cause['queries_changed']:,}"]
                figures += [f"{cause['before']:.6f}", f"{cause['after']:.6f}", f"{cause['effect']:+.6f}"]
                table.add_row(*head, cause["cause"], *figures, cause["reason"])
                head = ["", ""]
            table.add_row(*head, *_conclusion(found), end_section=True)
    table.caption = (
        f"every difference is explained, to {report['tolerance']:g}"
        if report["explained"]
        else "not every difference is explained: see 'unexplained'"
    )
    table.caption_justify = "left"
    return table


def _conclusion(found: dict[str, Any]) -> list[str]:
    total = f"{found['difference']:+.6f}"
    if not found["explained"]:
        reason = f"{found['remaining']:+.2e} remains after all known causes"
        return ["unexplained", "", "", "", "", f"{found['remaining']:+.6f}", reason]
    if not found["causes"]:
        return ["none", "", "", "", "", total, "the same number"]
    reason = "recomputed with these causes, the numbers agree"
    return ["all", "", "", "", "", total, reason]
