"""Passages with the queries that were generated for them, as a memory-mapped table."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.defects import StrictReport
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.readers import json_records
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, explained
from beir_cocodr.generation.shards import read_generation
from beir_cocodr.io import atomic_path, cache_folder, file_state, filling_cache, text_sha256

_TEXT = pa.large_string()
_SCHEMA = pa.schema(
    {
        "document": _TEXT,
        **dict.fromkeys(("row", "number"), pa.int64()),
        "text": _TEXT,
        "queries": pa.list_(_TEXT),
    }
)

_BATCH_ROWS = 1024

# Part of every key: raise it when the same queries give another table.
_FORMAT = "1"


class _Place(NamedTuple):
    """Where a passage stands: document id, number in the document, character range in its text."""

    document: str
    number: int
    start: int
    end: int


def load_query_context(folder: str | Path, queries_per_passage: int | None = None) -> Dataset:
    """Load the passages of a folder that ``generate-queries`` made, each with its queries. An
    InputError: the folder is not finished, its queries were reordered or have lost their metadata,
    or the corpus is not that of their generation.

    The first time the table is written below the cache root; from then on it is mapped, and memory
    does not grow with the corpus.

    Args:
        folder: a finished folder, with ``generation.json``, ``queries.jsonl`` and the corpus.
        queries_per_passage: C, the most queries a passage keeps: the first C of ``queries.jsonl``;
            all by default.

    Returns:
        A ``datasets.Dataset`` with a row for every passage that has a query, in corpus order (the
        passages of a document are consecutive rows), and the columns

        - ``document``: id of the document in the corpus,
        - ``row``: its row in ``load_collection(folder, ...).documents``,
        - ``number``: of the passage within the document, from 0; passages without a query leave
          gaps,
        - ``text``: the passage itself, a slice of title and text joined as when it was generated,
        - ``queries``: list of 1 to C strings.

    Source: Wu et al., 2023 (Query-as-context Pre-training), section 3.1.
    """
    folder = Path(folder)
    if queries_per_passage is not None and queries_per_passage < 1:
        raise InputError(f"a passage keeps at least 1 query, not {queries_per_passage}")
    record = read_generation(folder)
    documents = load_collection(folder, labels="none").documents
    if documents.content_hash != record.dataset.corpus_sha256:
        raise InputError(
            f"{folder}: the corpus has changed since the queries were generated; generate them again"
        )
    queries = folder / "queries.jsonl"
    if not queries.is_file():
        raise InputError(f"{queries}: no such file; generate the queries again")
    separator = str(record.settings["title_separator"])
    key = (
        _FORMAT,
        *file_state(queries),
        documents.content_hash,
        separator,
        str(queries_per_passage),
    )
    table = cache_folder("query-context") / f"{text_sha256(*key)[:32]}.arrow"
    if not table.is_file():
        passages = _passages(queries, queries_per_passage)
        with (
            filling_cache(table.parent),
            atomic_path(table) as draft,
            draft.open("wb") as file,
            pa.ipc.new_stream(file, _SCHEMA) as writer,
        ):
            for batch in _rows(passages, documents, TextFormat(separator), queries):
                writer.write_batch(batch)
    return Dataset.from_file(str(table))


def _passages(file: Path, most: int | None) -> Iterator[tuple[_Place, list[str]]]:
    """Stream the passages of a queries file with their first queries."""

    def queries() -> Iterator[tuple[_Place, str]]:
        for line, record in json_records(file, StrictReport(str(file.parent))):
            due = f"{file}:{line}: a generated query has a text, and metadata with {', '.join(_Place._fields)}"
            with explained(due, "generate the queries again", KeyError, TypeError):
                assert record is not None  # StrictReport has raised by then
                place, text = _Place(**record["metadata"]), record["text"]
            yield place, text

    for place, group in groupby(queries(), key=lambda query: query[0]):
        yield place, [text for _, text in islice(group, most)]


def _rows(
    passages: Iterable[tuple[_Place, list[str]]],
    documents: Documents,
    text_format: TextFormat,
    file: Path,
) -> Iterator[pa.RecordBatch]:
    last = (-1, -1)
    stream = iter(passages)
    while batch := list(islice(stream, _BATCH_ROWS)):
        rows = documents.rows([place.document for place, _ in batch])
        for (place, _), row in zip(batch, rows.tolist(), strict=True):
            if row < 0:
                raise InputError(
                    f"{file}: document {place.document!r} is not in the corpus of the folder"
                )
            if (row, place.number) <= last:
                raise InputError(
                    f"{file}: passage {place.number} of document {place.document!r} is out of corpus order; "
                    "keep the file as generate-queries wrote it"
                )
            last = (row, place.number)
        # Passages of a document stand together: each document is taken once, however long it is.
        distinct, which = np.unique(rows, return_inverse=True)
        whole = [text_format.document(document) for document in documents.take(distinct)]
        columns = [
            [place.document for place, _ in batch],
            rows,
            [place.number for place, _ in batch],
            [whole[i][place.start : place.end] for (place, _), i in zip(batch, which, strict=True)],
            [queries for _, queries in batch],
        ]
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)
        ]
        yield pa.record_batch(arrays, schema=_SCHEMA)
