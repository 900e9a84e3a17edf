"""The papers' figures beside ours, on collections that they report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from beir_cocodr.report.html.found_files import read_json
from beir_cocodr.report.html.judgement import Judgement
from beir_cocodr.report.html.table import Column, HtmlTable, number_cell, text_cell

#: Where the figures lie in an installation: benchmarks/published of the source tree.
PACKAGE = "beir_cocodr.published"
_MEASURE = "nDCG@10"


def published_table(
    judged: Judgement, names: Mapping[str, str], files: Sequence[Path] = ()
) -> HtmlTable | None:
    """Our models among the published ones; None where the collection, or nDCG@10, is in no paper.

    Args:
        judged: our evaluation.
        names: label to the name that is shown.
        files: JSON files in the form of benchmarks/published, instead of the packaged ones.

    Source: COCO-DR, table 1; MRL, table 5.
    """
    if _MEASURE not in judged.measures:
        return None
    contents = [read_json(file) for file in files] if files else _packaged()
    task = _task(judged.dataset, contents)
    if task is None:
        return None
    ours = {label: record["measures"][_MEASURE] for label, record in judged.models.items()}
    rows = [
        [
            text_cell(names[label], mark="ours"),
            text_cell("this evaluation"),
            number_cell(value, f"{value:.3f}"),
        ]
        for label, value in ours.items()
    ]
    for content in contents:
        paper = str(content.get("paper", "")).split(",")[0]
        rows += [
            [text_cell(method), text_cell(paper), number_cell(value, f"{value:.3f}")]
            for method, value in _scores(content, task).items()
            if value is not None
        ]
    rows.sort(key=lambda row: -float(row[2].value or 0))
    columns = [Column("Model", number=False), Column("Source", number=False), Column(_MEASURE)]
    return HtmlTable(f"Published figures on {task}", columns, rows, notes=_notes(judged, task, contents))


def _packaged() -> list[dict[str, Any]]:
    try:
        folder = resources.files(PACKAGE)
    except ModuleNotFoundError:
        return []
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda f: f.name)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _task(dataset: str, contents: Sequence[Mapping[str, Any]]) -> str | None:
    """What BEIR calls a collection, if a paper reports it; a single forum of cqadupstack is not the task."""
    parts = [part for part in re.split(r"[/:\\]", dataset.lower()) if part not in ("test", "v2", "")]
    last = parts[-1] if parts else ""
    return last if any(_scores(content, last) for content in contents) else None


def _scores(content: Mapping[str, Any], task: str) -> dict[str, float | None]:
    """Method to nDCG@10 on a task; {} where the paper has none."""
    cells = content.get("table1", {}).get("scores", {})
    if content.get("table1", {}).get("metric") == "ndcg@10" and task in cells:
        return dict(cells[task])
    table = content.get("table5", {})
    if table.get("metric") == "ndcg@10" and task in table.get("datasets", ()):
        return {method: row.get(task) for method, row in table["rows"].items()}
    return {}


def _notes(judged: Judgement, task: str, contents: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = ["Published figures are as printed: not measured here, and not tested against ours."]
    for content in contents:
        size = content.get("table5", {}).get("rows", {}).get(task, {})
        if "test_queries" not in size:
            continue
        published = size["documents"], size["test_queries"]
        here = judged.results["documents"], judged.results["queries"]
        if published != here:
            notes.append(
                f"Another version or a part: {here[0]:,} documents and {here[1]:,} queries here, "
                f"{published[0]:,} and {published[1]:,} published."
            )
    return notes
