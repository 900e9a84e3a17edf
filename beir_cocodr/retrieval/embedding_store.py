"""Embeddings of a corpus on disk, in shards that are written, resumed and searched one at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.index.folding import Folding
from beir_cocodr.retrieval.store.files import placed
from beir_cocodr.retrieval.store.ids import StoreIds
from beir_cocodr.retrieval.store.precision import Arrays, OutOfRange, pack, unpack
from beir_cocodr.retrieval.store.record import StoreRecord
from beir_cocodr.retrieval.store.shard import Shard

_FOLDING = "folding.safetensors"

log = logging.getLogger(__name__)


class EmbeddingStore:
    """The vectors of a corpus in a folder, ``shard_size`` documents a file, in corpus order.

    ==========================  ============================================================================
    ``store.json``              :class:`StoreRecord`: key, identity, model and layout
    ``shard-00000.safetensors`` ``vectors`` (n, w) float32, float16 or int8; int8 with ``scales`` (n,);
                                MRL's below fp32 with ``priors`` (n,) float32 and without their first number
    ``folding.safetensors``     what was done to MRL's vectors before they lost precision
    ``ids.parquet`` and others  :class:`StoreIds`
    ==========================  ============================================================================

    A file under its name is complete. Vectors of cosine models are unit vectors before they lose precision:
    scores of a store are always dot products, and :meth:`queries` makes the vectors that they are with.

    Args:
        folder: of the store.
        record: what it says of itself.
    """

    def __init__(self, folder: Path, record: StoreRecord) -> None:
        self.folder, self.record = folder, record
        self.table = StoreIds(folder, record.documents)
        self._mapped: dict[int, Arrays] = {}

    @classmethod
    def open(cls, folder: str | Path) -> EmbeddingStore:
        """A store that is complete.

        Raises:
            InputError: there is none, or shards of it are missing.
        """
        store = cls.found(Path(folder))
        if store is None:
            raise InputError(f"{folder} holds no embeddings; make them with encode --output {folder}")
        missing = store.missing()
        if missing or not store.table.complete():
            raise InputError(
                f"{folder} is not complete, {len(missing)} of {len(store.shards)} shards are missing: run "
                "encode again, it goes on where it stopped"
            )
        return store

    @classmethod
    def found(cls, folder: Path) -> EmbeddingStore | None:
        """The store in a folder, complete or not; None where there is none.

        Raises:
            InputError: its record cannot be read.
        """
        record = StoreRecord.read(folder)
        return None if record is None else cls(folder, record)

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
        return [
            Shard(
                self.folder / f"shard-{number:0{digits}}.safetensors",
                self.record.key,
                start,
                min(start + size, total),
            )
            for number, start in enumerate(starts)
        ]

    def missing(self) -> list[int]:
        """The shards that are not there; those that are broken count among them, and this is said."""
        missing = []
        for number, shard in enumerate(self.shards):
            fault = shard.fault()
            if fault is not None:
                missing.append(number)
            if fault not in (None, "missing"):
                log.warning("%s, as what is missing", fault)
        return missing

    def write(self, number: int, vectors: npt.NDArray[np.float32], documents: Documents) -> None:
        """Write the shard of (n, w) vectors as the model gave them, unit vectors where it compares by cosine.

        Raises:
            InputError: the precision cannot hold a number; names the document.
        """
        shard = self.shards[number]
        if self.folding is not None:
            vectors = self.folding.transform_documents(vectors)
        try:
            arrays = pack(vectors, self.record.identity["precision"], self.record.prior)
        except OutOfRange as error:
            rows = shard.start + np.asarray(error.rows, dtype=np.int64)
            raise InputError(
                f"the embedding of document {documents.ids(rows[:1])[0]!r} has numbers beyond ±65,504, which "
                f"{self.record.identity['precision']} cannot hold: choose fp32 or int8 for all"
            ) from None
        shard.write(arrays)

    def chunks(self, first: int = 0, last: int | None = None) -> Iterator[torch.Tensor]:
        """Shards ``first`` to ``last`` (excluded) as (n, w) float32 in row order, one in memory at a time."""
        for shard in self.shards[first:last]:
            yield shard.read()

    def ranked_chunks(
        self, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[torch.Tensor, npt.NDArray[np.int64]]]:
        """As :meth:`chunks`, each with the (n,) tie ranks of its rows."""
        for shard in self.shards[first:last]:
            yield shard.read(), self.table.tie_ranks(shard.start, shard.stop)

    def vectors(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """(M,) rows to (M, w) float32, in their order; of the shards only what holds them is read."""
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

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The ids of (M,) rows, in their order."""
        return self.table.ids(rows)

    @cached_property
    def folding(self) -> Folding | None:
        """What was done to MRL's vectors; None for all others and where nothing was."""
        return Folding.load(self.folder / _FOLDING) if self.record.prior else None

    def has_folding(self) -> bool:
        return (self.folder / _FOLDING).exists()

    def save_folding(self, folding: Folding) -> None:
        with placed(self.folder / _FOLDING) as temporary:
            folding.save(temporary)

    def queries(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(Q, w) query vectors as the model gave them, made such that dot products with the store are scores.

        Returns:
            (Q, w) float32 on the CPU; and (Q,) float64 to be added to the scores of each query, None where
            nothing is to be. They change no ranking.
        """
        queries = vectors.detach().float().cpu()
        if queries.shape[1] != self.dimensions:
            raise InputError(f"queries have {queries.shape[1]} dimensions, the store has {self.dimensions}")
        if self.record.identity["similarity"] == "cosine":
            queries = F.normalize(queries, dim=-1)
        if self.folding is None:
            return queries, None
        offsets = torch.from_numpy(self.folding.query_offsets(queries.numpy()))
        return torch.from_numpy(self.folding.transform_queries(queries.numpy())), offsets

    def describe(self) -> dict[str, Any]:
        """What numbers found with this store depend on."""
        return {
            "key": self.record.key,
            "model": self.record.model,
            "documents": len(self),
            "dimensions": self.dimensions,
            "shards": len(self.shards),
            **self.record.identity,
        }
