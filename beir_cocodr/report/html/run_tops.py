"""The first documents of every query of a run, without holding the whole run."""

from __future__ import annotations

import math
from collections.abc import Container
from pathlib import Path

from beir_cocodr.errors import InputError

#: How far down the place of a document is known.
KNOWN = 100


def run_tops(path: Path, queries: Container[str] | None = None, depth: int = KNOWN) -> dict[str, list[str]]:
    """Query id to its best documents, by descending score and then id as in trec_eval.

    Args:
        path: a TREC run.
        queries: the only ones that matter; all by default.
        depth: documents a query.

    Raises:
        InputError: a line that is none of a run.
    """
    found: dict[str, list[tuple[float, str]]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            columns = line.split()
            if not columns or (queries is not None and columns[0] not in queries):
                continue
            hits = found.setdefault(columns[0], [])
            hits.append(_hit(columns, path, number))
            if len(hits) > 4 * depth:
                hits.sort(reverse=True)
                del hits[depth:]
    return {
        query: [document for _, document in sorted(hits, reverse=True)[:depth]]
        for query, hits in found.items()
    }


def _hit(columns: list[str], path: Path, number: int) -> tuple[float, str]:
    try:
        score = float(columns[4])
    except (IndexError, ValueError):
        score = math.nan
    if len(columns) != 6 or not math.isfinite(score):
        raise InputError(f"{path}:{number}: no line of a TREC run, query Q0 document rank score tag")
    return score, columns[2]
