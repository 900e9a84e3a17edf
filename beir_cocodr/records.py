"""Records: what commands write as JSON and read back, each a frozen dataclass.

A record says its fields once, with their types; :meth:`Record.to_json` and :meth:`Record.from_json` follow from them.
What is read back is checked against the types, so that a file of another version or a damaged one is one clear line
instead of a ``KeyError`` somewhere later.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar, Self

from beir_cocodr.errors import InputError
from beir_cocodr.io import write_text

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

#: JSON of any content, such as the settings of another tool.
Json = dict[str, object]


@dataclass(frozen=True)
class Record:
    """Base of all records. A subclass is a frozen dataclass whose fields are numbers, strings, other records, and
    lists, tuples and mappings of these; fields with a default may be missing in what is read.

    Attributes:
        SCHEMA: version of the fields' meaning; to be raised with every change that old readers would misunderstand.
            Stands in the JSON as ``schema``; files without it count as version 1.
    """

    SCHEMA: ClassVar[int] = 1

    def to_json(self) -> Json:
        """The fields as plain JSON, behind the schema's version."""
        return {"schema": self.SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, content: object, where: str | Path) -> Self:
        """The record behind parsed JSON.

        Args:
            content: what ``json.loads`` gave.
            where: the file that it stands in, for messages.

        Raises:
            InputError: another schema, or the first field that is missing, unknown or of a wrong type.
        """
        from pydantic import TypeAdapter, ValidationError  # only reading needs it, and it takes a while

        if not isinstance(content, dict):
            raise InputError(f"{where}: holds no JSON object; write it again")
        found = content.get("schema", 1)
        if found != cls.SCHEMA:
            raise InputError(
                f"{where}: has schema {found!r}, and this version reads schema {cls.SCHEMA}; "
                "write it again with this version"
            )
        try:
            record: Self = TypeAdapter(cls).validate_python({k: v for k, v in content.items() if k != "schema"})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "its content"
            raise InputError(
                f"{where}: {place}: {first['msg'].lower()}; it is damaged or of another version, write it again"
            ) from error
        return record

    def write(self, path: Path) -> None:
        """Write the record to a file, which appears when it is complete."""
        write_text(path, json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the record from a file.

        Raises:
            InputError: no such file, or its content is not this record's.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
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
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
