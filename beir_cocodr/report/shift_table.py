"""Shift between collections as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from beir_cocodr.analysis.query_types import QUERY_TYPES


def shift_tables(report: dict[str, Any]) -> list[Table]:
    """Similarities, query types and, with results, correlations, from the content of shift.json."""
    tables = [_similarities(report), _types(report)]
    return [*tables, _correlations(report)] if report.get("scores") else tables


def _similarities(report: dict[str, Any]) -> Table:
    source = report["source"]["dataset"]
    table = Table(title=f"weighted Jaccard similarity with {source} (1: the same, 0: nothing shared)")
    table.add_column("target")
    for column in ("documents", "words", "document similarity", "queries", "query type similarity"):
        table.add_column(column, justify="right")
    for label in report.get("scores", {}):
        table.add_column(f"{report['measure']}, {label}", justify="right")
    for record in report["targets"]:
        scores = [found.get(record["dataset"]) for found in report.get("scores", {}).values()]
        table.add_row(
            record["dataset"],
            f"{record['documents']:,}",
            f"{record['words']:,}",
            _share(record["document_jaccard"]),
            f"{record['queries']:,}",
            _share(record["query_type_jaccard"]),
            *("–" if score is None else f"{score:+.4f}" for score in scores),
        )
    table.caption = "\n".join(_remarks(report)) or None
    table.caption_justify = "left"
    return table


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    for record in (report["source"], *report["targets"]):
        if not record["queries"]:
            yield f"{record['dataset']} has no queries, so there is no similarity of query types"
        elif record["split"] is None:
            yield f"{record['dataset']}: all queries, whatever their split"
    if report.get("baseline"):
        yield f"scores are differences to {report['baseline']}"


def _types(report: dict[str, Any]) -> Table:
    table = Table(title="query types (COCO-DR, appendix C.1)")
    table.add_column("collection")
    for name in QUERY_TYPES:
        table.add_column(name, justify="right")
    for record in (report["source"], *report["targets"]):
        shares = record["query_types"] or {}
        cells = (f"{shares[name]:.1%}" if shares else "–" for name in QUERY_TYPES)
        table.add_row(record["dataset"], *cells)
    return table


def _correlations(report: dict[str, Any]) -> Table:
    table = Table(title=f"similarity and {report['measure']} over targets (p after Holm's correction)")
    for column in ("model", "similarity"):
        table.add_column(column)
    for column in ("Pearson r", "p", "Kendall τ", "p", "targets"):
        table.add_column(column, justify="right")
    for label, rows in report["correlations"].items():
        for row in rows:
            table.add_row(
                label,
                row["similarity"],
                _signed(row["pearson"]),
                _share(row["pearson_p_holm"]),
                _signed(row["kendall"]),
                _share(row["kendall_p_holm"]),
                str(row["targets"]),
            )
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}"
