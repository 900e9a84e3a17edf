"""Reading the documents of a corpus file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from beir_cocodr.data.files.defects import Report
from beir_cocodr.data.files.json_records import json_records
from beir_cocodr.data.files.lines import numbered_lines
from beir_cocodr.data.files.record_checker import Document, RecordChecker

CORPUS_SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")


def read_documents(path: Path, report: Report) -> Iterator[Document]:
    """Stream the documents of a ``.jsonl`` or ``.tsv`` file, plain or ``.gz``, as (line, id, title, text).

    JSON lines take ``_id``, else ``id``; ``text``, else ``contents``; ``title`` may be absent. A
    tab-separated file is ``id<TAB>text`` or ``id<TAB>title<TAB>text``, without quoting: its first line
    decides which of the two the whole file is. A first line whose first cell is ``id`` or ``_id`` and whose
    last is ``text`` or ``contents`` is a header.

    Args:
        path: the file.
        report: gets the defects, among them the errors "broken JSON", "wrong columns", "no text field" and
            "empty corpus".
    """
    checker = RecordChecker(str(path), report)
    read = _read_tsv if path.name.endswith((".tsv", ".tsv.gz")) else _read_jsonl
    yield from read(path, checker)
    checker.finish()


def _read_jsonl(path: Path, checker: RecordChecker) -> Iterator[Document]:
    seen = with_text = False
    for line, record in json_records(path, checker.report):
        seen = True
        if record is None:
            # What its fields are is not known, so that "no text field" would be one claim too many.
            with_text = True
            continue
        raw_id = record.get("_id")
        text = record.get("text")
        if text is None:
            text = record.get("contents")
        if "title" in record:
            title = record["title"]
        else:
            checker.absent_title(line)
            title = ""
        with_text = with_text or text is not None or bool(title)
        document = checker.document(line, record.get("id") if raw_id is None else raw_id, title, text)
        if document is not None:
            yield document
    if not seen:
        _report_empty(checker)
    elif not with_text:
        message = "no document has a field text, contents or title; rename the field that holds the text"
        checker.report("error", "no text field", checker.file, None, None, message)


def _read_tsv(path: Path, checker: RecordChecker) -> Iterator[Document]:
    columns = 0
    seen = False
    for line, text in numbered_lines(path, checker.report):
        cells = text.split("\t")
        if not columns:
            columns = min(max(len(cells), 2), 3)
            if cells[0] in {"id", "_id"} and cells[-1] in {"text", "contents"}:
                checker.report("warning", "header line", checker.file, line, None, "read as a header")
                continue
        seen = True
        if len(cells) != columns:
            message = (
                f"{len(cells)} columns where the first line asks for {columns} "
                f"(id, {'title, ' if columns == 3 else ''}text); replace the tabs in texts"
            )
            checker.report("error", "wrong columns", checker.file, line, cells[0] or None, message)
            continue
        document = checker.document(line, cells[0], cells[1] if columns == 3 else "", cells[-1])
        if document is not None:
            yield document
    if not seen:
        _report_empty(checker)


def _report_empty(checker: RecordChecker) -> None:
    message = "empty: no document can be read from it; it needs at least one"
    checker.report("error", "empty corpus", checker.file, None, None, message)
