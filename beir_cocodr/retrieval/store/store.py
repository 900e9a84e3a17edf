"""An embedding store: a folder of shards that are written, resumed and searched one at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from beir_cocodr import checksums
from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError, check_name
from beir_cocodr.models.folding import Folding
from beir_cocodr.records import Json
from beir_cocodr.retrieval.store.embeddings import Embeddings
from beir_cocodr.retrieval.store.record import STORE_FILE, StoreRecord
from beir_cocodr.retrieval.store.shard import (
    Arrays,
    OutOfRange,
    Shard,
    pack,
    unpack,
)
from beir_cocodr.retrieval.store.store_ids import StoreIds, TieRanks

FOLDING_FILE = "folding.safetensors"

#: A hash of each text that was encoded, uint64 (N, 2), by which unchanged ones are known.
TEXTS_FILE = "texts.npy"

# What a user does about a damaged record or folding.
_DELETE = "delete the folder and encode again"

# The fewest digits of a shard's number in its file name.
_DIGITS = 5

log = logging.getLogger(__name__)


class EmbeddingStore(Embeddings):
    """The vectors of a corpus in a folder, ``shard_size`` documents a file, in corpus order.

    - ``store.json``: A :class:`StoreRecord` with key, identity, model and layout.
    - ``shard-00000.safetensors`` and so on: ``vectors`` (n, w) float32, float16 or int8; int8 with
      ``scales`` (n,); MRL's below fp32 with ``priors`` (n,) float32 and without their first number.
    - ``folding.safetensors``: What was done to MRL's vectors before they lost precision.
    - ``ids.parquet`` and others: See :class:`StoreIds`.
    - ``texts.npy``: Hashes of the texts, for :func:`~beir_cocodr.retrieval.store.passes.update`.
    - ``checksums``: The checksum of each of these files.

    A file under its name is complete. Vectors of cosine models are unit vectors before they lose
    precision: scores of a store are always dot products, with the vectors that :meth:`queries`
    makes.
    """

    def __init__(
        self,
        folder: Path,
        record: StoreRecord,
        verify: bool = True,
    ) -> None:
        """Describe a store, complete or not; :meth:`open` opens a complete one.

        Args:
            folder: Folder of the store.
            record: What it says about itself.
            verify: Compare each file with its checksum before a process reads it the first time.
        """
        self.folder = folder
        self.record = record
        self.verify = verify
        self.table = StoreIds(folder, record.documents, verify)
        self._mapped: dict[int, Arrays] = {}

    @classmethod
    def open(cls, folder: str | Path, verify: bool = True) -> EmbeddingStore:
        """Open a complete store.

        Raises:
            InputError: There is none, shards are missing, or its record is not as it was written.
        """
        check_name("store", folder)
        store = cls.found(Path(folder), verify)
        if store is None:
            raise InputError(
                f"{folder} is not a store: it has no embeddings; make them with encode --output "
                f"{folder}"
            )
        missing = store.missing()
        if missing or not store.table.complete():
            raise InputError(
                f"{folder} is not complete, {len(missing)} of {len(store.shards)} shards are "
                "missing: run encode again, which continues where it stopped"
            )
        return store

    @classmethod
    def found(cls, folder: Path, verify: bool = True) -> EmbeddingStore | None:
        """Return the store in a folder, complete or not, or None.

        Raises:
            InputError: Its record cannot be read, or is not as it was written.
        """
        path = folder / STORE_FILE
        if not path.exists():
            return None
        if verify:
            checksums.verify(path, _DELETE)
        return cls(folder, StoreRecord.read(path), verify)

    def write_record(self) -> None:
        """Write ``store.json``."""
        with checksums.checked_path(self.folder / STORE_FILE) as temporary:
            self.record.write(temporary)

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.record.documents

    @property
    def dimensions(self) -> int:
        """Return the width of the vectors."""
        return self.record.dimensions

    @cached_property
    def shards(self) -> Sequence[Shard]:
        """Return the shards, written or not."""
        total = self.record.documents
        starts = range(0, total, self.record.shard_size)
        digits = max(_DIGITS, len(str(len(starts))))
        shards = []
        for number, start in enumerate(starts):
            path = self.folder / f"shard-{number:0{digits}}.safetensors"
            stop = min(start + self.record.shard_size, total)
            shards.append(
                Shard(
                    path=path,
                    key=self.record.key,
                    start=start,
                    stop=stop,
                    verify=self.verify,
                )
            )
        return shards

    def missing(self, thorough: bool = False) -> list[int]:
        """Return the numbers of shards that are missing or damaged; damaged ones are warned of.

        Args:
            thorough: Read the vectors, and compare them with their checksums.
        """
        missing = []
        for number, shard in enumerate(self.shards):
            fault = shard.fault(thorough)
            if fault is not None:
                missing.append(number)
            if fault not in (None, "missing"):
                log.warning(
                    "%s; counted as missing",
                    fault.partition("; ")[0],
                )
        return missing

    def write(
        self,
        number: int,
        vectors: Floats,
        documents: Documents | None = None,
    ) -> None:
        """Write (n, w) vectors as a shard; those of cosine models have unit length.

        Args:
            number: Number of the shard.
            vectors: Its vectors.
            documents: The corpus, for messages, where the ids are not written yet.

        Raises:
            InputError: The precision cannot hold the vector of a document, or the folder was moved
                or removed.
        """
        if not self.folder.is_dir():  # writing would make it anew, without the other files
            raise InputError(
                f"{self.folder} was moved or removed while it was being written; encode again"
            )
        shard = self.shards[number]
        if self.folding is not None:
            vectors = self.folding.transform_documents(vectors)
        try:
            arrays = pack(vectors, self.record.precision, self.record.prior)
        except OutOfRange as error:
            [document] = (documents or self).ids([shard.start + error.rows[0]])
            raise InputError(
                f"the embedding of document {document!r} has numbers beyond ±65,504, which "
                f"{self.record.precision} cannot hold: choose fp32 or int8 for all"
            ) from None
        shard.write(arrays)

    def chunks(self) -> Iterator[torch.Tensor]:
        """Yield the shards as (n, w) float32 in row order; one is in memory at a time."""
        return (shard.read() for shard in self.shards)

    def ranked_chunks(
        self, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[torch.Tensor, TieRanks]]:
        """Yield shards ``first`` to ``last`` (excluded) with the (n,) tie ranks of their rows."""
        for shard in self.shards[first:last]:
            yield shard.read(), self.table.tie_ranks(shard.start, shard.stop)

    def rows(self, rows: Ints) -> torch.Tensor:
        """Return the (M, w) float32 vectors of (M,) rows; only the pages with them are read."""
        vectors = torch.empty(len(rows), self.dimensions)
        number_of = rows // self.record.shard_size
        for number in np.unique(number_of).tolist():
            places = np.flatnonzero(number_of == number)
            in_shard = rows[places] - self.shards[number].start
            arrays = self._mapped_shard(number)
            selected = {name: array[in_shard] for name, array in arrays.items()}
            vectors[torch.from_numpy(places)] = unpack(selected)
        return vectors

    def _mapped_shard(self, number: int) -> Arrays:
        if number not in self._mapped:
            self._mapped[number] = self.shards[number].mapped()
        return self._mapped[number]

    def ids(self, rows: Ints | Sequence[int]) -> list[str]:
        """Return the ids of (M,) rows, in their order."""
        return self.table.ids(rows)

    @cached_property
    def folding(self) -> Folding | None:
        """Return what was done to MRL's vectors; None for others, and where nothing was done."""
        if not self.record.prior:
            return None
        path = self.folder / FOLDING_FILE
        if self.verify:
            checksums.verify(path, _DELETE)
        return Folding.load(path)

    def lacks_folding(self) -> bool:
        """Return true if vectors were folded, and the file that says how is missing or damaged."""
        try:
            return self.record.prior and self.folding is None
        except InputError as error:
            log.debug("%s", error)
            return True

    def queries(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Change query vectors so that their dot products with the store are scores.

        Args:
            vectors: (Q, w) as the model gave them.

        Returns:
            (Q, w) float32 on the CPU; and (Q,) float64 to be added to each query's scores, which
            changes no ranking, or None.

        Raises:
            InputError: The queries have another width than the store.
        """
        queries = vectors.detach().float().cpu()
        if queries.shape[1] != self.dimensions:
            raise InputError(
                f"queries have {queries.shape[1]} dimensions, the store has {self.dimensions}; "
                "encode them with the model that encoded the store"
            )
        if self.record.identity["similarity"] == "cosine":
            queries = F.normalize(queries, dim=-1)
        if self.folding is None:
            return queries, None
        offsets = torch.from_numpy(self.folding.query_offsets(queries.numpy()))
        return torch.from_numpy(self.folding.transform_queries(queries.numpy())), offsets

    def describe(self) -> Json:
        """Describe what figures that use this store depend on."""
        return {
            "key": self.record.key,
            "model": asdict(self.record.model),
            "documents": len(self),
            "dimensions": self.dimensions,
            "shards": len(self.shards),
            **self.record.identity,
        }
