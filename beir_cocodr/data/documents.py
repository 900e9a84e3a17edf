"""A corpus as one Arrow file: written as a stream, opened as a memory map; ids are found by hash,
in 16 bytes each.
"""

import hashlib
import json
import os
import tempfile
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
from beir_cocodr.data.readers import Document
from beir_cocodr.errors import InputError


def hashes_of(values: Iterable[str], hash_of: Callable[[str], int] = hash) -> Ints:
    """64-bit hashes, int64 (N,); those of ``hash`` hold within this process only."""
    return np.fromiter(map(hash_of, values), dtype=np.int64)


def gather(column: pa.ChunkedArray, rows: Ints) -> list[str]:
    """The values at the given rows, in that order, touching only those: ``ChunkedArray.take`` may
    join all chunks.
    """
    starts = np.cumsum([0, *map(len, column.chunks)])
    chunk_of = np.searchsorted(starts, rows, side="right") - 1
    values = np.empty(len(rows), object)
    for number in np.unique(chunk_of).tolist():
        inside = chunk_of == number
        taken = column.chunk(number).take(pa.array(rows[inside] - starts[number]))
        values[inside] = taken.to_numpy(zero_copy_only=False)
    return list(values)


class IdIndex:
    """Rows of ids, each of which stands once; exact: a hash only proposes a row, the id that stands
    there decides.
    """

    def __init__(self, ids: pa.ChunkedArray, hash_of: Callable[[str], int] = hash) -> None:
        self._ids, self._hash_of = ids, hash_of
        parts = [hashes_of(chunk.to_pylist(), hash_of) for chunk in ids.chunks]
        hashes = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        self._order = np.argsort(hashes, kind="stable")  # (N,)
        self._sorted = hashes[self._order]  # (N,)

    def row(self, id: str) -> int:
        """The row of one id, -1 where it is unknown."""
        wanted = np.int64(self._hash_of(id))
        rows = self._order[
            self._sorted.searchsorted(wanted) : self._sorted.searchsorted(wanted, "right")
        ]
        return next((row for row in rows.tolist() if self._ids[row].as_py() == id), -1)

    def rows(self, ids: Sequence[str]) -> Ints:
        """The rows of many ids, int64 (M,), -1 where an id is unknown."""
        if not len(self._sorted) or not len(ids):
            return np.full(len(ids), -1, dtype=np.int64)
        wanted = hashes_of(ids, self._hash_of)
        positions = self._sorted.searchsorted(wanted).clip(max=len(self._sorted) - 1)
        rows = np.where(self._sorted[positions] == wanted, self._order[positions], -1)
        proposed = np.flatnonzero(rows >= 0)
        for i, value in zip(proposed.tolist(), gather(self._ids, rows[proposed]), strict=True):
            if ids[i] != value:  # two share a hash
                rows[i] = self.row(ids[i])
        return rows


Rows = Sequence[int] | npt.NDArray[np.integer[Any]]
_STREAM_ROWS = 4096


class Documents(Mapping[str, dict[str, str]]):
    """A corpus in a memory-mapped Arrow table: also a drop-in BEIR corpus, id -> {"title": str,
    "text": str}.

    Iterating, ``items()``, ``values()`` and `chunks` stream in corpus order; the corpus is never
    held in memory as Python objects. The first lookup by id builds an index of 16 bytes a document.

    Args:
        table: columns ``id``, ``title`` and ``text``, large_string without nulls, ids unique.
        content_hash: sha256 in hexadecimal over all (id, title, text) in order; empty where nobody
            needs it.
        path: the Arrow file behind the table. A pickled `Documents` with a path is opened again at
            the other end, one without carries the whole table.
    """

    def __init__(self, table: pa.Table, content_hash: str, path: Path | None = None) -> None:
        self.table, self.content_hash, self.path = table, content_hash, path

    @property
    def counts(self) -> dict[str, int]:
        """What was counted when a file of :func:`write_arrow` was made."""
        counts: dict[str, int] = json.loads((self.table.schema.metadata or {}).get(_COUNTS, "{}"))
        return counts

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[str]:
        for chunk in self.table.column("id").chunks:
            yield from chunk.to_pylist()

    def __getitem__(self, id: str) -> dict[str, str]:
        row = self._index.row(id) if isinstance(id, str) else -1
        if row < 0:
            raise KeyError(id)
        return {
            "title": self.table.column("title")[row].as_py(),
            "text": self.table.column("text")[row].as_py(),
        }

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._index.row(id) >= 0

    def items(self) -> ItemsView[str, dict[str, str]]:
        """Pairs (id, {"title", "text"}) as a stream in corpus order, without lookups."""
        return _Items(self)

    def values(self) -> ValuesView[dict[str, str]]:
        """The documents as a stream in corpus order, without lookups."""
        return _Values(self)

    def ids(self, rows: Rows | None = None) -> list[str]:
        """The ids of the given rows in the given order, by default of all; ``IndexError`` if a row
        is not in [0, N).
        """
        return list(self) if rows is None else gather(self.table.column("id"), self._checked(rows))

    def rows(self, ids: Iterable[str]) -> Ints:
        """The rows of the given ids, int64 (M,), -1 where an id is unknown."""
        return self._index.rows(list(ids))

    def chunks(self, size: int) -> Iterator[list[dict[str, str]]]:
        """Stream the corpus as lists of at most ``size`` >= 1 documents {"_id", "title", "text"},
        in corpus order.
        """
        if size < 1:
            raise ValueError(f"a chunk holds at least one document, not {size}")
        for start in range(0, len(self), size):
            part = self.table.slice(start, size)
            yield _documents(part.column(name).to_pylist() for name in _SCHEMA.names)

    def take(self, rows: Rows) -> list[dict[str, str]]:
        """The documents {"_id", "title", "text"} of the given rows, in their order; ``IndexError``
        beyond [0, N).
        """
        checked = self._checked(rows)
        if (
            len(checked) > 1 and (np.diff(checked) == 1).all()
        ):  # as they stand, which takes a third of the time
            part = self.table.slice(int(checked[0]), len(checked))
            return _documents(part.column(name).to_pylist() for name in _SCHEMA.names)
        return _documents(gather(self.table.column(name), checked) for name in _SCHEMA.names)

    def tie_ranks(self) -> Ints:
        """The position of every row when ids are sorted descending by their UTF-8 bytes, int64
        (N,).

        Among documents of equal score the one with the smaller tie rank comes first: trec_eval
        breaks ties by descending document id. Computed once.
        """
        return self._tie_ranks

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            (Documents, (self.table, self.content_hash))
            if self.path is None
            else (open_corpus, (self.path,))
        )

    def __repr__(self) -> str:
        return f"Documents({len(self)} documents, content {self.content_hash[:12]})"

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex(self.table.column("id"))

    @cached_property
    def _tie_ranks(self) -> Ints:
        order = pc.sort_indices(self.table.column("id"), sort_keys=[("", "descending")])
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[order.to_numpy()] = np.arange(len(self))
        ranks.flags.writeable = False
        return ranks

    def _checked(self, rows: Rows) -> Ints:
        checked = np.asarray(rows, dtype=np.int64)
        # A negative row is what `rows` returns for an unknown id; wrapping around would hide it.
        if len(checked) and (checked.min() < 0 or checked.max() >= len(self)):
            raise IndexError(
                f"rows run from 0 to {len(self) - 1}, not {checked.min()} to {checked.max()}"
            )
        return checked


class _Items(ItemsView[str, dict[str, str]]):
    _mapping: Documents  # what the base class keeps

    def __iter__(self) -> Iterator[tuple[str, dict[str, str]]]:
        for chunk in self._mapping.chunks(_STREAM_ROWS):
            for document in chunk:
                yield document.pop("_id"), document


class _Values(ValuesView[dict[str, str]]):
    _mapping: Documents

    def __iter__(self) -> Iterator[dict[str, str]]:
        return (document for _, document in self._mapping.items())


def _documents(columns: Iterable[list[str]]) -> list[dict[str, str]]:
    return [
        {"_id": id, "title": title, "text": text} for id, title, text in zip(*columns, strict=True)
    ]


# large_string has 64-bit offsets, so that whoever joins the batches of a big corpus does not
# overflow.
_SCHEMA = pa.schema(
    [pa.field(name, pa.large_string(), nullable=False) for name in ("id", "title", "text")]
)
_BATCH_ROWS, _BATCH_CHARACTERS = 16_384, 1 << 23
_HASH, _COUNTS = b"content_hash", b"counts"


def write_arrow(
    path: Path, documents: Iterable[Document], counts: Mapping[str, int] | None = None
) -> tuple[str, Repeats]:
    """Write a stream of documents to an Arrow file, in batches, and then what was counted on the
    way; gives the content hash, and what knows repeated ids.

    Of each document 16 bytes are kept, the hashes of its id and of its content. ``counts`` is read
    after the last document, as reading fills it, and "duplicate texts" is added to what is written.
    """
    digest, seen_ids, contents = hashlib.sha256(), Repeats(), Repeats()
    with path.open("wb") as file:
        with pa.ipc.new_file(file, _SCHEMA) as writer:
            for ids, titles, texts in _batches(documents):
                seen_ids.add(ids)
                contents.add(pair for pair in zip(titles, texts, strict=True) if any(pair))
                # The lengths say where each field ends: no two different corpora give the same
                # bytes.
                rows = zip(ids, titles, texts, strict=True)
                framed = (
                    f"{len(i)} {len(title)} {len(text)}\n{i}{title}{text}"
                    for i, title, text in rows
                )
                digest.update("".join(framed).encode())
                writer.write_batch(_record_batch(ids, titles, texts))
            repeated = len(contents.repeated())
            final = dict(counts or {}) | ({"duplicate texts": repeated} if repeated else {})
            # The schema went out before anything was known; an empty batch at the end can carry it.
            metadata = {_HASH: digest.hexdigest().encode(), _COUNTS: json.dumps(final).encode()}
            writer.write_batch(_record_batch([], [], []), custom_metadata=metadata)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), seen_ids


def open_corpus(path: Path) -> Documents:
    """Map a file that :func:`write_arrow` wrote (any other is a ``ValueError``); nothing is read
    before it is used.

    The table of the documents carries ``content_hash`` and ``counts`` in its schema metadata.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    batches = reader.num_record_batches
    metadata = (
        dict(reader.get_batch_with_custom_metadata(batches - 1).custom_metadata or {})
        if batches
        else {}
    )
    if _HASH not in metadata or not reader.schema.equals(_SCHEMA):
        raise ValueError(f"{path} is not a converted corpus")
    return Documents(
        reader.read_all().replace_schema_metadata(metadata), metadata[_HASH].decode(), path
    )


def _batches(documents: Iterable[Document]) -> Iterator[tuple[list[str], list[str], list[str]]]:
    batch: tuple[list[str], list[str], list[str]] = [], [], []
    characters = 0
    for _, *fields in documents:
        for column, value in zip(batch, fields, strict=True):
            column.append(value)
        characters += len(fields[1]) + len(fields[2])
        if len(batch[0]) == _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = ([], [], []), 0
    if batch[0]:
        yield batch


def _record_batch(*columns: list[str]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(column, pa.large_string()) for column in columns], schema=_SCHEMA
    )


def dataset_documents(dataset: Any) -> Documents:
    """The corpus in a dataset of Hugging Face ``datasets``, which stays where it is, mapped into
    memory. An InputError: a column is missing, an id is no string or stands there twice, or the
    dataset is a stream. ``dataset``: columns ``id`` or ``_id``, ``text``, and ``title`` if there
    are titles; a null is an empty text.
    """
    names = list(dataset.column_names or [])
    id = next((name for name in ("id", "_id") if name in names), None)
    if id is None or "text" not in names or not hasattr(dataset, "__len__"):
        raise InputError(
            f"a dataset of columns {names} is no corpus: load it with id (or _id) and text, no stream"
        )
    table = dataset.with_format("arrow")[:]
    ids = table.column(id)
    if ids.null_count or not (pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type)):
        raise InputError(
            f"column {id!r} of the dataset holds {ids.type}, some of it null; cast it to strings"
        )
    if pc.count_distinct(ids).as_py() < len(ids):
        raise InputError(
            f"column {id!r} of the dataset has ids that stand there twice; keep one document of each"
        )
    columns = [
        ids,
        *(
            table.column(name) if name in names else pa.nulls(len(ids))
            for name in ("title", "text")
        ),
    ]
    columns = [pc.fill_null(column.cast(pa.large_string()), "") for column in columns]
    return Documents(pa.table(columns, _SCHEMA), "")


@contextmanager
def hashed_documents(corpus: Mapping[str, Mapping[str, str | None]]) -> Iterator[Documents]:
    """A corpus with its ``content_hash``; of one that has none yet, a file that is there within the
    block.
    """
    if isinstance(corpus, Documents) and corpus.content_hash:
        yield corpus
        return
    rows = (
        (0, id, fields.get("title") or "", fields.get("text") or "")
        for id, fields in corpus.items()
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.arrow"
        write_arrow(path, rows)
        yield open_corpus(path)
