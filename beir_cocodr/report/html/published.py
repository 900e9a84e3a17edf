"""Published figures beside ours, on collections that a paper reports.

References:
    Yu et al., 2022 (COCO-DR), table 1; Zamani and Bendersky, 2023 (MRL), table 5.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from beir_cocodr.errors import explained
from beir_cocodr.evaluation.results import EvaluationRecord
from beir_cocodr.io import parse_json
from beir_cocodr.records import Json
from beir_cocodr.report.html.tables import (
    HtmlTable,
    TableColumn,
    number_cell,
    text_cell,
    text_columns,
)

#: Place of the figures in an installation; it is benchmarks/published in the source tree.
PACKAGE = "beir_cocodr.published"

_MEASURE = "nDCG@10"

#: The same measure in the files.
_METRIC = "ndcg@10"


@dataclass(frozen=True)
class _Paper:
    """The figures of a paper.

    Attributes:
        authors: its authors.
        scores: task to method to nDCG@10; None where the paper has none.
        sizes: task to its numbers of documents and of queries.
    """

    authors: str
    scores: dict[str, dict[str, float | None]]
    sizes: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class _Row:
    """A figure of ours or of a paper."""

    model: str
    source: str
    value: float
    mark: str = ""


def published_table(
    results: EvaluationRecord, names: Mapping[str, str], files: Sequence[Path] = ()
) -> HtmlTable | None:
    """Return our models among the published ones.

    Args:
        results: our evaluation.
        names: label to the name that the page shows.
        files: JSON files in the form of benchmarks/published, instead of the packaged ones.

    Returns:
        The table; None if no paper reports the collection, or nDCG@10 was not measured.
    """
    if _MEASURE not in results.measures:
        return None
    papers = [_read(file) for file in files or _packaged()]
    task = _task(results.dataset, papers)
    if task is None:
        return None
    rows = []
    for label, result in results.models.items():
        value = result.measures[_MEASURE]
        rows.append(_Row(names[label], "this evaluation", value, mark="ours"))
    for paper in papers:
        for method, score in paper.scores.get(task, {}).items():
            if score is not None:
                rows.append(_Row(method, paper.authors, score))
    rows.sort(key=lambda row: -row.value)
    cells = [
        [text_cell(row.model, mark=row.mark), text_cell(row.source), number_cell(row.value, ".3f")]
        for row in rows
    ]
    columns = [*text_columns("Model", "Source"), TableColumn(_MEASURE)]
    notes = [
        "Published figures are quoted: they were not measured here, and are not tested against "
        "ours."
    ]
    sizes = (results.documents, results.queries)
    for paper in papers:
        documents, queries = paper.sizes.get(task, sizes)
        if (documents, queries) != sizes:
            notes.append(
                f"This is another version or a part of the collection: {sizes[0]:,} documents and "
                f"{sizes[1]:,} queries here, {documents:,} and {queries:,} in the paper."
            )
    return HtmlTable(f"Published figures on {task}", columns, cells, notes=notes)


def _read(file: Path | Traversable) -> _Paper:
    kinds = (OSError, ValueError, KeyError, TypeError, AttributeError)
    with explained(f"{file} cannot be read", "write it again, or remove it", *kinds):
        content = parse_json(file.read_text(encoding="utf-8"))
        tasks_by_methods = content.get("table1", {})
        methods_by_tasks = content.get("table5", {})
        scores = {**_scores_by_task(tasks_by_methods), **_scores_by_method(methods_by_tasks)}
        sizes = _sizes(methods_by_tasks)
        for of_task in scores.values():
            if not all(isinstance(value, float | int | None) for value in of_task.values()):
                raise TypeError("a score is not a number")
    authors = str(content.get("paper", "")).split(",")[0]
    return _Paper(authors, scores, sizes)


def _scores_by_task(table: Json) -> dict[str, dict[str, float | None]]:
    """Return the scores of a table with a row for each task."""
    if table.get("metric") != _METRIC:
        return {}
    return {task: dict(row) for task, row in table["scores"].items()}


def _scores_by_method(table: Json) -> dict[str, dict[str, float | None]]:
    """Return the scores of a table with a row for each method."""
    if table.get("metric") != _METRIC:
        return {}
    rows = table.get("rows", {})
    return {
        task: {method: row.get(task) for method, row in rows.items()} for task in table["datasets"]
    }


def _sizes(table: Json) -> dict[str, tuple[int, int]]:
    """Return the sizes of the tasks, which some rows of a table have instead of scores."""
    sizes = {}
    for task, row in table.get("rows", {}).items():
        if "test_queries" in row:
            sizes[task] = (int(row["documents"]), int(row["test_queries"]))
    return sizes


def _packaged() -> list[Traversable]:
    try:
        files = [file for file in resources.files(PACKAGE).iterdir() if file.name.endswith(".json")]
    except ModuleNotFoundError:
        return []
    return sorted(files, key=lambda file: file.name)


def _task(dataset: str, papers: Sequence[_Paper]) -> str | None:
    """Return BEIR's name of a collection, if a paper reports it.

    A single forum of cqadupstack is not the task of that name.
    """
    parts = [part for part in re.split(r"[/:\\]", dataset.lower()) if part]
    parts = [part for part in parts if part not in ("test", "v2")]
    if parts and any(parts[-1] in paper.scores for paper in papers):
        return parts[-1]
    return None
