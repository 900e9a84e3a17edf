"""The shards of generated queries: one file for each, which appears when the shard is finished.

A file ends with the checksum of its other lines. Several processes may write the same shard at
once, and their files differ, in the seconds that they took: a checksum in a file of its own could
belong to the file of another process.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from beir_cocodr.data.passages import Passage
from beir_cocodr.errors import explained
from beir_cocodr.io import atomic_path, parse_json

log = logging.getLogger(__name__)

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
        kinds: The kind of each query, none where no kinds were asked for.
    """

    row: int
    number: int
    start: int
    end: int
    queries: list[str]
    kinds: list[str]


@dataclass(frozen=True)
class ShardHead:
    """The first line of a shard.

    Attributes:
        counts: Counts of what happened, by kind.
        seconds: Time that it took.
        first_refused: The first text that was written and is no query, "" if there is none.
    """

    counts: dict[str, int]
    seconds: float
    first_refused: str = ""


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
        self._finished: set[int] = set()

    def rows(self, shard: int) -> range:
        """Return the corpus rows of a shard."""
        start = shard * self.shard_documents
        return range(start, min(start + self.shard_documents, self.documents))

    def missing(self) -> list[int]:
        """Return the shards that are not finished, or were changed since they were written."""
        return [shard for shard in range(self.count) if not self.is_finished(shard)]

    def is_finished(self, shard: int) -> bool:
        """Return true if a shard is on disk as it was written; a warning names a changed one.

        A file is read until it is found to be sound, and then not again.
        """
        if shard not in self._finished:
            file = self._file(shard)
            if not file.is_file():
                return False
            fault = _fault(file)
            if fault:
                log.warning("%s %s; it is made again", file, fault)
                return False
            self._finished.add(shard)
        return True

    def describe(self) -> str:
        """Return how many shards are finished, for a person."""
        finished = self.count - len(self.missing())
        return f"{finished} of {self.count} shards are complete and not generated again"

    def write(
        self,
        shard: int,
        passages: list[Passage],
        queries: list[list[str]],
        kinds: list[list[str]],
        head: ShardHead,
    ) -> None:
        """Write a finished shard.

        Args:
            shard: Number of the shard.
            passages: Its passages.
            queries: The cleaned queries of each.
            kinds: The kind of each of them, none where no kinds were asked for.
            head: What happened.
        """
        lines = [_encode(asdict(head))]
        for passage, texts, of_passage in zip(passages, queries, kinds, strict=True):
            record = PassageQueries(
                row=passage.row,
                number=passage.number,
                start=passage.start,
                end=passage.end,
                queries=texts,
                kinds=of_passage,
            )
            lines.append(_encode(record))
        content = b"".join(lines)
        with atomic_path(self._file(shard)) as draft:
            draft.write_bytes(content + _checksum_line(content))

    def passages(self) -> Iterator[PassageQueries]:
        """Yield the passages of all shards with their queries, in corpus order."""
        for shard in range(self.count):
            for line in self._lines(shard)[1:-1]:
                yield PassageQueries(*line)

    def texts(self) -> Iterator[tuple[int, str]]:
        """Yield the document's row and the text of every query, in corpus order."""
        for passage in self.passages():
            for text in passage.queries:
                yield passage.row, text

    def first_refused(self) -> str:
        """Return the first text that was written and is no query, "" if there is none."""
        heads = (self._head(shard) for shard in range(self.count))
        return next((head.first_refused for head in heads if head.first_refused), "")

    def totals(self) -> tuple[Counter[str], float]:
        """Return the counts and the seconds of all shards, summed."""
        counts: Counter[str] = Counter()
        seconds = 0.0
        for shard in range(self.count):
            head = self._head(shard)
            counts.update(head.counts)
            seconds += head.seconds
        return counts, seconds

    def _head(self, shard: int) -> ShardHead:
        return ShardHead(**self._lines(shard)[0])

    def _lines(self, shard: int) -> list[Any]:
        path = self._file(shard)
        records = []
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                problem = f"{path}:{number} is damaged"
                with explained(problem, "delete the file and run again", ValueError):
                    records.append(parse_json(line))
        return records

    def _file(self, shard: int) -> Path:
        return self.folder / f"{shard:06d}.jsonl"


def _fault(file: Path) -> str | None:
    """Describe what is wrong with the file of a shard; return None where nothing is."""
    try:
        content = file.read_bytes()
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    end = content.rfind(b"\n", 0, -1) + 1
    if content[end:] != _checksum_line(content[:end]):
        return "was changed since it was written"
    return None


def _encode(line: object) -> bytes:
    # Characters that UTF-8 does not have are written as the escapes of JSON.
    text = json.dumps(line, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _checksum_line(content: bytes) -> bytes:
    return _encode({"xxh3": xxhash.xxh3_64_hexdigest(content)})
