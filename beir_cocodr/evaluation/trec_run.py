"""A TREC run as it stands in its file."""

from __future__ import annotations

import math
from pathlib import Path

from beir_cocodr.data.files.lines import numbered_lines
from beir_cocodr.errors import InputError

#: Query id to {document id: score}, in the order of the file.
Run = dict[str, dict[str, float]]

_COLUMNS = "query Q0 document rank score tag"


def read_trec_run(path: Path) -> Run:
    """Read ``query Q0 document rank score tag`` lines, plain or ``.gz``. Ranks are not looked at.

    Returns:
        Queries and each query's documents in the order of the file, on which tools rely that do not say how
        they order equal scores.

    Raises:
        InputError: no such file, a line without six columns, a score that is no finite number, a document
            that a query has twice, or no line at all.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a TREC run such as evaluate and search write")
    run: Run = {}
    for number, line in numbered_lines(path, _refuse):
        columns = line.split()
        if len(columns) != 6:
            raise InputError(f"{path}:{number}: {len(columns)} columns; a TREC run has six, {_COLUMNS}")
        query, _, document, _, text, _ = columns
        found = run.setdefault(query, {})
        if document in found:
            raise InputError(
                f"{path}:{number}: document {document!r} stands twice for query {query!r}; leave one out"
            )
        found[document] = _score(text, f"{path}:{number}")
    if not run:
        raise InputError(f"{path} is empty; a run without results cannot be scored")
    return run


def _score(text: str, place: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{place}: the score {text!r} is not a finite number; search again, or correct it")
    return score


def _refuse(
    severity: str, kind: str, file: str, line: int | None, id: str | None, message: str, times: int = 1
) -> None:
    if severity == "error":
        raise InputError(f"{file if line is None else f'{file}:{line}'}: {message}")
