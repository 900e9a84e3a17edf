"""A corpus as one Arrow file: written as a stream, opened as a memory map."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.duplicates import DuplicateIds
from beir_cocodr.data.files.record_checker import Document

# large_string has 64-bit offsets, so that whoever joins the batches of a big corpus does not overflow.
_SCHEMA = pa.schema([pa.field(name, pa.large_string(), nullable=False) for name in ("id", "title", "text")])
_BATCH_ROWS = 16_384
_BATCH_CHARACTERS = 1 << 23
_HASH, _COUNTS = b"content_hash", b"counts"


class ArrowCorpus(NamedTuple):
    """An opened corpus: the documents, and what was counted when they were read."""

    documents: Documents
    counts: dict[str, int]


class WrittenCorpus(NamedTuple):
    """What is known once every document has been written."""

    content_hash: str
    ids: DuplicateIds
    duplicate_texts: int


class CorpusWriter:
    """Writes documents in batches and keeps 16 bytes of each: the hashes of its id and of its content.

    Args:
        path: the file to write; the caller puts it in place.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._ids = DuplicateIds()
        self._contents = array("q")

    def write(self, documents: Iterable[Document], counts: Mapping[str, int]) -> WrittenCorpus:
        """Write a stream of documents to its end, then what was counted on the way.

        Args:
            documents: (line, id, title, text).
            counts: read after the last document, as reading fills it; "duplicate texts" is added to it.
        """
        with self._path.open("wb") as file:
            with pa.ipc.new_file(file, _SCHEMA) as writer:
                for ids, titles, texts in _batches(documents):
                    self._note(ids, titles, texts)
                    writer.write_batch(_record_batch(ids, titles, texts))
                written = WrittenCorpus(self._digest.hexdigest(), self._ids, self._repeated_contents())
                # The schema went out before anything was known; an empty batch at the end can carry it.
                final = dict(counts)
                if written.duplicate_texts:
                    final["duplicate texts"] = written.duplicate_texts
                metadata = {_HASH: written.content_hash.encode(), _COUNTS: json.dumps(final).encode()}
                writer.write_batch(_record_batch([], [], []), custom_metadata=metadata)
            file.flush()
            os.fsync(file.fileno())
        return written

    def _note(self, ids: list[str], titles: list[str], texts: list[str]) -> None:
        self._ids.add(ids)
        self._contents.extend(map(hash, (pair for pair in zip(titles, texts, strict=True) if any(pair))))
        # The lengths say where each field ends: no two different corpora give the same bytes.
        framed = (
            f"{len(id)} {len(title)} {len(text)}\n{id}{title}{text}"
            for id, title, text in zip(ids, titles, texts, strict=True)
        )
        self._digest.update("".join(framed).encode())

    def _repeated_contents(self) -> int:
        hashes = np.sort(np.asarray(self._contents, dtype=np.int64))
        return int(np.count_nonzero(hashes[1:] == hashes[:-1]))


def open_corpus(path: Path) -> ArrowCorpus:
    """Map a file that `CorpusWriter` wrote; nothing is read before it is used.

    Returns:
        the documents, whose table carries ``content_hash`` and ``counts`` in its schema metadata, and counts.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not such a file.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if not reader.num_record_batches:
        raise ValueError(f"{path} is not a converted corpus")
    last = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
    metadata = dict(last.custom_metadata or {})
    if _HASH not in metadata or not reader.schema.equals(_SCHEMA):
        raise ValueError(f"{path} is not a converted corpus")
    table = reader.read_all().replace_schema_metadata(metadata)
    documents = Documents(table, metadata[_HASH].decode(), path)
    return ArrowCorpus(documents, json.loads(metadata[_COUNTS]))


def _batches(documents: Iterable[Document]) -> Iterator[tuple[list[str], list[str], list[str]]]:
    ids: list[str] = []
    titles: list[str] = []
    texts: list[str] = []
    characters = 0
    for _, id, title, text in documents:
        ids.append(id)
        titles.append(title)
        texts.append(text)
        characters += len(title) + len(text)
        if len(ids) == _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield ids, titles, texts
            ids, titles, texts, characters = [], [], [], 0
    if ids:
        yield ids, titles, texts


def _record_batch(*columns: list[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column, pa.large_string()) for column in columns], schema=_SCHEMA)
