"""The estimates of an adaptation without labels as a table in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from beir_cocodr.evaluation.label_free.estimates import ESTIMATORS
from beir_cocodr.evaluation.label_free.recommendation import label_pairs, training_pairs
from beir_cocodr.evaluation.recommendation import BASE, MODES


def adaptation_table(comparison: Mapping[str, Any], candidates: Mapping[str, str]) -> Table:
    """Trained encoders against the base in the same use, and the untrained methods against the base alone."""
    pairs = label_pairs(comparison, candidates)
    size = f"{comparison['documents']:,} documents, {comparison['queries']:,} queries"
    table = Table(title=f"{comparison['dataset']}: {size}, estimates without labels")
    for column in ("model", "against", "verdict"):
        table.add_column(column)
    table.add_column("P(better)", justify="right")
    for name in ESTIMATORS:
        table.add_column(name, justify="right")
    for a, b in [*training_pairs(candidates), *((BASE, BASE + mode) for mode in MODES[1:]), (BASE, "bm25")]:
        pair = pairs[a, b]
        chance = "–" if pair["probability"] is None else f"{pair['probability']:.2f}"
        table.add_row(b, a, pair["verdict"], chance, *map(_cell, pair["estimates"]))
    table.caption = "difference and its 95% interval; in brackets: does not count for this pair"
    table.caption_justify = "left"
    return table


def _cell(estimate: Mapping[str, Any]) -> str:
    if estimate["difference"] is None:
        return "–"
    told = f"{estimate['difference']:+.3f}"
    if estimate["interval"] is not None:
        told += "\n{:+.3f} to {:+.3f}".format(*estimate["interval"])
    return told if estimate["applies"] else f"({told})"
