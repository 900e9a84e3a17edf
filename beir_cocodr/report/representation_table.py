"""Representation as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table


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
    table.caption = "\n".join(_remarks(report))
    table.caption_justify = "left"
    return table


def _remarks(report: dict[str, Any]) -> Iterator[str]:
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
