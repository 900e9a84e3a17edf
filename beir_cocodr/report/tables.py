"""Results as tables in a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from beir_cocodr.data.files.defects import Defect


def evaluation_table(report: dict[str, Any]) -> Table:
    """Models by measures, with bootstrap 95% intervals, from the content of results.json."""
    sizes = f"{report['documents']:,} documents, {report['queries']:,} queries"
    table = Table(title=f"{report['dataset']} ({report['split']}): {sizes}")
    table.add_column("model")
    measures = list(next(iter(report["models"].values()))["measures"])
    for measure in measures:
        table.add_column(measure, justify="right")
        table.add_column("95%", justify="right", style="dim")
    table.add_column("seconds", justify="right")
    for label, record in report["models"].items():
        cells = []
        for measure in measures:
            interval = record["intervals"][measure]
            cells += [
                f"{record['measures'][measure]:.4f}",
                "" if interval is None else "{:.3f}–{:.3f}".format(*interval),
            ]
        table.add_row(label, *cells, f"{record['seconds']:.1f}")
    table.caption = "\n".join(_remarks(report["models"])) or None
    table.caption_justify = "left"
    return table


def _remarks(models: dict[str, Any]) -> Iterator[str]:
    """What a reader of the figures has to know: truncated documents, queries without results."""
    for label, record in models.items():
        retrieval = record["retrieval"]
        if retrieval.get("truncated_documents"):
            length = retrieval["text_format"]["document_length"]
            yield f"{label}: {retrieval['truncated_documents']:.0%} of documents cut at {length} tokens"
        if record["queries_without_results"]:
            yield f"{label}: {record['queries_without_results']} queries without results, scored 0"


def comparison_table(report: dict[str, Any]) -> Table:
    """Paired tests between models, from the content of results.json."""
    table = Table(title="paired tests (difference of b to a; p after Holm's correction)")
    for column in ("measure", "a", "b"):
        table.add_column(column)
    for column in ("b − a", "95%", "t-test p", "randomisation p", "win/tie/loss"):
        table.add_column(column, justify="right")
    for test in report["comparisons"]:
        interval = "" if test["interval"] is None else "{:+.3f} to {:+.3f}".format(*test["interval"])
        table.add_row(
            test["measure"],
            test["a"],
            test["b"],
            f"{test['difference']:+.4f}",
            interval,
            _p(test["t_p_holm"]),
            _p(test["randomization_p_holm"]),
            f"{test['wins']}/{test['ties']}/{test['losses']}",
        )
    return table


def _p(value: float | None) -> str:
    return "–" if value is None else "<0.0001" if value < 1e-4 else f"{value:.4f}"


def defect_lines(defects: Sequence[Defect], most: int) -> Iterator[str]:
    """One line a defect, at most ``most`` of each kind; what is left out is counted."""
    listed: Counter[str] = Counter()
    for defect in defects:
        listed[defect.kind] += 1
        if listed[defect.kind] <= most:
            place = defect.file if defect.line is None else f"{defect.file}:{defect.line}"
            yield f"{defect.severity}: {place}: {defect.message}"
    for kind, count in listed.items():
        if count > most:
            yield f"... and {count - most} more: {kind}"
