"""Reading the queries of a BEIR folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from beir_cocodr.data.files.defects import Report
from beir_cocodr.data.files.json_records import json_records
from beir_cocodr.data.files.record_checker import Query, RecordChecker


def read_queries(path: Path, report: Report) -> Iterator[Query]:
    """Stream the queries of a ``queries.jsonl`` file, plain or ``.gz``, as (line, id, text).

    Args:
        path: the file; objects with ``_id``, else ``id``, and ``text``.
        report: gets the defects, those of `json_records` and of `RecordChecker`.
    """
    checker = RecordChecker(str(path), report)
    for line, record in json_records(path, report):
        if record is None:
            continue
        raw_id = record.get("_id")
        query = checker.query(line, record.get("id") if raw_id is None else raw_id, record.get("text"))
        if query is not None:
            yield query
    checker.finish()
