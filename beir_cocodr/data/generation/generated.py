"""What a generator of queries takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Passage(NamedTuple):
    """A passage of a document.

    Attributes:
        row: of the document in its corpus.
        number: of the passage in the document, from 0.
        start, end: character range in the text of the document, its title and text joined.
        text: the passage itself.
        title: of the document, "" where it has none.
    """

    row: int
    number: int
    start: int
    end: int
    text: str
    title: str


class Query(NamedTuple):
    """A generated query, before anything is made of it.

    Attributes:
        text: as it was generated; may be empty.
        cut: whether it was ended by a limit instead of by its generator.
    """

    text: str
    cut: bool = False


class Generated(NamedTuple):
    """The queries of each of some passages, and what happened on the way, by kind."""

    queries: list[list[Query]]
    counts: dict[str, int]


class Generator(Protocol):
    """Anything that makes queries for passages."""

    def describe(self) -> dict[str, Any]:
        """What the queries depend on beside passages and options: name, kind, hash of weights, precision."""

    def prepare(self, folder: Path) -> None:
        """Make what generating needs; what is worth keeping for other processes goes to ``folder``."""

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """The queries of the passages of a shard, the same ones whenever they are asked for."""
