"""Source clusters near to targets as tables in a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def source_clusters_tables(report: dict[str, Any]) -> list[Table]:
    """Nearest clusters with losses and gains, and nearest queries, from source_clusters.json's content."""
    return [_clusters(report), _cases(report)]


def _clusters(report: dict[str, Any]) -> Table:
    table = Table(title=f"{report['after']} − {report['before']}: the source cluster nearest to each target")
    table.add_column("target")
    for column in ("cluster", "queries", "similarity", "loss before", "after", "reduction"):
        table.add_column(column, justify="right")
    if report["measure"]:
        table.add_column(f"gain in {report['measure']}", justify="right")
    table.add_column("central queries", max_width=60)
    central = {cluster["cluster"]: cluster["central_queries"] for cluster in report["clusters"]}
    for name, record in report["targets"].items():
        table.add_row(
            name,
            str(record["cluster"]),
            f"{record['queries']:,}",
            f"{record['similarity']:.4f}",
            f"{record['loss_before']:.4f}",
            f"{record['loss_after']:.4f}",
            f"{record['reduction']:+.4f}",
            *([_signed(record["gain"])] if report["measure"] else []),
            "; ".join(central[record["cluster"]]),
        )
    improved = f"{report['nearest_improved']} of {len(report['targets'])} targets"
    lines = [
        f"{report['sampled']:,} queries of {report['source']} in {len(report['clusters'])} clusters",
        f"the loss of the nearest cluster is lower after than before for {improved}",
    ]
    row = report["reduction_against_gain"]
    if row is not None and row["pearson"] is not None:
        lines.append(
            f"{row['of']} and gain over {row['targets']} targets: Pearson's r {row['pearson']:+.3f} "
            f"(p = {row['pearson_p']:.3g}), Kendall's τ {row['kendall']:+.3f} (p = {row['kendall_p']:.3g})"
        )
    table.caption, table.caption_justify = "\n".join(lines), "left"
    return table


def _cases(report: dict[str, Any]) -> Table:
    measure = report["measure"] or "measure"
    table = Table(title="target queries and the source queries nearest to them")
    table.add_column("target")
    table.add_column("target query", max_width=50)
    table.add_column(f"gain in {measure}", justify="right")
    table.add_column("source query", max_width=50)
    for column in (f"gain in {measure}", "reduction of loss", "similarity"):
        table.add_column(column, justify="right")
    for name, record in report["targets"].items():
        for case in record["cases"]:
            for near in case["nearest"]:
                table.add_row(
                    name,
                    case["query"],
                    _signed(case["gain"]),
                    near["query"],
                    _signed(near["gain"]),
                    _signed(near["loss_reduction"]),
                    f"{near['similarity']:.4f}",
                )
    return table


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"
