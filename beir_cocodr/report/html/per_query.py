"""The scores of single queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.report.html.judgement import Judgement

#: Label to query id to its scores, in the order of the measures.
Scores = dict[str, dict[str, list[float]]]


def per_query_scores(judged: Judgement, folder: Path, queries: Sequence[str] | None) -> Scores:
    """Read the scores of all models that have some left.

    Args:
        judged: the evaluation.
        folder: where its files are.
        queries: ids of the judged queries, in the order of the collection, where that is at hand; scores of
            run files are kept in this order.

    Raises:
        InputError: a file that is none of evaluate's, or two of different query sets.
    """
    scores: Scores = {}
    for label, record in judged.models.items():
        if record.get("per_query"):
            file = folder / record["per_query"]
            if file.is_file():
                scores[label] = _read(file, judged.measures)
        elif record.get("scores") and queries is not None:
            found = _listed(record["scores"], judged.measures, queries)
            if found is not None:
                scores[label] = found
    for (label, first), (other, second) in zip(scores.items(), list(scores.items())[1:], strict=False):
        if differ := sorted(first.keys() ^ second.keys()):
            shown = ", ".join(differ[:5]) + (f" and {len(differ) - 5} more" if len(differ) > 5 else "")
            raise InputError(
                f"{folder}: {label} and {other} have scores of different queries ({shown}); evaluate them "
                "together"
            )
    return scores


def _read(file: Path, measures: Sequence[str]) -> dict[str, list[float]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    header = lines[0].split("\t") if lines else []
    if header[:1] != ["query_id"] or not set(measures) <= set(header):
        raise InputError(f"{file}: the header is not query_id and {', '.join(measures)}; evaluate again")
    columns = [header.index(measure) for measure in measures]
    scores = {}
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        try:
            scores[cells[0]] = [float(cells[column]) for column in columns]
        except (ValueError, IndexError) as error:
            raise InputError(f"{file}:{number}: not a query and {len(header) - 1} scores") from error
    return scores


def _listed(
    scores: dict[str, list[Any]], measures: Sequence[str], queries: Sequence[str]
) -> dict[str, list[float]] | None:
    """By query id; None where the collection has another number of queries than then."""
    values = [scores[measure] for measure in measures]
    if any(len(column) != len(queries) for column in values):
        return None
    return dict(zip(queries, ([float(v) for v in row] for row in zip(*values, strict=True)), strict=True))
