"""Embeddings by row, and where they are kept: in memory, or on disk in a store, a folder of shards
that are written, resumed and searched one at a time, with the ids of the documents by row and the
order that breaks ties.
"""

from __future__ import annotations

import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F

from beir_cocodr import checksums
from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError, explained
from beir_cocodr.models.folding import Folding
from beir_cocodr.records import Json
from beir_cocodr.retrieval.store.record import SHARD_SIZE, STORE_FILE, StoreRecord
from beir_cocodr.retrieval.store.shard import ENCODE_AGAIN, Arrays, OutOfRange, Shard, pack, unpack

_IDS, _ORDER, _RANKS = "ids.parquet", "tie_order.npy", "tie_ranks.npy"

# Ids of a row group of the table.
_GROUP = 16_384
FOLDING_FILE = "folding.safetensors"

#: A hash of each text that was encoded, uint64 (N, 2), by which unchanged ones are known.
TEXTS_FILE = "texts.npy"

log = logging.getLogger(__name__)


class Embeddings(ABC):
    """(N, d) float32 vectors that are read in chunks, in row order, or by row. ``texts_cut``: of
    the documents, where they were encoded by this process: how many lost words as they were cut
    before they were tokenised.
    """

    texts_cut = 0

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def dimensions(self) -> int: ...

    @abstractmethod
    def rows(self, rows: Ints) -> torch.Tensor:
        """(M,) rows to (M, d) float32, in their order."""

    def blocks(self, size: int) -> Iterator[torch.Tensor]:
        """All rows in order, (n, d) float32 on the CPU, ``size`` of them at a time."""
        for start in range(0, len(self), size):
            yield self.rows(np.arange(start, min(start + size, len(self))))

    def chunks(self) -> Iterator[torch.Tensor]:
        """All rows in order, (n, d) float32 on the CPU, as many at a time as is best for them."""
        return self.blocks(SHARD_SIZE)

    def load(self) -> torch.Tensor:
        """All of them, (N, d), in memory."""
        return torch.cat(list(self.chunks()))

    def select(self, rows: Ints) -> Embeddings:
        """The given rows as embeddings of their own; of them only what is asked for is read."""
        return _Selection(self, rows)


class MemoryEmbeddings(Embeddings):
    """(N, d) float32 embeddings in memory, on the CPU, in chunks as long as the shards of a
    store.
    """

    def __init__(self, vectors: torch.Tensor) -> None:
        self.vectors = vectors

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dimensions(self) -> int:
        return self.vectors.shape[1]

    def blocks(self, size: int) -> Iterator[torch.Tensor]:
        return iter(torch.split(self.vectors, size))

    def rows(self, rows: Ints) -> torch.Tensor:
        return self.vectors[torch.from_numpy(rows)]


class DerivedEmbeddings(Embeddings):
    """Embeddings whose rows are made of another's; a subclass says how."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    def __len__(self) -> int:
        return len(self._embeddings)

    @property
    def dimensions(self) -> int:
        return self._embeddings.dimensions


class ChangedEmbeddings(DerivedEmbeddings):
    """(N, d) embeddings in which (S,) different ``changed`` rows, S > 0, are (S, d) float32
    ``vectors``, uncopied.
    """

    def __init__(self, embeddings: Embeddings, changed: Ints, vectors: Floats) -> None:
        super().__init__(embeddings)
        order = np.argsort(changed)
        self._changed, self._vectors = changed[order], torch.from_numpy(vectors[order])

    def rows(self, rows: Ints) -> torch.Tensor:
        vectors = self._embeddings.rows(rows)
        places = np.searchsorted(self._changed, rows).clip(max=len(self._changed) - 1)
        at = torch.from_numpy(self._changed[places] == rows)
        vectors[at] = self._vectors[torch.from_numpy(places)[at]]
        return vectors


class MappedEmbeddings(DerivedEmbeddings):
    """What a function from (n, d) vectors to (n, ``dimensions``) makes of embeddings, row by row,
    as they are read.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        change: Callable[[torch.Tensor], torch.Tensor],
        dimensions: int | None = None,
    ) -> None:
        super().__init__(embeddings)
        self._change, self._dimensions = change, dimensions or embeddings.dimensions

    @property
    def dimensions(self) -> int:
        return self._dimensions

    def rows(self, rows: Ints) -> torch.Tensor:
        return self._change(self._embeddings.rows(rows))

    def chunks(self) -> Iterator[torch.Tensor]:
        return map(self._change, self._embeddings.chunks())


class _Selection(DerivedEmbeddings):
    def __init__(self, embeddings: Embeddings, rows: Ints) -> None:
        super().__init__(embeddings)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, rows: Ints) -> torch.Tensor:
        return self._embeddings.rows(self._rows[rows])


class StoreIds:
    """Ids by row, tie ranks by row and rows by tie rank, all on disk.

    ``ids.parquet`` has one column ``id`` in corpus order; ``tie_ranks.npy`` the place of every row
    when ids are sorted descending by their UTF-8 bytes, as trec_eval breaks ties, ``tie_order.npy``
    its inverse; both uint32 (N,), mapped.

    Args:
        folder: of the store.
        count: N.
        verify: compare files with their checksums before they are read.
    """

    FILES = (_IDS, _ORDER, _RANKS)

    def __init__(self, folder: Path, count: int, verify: bool = True) -> None:
        self.folder, self.count, self.verify = folder, count, verify

    def copy_to(self, folder: Path) -> None:
        """Put the same files into the folder of another store."""
        for name in self.FILES:
            with checksums.checked_path(folder / name) as temporary:
                shutil.copyfile(self.folder / name, temporary)

    def write(self, documents: Documents, names: Collection[str] | None = None) -> None:
        """Write the named files, by default those that are not there or broken. Sorting takes some
        30 bytes an id.
        """
        names = self.broken() if names is None else names
        ids = documents.table.column("id")
        if _IDS in names:
            table = pa.table(
                [ids], schema=pa.schema([pa.field("id", pa.large_string(), nullable=False)])
            )
            with checksums.checked_path(self.folder / _IDS) as temporary:
                # Ids are all different: a dictionary of them would be a second copy.
                pq.write_table(table, temporary, _GROUP, compression="zstd", use_dictionary=False)
        if _ORDER in names:
            order = pc.sort_indices(ids, sort_keys=[("", "descending")])
            with checksums.checked_path(self.folder / _ORDER) as temporary:
                np.save(temporary, order.to_numpy().astype(np.uint32))
        if _RANKS in names:
            ranks = np.empty(self.count, dtype=np.uint32)
            ranks[self._array(_ORDER)] = np.arange(self.count, dtype=np.uint32)
            with checksums.checked_path(self.folder / _RANKS) as temporary:
                np.save(temporary, ranks)

    def complete(self) -> bool:
        return all((self.folder / name).exists() for name in self.FILES)

    def broken(self) -> list[str]:
        """The files that are not there or cannot be what was written; of the latter, each is warned
        of.
        """
        names = []
        for name in self.FILES:
            try:
                self._table().close() if name == _IDS else self._array(name)
            except InputError as error:
                names.append(name)
                if (self.folder / name).exists():
                    log.warning("%s; counted as missing", str(error).partition("; ")[0])
        return names

    def tie_ranks(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.uint32]:
        """Of consecutive rows, by default of all; memory-mapped."""
        return self._array(_RANKS)[start:stop]

    def rows_at(self, ranks: Ints) -> Ints:
        """The rows that have the given tie ranks, in the same shape."""
        with explained(
            f"{self.folder / _RANKS} is broken", ENCODE_AGAIN, IndexError
        ):  # only where nothing is verified
            return self._array(_ORDER)[ranks].astype(np.int64)

    def ids(self, rows: Ints | Sequence[int]) -> list[str]:
        """The ids of (M,) rows, by row group; InputError: a broken table; IndexError: a row not in
        [0, N).
        """
        unique, places = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        if len(unique) and (unique[0] < 0 or unique[-1] >= self.count):
            raise IndexError(
                f"rows run from 0 to {self.count - 1}, not {unique[0]} to {unique[-1]}"
            )
        found: list[str] = []
        with self._table() as table:
            group_of = unique // _GROUP
            for part in (
                np.split(unique, np.flatnonzero(np.diff(group_of)) + 1) if len(unique) else []
            ):
                group = int(part[0] // _GROUP)
                with explained(
                    f"{self.folder / _IDS} is broken", ENCODE_AGAIN, OSError, pa.ArrowException
                ):
                    column = table.read_row_group(group, columns=["id"]).column("id")
                    found += column.take(pa.array(part - group * _GROUP)).to_pylist()
        return [found[place] for place in places.tolist()]

    def _table(self) -> pq.ParquetFile:
        path = self._verified(_IDS)
        with explained(f"{path} is no id table", ENCODE_AGAIN, OSError, pa.ArrowInvalid):
            table = pq.ParquetFile(path, memory_map=True)
        if table.metadata.num_rows != self.count:
            raise InputError(
                f"{path} has {table.metadata.num_rows} ids for {self.count} documents; {ENCODE_AGAIN}"
            )
        return table

    def _verified(self, name: str) -> Path:
        if self.verify:
            checksums.verify(self.folder / name, ENCODE_AGAIN)
        return self.folder / name

    def _array(self, name: str) -> npt.NDArray[np.uint32]:
        path = self._verified(name)
        with explained(f"{path} cannot be read", ENCODE_AGAIN, OSError, ValueError):
            array: npt.NDArray[np.uint32] = np.load(path, mmap_mode="r")
        if array.shape != (self.count,):
            raise InputError(
                f"{path} has shape {array.shape} for {self.count} documents; {ENCODE_AGAIN}"
            )
        return array


class EmbeddingStore(Embeddings):
    """The vectors of a corpus in a folder, ``shard_size`` documents a file, in corpus order.

    - ``store.json``: a :class:`StoreRecord`: key, identity, model and layout.
    - ``shard-00000.safetensors`` and so on: ``vectors`` (n, w) float32, float16 or int8; int8 with
      ``scales`` (n,); MRL's below fp32 with ``priors`` (n,) float32 and without their first number.
    - ``folding.safetensors``: what was done to MRL's vectors before they lost precision.
    - ``ids.parquet`` and others: :class:`StoreIds`.
    - ``texts.npy``: hashes of the texts, for :func:`~beir_cocodr.retrieval.store.passes.update`.
    - ``checksums``: of each of these files.

    A file under its name is complete. Vectors of cosine models are unit vectors before they lose
    precision: scores of a store are always dot products, and :meth:`queries` makes the vectors that
    they are with.

    Args:
        folder: of the store.
        record: what it says of itself.
        verify: compare each file with its checksum before it is read for the first time in a
        process.
    """

    def __init__(self, folder: Path, record: StoreRecord, verify: bool = True) -> None:
        self.folder, self.record, self.verify = folder, record, verify
        self.table = StoreIds(folder, record.documents, verify)
        self._mapped: dict[int, Arrays] = {}

    @classmethod
    def open(cls, folder: str | Path, verify: bool = True) -> EmbeddingStore:
        """A complete store; InputError: there is none, shards are missing, or its record is not as
        written.
        """
        store = cls.found(Path(folder), verify)
        if store is None:
            raise InputError(
                f"{folder} is no store, it has no embeddings; make them with encode --output {folder}"
            )
        missing = store.missing()
        if missing or not store.table.complete():
            raise InputError(
                f"{folder} is not complete, {len(missing)} of {len(store.shards)} shards are missing: run "
                "encode again, it goes on where it stopped"
            )
        return store

    @classmethod
    def found(cls, folder: Path, verify: bool = True) -> EmbeddingStore | None:
        """The store in a folder, complete or not, or None; InputError: its record cannot be read,
        or is not what was written.
        """
        path = folder / STORE_FILE
        if not path.exists():
            return None
        if verify:
            checksums.verify(path, "delete the folder and encode again")
        return cls(folder, StoreRecord.read(path), verify)

    def write_record(self) -> None:
        with checksums.checked_path(self.folder / STORE_FILE) as temporary:
            self.record.write(temporary)

    def __len__(self) -> int:
        return self.record.documents

    @property
    def dimensions(self) -> int:
        return self.record.dimensions

    @cached_property
    def shards(self) -> Sequence[Shard]:
        size, total = self.record.shard_size, self.record.documents
        starts = range(0, total, size)
        digits = max(5, len(str(len(starts))))
        paths = (
            self.folder / f"shard-{number:0{digits}}.safetensors" for number in range(len(starts))
        )
        return [
            Shard(path, self.record.key, start, min(start + size, total), self.verify)
            for path, start in zip(paths, starts, strict=True)
        ]

    def missing(self, thorough: bool = False) -> list[int]:
        """The shards that are not there; those that are broken count among them, and each is warned
        of.

        Only a ``thorough`` look reads vectors, and compares them with their checksums.
        """
        missing = []
        for number, shard in enumerate(self.shards):
            fault = shard.fault(thorough)
            if fault is not None:
                missing.append(number)
            if fault not in (None, "missing"):
                log.warning("%s; counted as missing", fault.partition("; ")[0])
        return missing

    def write(self, number: int, vectors: Floats, documents: Documents | None = None) -> None:
        """Write (n, w) vectors, of unit length for cosine; an InputError names one the precision
        cannot hold.
        """
        shard = self.shards[number]
        if self.folding is not None:
            vectors = self.folding.transform_documents(vectors)
        try:
            arrays = pack(vectors, self.record.precision, self.record.prior)
        except OutOfRange as error:
            [document] = (documents or self).ids([shard.start + error.rows[0]])
            raise InputError(
                f"the embedding of document {document!r} has numbers beyond ±65,504, which "
                f"{self.record.identity['precision']} cannot hold: choose fp32 or int8 for all"
            ) from None
        shard.write(arrays)

    def chunks(self) -> Iterator[torch.Tensor]:
        """Shards as (n, w) float32 in row order, one in memory at a time."""
        return (shard.read() for shard in self.shards)

    def ranked_chunks(
        self, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[torch.Tensor, npt.NDArray[np.uint32]]]:
        """Shards ``first`` to ``last`` (excluded), each with the (n,) tie ranks of its rows."""
        for shard in self.shards[first:last]:
            yield shard.read(), self.table.tie_ranks(shard.start, shard.stop)

    def rows(self, rows: Ints) -> torch.Tensor:
        """(M,) rows to (M, w) float32, in their order; of the shards only what holds them is
        read.
        """
        found = torch.empty(len(rows), self.dimensions)
        number_of = rows // self.record.shard_size
        for number in np.unique(number_of).tolist():
            at = np.flatnonzero(number_of == number)
            local = rows[at] - self.shards[number].start
            if number not in self._mapped:
                self._mapped[number] = self.shards[number].mapped()
            arrays = {name: array[local] for name, array in self._mapped[number].items()}
            found[torch.from_numpy(at)] = unpack(arrays)
        return found

    def ids(self, rows: Ints | Sequence[int]) -> list[str]:
        """The ids of (M,) rows, in their order."""
        return self.table.ids(rows)

    @cached_property
    def folding(self) -> Folding | None:
        """What was done to MRL's vectors; None for all others and where nothing was."""
        if not self.record.prior:
            return None
        if self.verify:
            checksums.verify(self.folder / FOLDING_FILE, "delete the folder and encode again")
        return Folding.load(self.folder / FOLDING_FILE)

    def lacks_folding(self) -> bool:
        """Whether its vectors were folded, and by what is not there or broken."""
        try:
            return self.record.prior and self.folding is None
        except InputError as error:
            log.debug("%s", error)
            return True

    def queries(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(Q, w) query vectors as the model gave them, made such that dot products with the store
        are scores: (Q, w) float32 on the CPU; and (Q,) float64 to be added to each query's scores,
        or None, which change no ranking.
        """
        queries = vectors.detach().float().cpu()
        if queries.shape[1] != self.dimensions:
            raise InputError(
                f"queries have {queries.shape[1]} dimensions, the store has {self.dimensions}"
            )
        if self.record.identity["similarity"] == "cosine":
            queries = F.normalize(queries, dim=-1)
        if self.folding is None:
            return queries, None
        offsets = torch.from_numpy(self.folding.query_offsets(queries.numpy()))
        return torch.from_numpy(self.folding.transform_queries(queries.numpy())), offsets

    def describe(self) -> Json:
        """What numbers found with this store depend on."""
        return {
            "key": self.record.key,
            "model": asdict(self.record.model),
            "documents": len(self),
            "dimensions": self.dimensions,
            "shards": len(self.shards),
            **self.record.identity,
        }
