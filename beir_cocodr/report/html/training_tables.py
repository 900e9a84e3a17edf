"""How models were trained, and what was measured after each round."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beir_cocodr.report.html.table import Column, HtmlTable, number_cell, text_cell
from beir_cocodr.report.html.trained_models import Trained


def training_table(trained: Sequence[Trained]) -> HtmlTable:
    """A row for every training, the ancestors of a model below it."""
    columns = [
        Column("Model", number=False),
        Column("Stage", number=False),
        Column("Given", number=False, meaning="the collections that training was given"),
        *(Column(title) for title in ("Steps", "Seed", "Loss", "Seconds")),
    ]
    rows = []
    for name, record in _lineage(trained):
        options = record.get("options", {})
        loss, seconds, steps = record.get("training_loss"), record.get("seconds"), record.get("steps")
        given = ", ".join(
            f"{shown.get('dataset')} ({shown['documents']:,} documents"
            + (f", {shown['queries']:,} queries)" if shown.get("queries") is not None else ")")
            for shown in record.get("seen", [])
            if shown.get("documents") is not None
        )
        rows.append(
            [
                text_cell(name, f"from {record.get('base', '?')}"),
                text_cell(str(record["stage"])),
                text_cell(given or "–"),
                number_cell(steps, f"{steps:,}" if steps is not None else ""),
                number_cell(options.get("seed"), str(options.get("seed"))),
                number_cell(loss, f"{loss:.4g}" if loss is not None else ""),
                number_cell(seconds, f"{seconds:,.0f}" if seconds is not None else ""),
            ]
        )
    return HtmlTable("Trainings", columns, rows)


def settings_table(model: Trained) -> HtmlTable:
    """Every setting of a training."""
    rows = [
        [text_cell(key), text_cell(value if isinstance(value, str) else json.dumps(value))]
        for key, value in {**model.record.get("options", {}), **model.record.get("encoder", {})}.items()
    ]
    columns = [Column("Setting", number=False), Column("Value", number=False)]
    return HtmlTable(f"Settings of {model.name}", columns, rows)


def curve_table(name: str, points: Sequence[Mapping[str, Any]]) -> HtmlTable:
    """The measures after each round."""
    measures = [key for key in points[0] if key not in ("model", "dataset")]
    columns = [Column("Round", number=False), Column("Target", number=False), *map(Column, measures)]
    rows = [
        [
            text_cell(point["model"]),
            text_cell(point["dataset"]),
            *(
                number_cell(value, f"{value:.3f}" if value is not None else "")
                for value in (point.get(measure) for measure in measures)
            ),
        ]
        for point in points
    ]
    return HtmlTable(f"After every round of {name}", columns, rows)


def _lineage(trained: Sequence[Trained]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in trained:
        name = model.name
        record: dict[str, Any] | None = model.record
        while record is not None:
            yield name, record
            record, name = record.get("parent"), f"{model.name}, before"
