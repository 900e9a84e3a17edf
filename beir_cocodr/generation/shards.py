"""The shards of generated queries: one file for each, which appears when the shard is finished."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from beir_cocodr.checksums import checked_path, is_kept
from beir_cocodr.data.passages import Passage
from beir_cocodr.errors import explained
from beir_cocodr.io import parse_json

#: The folder of shards in an output.
SHARDS = "shards"


class PassageQueries(NamedTuple):
    """The queries of a passage, cleaned, "" where nothing was generated.

    Attributes:
        row: Row of the document in the corpus.
        number: Number of the passage in the document.
        start: First character in the document's title and text joined.
        end: Character after the last.
        queries: Texts.
    """

    row: int
    number: int
    start: int
    end: int
    queries: list[str]


class QueryShards:
    """The shards of a corpus in an output.

    A shard has ``shard_documents`` consecutive documents, and the last one may have fewer.

    Args:
        output: The output folder.
        documents: Number of documents.
        shard_documents: Documents of a shard.
    """

    def __init__(
        self,
        output: Path,
        documents: int,
        shard_documents: int,
    ) -> None:
        """Divide the documents among shards; nothing is written."""
        self.folder = output / SHARDS
        self.documents = documents
        self.shard_documents = shard_documents
        self.count = -(-documents // shard_documents)

    def rows(self, shard: int) -> range:
        """Return the corpus rows of a shard."""
        start = shard * self.shard_documents
        return range(start, min(start + self.shard_documents, self.documents))

    def missing(self) -> list[int]:
        """Return the shards that are not finished, or were changed since they were written."""
        return [shard for shard in range(self.count) if not is_kept(self._file(shard))]

    def describe(self) -> str:
        """Return how many shards are finished, for a person."""
        finished = self.count - len(self.missing())
        return f"{finished} of {self.count} shards are complete and not generated again"

    def write(
        self,
        shard: int,
        passages: list[Passage],
        queries: list[list[str]],
        counts: dict[str, int],
        seconds: float,
    ) -> None:
        """Write a finished shard.

        Args:
            shard: Number of the shard.
            passages: Its passages.
            queries: The cleaned queries of each.
            counts: Counts of what happened, by kind.
            seconds: Time that it took.
        """
        with (
            checked_path(self._file(shard)) as draft,
            draft.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
        ):
            head = {"counts": counts, "seconds": seconds}
            file.write(json.dumps(head) + "\n")
            for passage, texts in zip(passages, queries, strict=True):
                record = PassageQueries(
                    row=passage.row,
                    number=passage.number,
                    start=passage.start,
                    end=passage.end,
                    queries=texts,
                )
                file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def passages(self) -> Iterator[PassageQueries]:
        """Yield the passages of all shards with their queries, in corpus order."""
        for shard in range(self.count):
            for line in islice(self._lines(shard), 1, None):
                yield PassageQueries(*line)

    def texts(self) -> Iterator[tuple[int, str]]:
        """Yield the document's row and the text of every query, in corpus order."""
        for passage in self.passages():
            for text in passage.queries:
                yield passage.row, text

    def totals(self) -> tuple[Counter[str], float]:
        """Return the counts and the seconds of all shards, summed."""
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
                problem = f"{path}:{number} is damaged"
                with explained(problem, "delete the file and run again", ValueError):
                    record = parse_json(line)
                yield record

    def _file(self, shard: int) -> Path:
        return self.folder / f"{shard:06d}.jsonl"
