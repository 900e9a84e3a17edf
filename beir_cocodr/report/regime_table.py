"""Interpolation and extrapolation as tables in a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table


def regime_tables(report: dict[str, Any]) -> list[Table]:
    """Both regimes and the gap, and the alignment where there is one, from the content of regimes.json."""
    tables = [_regimes(report)]
    if report["alignment"]:
        tables.append(_alignment(report))
    return tables


def _regimes(report: dict[str, Any]) -> Table:
    title = f"{report['method']} of {report['train']['dataset']} and {report['test']['dataset']}"
    table = Table(title=escape(title))
    table.add_column("training sets")
    table.add_column("model")
    table.add_column("seeds", justify="right")
    for measure in report["measures"]:
        for column in (f"{measure} inter.", "extra.", "gap"):
            table.add_column(column, justify="right")
    for row in report["rows"]:
        cells = []
        for measure in report["measures"]:
            found = row["measures"][measure]
            cells += [f"{found['interpolation']:.4f}", f"{found['extrapolation']:.4f}", _gap(found)]
        table.add_row(row["group"], escape(row["model"]), str(len(row["seeds"])), *cells)
    queries = report["rows"][0]["queries"]
    table.caption = (
        f"gap: (extrapolation − interpolation) / interpolation, of means over seeds, ± standard deviation of "
        f"the seeds' gaps; {queries['interpolation']:,} and {queries['extrapolation']:,} test queries"
    )
    table.caption_justify = "left"
    return table


def _gap(found: dict[str, Any]) -> str:
    if found["gap"] is None:
        return "–"
    spread = "" if found["gap_sd"] is None else f" ± {100 * found['gap_sd']:.1f}"
    return f"{100 * found['gap']:+.1f}{spread} %"


def _alignment(report: dict[str, Any]) -> Table:
    measure = report["alignment"][0]["measure"]
    table = Table(title=f"alignment with collections outside the distribution, {measure}")
    table.add_column("collection")
    table.add_column("regime")
    for column in ("models", "Spearman's ρ", "p", "Kendall's τ", "p"):
        table.add_column(column, justify="right")
    for row in report["alignment"]:
        cells = (
            [
                f"{row['spearman']:+.3f}",
                f"{row['spearman_p']:.3g}",
                f"{row['kendall']:+.3f}",
                f"{row['kendall_p']:.3g}",
            ]
            if row["spearman"] is not None
            else ["–"] * 4
        )
        table.add_row(escape(row["collection"]), row["regime"], str(row["models"]), *cells)
    return table
