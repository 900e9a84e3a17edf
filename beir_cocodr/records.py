"""Records: what commands write as JSON and read back, each a frozen dataclass.

A record states its fields once, with their types; :meth:`Record.to_json` and
:meth:`Record.from_json` follow from them. What is read back is checked against the types, so that a
damaged file, or one of another version, is one clear line instead of a ``KeyError`` somewhere
later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from beir_cocodr.errors import InputError
from beir_cocodr.io import Json as Json
from beir_cocodr.io import parse_json, write_text

if TYPE_CHECKING:
    import pandas as pd

# The packages that a number may depend on.
_PACKAGES = (
    "beir-cocodr",
    "torch",
    "transformers",
    "sentence-transformers",
    "beir",
    "ir-measures",
    "ir-datasets",
    "bm25s",
    "numpy",
)


@dataclass(frozen=True)
class Record:
    """The base of all records.

    A subclass is a frozen dataclass. Its fields are numbers, strings, other records, and lists,
    tuples and mappings of these. A field that has a default may be missing in what is read.

    Attributes:
        SCHEMA: the version of the fields' meaning, ``schema`` in the JSON. It is raised with every
            change that older readers would misunderstand; a file without it has version 1.
    """

    SCHEMA: ClassVar[int] = 1

    def to_json(self) -> Json:
        """Return the fields as plain JSON, after the version of the schema."""
        return {"schema": self.SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, content: object, where: str | Path) -> Self:
        """Make a record from parsed JSON.

        Args:
            content: the parsed JSON.
            where: the file that it was read from, for messages.

        Raises:
            InputError: it has another schema, or a field that is wrong; the first one is named.
        """
        # Only reading needs pydantic, which takes a while to import.
        from pydantic import TypeAdapter, ValidationError

        if not isinstance(content, dict):
            raise InputError(f"{where}: is not a JSON object; write it again")
        values = dict(content)
        schema = values.pop("schema", 1)
        if schema != cls.SCHEMA:
            raise InputError(
                f"{where}: has schema {schema!r}, and this version reads schema {cls.SCHEMA}; "
                "write it again with this version"
            )
        try:
            record: Self = TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "its content"
            message = first["msg"].removeprefix("Value error, ")  # of a class of ours
            raise InputError(
                f"{where}: {field}: {message[:1].lower()}{message[1:]}; "
                "it is damaged or of another version, write it again"
            ) from error
        converted = _converted(values, asdict(record))
        if converted is not None:
            raise InputError(
                f"{where}: {converted}: input should be of another type; "
                "it is damaged or of another version, write it again"
            )
        return record

    def write(self, path: Path) -> None:
        """Write the record to a file, which appears when it is complete."""
        write_text(
            path,
            json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n",
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the record from a file.

        Raises:
            InputError: there is no such file, or its content is no such record.
        """
        try:
            content = parse_json(path.read_text(encoding="utf-8"), finite=True)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise InputError(f"{path}: is not JSON ({error}); write it again") from error
        return cls.from_json(content, path)


def _converted(before: object, after: object) -> str | None:
    """Return the path of the first value that pydantic read as one of another type, if any.

    It takes true and "1" for numbers; its strict mode refuses lists where tuples are meant.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [(name, before[name], after[name]) for name in before if name in after]
    elif isinstance(before, list) and isinstance(after, list | tuple):
        pairs = [(str(row), *pair) for row, pair in enumerate(zip(before, after, strict=True))]
    else:
        return None if _plain_type(before) is _plain_type(after) else ""
    for name, old, new in pairs:
        below = _converted(old, new)
        if below is not None:
            return f"{name}.{below}".rstrip(".")
    return None


def _plain_type(value: object) -> type:
    """Return bool, str, float for any other number, or the type itself."""
    if isinstance(value, bool | str):
        return bool if isinstance(value, bool) else str
    return float if isinstance(value, int | float) else type(value)


class Tabular:
    """Base of records that are tables: a pandas frame, which notebooks show as HTML."""

    def to_frame(self) -> pd.DataFrame:
        """Return the record as a table."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        html: str = self.to_frame().to_html()
        return html


def frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    """Return a pandas frame of rows, with these columns."""
    import pandas as pd  # takes half a second, and most callers want no table

    return pd.DataFrame(rows, columns=list(columns))


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """The base of records that a command makes of other work, such as an analysis.

    Attributes:
        versions: versions of the packages that a number may depend on.
        picture: file of the picture beside the record; None where none was drawn.
    """

    versions: dict[str, str]
    picture: str | None = None


def versions() -> dict[str, str]:
    """Return the versions of those installed packages that a number may depend on."""
    installed = {}
    for package in _PACKAGES:
        number = installed_version(package)
        if number is not None:
            installed[package] = number
    return installed


@cache  # reading what is installed takes milliseconds for each package
def installed_version(package: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class CollectionProvenance:
    """One collection as a training stage saw it, by counts and hashes of its content.

    Attributes:
        dataset: the name that it was given by; it may have moved since.
        documents: number of documents.
        corpus_sha256: hash of the documents.
        counts: what was accepted and counted when the collection was read.
        split: split of the queries.
        queries: number of queries; None where the stage saw none.
        queries_sha256: hash of the queries.
        qrels_sha256: hash of the judgements.
        generation: settings and counts of their ``generation.json``, of generated queries.
    """

    dataset: str
    documents: int | None = None
    corpus_sha256: str | None = None
    counts: dict[str, int] | None = None
    split: str | None = None
    queries: int | None = None
    queries_sha256: str | None = None
    qrels_sha256: str | None = None
    generation: Json | None = None

    @property
    def hashes(self) -> tuple[str | None, str | None, str | None, str | None]:
        """Return what distinguishes two collections, whatever their names."""
        return self.corpus_sha256, self.split, self.queries_sha256, self.qrels_sha256

    def to_json(self) -> Json:
        """Return the fields that are known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class SharedCollection(CollectionProvenance):
    """A collection that training saw, and what it shares with the evaluated one.

    Attributes:
        stages: the stages that saw it, oldest first.
        documents_shared: number of evaluated documents in it; None where that is unknown.
        queries_shared: the same for queries.
        same_labels: whether its labels are those that judge.
    """

    stages: list[str]
    documents_shared: int | None
    queries_shared: int | None
    same_labels: bool

    @property
    def known(self) -> bool:
        """Return whether it is known what the two collections share."""
        return self.documents_shared is not None and self.queries_shared is not None


@dataclass(frozen=True)
class ContaminationStatement:
    """The part of a collection that training saw before the model is judged on it.

    Attributes:
        stages: the stages of its training, oldest first.
        root: the model that everything began with; nothing is known about its training.
        collections: what training saw, distinguished by hashes.
        documents_seen: number of evaluated documents that training saw, each counted once.
        queries_seen: the same for queries.
        document_ids: the first 100 of these documents.
        query_ids: all of these queries.
        labels_seen: whether training saw the labels that judge.
        complete: whether nothing is unknown except the root.
        sentences: the statement for a person.
    """

    stages: list[str]
    root: str
    collections: list[SharedCollection]
    documents_seen: int
    queries_seen: int
    document_ids: list[str]
    query_ids: list[str]
    labels_seen: bool
    complete: bool
    sentences: list[str]
