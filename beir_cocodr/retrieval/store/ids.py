"""The ids of a store: a parquet table by row, and the order that breaks ties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.store.files import placed

_IDS, _RANKS, _ORDER = "ids.parquet", "tie_ranks.npy", "tie_order.npy"
_GROUP = 16_384
_BLOCK = 1 << 20


class StoreIds:
    """Ids by row, tie ranks by row and rows by tie rank, all on disk.

    ``ids.parquet`` has one column ``id`` in corpus order; ``tie_ranks.npy`` the place of every row when ids
    are sorted descending by their UTF-8 bytes, as trec_eval breaks ties, and ``tie_order.npy`` its inverse;
    both uint32 (N,) and memory-mapped.

    Args:
        folder: of the store.
        count: N.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def write(self, documents: Documents) -> None:
        """Write what is not there yet. Ids pass in blocks; sorting takes some 30 bytes for each of them."""
        if not (self.folder / _IDS).exists():
            with placed(self.folder / _IDS) as temporary:
                _write_ids(documents, temporary)
        if not (self.folder / _ORDER).exists():
            order = pc.sort_indices(documents.table.column("id"), sort_keys=[("", "descending")])
            with placed(self.folder / _ORDER) as temporary:
                _write_order(order.to_numpy(), temporary)
        if not (self.folder / _RANKS).exists():
            with placed(self.folder / _RANKS) as temporary:
                _write_inverse(np.load(self.folder / _ORDER, mmap_mode="r"), temporary)

    def complete(self) -> bool:
        return all((self.folder / name).exists() for name in (_IDS, _RANKS, _ORDER))

    def tie_ranks(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Of consecutive rows, int64."""
        ranks: npt.NDArray[np.int64] = self._array(_RANKS)[start:stop].astype(np.int64)
        return ranks

    def tie_rank_array(self) -> npt.NDArray[Any]:
        """Of all rows, (N,) uint32, memory-mapped."""
        return self._array(_RANKS)

    def rows_at(self, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows that have the given tie ranks, in the same shape."""
        rows: npt.NDArray[np.int64] = self._array(_ORDER)[ranks].astype(np.int64)
        return rows

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The ids of (M,) rows in their order. Reads the row groups that hold them, one at a time.

        Raises:
            InputError: the table is broken or of another length.
            IndexError: a row is not in [0, N).
        """
        unique, places = np.unique(rows, return_inverse=True)
        if len(unique) and (unique[0] < 0 or unique[-1] >= self.count):
            raise IndexError(f"rows run from 0 to {self.count - 1}, not {unique[0]} to {unique[-1]}")
        found: list[str] = []
        with self._table() as table:
            group_of = unique // _GROUP
            for part in np.split(unique, np.flatnonzero(np.diff(group_of)) + 1) if len(unique) else []:
                group = int(part[0] // _GROUP)
                column = table.read_row_group(group, columns=["id"]).column("id")
                found += column.take(pa.array(part - group * _GROUP)).to_pylist()
        return [found[place] for place in places.tolist()]

    def _table(self) -> pq.ParquetFile:
        path = self.folder / _IDS
        try:
            table = pq.ParquetFile(path, memory_map=True)
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(f"{path} is no id table ({error}); delete it and encode again") from error
        if table.metadata.num_rows != self.count:
            raise InputError(
                f"{path} has {table.metadata.num_rows} ids for {self.count} documents; delete it and encode "
                "again"
            )
        return table

    def _array(self, name: str) -> npt.NDArray[np.uint32]:
        path = self.folder / name
        try:
            array: npt.NDArray[np.uint32] = np.load(path, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}); delete it and encode again") from error
        if array.shape != (self.count,):
            raise InputError(
                f"{path} has shape {array.shape} for {self.count} documents; delete it, encode again"
            )
        return array


def _write_ids(documents: Documents, path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.large_string(), nullable=False)])
    # Ids are all different: a dictionary of them would be a second copy.
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for start in range(0, len(documents), _GROUP):
            column = documents.table.column("id").slice(start, _GROUP).combine_chunks()
            writer.write_table(pa.table([column], schema=schema), row_group_size=_GROUP)


def _write_order(order: npt.NDArray[np.uint64], path: Path) -> None:
    narrow = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint32, shape=order.shape)
    for start in range(0, len(order), _BLOCK):
        narrow[start : start + _BLOCK] = order[start : start + _BLOCK]
    narrow.flush()


def _write_inverse(order: npt.NDArray[np.uint32], path: Path) -> None:
    ranks = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint32, shape=order.shape)
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        ranks[block] = np.arange(start, start + len(block), dtype=np.uint32)
    ranks.flush()
