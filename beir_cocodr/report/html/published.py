"""Published figures beside ours, on collections that a paper reports.

References:
    Yu et al., 2022 (COCO-DR), table 1; Zamani and Bendersky, 2023 (MRL), table 5.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from beir_cocodr.errors import explained
from beir_cocodr.evaluation.results import EvaluationRecord
from beir_cocodr.io import parse_json
from beir_cocodr.records import Record
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


@dataclass(frozen=True)
class _Figures(Record):
    """A file of published figures, with the two tables that are read."""

    paper: str = ""
    table1: dict[str, object] = field(default_factory=dict)
    table5: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class _TaskTable(Record):
    """A table of scores with a row for each task."""

    scores: dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class _MethodTable(Record):
    """A table of scores with a row for each method, which may hold texts, too."""

    datasets: list[str]
    rows: dict[str, dict[str, float | str | None]]


@dataclass(frozen=True)
class _Size(Record):
    """The size of a task, as a row of a table."""

    documents: int
    test_queries: int


def _read(file: Path | Traversable) -> _Paper:
    with explained(f"{file} cannot be read", "write it again, or remove it", OSError, ValueError):
        content = parse_json(file.read_text(encoding="utf-8"))
    figures = _Figures.from_json(content, str(file))
    scores: dict[str, dict[str, float | None]] = {}
    if figures.table1.get("metric") == _METRIC:
        scores |= _TaskTable.from_json(figures.table1, str(file)).scores
    if figures.table5.get("metric") == _METRIC:
        table = _MethodTable.from_json(figures.table5, str(file))
        for task in table.datasets:
            scores[task] = _scores_of(task, table)
    sizes = {}
    rows = figures.table5.get("rows")
    for task, row in rows.items() if isinstance(rows, dict) else ():
        if isinstance(row, dict) and "test_queries" in row:
            size = _Size.from_json(row, str(file))
            sizes[task] = (size.documents, size.test_queries)
    return _Paper(figures.paper.split(",")[0], scores, sizes)


def _scores_of(task: str, table: _MethodTable) -> dict[str, float | None]:
    """Return method to its score of a task."""
    scores = {}
    for method, row in table.rows.items():
        score = row.get(task)
        if not isinstance(score, str):
            scores[method] = score
    return scores


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
