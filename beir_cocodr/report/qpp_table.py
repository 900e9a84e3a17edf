"""Query performance prediction as a table in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table


def qpp_table(report: dict[str, Any]) -> Table:
    """Predictors by their correlations with quality, from the content of qpp.json."""
    table = Table(
        title=f"{report['dataset']} ({report['split']}): {report['measure']} of {report['model']}, "
        f"{report['queries']:,} queries (p after Holm's correction)"
    )
    table.add_column("predictor")
    for column in ("Pearson r", "p", "Kendall τ", "p", "queries", "left out"):
        table.add_column(column, justify="right")
    for row in report["predictors"]:
        table.add_row(
            row["predictor"],
            _coefficient(row["pearson"]),
            _p(row["pearson_p_holm"]),
            _coefficient(row["kendall"]),
            _p(row["kendall_p_holm"]),
            f"{row['queries']:,}",
            f"{row['left_out']:,}",
        )
    table.caption = "\n".join(_remarks(report)) or None
    table.caption_justify = "left"
    return table


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    if report["queries_without_known_terms"]:
        yield f"{report['queries_without_known_terms']} queries have no term that the corpus has"
    if report["unknown_query_words"]:
        yield f"{report['unknown_query_words']} words of queries are not in the corpus and play no part"
    for row in report["predictors"]:
        if row["pearson"] is None:
            yield f"{row['predictor']} has no correlation: one side is constant, or too few queries are left"
    for name, reason in report["predictors_left_out"].items():
        yield f"{name} is not computed: it {reason}"


def _coefficient(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}"


def _p(value: float | None) -> str:
    return "–" if value is None else "<0.0001" if value < 1e-4 else f"{value:.4f}"
