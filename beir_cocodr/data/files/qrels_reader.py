"""Reading relevance judgements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from beir_cocodr.data.files.defects import Report
from beir_cocodr.data.files.lines import numbered_lines
from beir_cocodr.data.files.record_checker import RecordChecker

Judgement = tuple[int, str, str, int]
"""(line, query id, document id, grade)"""

_GRADE = re.compile(r" *[+-]?[0-9]{1,9} *")
_GRADE_HEADERS = {"score", "relevance", "rel", "label", "grade"}


def read_judgements(path: Path, report: Report) -> Iterator[Judgement]:
    """Stream the judgements of a qrels file, plain or ``.gz``, as (line, query id, document id, grade).

    Two layouts, told apart by the first line: BEIR's three columns (query, document, grade; a header line
    such as ``query-id corpus-id score`` is recognised by its last cell) and TREC's four (query, iteration,
    document, grade). A line with tabs is cut at its tabs, another at white space. A grade is an integer:
    ``1.0`` is refused, as tools disagree on what to make of it.

    Args:
        path: the file.
        report: gets the errors "wrong columns", "non-integer grades" and those of the ids, and the warning
            "qrels without header" (BEIR's own loader would lose the first judgement of such a file).
    """
    checker = RecordChecker(str(path), report)
    columns = 0
    for line, text in numbered_lines(path, report):
        cells = text.split("\t") if "\t" in text else text.split()
        if not columns:
            columns = 4 if len(cells) == 4 else 3
            if cells[-1].strip().lower() in _GRADE_HEADERS:
                continue
            if columns == 3:
                message = "no header line, which BEIR's loader expects; put query-id, corpus-id, score on top"
                report("warning", "qrels without header", checker.file, line, None, message)
        if len(cells) != columns:
            message = f"{len(cells)} columns where {columns} are expected; write query, document, grade"
            report("error", "wrong columns", checker.file, line, None, message)
            continue
        judgement = _judgement(line, cells, checker)
        if judgement is not None:
            yield judgement
    checker.finish()


def integer_grade(text: str) -> int | None:
    """The grade that a text states, None if that is not an integer in plain decimal digits."""
    return int(text) if _GRADE.fullmatch(text) else None


def _judgement(line: int, cells: list[str], checker: RecordChecker) -> Judgement | None:
    query, document = checker.identifier(line, cells[0]), checker.identifier(line, cells[-2])
    grade = integer_grade(cells[-1])
    if grade is None:
        message = f"grade {cells[-1]!r} is not an integer; write 0, 1, 2, ..."
        checker.report("error", "non-integer grades", checker.file, line, query, message)
        return None
    if query is None or document is None:
        return None
    return line, query, document, grade
