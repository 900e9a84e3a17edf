"""A corpus in a memory-mapped Arrow table."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from beir_cocodr.data.files.id_index import IdIndex, gather

Rows = Sequence[int] | npt.NDArray[np.integer[Any]]

_STREAM_ROWS = 4096


class Documents(Mapping[str, dict[str, str]]):
    """A corpus in a memory-mapped Arrow table: also a drop-in BEIR corpus, id -> {"title": str, "text": str}.

    Iterating, ``items()``, ``values()`` and `chunks` stream in corpus order; the corpus is never held in
    memory as Python objects. The first lookup by id builds an index of 16 bytes a document.

    Args:
        table: columns ``id``, ``title`` and ``text``, large_string without nulls, ids unique.
        content_hash: sha256 in hexadecimal over all (id, title, text) in order.
        path: the Arrow file behind the table. A pickled `Documents` with a path is opened again at the other
            end, one without carries the whole table.
    """

    def __init__(self, table: pa.Table, content_hash: str, path: Path | None = None) -> None:
        self.table = table
        self.content_hash = content_hash
        self.path = path

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[str]:
        for chunk in self._column("id").chunks:
            yield from chunk.to_pylist()

    def __getitem__(self, id: str) -> dict[str, str]:
        row = self._index.row(id) if isinstance(id, str) else -1
        if row < 0:
            raise KeyError(id)
        return {"title": self._column("title")[row].as_py(), "text": self._column("text")[row].as_py()}

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._index.row(id) >= 0

    def items(self) -> ItemsView[str, dict[str, str]]:
        """Pairs (id, {"title", "text"}) as a stream in corpus order, without lookups."""
        return _Items(self)

    def values(self) -> ValuesView[dict[str, str]]:
        """The documents as a stream in corpus order, without lookups."""
        return _Values(self)

    def ids(self, rows: Rows | None = None) -> list[str]:
        """The ids of the given rows in the given order; of all rows in corpus order by default.

        Raises:
            IndexError: if a row is not in [0, N).
        """
        if rows is None:
            return list(self)
        return gather(self._column("id"), self._checked(rows))

    def rows(self, ids: Iterable[str]) -> npt.NDArray[np.int64]:
        """The rows of the given ids, int64 (M,), -1 where an id is unknown."""
        return self._index.rows(list(ids))

    def chunks(self, size: int) -> Iterator[list[dict[str, str]]]:
        """Stream the corpus as lists of at most ``size`` documents {"_id", "title", "text"}, in corpus order.

        Raises:
            ValueError: if ``size`` is not positive.
        """
        if size < 1:
            raise ValueError(f"a chunk holds at least one document, not {size}")
        for start in range(0, len(self), size):
            part = self.table.slice(start, size)
            yield _documents(*(part.column(name).to_pylist() for name in ("id", "title", "text")))

    def take(self, rows: Rows) -> list[dict[str, str]]:
        """The documents {"_id", "title", "text"} of the given rows, in the given order.

        Raises:
            IndexError: if a row is not in [0, N).
        """
        checked = self._checked(rows)
        return _documents(*(gather(self._column(name), checked) for name in ("id", "title", "text")))

    def tie_ranks(self) -> npt.NDArray[np.int64]:
        """The position of every row when ids are sorted descending by their UTF-8 bytes, int64 (N,).

        Among documents of equal score the one with the smaller tie rank comes first: trec_eval breaks ties by
        descending document id. Computed once.
        """
        return self._tie_ranks

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            return Documents, (self.table, self.content_hash)
        return _reopen, (str(self.path),)

    def __repr__(self) -> str:
        return f"Documents({len(self)} documents, content {self.content_hash[:12]})"

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex(self._column("id"))

    @cached_property
    def _tie_ranks(self) -> npt.NDArray[np.int64]:
        order = pc.sort_indices(self._column("id"), sort_keys=[("", "descending")])
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[order.to_numpy()] = np.arange(len(self))
        ranks.flags.writeable = False
        return ranks

    def _column(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name)

    def _checked(self, rows: Rows) -> npt.NDArray[np.int64]:
        checked = np.asarray(rows, dtype=np.int64)
        # A negative row is what `rows` returns for an unknown id; wrapping around would hide it.
        if len(checked) and (checked.min() < 0 or checked.max() >= len(self)):
            raise IndexError(f"rows run from 0 to {len(self) - 1}, not {checked.min()} to {checked.max()}")
        return checked


class _Items(ItemsView[str, dict[str, str]]):
    def __init__(self, documents: Documents) -> None:
        super().__init__(documents)
        self._documents = documents

    def __iter__(self) -> Iterator[tuple[str, dict[str, str]]]:
        for chunk in self._documents.chunks(_STREAM_ROWS):
            for document in chunk:
                yield document.pop("_id"), document


class _Values(ValuesView[dict[str, str]]):
    def __init__(self, documents: Documents) -> None:
        super().__init__(documents)
        self._documents = documents

    def __iter__(self) -> Iterator[dict[str, str]]:
        return (document for _, document in self._documents.items())


def _documents(ids: list[str], titles: list[str], texts: list[str]) -> list[dict[str, str]]:
    return [
        {"_id": id, "title": title, "text": text} for id, title, text in zip(ids, titles, texts, strict=True)
    ]


def _reopen(path: str) -> Documents:
    from beir_cocodr.data.files.arrow_corpus import open_corpus

    return open_corpus(Path(path)).documents
