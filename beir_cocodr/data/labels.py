"""Queries and judgements of a split, joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.files.defects import Report, ignore
from beir_cocodr.data.files.duplicates import Duplicate, DuplicateIds
from beir_cocodr.data.source import Labels, Source

Known = Callable[[Sequence[str]], npt.NDArray[np.bool_]]
"""Which of the given ids are documents, bool (M,)."""

_LOOKUP_SIZE = 65_536


class JoinedLabels(NamedTuple):
    """Judged queries, and the judgements of queries that exist; duplicates are for the caller to report."""

    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    duplicate_queries: Iterator[Duplicate]


def join_labels(source: Source, labels: Labels, known: Known, report: Report) -> JoinedLabels:
    """Read what a source has of queries and judgements.

    With judgements, the queries are the judged ones, in the order of the queries file; without, all of them.
    Judgements of unknown queries are left out, those of unknown documents stay, as in trec_eval; both are
    reported. Of repeated judgements of a pair the last one counts, as in BEIR, and each is reported.

    Args:
        source: where to read.
        labels: with "required" it is an error if no judged query is left.
        known: which ids are documents.
        report: gets the defects of both parts, the warnings "qrels for unknown queries", "qrels for unknown
            documents" and "repeated judgements", and the error "no judged queries".
    """
    qrels: dict[str, dict[str, int]] = {}
    for line, query, document, grade in source.judgements(report):
        grades = qrels.setdefault(query, {})
        if document in grades:
            message = (
                f"document {document!r} was judged for query {query!r} before; the last judgement counts"
            )
            report("warning", "repeated judgements", str(source.judgements_file), line, query, message)
        grades[document] = grade
    ids = DuplicateIds()
    queries: dict[str, str] = {}
    has_judgements = source.judgements_file is not None
    for _, id, text in source.queries(report):
        ids.add((id,))
        if not has_judgements or id in qrels:
            queries[id] = text
    # Without any queries every judgement would be unknown: what is missing has been said already.
    if source.queries_file or labels != "required":
        _report_unknown(source, queries, known, report)
    if labels == "required" and has_judgements and source.queries_file and not queries:
        message = f"no query is judged: {source.queries_file} has none of the ids of this file; check the ids"
        report("error", "no judged queries", str(source.judgements_file), None, None, message)
    duplicates = ids.find(lambda: ((line, id) for line, id, _ in source.queries(ignore)))
    return JoinedLabels(queries, {id: qrels[id] for id in qrels if id in queries}, duplicates)


def _report_unknown(source: Source, queries: dict[str, str], known: Known, report: Report) -> None:
    file = str(source.judgements_file)
    batch: list[tuple[int, str]] = []

    def flush() -> None:
        if not batch:
            return
        for (line, document), is_known in zip(batch, known([row[1] for row in batch]), strict=True):
            if not is_known:
                message = f"document {document!r} is not in the corpus; the judgement stays, as in trec_eval"
                report("warning", "qrels for unknown documents", file, line, document, message)
        batch.clear()

    for line, query, document, _ in source.judgements(ignore):
        if query not in queries:
            message = f"query {query!r} is not in the queries; the judgement was left out"
            report("warning", "qrels for unknown queries", file, line, query, message)
            continue
        batch.append((line, document))
        if len(batch) == _LOOKUP_SIZE:
            flush()
    flush()
