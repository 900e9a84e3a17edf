"""Where a collection is read from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

from beir_cocodr.data.files.defects import Report
from beir_cocodr.data.files.qrels_reader import Judgement
from beir_cocodr.data.files.record_checker import Document, Query

Labels = Literal["required", "optional", "none"]


class Source(Protocol):
    """The parts of a collection as streams. Every defect goes to ``report``; a stream never stops at one.

    Attributes:
        name: the collection as the user gave it.
        split: the split whose judgements are read, None if there are none.
        documents_file, queries_file, judgements_file: what reports name; None where the part is absent.
    """

    @property
    def name(self) -> str: ...

    @property
    def split(self) -> str | None: ...

    @property
    def documents_file(self) -> str: ...

    @property
    def queries_file(self) -> str | None: ...

    @property
    def judgements_file(self) -> str | None: ...

    def key(self) -> tuple[str, ...] | None:
        """What identifies the documents: a converted corpus is used again only under the same key.

        None where nothing outside the documents tells whether they have changed.
        """

    def missing(self, report: Report, labels: Labels) -> None:
        """Report the errors "missing file" and "missing split" for parts that must be there and are not."""

    def documents(self, report: Report) -> Iterator[Document]:
        """Stream (line, id, title, text)."""

    def queries(self, report: Report) -> Iterator[Query]:
        """Stream (line, id, text); nothing where there are none."""

    def judgements(self, report: Report) -> Iterator[Judgement]:
        """Stream (line, query id, document id, grade); nothing where there are none."""
