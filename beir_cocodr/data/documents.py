"""A corpus as one Arrow file, written as a stream and opened as a memory map.

An index looks ids up by their hashes, in 16 bytes each.
"""

import hashlib
import json
import os
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from beir_cocodr.arrays import Ints
from beir_cocodr.data.defects import Repeats
from beir_cocodr.data.files.folder_facts import FolderFacts
from beir_cocodr.data.files.readers import Document
from beir_cocodr.errors import InputError, check_characters
from beir_cocodr.temporary import TemporaryFolder


def hashes_of(
    values: Iterable[str],
    hash_of: Callable[[str], int] = hash,
) -> Ints:
    """Return 64-bit hashes, int64 (N,); those of ``hash`` hold within this process only."""
    return np.fromiter(map(hash_of, values), dtype=np.int64)


def gather(column: pa.ChunkedArray, rows: Ints) -> list[str]:
    """Return the values at some rows of a column, in the order of the rows.

    Nothing else is touched: ``ChunkedArray.take`` may join all chunks.
    """
    sizes = [len(chunk) for chunk in column.chunks]
    starts = np.cumsum([0, *sizes])
    chunk_of = np.searchsorted(starts, rows, side="right") - 1
    values = np.empty(len(rows), object)
    for number in np.unique(chunk_of).tolist():
        inside = chunk_of == number
        rows_of_chunk = (rows[inside] - starts[number]).astype(np.int64)
        # pa.array and to_numpy would import pandas, which takes longer than a search.
        buffers = [None, pa.py_buffer(rows_of_chunk)]
        positions = pa.Array.from_buffers(pa.int64(), len(rows_of_chunk), buffers)
        values[inside] = column.chunk(number).take(positions).to_pylist()
    return list(values)


class IdIndex:
    """An index of unique ids to their rows.

    It is exact: a hash only proposes a row, and the id in that row decides.
    """

    def __init__(
        self,
        ids: pa.ChunkedArray,
        hash_of: Callable[[str], int] = hash,
    ) -> None:
        """Build the index.

        Args:
            ids: the ids, (N,).
            hash_of: the hash function.
        """
        self._ids = ids
        self._hash_of = hash_of
        parts = [np.empty(0, dtype=np.int64)]
        for chunk in ids.chunks:
            parts.append(hashes_of(chunk.to_pylist(), hash_of))
        hashes = np.concatenate(parts)
        self._order = np.argsort(hashes, kind="stable")  # (N,)
        self._sorted = hashes[self._order]  # (N,)

    def row(self, id: str) -> int:
        """Return the row of one id, -1 where it is unknown."""
        wanted = np.int64(self._hash_of(id))
        first = self._sorted.searchsorted(wanted)
        last = self._sorted.searchsorted(wanted, "right")
        for row in self._order[first:last].tolist():
            if self._ids[row].as_py() == id:
                return int(row)
        return -1

    def rows(self, ids: Sequence[str]) -> Ints:
        """Return the rows of many ids, int64 (M,), -1 where an id is unknown."""
        if not len(self._sorted) or not len(ids):
            return np.full(len(ids), -1, dtype=np.int64)
        wanted = hashes_of(ids, self._hash_of)
        last = len(self._sorted) - 1
        positions = self._sorted.searchsorted(wanted).clip(max=last)
        is_proposed = self._sorted[positions] == wanted
        rows = np.where(is_proposed, self._order[positions], -1)
        proposed = np.flatnonzero(is_proposed)
        values = gather(self._ids, rows[proposed])
        for number, value in zip(proposed.tolist(), values, strict=True):
            if ids[number] != value:  # two ids share a hash
                rows[number] = self.row(ids[number])
        return rows


Rows = Sequence[int] | npt.NDArray[np.integer[Any]]
_STREAM_ROWS = 4096


class Documents(Mapping[str, dict[str, str]]):
    """A corpus in a memory-mapped Arrow table; also a BEIR corpus, id to ``title`` and ``text``.

    Iterating, ``items()``, ``values()`` and :meth:`chunks` stream in corpus order; the corpus is
    never held in memory as Python objects. The first lookup by id builds an index of 16 bytes a
    document.
    """

    def __init__(
        self,
        table: pa.Table,
        content_hash: str,
        path: Path | None = None,
    ) -> None:
        """Wrap a table.

        Args:
            table: columns ``id``, ``title`` and ``text``, large_string without nulls; ids are
                unique.
            content_hash: sha256 in hexadecimal over all ids, titles and texts in order; empty where
                nobody needs it.
            path: the Arrow file behind the table. Documents with a path are pickled as that path,
                others with the whole table.
        """
        self.table = table
        self.content_hash = content_hash
        self.path = path
        #: What the corpus is called whatever its content is now; empty where nobody named it.
        self.name = ""

    @property
    def counts(self) -> dict[str, int]:
        """Return what was counted when a file of :func:`write_arrow` was made."""
        metadata = self.table.schema.metadata or {}
        counts: dict[str, int] = json.loads(metadata.get(_COUNTS, "{}"))
        return counts

    @property
    def facts(self) -> FolderFacts:
        """Return what is known about the files that the corpus was read from."""
        metadata = self.table.schema.metadata or {}
        return FolderFacts.from_json(json.loads(metadata.get(_FACTS, "{}")))

    def __len__(self) -> int:
        """Return N, the number of documents."""
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[str]:
        """Stream the ids in corpus order."""
        for chunk in self.table.column("id").chunks:
            yield from chunk.to_pylist()

    def __getitem__(self, id: str) -> dict[str, str]:
        """Return the title and text of a document."""
        row = -1
        if isinstance(id, str):
            row = self._index.row(id)
        if row < 0:
            raise KeyError(id)
        return {
            "title": self.table.column("title")[row].as_py(),
            "text": self.table.column("text")[row].as_py(),
        }

    def __contains__(self, id: object) -> bool:
        """Return whether the corpus has a document of this id."""
        return isinstance(id, str) and self._index.row(id) >= 0

    def items(self) -> ItemsView[str, dict[str, str]]:
        """Stream pairs of id and document in corpus order, without lookups."""
        return _Items(self)

    def values(self) -> ValuesView[dict[str, str]]:
        """Stream the documents in corpus order, without lookups."""
        return _Values(self)

    def ids(self, rows: Rows | None = None) -> list[str]:
        """Return the ids at some rows, in the order of the rows; without rows, all of them.

        Raises:
            IndexError: a row is not in [0, N).
        """
        if rows is None:
            return list(self)
        checked = self._check_rows(rows)
        return gather(self.table.column("id"), checked)

    def rows(self, ids: Iterable[str]) -> Ints:
        """Return the rows of ids, int64 (M,), -1 where an id is unknown."""
        return self._index.rows(list(ids))

    def chunks(self, size: int) -> Iterator[list[dict[str, str]]]:
        """Stream the corpus in corpus order, as lists of documents.

        Args:
            size: the most documents of a list, at least 1.

        Returns:
            Lists of documents, each with ``_id``, ``title`` and ``text``.
        """
        if size < 1:
            raise ValueError(f"a chunk holds at least one document, not {size}")
        for start in range(0, len(self), size):
            yield _as_dicts(self.table.slice(start, size))

    def take(self, rows: Rows) -> list[dict[str, str]]:
        """Return the documents at some rows, in the order of the rows.

        Raises:
            IndexError: a row is not in [0, N).
        """
        checked = self._check_rows(rows)
        # Neighbours are a slice, which takes a third of the time.
        if len(checked) > 1 and (np.diff(checked) == 1).all():
            first = int(checked[0])
            return _as_dicts(self.table.slice(first, len(checked)))
        return _join_columns(
            ids=gather(self.table.column("id"), checked),
            titles=gather(self.table.column("title"), checked),
            texts=gather(self.table.column("text"), checked),
        )

    def tie_ranks(self) -> Ints:
        """Return each row's position when ids are sorted descending by UTF-8 bytes, int64 (N,).

        Among documents of equal score the one with the smaller tie rank comes first: trec_eval
        breaks ties by descending document id. The ranks are computed once.
        """
        return self._tie_ranks

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the path, or the table where there is no path."""
        if self.path is None:
            return Documents, (self.table, self.content_hash)
        return open_corpus, (self.path,)

    def __repr__(self) -> str:
        """Return the number of documents and the beginning of the content's hash."""
        content = self.content_hash[:12]
        return f"Documents({len(self)} documents, content {content})"

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex(self.table.column("id"))

    @cached_property
    def _tie_ranks(self) -> Ints:
        order = pc.sort_indices(
            self.table.column("id"),
            sort_keys=[("", "descending")],
        )
        ranks = np.empty(len(self), dtype=np.int64)
        # DLPack, because to_numpy would import pandas.
        ranks[np.from_dlpack(order)] = np.arange(len(self))
        ranks.flags.writeable = False
        return ranks

    def _check_rows(self, rows: Rows) -> Ints:
        checked = np.asarray(rows, dtype=np.int64)
        if not len(checked):
            return checked
        least = checked.min()
        largest = checked.max()
        # A negative row is what `rows` returns for an unknown id; wrapping around would hide it.
        if least < 0 or largest >= len(self):
            raise IndexError(f"rows run from 0 to {len(self) - 1}, not {least} to {largest}")
        return checked


class _Items(ItemsView[str, dict[str, str]]):
    _mapping: Documents  # an attribute of the base class

    def __iter__(self) -> Iterator[tuple[str, dict[str, str]]]:
        for chunk in self._mapping.chunks(_STREAM_ROWS):
            for document in chunk:
                yield document.pop("_id"), document


class _Values(ValuesView[dict[str, str]]):
    _mapping: Documents

    def __iter__(self) -> Iterator[dict[str, str]]:
        return (document for _, document in self._mapping.items())


def _as_dicts(table: pa.Table) -> list[dict[str, str]]:
    return _join_columns(
        ids=table.column("id").to_pylist(),
        titles=table.column("title").to_pylist(),
        texts=table.column("text").to_pylist(),
    )


def _join_columns(
    ids: list[str],
    titles: list[str],
    texts: list[str],
) -> list[dict[str, str]]:
    rows = zip(ids, titles, texts, strict=True)
    return [{"_id": id, "title": title, "text": text} for id, title, text in rows]


# large_string has 64-bit offsets: joining the batches of a large corpus does not overflow.
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("title", pa.large_string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)
_BATCH_ROWS = 16_384
_BATCH_CHARACTERS = 1 << 23
_HASH = b"content_hash"
_COUNTS = b"counts"
_FACTS = b"facts"


def write_arrow(
    path: Path,
    documents: Iterable[Document],
    counts: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> tuple[str, Repeats]:
    """Write a stream of documents to an Arrow file, in batches.

    Memory holds 16 bytes of each document, the hashes of its id and of its content.

    Args:
        path: the file.
        documents: the documents, with unique ids.
        counts: what was counted on the way, read after the last document and written to the file;
            "duplicate texts" is added to it.
        facts: the JSON of the facts about the files, see :class:`FolderFacts`.

    Returns:
        The content hash, and the repeated ids.
    """
    digest = hashlib.sha256()
    ids_seen = Repeats()
    contents_seen = Repeats()
    with path.open("wb") as file:
        with pa.ipc.new_file(file, _SCHEMA) as writer:
            for ids, titles, texts in _batches(documents):
                ids_seen.add(ids)
                contents = zip(titles, texts, strict=True)
                contents_seen.add(content for content in contents if any(content))
                digest.update(_framed(ids, titles, texts))
                writer.write_batch(_record_batch(ids, titles, texts))
            all_counts = dict(counts or {})
            duplicates = len(contents_seen.repeated())
            if duplicates:
                all_counts["duplicate texts"] = duplicates
            # The schema went out before anything was counted; an empty batch at the end carries it.
            metadata = {
                _HASH: digest.hexdigest().encode(),
                _COUNTS: json.dumps(all_counts).encode(),
                _FACTS: json.dumps(facts or {}).encode(),
            }
            writer.write_batch(
                _record_batch([], [], []),
                custom_metadata=metadata,
            )
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), ids_seen


def _framed(
    ids: list[str],
    titles: list[str],
    texts: list[str],
) -> bytes:
    """Return bytes that no other documents give: the lengths say where each field ends."""
    rows = zip(ids, titles, texts, strict=True)
    framed = []
    for id, title, text in rows:
        lengths = f"{len(id)} {len(title)} {len(text)}\n"
        framed.append(lengths)
        framed.append(id)
        framed.append(title)
        framed.append(text)
    return "".join(framed).encode()


def open_corpus(path: Path) -> Documents:
    """Map a file that :func:`write_arrow` wrote into memory; nothing is read before it is used.

    The schema of the table carries ``content_hash``, ``counts`` and ``facts`` as its metadata.

    Raises:
        ValueError: the file is something else.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    batches = reader.num_record_batches
    metadata = {}
    if batches:
        last = reader.get_batch_with_custom_metadata(batches - 1)
        metadata = dict(last.custom_metadata or {})
    if _HASH not in metadata or not reader.schema.equals(_SCHEMA):
        raise ValueError(f"{path} is not a converted corpus")
    table = reader.read_all().replace_schema_metadata(metadata)
    return Documents(table, metadata[_HASH].decode(), path)


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
            ids = []
            titles = []
            texts = []
            characters = 0
    if ids:
        yield ids, titles, texts


def _record_batch(
    ids: list[str],
    titles: list[str],
    texts: list[str],
) -> pa.RecordBatch:
    columns = [pa.array(column, pa.large_string()) for column in (ids, titles, texts)]
    return pa.record_batch(columns, schema=_SCHEMA)


def dataset_documents(dataset: Any) -> Documents:
    """Read the corpus in a dataset of Hugging Face ``datasets``.

    The data stays where it is, mapped into memory.

    Args:
        dataset: columns ``id`` or ``_id``, ``text``, and ``title`` if there are titles; a null is
            an empty text.

    Raises:
        InputError: a column is missing, an id is no string or is repeated, or the dataset is a
            stream.
    """
    names = list(dataset.column_names or [])
    id = None
    if "id" in names:
        id = "id"
    elif "_id" in names:
        id = "_id"
    is_stream = not hasattr(dataset, "__len__")
    if id is None or "text" not in names or is_stream:
        raise InputError(
            f"a dataset with the columns {names} is not a corpus; load it with id (or _id) and "
            "text, not as a stream"
        )
    table = dataset.with_format("arrow")[:]
    ids = table.column(id)
    is_string = pa.types.is_string(ids.type)
    is_text = is_string or pa.types.is_large_string(ids.type)
    if ids.null_count or not is_text:
        raise InputError(
            f"column {id!r} of the dataset contains {ids.type}, some of it null; cast it to strings"
        )
    if pc.count_distinct(ids).as_py() < len(ids):
        raise InputError(f"column {id!r} of the dataset repeats ids; keep one document of each")
    columns = [ids]
    for name in ("title", "text"):
        if name in names:
            columns.append(table.column(name))
        else:
            columns.append(pa.nulls(len(ids)))
    texts = []
    for column in columns:
        text = column.cast(pa.large_string())
        texts.append(pc.fill_null(text, ""))
    converted = pa.table(texts, _SCHEMA)
    return Documents(converted, content_hash="")


@contextmanager
def hashed_documents(corpus: Mapping[str, Mapping[str, str | None]]) -> Iterator[Documents]:
    """Yield a corpus with its ``content_hash``.

    A corpus that has none yet is written to a temporary file, which exists within the block.
    """
    if isinstance(corpus, Documents) and corpus.content_hash:
        yield corpus
        return
    with TemporaryFolder() as folder:
        path = folder / "corpus.arrow"
        write_arrow(path, _rows_of_corpus(corpus))
        yield open_corpus(path)


def _rows_of_corpus(corpus: Mapping[str, Mapping[str, str | None]]) -> Iterator[Document]:
    for id, fields in corpus.items():
        title = fields.get("title") or ""
        text = fields.get("text") or ""
        for part in (id, title, text):
            if isinstance(part, str):
                check_characters(f"document {id!r}", part)
        yield 0, id, title, text
