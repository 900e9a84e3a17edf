"""Generated queries on their way: one file a shard, which is there when the shard is finished."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from beir_cocodr.data.generation.generated import Passage
from beir_cocodr.errors import InputError
from beir_cocodr.files import atomic_writer

#: The folder of shards below an output.
SHARDS = "shards"


class PassageQueries(NamedTuple):
    """A passage by its place, and the texts generated for it; "" where nothing came out.

    Attributes:
        row, number, start, end: see :class:`Passage`.
        queries: cleaned texts.
    """

    row: int
    number: int
    start: int
    end: int
    queries: list[str]


class QueryShards:
    """The shards of one corpus: consecutive documents, ``shard_documents`` of them each.

    Args:
        output: the folder below which they stand.
        documents: of the corpus.
        shard_documents: of a shard; the last may have fewer.
    """

    def __init__(self, output: Path, documents: int, shard_documents: int) -> None:
        self.folder, self.documents, self.shard_documents = output / SHARDS, documents, shard_documents
        self.count = -(-documents // shard_documents)

    def rows(self, shard: int) -> range:
        """The corpus rows of a shard."""
        start = shard * self.shard_documents
        return range(start, min(start + self.shard_documents, self.documents))

    def is_done(self, shard: int) -> bool:
        return self._file(shard).is_file()

    def missing(self) -> int:
        """How many shards are not finished."""
        return sum(not self.is_done(shard) for shard in range(self.count))

    def write(
        self,
        shard: int,
        passages: Sequence[Passage],
        queries: Sequence[Sequence[str]],
        counts: Mapping[str, int],
        seconds: float,
    ) -> None:
        """Write a finished shard in one step."""
        with atomic_writer(self._file(shard)) as file:
            file.write(json.dumps({"counts": dict(counts), "seconds": seconds}) + "\n")
            for passage, texts in zip(passages, queries, strict=True):
                place = PassageQueries(passage.row, passage.number, passage.start, passage.end, list(texts))
                file.write(json.dumps(place, ensure_ascii=False) + "\n")

    def passages(self) -> Iterator[PassageQueries]:
        """Stream the passages of all shards with their queries, in corpus order."""
        for shard in range(self.count):
            for line in islice(self._lines(shard), 1, None):
                yield PassageQueries(*line)

    def totals(self) -> tuple[Counter[str], float]:
        """The counts of all shards, summed, and their seconds."""
        counts: Counter[str] = Counter()
        seconds = 0.0
        for shard in range(self.count):
            head = next(self._lines(shard))
            counts.update(head["counts"])
            seconds += head["seconds"]
        return counts, seconds

    def _lines(self, shard: int) -> Iterator[Any]:
        path = self._file(shard)
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise InputError(f"{path}:{number} is damaged; delete the file and run again") from error

    def _file(self, shard: int) -> Path:
        return self.folder / f"{shard:06d}.jsonl"
