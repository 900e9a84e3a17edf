"""A comparison of models as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from beir_cocodr.report.tables import evaluation_table

_LISTED = 10


def verdict_tables(report: dict[str, Any]) -> list[Table]:
    """Verdicts, what they rest on, pairs to label, and what was seen, from the content of comparison.json."""
    tables = [evaluation_table(report["evaluation"])] if report["labels"] else [_estimates(report)]
    tables.append(_verdicts(report))
    if report["labels_wanted"]["pairs"]:
        tables.append(_wanted(report["labels_wanted"]))
    if report["seen"]:
        tables.append(_seen(report["seen"]))
    return tables


def _verdicts(report: dict[str, Any]) -> Table:
    basis = "paired tests" if report["labels"] else "without labels"
    table = Table(title=f"verdicts on {report['dataset']}, b against a ({basis})")
    for column in ("a", "b", "verdict"):
        table.add_column(column)
    if report["labels"]:
        _add_tests(table, report)
    else:
        table.add_column("P(b better)", justify="right")
        table.add_column("reason")
        for pair in report["pairs"]:
            chance = "–" if pair["probability"] is None else f"{pair['probability']:.2f}"
            table.add_row(pair["a"], pair["b"], pair["verdict"], chance, pair["reason"])
    table.caption = "\n".join(_remarks(report))
    table.caption_justify = "left"
    return table


def _add_tests(table: Table, report: dict[str, Any]) -> None:
    for column in ("measure", "b − a", "95%", "p (Holm)", "win/tie/loss"):
        table.add_column(column, justify="right")
    for pair in report["pairs"]:
        span = "" if pair["interval"] is None else "{:+.3f} to {:+.3f}".format(*pair["interval"])
        p = pair["t_p_holm"]
        table.add_row(
            pair["a"],
            pair["b"],
            pair["verdict"],
            pair["measure"],
            f"{pair['difference']:+.4f}",
            span,
            "–" if p is None else "<0.0001" if p < 1e-4 else f"{p:.4f}",
            f"{pair['wins']}/{pair['ties']}/{pair['losses']}",
        )


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    yield report["best"]["reason"]
    if not report["labels"]:
        yield from dict.fromkeys(pair["trust"] for pair in report["pairs"])


def _estimates(report: dict[str, Any]) -> Table:
    table = Table(title=f"{report['dataset']}: {report['documents']:,} documents, estimates without labels")
    for column in ("a", "b", "estimator"):
        table.add_column(column)
    for column in ("a", "b", "b − a", "95%", "win/tie/loss"):
        table.add_column(column, justify="right")
    for pair in report["pairs"]:
        for found in pair["estimates"]:
            span = "" if found["interval"] is None else "{:+.3f} to {:+.3f}".format(*found["interval"])
            table.add_row(
                pair["a"],
                pair["b"],
                found["estimator"] + (f" ({found['remark']})" if found["remark"] else ""),
                _number(found["a"], ".4f"),
                _number(found["b"], ".4f"),
                _number(found["difference"], "+.4f"),
                span,
                f"{found['wins']}/{found['ties']}/{found['losses']}",
            )
    table.caption = "\n".join(_leakage(report["pseudo_queries"]))
    table.caption_justify = "left"
    return table


def _leakage(told: dict[str, Any]) -> Iterator[str]:
    for name in ("held-out crops", "generated queries"):
        found = told[name]
        if found["verbatim"] is not None:
            yield (
                f"{name}: {found['queries']:,}; {found['verbatim']:.0%} of their words stand in the document "
                f"that they have to find, and BM25 alone has nDCG@10 {found['bm25_ndcg']:.3f}"
            )
        if known := found["counts"].get("queries_trained_on"):
            yield f"{name}: {known:,} left out because a model was trained on them"
    agreement = told["agreement"]
    whose = "the collection's own" if agreement["of_the_collection"] else "generated"
    yield f"agreement: share of the other list's ten best documents, {agreement['queries']:,} {whose} queries"


def _wanted(wanted: dict[str, Any]) -> Table:
    table = Table(title=f"labels that would tell most between a = {wanted['a']} and b = {wanted['b']}")
    for column in ("query", "document"):
        table.add_column(column)
    for column in ("weight", "rank a", "rank b"):
        table.add_column(column, justify="right")
    for row in wanted["pairs"][:_LISTED]:
        ranks = [_number(row[name], "d") for name in ("rank_a", "rank_b")]
        table.add_row(
            f"{row['query_id']}: {row['query'][:60]}", row["document_id"], f"{row['weight']:.3f}", *ranks
        )
    if len(wanted["pairs"]) > _LISTED:
        table.caption = f"and {len(wanted['pairs']) - _LISTED} more"
        table.caption_justify = "left"
    return table


def _seen(seen: dict[str, Any]) -> Table:
    table = Table(title="what was seen in training")
    table.add_column("model")
    table.add_column("statement")
    for model, found in seen.items():
        table.add_row(model, "\n".join(found["sentences"]))
    return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
