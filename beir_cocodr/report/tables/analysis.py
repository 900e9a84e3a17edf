"""Query performance prediction as a table in a terminal.

Representation as tables in a terminal.

Shift between collections as tables in a terminal.

Source clusters near to targets as tables in a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from beir_cocodr.analysis.shift import QUERY_TYPES


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
    table.caption = "\n".join(_qpp_remarks(report)) or None
    table.caption_justify = "left"
    return table


def _qpp_remarks(report: dict[str, Any]) -> Iterator[str]:
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


def representation_tables(report: dict[str, Any]) -> list[Table]:
    """Measures by corpus and model and, for two models, their changes, from representation.json's content."""
    tables = [_measures(report)]
    return [*tables, _changes(report)] if len(report["models"]) == 2 else tables


def _measures(report: dict[str, Any]) -> Table:
    table = Table(
        title=f"two spans of a document (t = {report['temperature']:g}, seed {report['seed']}; "
        "smaller is better in each)"
    )
    for column in ("corpus", "model"):
        table.add_column(column)
    table.add_column("documents", justify="right")
    for column in ("ℓ_align", "ℓ_uniform", "contrastive loss"):
        table.add_column(column, justify="right")
        if column != "ℓ_uniform":
            table.add_column("95%", justify="right", style="dim")
    for dataset, corpus in report["datasets"].items():
        for model, found in corpus["models"].items():
            table.add_row(
                dataset,
                model,
                f"{corpus['sampled']:,}",
                f"{found['alignment']:.4f}",
                _span(found["alignment_interval"]),
                f"{found['uniformity']:.4f}",
                f"{found['contrastive_loss']:.4f}",
                _span(found["contrastive_loss_interval"]),
            )
    table.caption = "\n".join(_representation_remarks(report))
    table.caption_justify = "left"
    return table


def _representation_remarks(report: dict[str, Any]) -> Iterator[str]:
    for dataset, corpus in report["datasets"].items():
        batches = f"{corpus['batches']} batches of {corpus['batch_size']} documents"
        yield f"{dataset}: contrastive loss over {batches}, by chance {corpus['loss_of_chance']:.4f}"
        if corpus["left_over"]:
            yield f"{dataset}: {corpus['left_over']} documents left over, in no batch"
        if corpus["too_short"]:
            yield f"{dataset}: {corpus['too_short']} documents drawn too, but too short for two spans"
    if not report["losses_comparable"]:
        yield "the models compare texts in different ways, so their contrastive losses cannot be compared"


def _changes(report: dict[str, Any]) -> Table:
    before, after = report["models"]
    table = Table(title=f"{after} − {before}")
    table.add_column("corpus")
    for column in ("ℓ_align", "95%", "ℓ_uniform", "contrastive loss", "95%", "reduction"):
        table.add_column(column, justify="right", style="dim" if column == "95%" else None)
    if report["measure"]:
        table.add_column(f"gain in {report['measure']}", justify="right")
    for dataset, corpus in report["datasets"].items():
        change = corpus["change"]
        reduction = change["contrastive_loss_reduction"]
        table.add_row(
            dataset,
            _signed(change["alignment"]),
            _span(change["alignment_interval"], "+"),
            _signed(change["uniformity"]),
            _signed(change["contrastive_loss"]),
            _span(change["contrastive_loss_interval"], "+"),
            "–" if reduction is None else f"{reduction:.1%}",
            *([_signed(change["gain"])] if report["measure"] else []),
        )
    row = report["reduction_against_gain"]
    if row is not None and row["pearson"] is not None:
        table.caption = (
            f"{row['of']} and gain over {row['datasets']} corpora: Pearson's r {row['pearson']:+.3f} "
            f"(p = {row['pearson_p']:.3g}), Kendall's τ {row['kendall']:+.3f} (p = {row['kendall_p']:.3g})"
        )
    return table


def _span(interval: Sequence[float] | None, sign: str = "") -> str:
    return "" if interval is None else " to ".join(f"{end:{sign}.3f}" for end in interval)


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"


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
    table.caption = "\n".join(_shift_remarks(report)) or None
    table.caption_justify = "left"
    return table


def _shift_remarks(report: dict[str, Any]) -> Iterator[str]:
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
                _signed_share(row["pearson"]),
                _share(row["pearson_p_holm"]),
                _signed_share(row["kendall"]),
                _share(row["kendall_p_holm"]),
                str(row["targets"]),
            )
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _signed_share(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}"


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
