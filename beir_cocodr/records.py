"""Records: what commands write as JSON and read back, each a frozen dataclass.

A record states its fields once, with their types; :meth:`Record.to_json` and
:meth:`Record.from_json` follow from them. What is read back is checked against the types, so that a
file of another version or a damaged one is one clear line instead of a ``KeyError`` somewhere
later.
"""

import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar, Self

from beir_cocodr.errors import InputError
from beir_cocodr.io import Json as Json
from beir_cocodr.io import parse_json, write_text

_PACKAGES = "beir-cocodr torch transformers sentence-transformers beir ir-measures ir-datasets bm25s numpy".split()


@dataclass(frozen=True)
class Record:
    """Base of all records. A subclass is a frozen dataclass whose fields are numbers, strings,
    other records, and lists, tuples and mappings of these; fields with a default may be missing in
    what is read. ``SCHEMA``: version of the fields' meaning; to be raised with every change that
    old readers would misunderstand. Stands in the JSON as ``schema``; files without it count as
    version 1.
    """

    SCHEMA: ClassVar[int] = 1

    def to_json(self) -> Json:
        """The fields as plain JSON, behind the schema's version."""
        return {"schema": self.SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, content: object, where: str | Path) -> Self:
        """The record in parsed JSON of ``where``; InputError: another schema, or the first field
        that is wrong.
        """
        from pydantic import (
            TypeAdapter,
            ValidationError,
        )  # only reading needs it, and it takes a while

        if not isinstance(content, dict):
            raise InputError(f"{where}: holds no JSON object; write it again")
        found = content.get("schema", 1)
        if found != cls.SCHEMA:
            again = "write it again with this version"
            raise InputError(
                f"{where}: has schema {found!r}, and this version reads schema {cls.SCHEMA}; {again}"
            )
        try:
            record: Self = TypeAdapter(cls).validate_python(
                {k: v for k, v in content.items() if k != "schema"}
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "its content"
            message = f"{first['msg'].lower()}; it is damaged or of another version, write it again"
            raise InputError(f"{where}: {place}: {message}") from error
        return record

    def write(self, path: Path) -> None:
        """Write the record to a file, which appears when it is complete."""
        write_text(path, json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the record from a file; ``InputError`` where there is none or its content is not
        this record's.
        """
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise InputError(f"{path}: is not JSON ({error}); write it again") from error
        return cls.from_json(content, path)


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """Base of records that a command makes of other work, such as an analysis.

    Attributes:
        versions: of the packages that a number may depend on.
        picture: file of the picture beside the record, None where none was drawn.
    """

    versions: dict[str, str]
    picture: str | None = None


def versions() -> dict[str, str]:
    """Package to version, of those installed that a number may depend on."""
    found = {package: installed_version(package) for package in _PACKAGES}
    return {package: known for package, known in found.items() if known is not None}


@cache  # reading what is installed takes milliseconds for each package
def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class CollectionProvenance:
    """What a training stage was given of one collection, by counts and content hashes.

    Attributes:
        dataset: as it was named; may have moved since.
        documents, corpus_sha256: number and content of the documents.
        counts: what was accepted and counted when it was read.
        split, queries, queries_sha256, qrels_sha256: of the queries; None where none were given.
        generation: of generated queries, settings and counts of their generation.json; None for
        others.
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
        """What distinguishes two collections, whatever their names."""
        return self.corpus_sha256, self.split, self.queries_sha256, self.qrels_sha256

    def to_json(self) -> Json:
        """The fields that are known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class SharedCollection(CollectionProvenance):
    """A collection that training was given, and what it shares with the evaluated one.

    Attributes:
        stages: the stages that were given it, oldest first.
        documents_shared, queries_shared: evaluated documents and queries in it; None where that is
            unknown.
        same_labels: whether its labels are those that judge.
    """

    stages: list[str]
    documents_shared: int | None
    queries_shared: int | None
    same_labels: bool

    @property
    def known(self) -> bool:
        return self.documents_shared is not None and self.queries_shared is not None


@dataclass(frozen=True)
class ContaminationStatement:
    """What the training of a model was given of the collection that it is judged on.

    Attributes:
        stages: oldest first.
        root: the model that everything began with, of which nothing is known.
        collections: what training was given, distinguished by hashes.
        documents_seen, queries_seen: evaluated ones that were given to training, each counted once.
        document_ids: the first 100 of them.
        query_ids: all of them.
        labels_seen: whether the labels that judge were among it.
        complete: whether nothing is unknown but the root.
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
