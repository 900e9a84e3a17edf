"""Files of hard negatives: GPL's form, columns of texts, or a TREC run."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beir_cocodr.arrays import Ints
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.defects import StrictReport
from beir_cocodr.data.files.readers import json_records
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, explained
from beir_cocodr.evaluation.runs import ranked_run
from beir_cocodr.training.hard_negatives.bm25_negatives import relevant_rows

log = logging.getLogger(__name__)

#: A query id, and the corpus rows that a line of a file gives it, -1 for an unknown document.
Line = tuple[str, Ints]

_GPL_FORM = "GPL's form, which has qid, pos and neg"
_TEXTS_FORM = "columns of texts, query or anchor, and negative or negative_1 and so on"


def merged(lists: Sequence[Ints], most: int | None = None) -> list[int]:
    """Return the numbers of several lists: the first of each, then the second, without repeats.

    Args:
        lists: the lists.
        most: how many numbers to return; None for all.
    """
    columns = [numbers.tolist() for numbers in lists]
    order: dict[int, None] = {}
    for same_rank in zip_longest(*columns):
        for number in same_rank:
            if number is not None:
                order[number] = None
    return list(order)[:most]


def read_hard_negatives(path: str | Path, collection: Collection) -> dict[str, Ints]:
    """Read the hard negatives of queries from a file in one of three forms.

    - ``.jsonl`` with qid, pos and neg, as GPL and sentence-transformers' MS MARCO have it, whose
      retrievers take turns; ids are texts, numbers or objects with a pid;
    - ``.jsonl`` or ``.parquet`` with columns of texts: query or anchor, and negative, or negative_1
      and so on, as ``mine_hard_negatives`` and ``export`` write them; a text is a document's as a
      model reads it, or without title;
    - else a TREC run.

    Queries that the split does not judge, and unknown documents, are left out and counted.

    Returns:
        Query id to the corpus rows of its negatives, best first, without relevant ones.

    Raises:
        InputError: No query has a negative, or a line is broken.
    """
    path = Path(path)
    positives = relevant_rows(collection)
    other_queries = 0
    unknown_documents = 0
    rows_of: dict[str, list[Ints]] = {}
    for query, rows in _lines(path, collection):
        if (rows < 0).any():
            unknown_documents += 1
        if query not in positives:
            other_queries += 1
            continue
        is_known = rows >= 0
        is_relevant = np.isin(rows, positives[query])
        negatives = rows[is_known & ~is_relevant]
        if len(negatives):
            lists = rows_of.setdefault(query, [])
            lists.append(negatives)
    if not rows_of:
        raise InputError(
            f"{path} has no negatives for any query of {collection.name}, split "
            f"{collection.split}; name another file or split"
        )
    if other_queries:
        log.warning("%s: %d lines of other queries", path, other_queries)
    if unknown_documents:
        log.warning("%s: %d lines with unknown documents", path, unknown_documents)
    hard_negatives: dict[str, Ints] = {}
    for query, lists in rows_of.items():
        hard_negatives[query] = np.array(merged(lists), np.int64)
    return hard_negatives


def _lines(path: Path, collection: Collection) -> Iterator[Line]:
    """Read the lines of a file in whichever form it has."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        _, first = next(numbered_records(path), (0, {}))
        has_ids = "qid" in first or "neg" in first
        if has_ids:
            return _lines_of_ids(path, collection)
        return _lines_of_texts(path, collection)
    if path.suffix == ".parquet":
        return _lines_of_texts(path, collection)
    return _lines_of_run(path, collection)


def _lines_of_run(path: Path, collection: Collection) -> Iterator[Line]:
    for query, hits in ranked_run(path).items():
        ids = [document for document, _ in hits]
        yield query, collection.documents.rows(ids)


def _lines_of_ids(path: Path, collection: Collection) -> Iterator[Line]:
    for line, record in numbered_records(path):
        with naming_line(path, line, _GPL_FORM):
            lists = [_ids(entries) for entries in record["neg"].values()]
            query = _id(record["qid"])
        rows = [collection.documents.rows(ids) for ids in lists]
        yield query, np.array(merged(rows), np.int64)


def _ids(entries: list[object]) -> list[str]:
    return [_id(entry) for entry in entries]


def _id(entry: Any) -> str:
    value = entry
    if isinstance(entry, dict):
        value = entry["pid"]
    if not isinstance(value, (str, int)):
        raise TypeError(f"{value!r} is not an id")
    return str(value)


def _lines_of_texts(path: Path, collection: Collection) -> Iterator[Line]:
    """Read columns of texts; a first pass collects them, so that the corpus is streamed once."""
    row_of: dict[str, int] = {}
    for _, texts in _text_rows(path):
        row_of.update(dict.fromkeys(texts, -1))
    for row, document in enumerate(collection.documents.values()):
        for text in (TextFormat().document(document), document["text"]):
            if row_of.get(text) == -1:
                row_of[text] = row
    ids: dict[str, list[str]] = {}
    for id, text in collection.queries.items():
        ids.setdefault(text, []).append(id)
    for query, texts in _text_rows(path):
        rows = [row_of[text] for text in texts]
        for id in ids.get(query, [""]):
            yield id, np.array(rows, np.int64)


def _text_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield query and negatives of each row."""
    is_parquet = path.suffix == ".parquet"
    records = _parquet_records(path) if is_parquet else numbered_records(path)
    for line, record in records:
        with naming_line(path, line, _TEXTS_FORM):
            query = record["query"] if "query" in record else record["anchor"]
            texts = _negative_texts(record)
            are_texts = all(isinstance(text, str) for text in (query, *texts))
            if not texts or not are_texts:
                columns = ", ".join(record)
                raise TypeError(f"its columns are {columns}")
        yield query, texts


def _negative_texts(record: dict[str, Any]) -> list[Any]:
    """Return the negatives of a row, from one column or several."""
    texts: list[object] = []
    for name, value in record.items():
        if not name.startswith("negative"):
            continue
        if isinstance(value, list):
            texts += value
        else:
            texts.append(value)
    return texts


def _parquet_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a table, numbered from 1."""
    problem = f"{path} cannot be read as parquet"
    with explained(problem, "write it again", OSError, pa.ArrowInvalid):
        number = 0
        for batch in pq.ParquetFile(path).iter_batches():
            for record in batch.to_pylist():
                number += 1
                yield number, record


def numbered_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of JSON of a file with their numbers; an InputError for a broken one."""
    for line, record in json_records(path, StrictReport(str(path))):
        yield line, record or {}


@contextmanager
def naming_line(path: Path, line: int, form: str) -> Iterator[None]:
    """Turn what a line in another form raises into an InputError that names it."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}:{line}: not in {form} ({type(error).__name__}: {error}); correct the line"
        ) from error
