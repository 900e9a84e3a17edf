"""The ids of a store's documents by row, and the order that breaks ties, all on disk."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beir_cocodr import checksums
from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError, explained
from beir_cocodr.retrieval.store.shard import ENCODE_AGAIN

_IDS = "ids.parquet"
_ORDER = "tie_order.npy"
_RANKS = "tie_ranks.npy"

# Ids of a row group of the table.
_GROUP = 16_384

TieRanks = npt.NDArray[np.uint32]

log = logging.getLogger(__name__)


class StoreIds:
    """Ids by row, tie ranks by row, and rows by tie rank, all on disk.

    ``ids.parquet`` has one column ``id`` in corpus order. ``tie_ranks.npy`` has the place of every
    row when ids are sorted descending by their UTF-8 bytes, as trec_eval breaks ties, and
    ``tie_order.npy`` its inverse; both are uint32 (N,), and mapped.
    """

    FILES = (
        _IDS,
        _ORDER,
        _RANKS,
    )

    def __init__(
        self,
        folder: Path,
        count: int,
        verify: bool = True,
    ) -> None:
        """Describe the ids of a store.

        Args:
            folder: Folder of the store.
            count: The number of documents, N.
            verify: Compare files with their checksums before they are read.
        """
        self.folder = folder
        self.count = count
        self.verify = verify

    def copy_to(self, folder: Path) -> None:
        """Copy the files into the folder of another store."""
        for name in self.FILES:
            with checksums.checked_path(folder / name) as temporary:
                shutil.copyfile(self.folder / name, temporary)

    def write(self, documents: Documents, names: Collection[str] | None = None) -> None:
        """Write files. Sorting takes about 30 bytes of memory an id.

        Args:
            documents: The corpus.
            names: The files; by default those that are missing or broken.
        """
        names = self.broken() if names is None else names
        ids = documents.table.column("id")
        if _IDS in names:
            self._write_ids(ids)
        if _ORDER in names:
            order = pc.sort_indices(ids, sort_keys=[("", "descending")])
            self._write_array(_ORDER, order.to_numpy().astype(np.uint32))
        if _RANKS in names:
            ranks = np.empty(self.count, dtype=np.uint32)
            ascending = np.arange(self.count, dtype=np.uint32)
            ranks[self._array(_ORDER)] = ascending
            self._write_array(_RANKS, ranks)

    def _write_ids(self, ids: pa.ChunkedArray) -> None:
        column = pa.field("id", pa.large_string(), nullable=False)
        table = pa.table([ids], schema=pa.schema([column]))
        with checksums.checked_path(self.folder / _IDS) as temporary:
            # Ids are all different: a dictionary of them would be a second copy.
            pq.write_table(
                table,
                temporary,
                _GROUP,
                compression="zstd",
                use_dictionary=False,
            )

    def _write_array(self, name: str, array: TieRanks) -> None:
        with checksums.checked_path(self.folder / name) as temporary:
            np.save(temporary, array)

    def complete(self) -> bool:
        """Return true if all files exist."""
        return all((self.folder / name).exists() for name in self.FILES)

    def broken(self) -> list[str]:
        """Return the files that are missing or damaged; each damaged one is warned of."""
        names = []
        for name in self.FILES:
            try:
                self._check(name)
            except InputError as error:
                names.append(name)
                if (self.folder / name).exists():
                    problem = str(error).partition("; ")[0]
                    log.warning("%s; counted as missing", problem)
        return names

    def _check(self, name: str) -> None:
        if name == _IDS:
            self._table().close()
        else:
            self._array(name)

    def tie_ranks(self, start: int = 0, stop: int | None = None) -> TieRanks:
        """Return the tie ranks of consecutive rows, by default of all; they are memory-mapped."""
        return self._array(_RANKS)[start:stop]

    def rows_at(self, ranks: Ints) -> Ints:
        """Return the rows that have some tie ranks, in the same shape."""
        problem = f"{self.folder / _RANKS} is broken"
        # An index beyond the end occurs only if nothing is verified.
        with explained(problem, ENCODE_AGAIN, IndexError):
            return self._array(_ORDER)[ranks].astype(np.int64)

    def ids(self, rows: Ints | Sequence[int]) -> list[str]:
        """Return the ids of (M,) rows, which are read by row group.

        Raises:
            IndexError: A row is not in [0, N).
            InputError: The table is damaged.
        """
        unique, positions = np.unique(
            np.asarray(rows, dtype=np.int64),
            return_inverse=True,
        )
        if not len(unique):
            return []
        least = unique[0]
        largest = unique[-1]
        if least < 0 or largest >= self.count:
            raise IndexError(f"rows run from 0 to {self.count - 1}, not {least} to {largest}")
        groups = unique // _GROUP
        group_changes = np.flatnonzero(np.diff(groups)) + 1
        ids: list[str] = []
        with self._table() as table:
            for group_rows in np.split(unique, group_changes):
                ids += self._group_ids(table, group_rows)
        return [ids[position] for position in positions.tolist()]

    def _group_ids(self, table: pq.ParquetFile, rows: Ints) -> list[str]:
        """Return the ids of rows of one row group."""
        group = int(rows[0] // _GROUP)
        problem = f"{self.folder / _IDS} is broken"
        with explained(problem, ENCODE_AGAIN, OSError, pa.ArrowException):
            column = table.read_row_group(group, columns=["id"]).column("id")
            rows_in_group = pa.array(rows - group * _GROUP)
            ids: list[str] = column.take(rows_in_group).to_pylist()
        return ids

    def _table(self) -> pq.ParquetFile:
        path = self._verified(_IDS)
        with explained(f"{path} is not a table of ids", ENCODE_AGAIN, OSError, pa.ArrowInvalid):
            table = pq.ParquetFile(path, memory_map=True)
        count = table.metadata.num_rows
        if count != self.count:
            raise InputError(f"{path} has {count} ids for {self.count} documents; {ENCODE_AGAIN}")
        return table

    def _array(self, name: str) -> TieRanks:
        path = self._verified(name)
        with explained(f"{path} cannot be read", ENCODE_AGAIN, OSError, ValueError):
            array: TieRanks = np.load(path, mmap_mode="r")
        if array.shape != (self.count,):
            raise InputError(
                f"{path} has shape {array.shape} for {self.count} documents; {ENCODE_AGAIN}"
            )
        return array

    def _verified(self, name: str) -> Path:
        path = self.folder / name
        if self.verify:
            checksums.verify(path, ENCODE_AGAIN)
        return path
