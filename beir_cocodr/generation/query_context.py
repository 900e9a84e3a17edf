"""Passages with the queries that were generated for them, as a memory-mapped table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset

from beir_cocodr.arrays import Ints
from beir_cocodr.checksums import checked_path, is_kept
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.defects import StrictReport
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.readers import json_records
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, explained
from beir_cocodr.generation.generation_record import read_generation
from beir_cocodr.io import cache_folder, file_sha256, file_state, filling_cache, text_sha256

_TEXT = pa.large_string()
_SCHEMA = pa.schema(
    {
        "document": _TEXT,
        "row": pa.int64(),
        "number": pa.int64(),
        "text": _TEXT,
        "queries": pa.list_(_TEXT),
    }
)

# Passages that are written at a time.
_BATCH_ROWS = 1024

# Part of every key: raise it when the same queries give another table.
_FORMAT = "1"


class _Position(NamedTuple):
    """The position of a passage, as the metadata of its queries say.

    Attributes:
        document: Id of the document.
        number: Number of the passage in the document.
        start: First character in the document's title and text joined.
        end: Character after the last.
    """

    document: str
    number: int
    start: int
    end: int


class _Passage(NamedTuple):
    """A passage with its queries."""

    position: _Position
    queries: list[str]


def load_query_context(folder: str | Path, queries_per_passage: int | None = None) -> Dataset:
    """Load the passages of a folder that ``generate-queries`` wrote, each with its queries.

    The first time the table is written to the cache. From then on it is memory-mapped, so memory
    does not grow with the corpus.

    Args:
        folder: A finished folder, with ``generation.json``, ``queries.jsonl`` and the corpus.
        queries_per_passage: C, the most queries of a passage: the first C of ``queries.jsonl``.
            Default: all.

    Returns:
        A ``datasets.Dataset`` with a row for every passage that has a query, in corpus order (the
        passages of a document are consecutive rows), and the columns

        - ``document``: id of the document in the corpus,
        - ``row``: its row in ``load_collection(folder, ...).documents``,
        - ``number``: number of the passage in the document, from 0; passages without a query leave
          gaps,
        - ``text``: the passage itself, a slice of title and text joined as they were then,
        - ``queries``: list of 1 to C strings.

    Raises:
        InputError: The folder is not finished, its queries were reordered or have lost their
            metadata, or the corpus has changed.

    References:
        Wu et al., Query-as-context pre-training for dense passage retrieval, 2023, section 3.1.
    """
    folder = Path(folder)
    if queries_per_passage is not None and queries_per_passage < 1:
        raise InputError(
            f"queries_per_passage is {queries_per_passage}; a passage needs at least 1 query"
        )
    record = read_generation(folder)
    documents = load_collection(folder, labels="none").documents
    if documents.content_hash != record.dataset.corpus_sha256:
        raise InputError(
            f"{folder}: the corpus has changed since the queries were generated; "
            "generate them again"
        )
    queries = folder / "queries.jsonl"
    if not queries.is_file():
        raise InputError(f"{queries} does not exist; generate the queries again")
    separator = str(record.settings["title_separator"])
    key = (
        _FORMAT,
        *file_state(queries),
        documents.content_hash,
        separator,
        str(queries_per_passage),
    )
    table = cache_folder("query-context") / f"{text_sha256(*key)[:32]}.arrow"
    if not is_kept(table):
        passages = _passages(queries, queries_per_passage)
        batches = _record_batches(passages, documents, TextFormat(separator), queries)
        with (
            filling_cache(table.parent),
            checked_path(table) as draft,
            draft.open("wb") as file,
            pa.ipc.new_stream(file, _SCHEMA) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
    return Dataset.from_file(str(table))


class GeneratedQueries:
    """The queries of a folder that ``generate-queries`` wrote, by the rows of its corpus.

    Nothing is read before it is needed. A copy in another process reads the folder itself.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: str | Path) -> None:
        """Name the folder."""
        self.folder = str(Path(folder).resolve())

    def __reduce__(self) -> tuple[type[GeneratedQueries], tuple[str]]:
        """Copy the name of the folder alone."""
        return GeneratedQueries, (self.folder,)

    @cached_property
    def sha256(self) -> str:
        """Return the checksum of the queries' file."""
        return file_sha256(Path(self.folder) / "queries.jsonl")

    @cached_property
    def documents(self) -> int:
        """Return how many documents have a query."""
        return len(np.unique(self._rows))

    def check_corpus(self, documents: Documents) -> None:
        """Check that the folder has queries, and that they were generated from a corpus.

        Raises:
            InputError: They were not, there are none, or the folder is not finished.
        """
        record = read_generation(Path(self.folder))
        file = Path(self.folder) / "queries.jsonl"
        if not file.is_file() or not file.stat().st_size:
            raise InputError(f"{file} has no queries; generate them again")
        if record.dataset.corpus_sha256 != documents.content_hash:
            raise InputError(
                f"the queries of {self.folder} were generated from another corpus, or from this "
                "one before it changed; generate them again"
            )

    def of(self, rows: Ints) -> list[list[str]]:
        """Return the queries of each of (n,) documents.

        Raises:
            InputError: As for :func:`load_query_context`.
        """
        firsts = np.searchsorted(self._rows, rows, side="left")
        ends = np.searchsorted(self._rows, rows, side="right")
        queries = []
        for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
            of_passages = self._table[first:end]["queries"]
            queries.append([query for of_passage in of_passages for query in of_passage])
        return queries

    @cached_property
    def _table(self) -> Dataset:
        return load_query_context(self.folder)

    @cached_property
    def _rows(self) -> Ints:
        """Return the (P,) ascending rows of the documents of all passages."""
        rows: Ints = self._table.data.column("row").to_numpy()
        return rows


def _passages(file: Path, most: int | None) -> Iterator[_Passage]:
    """Yield the passages of a queries file with their first queries."""
    for position, group in groupby(_queries(file), key=lambda query: query[0]):
        yield _Passage(position, [text for _, text in islice(group, most)])


def _queries(file: Path) -> Iterator[tuple[_Position, str]]:
    """Yield the position and the text of every query of a file."""
    fields = ", ".join(_Position._fields)
    last: _Position | None = None
    ids: set[str] = set()
    for line, record in json_records(file, StrictReport(str(file.parent))):
        problem = f"{file}:{line}: the query lacks an _id, a text, or metadata with {fields}"
        with explained(problem, "generate the queries again", KeyError, TypeError):
            assert record is not None  # StrictReport has raised by then
            metadata = record["metadata"]
            number, start, end = (
                _whole_number(metadata[name]) for name in ("number", "start", "end")
            )
            position = _Position(_text(metadata["document"]), number, start, end)
            text = _text(record["text"])
            id = _text(record["_id"])
        if position != last:
            last = position
            ids.clear()
        if id in ids:
            raise InputError(
                f"{file}:{line}: query {id!r} is there twice; restore the file as generate-queries "
                "wrote it"
            )
        ids.add(id)
        yield position, text


def _text(value: object) -> str:
    """Return a value that is a text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole_number(value: object) -> int:
    """Return a value that is a whole number."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _record_batches(
    passages: Iterable[_Passage],
    documents: Documents,
    text_format: TextFormat,
    file: Path,
) -> Iterator[pa.RecordBatch]:
    """Yield the table of the passages in parts.

    Args:
        passages: Passages in corpus order.
        documents: The corpus.
        text_format: How title and text were joined.
        file: The file of the queries, for messages.

    Raises:
        InputError: A document is not in the corpus, or passages are out of order.
    """
    last = (-1, -1)
    stream = iter(passages)
    while batch := list(islice(stream, _BATCH_ROWS)):
        rows = documents.rows([passage.position.document for passage in batch])
        for passage, row in zip(batch, rows.tolist(), strict=True):
            _check_order(passage.position, row, last, file)
            last = (row, passage.position.number)
        columns = [
            [passage.position.document for passage in batch],
            rows,
            [passage.position.number for passage in batch],
            _texts(batch, rows, documents, text_format),
            [passage.queries for passage in batch],
        ]
        arrays = []
        for column, field in zip(columns, _SCHEMA, strict=True):
            arrays.append(pa.array(column, field.type))
        yield pa.record_batch(arrays, schema=_SCHEMA)


def _check_order(
    position: _Position,
    row: int,
    last: tuple[int, int],
    file: Path,
) -> None:
    """Check that a passage is in the corpus, and comes after the last one."""
    if row < 0:
        raise InputError(
            f"{file}: document {position.document!r} is not in the corpus of the folder; generate "
            "the queries again"
        )
    if (row, position.number) <= last:
        raise InputError(
            f"{file}: passage {position.number} of document {position.document!r} is out of "
            "corpus order; restore the file as generate-queries wrote it"
        )


def _texts(
    passages: list[_Passage],
    rows: np.ndarray,
    documents: Documents,
    text_format: TextFormat,
) -> list[str]:
    """Return the texts of passages."""
    # The passages of a document are consecutive: each document is read once, however long it is.
    distinct, numbers = np.unique(rows, return_inverse=True)
    joined = [text_format.document(document) for document in documents.take(distinct)]
    texts = []
    for passage, number in zip(passages, numbers, strict=True):
        texts.append(joined[number][passage.position.start : passage.position.end])
    return texts
