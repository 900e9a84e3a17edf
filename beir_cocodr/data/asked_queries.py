"""Queries that people asked on the page, kept in a file where they agree to that."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from beir_cocodr.data.defects import raise_errors
from beir_cocodr.data.files.readers import json_records
from beir_cocodr.data.judgement_log import append_held, check_encodable, normalised, typed_id
from beir_cocodr.errors import InputError, check_characters
from beir_cocodr.records import Record

#: The file of asked queries in the folder of a session.
ASKED_FILE = "asked.jsonl"

#: The file in this folder that names the dataset.
SESSION_FILE = "session.json"


@dataclass(frozen=True, kw_only=True)
class AskedQuery(Record):
    """A line of a file of asked queries.

    Attributes:
        time: ISO 8601, with its zone.
        query: The text.
    """

    time: str
    query: str


class AskedQueries:
    """The file of the queries that were asked in a session, each of them once."""

    def __init__(self, folder: Path) -> None:
        """Read the file of a folder, which may not exist yet."""
        self.file = folder / ASKED_FILE
        self.queries = load_asked(self.file) if self.file.is_file() else {}

    def add(self, query: str) -> None:
        """Append a query, unless it was asked before; it is on the disk when this returns.

        Raises:
            DiskFull: There is no room; the file is as it was before.
            InputError: The file cannot be written, or the query has half a character.
        """
        text = normalised(query)
        check_encodable(text)
        if not text or typed_id(text) in self.queries:
            return
        asked = AskedQuery(time=datetime.now(UTC).isoformat(timespec="seconds"), query=text)
        line = json.dumps(asked.to_json(), ensure_ascii=False) + "\n"
        append_held(self.file, line.encode())
        self.queries[typed_id(text)] = text


def load_asked(path: Path) -> dict[str, str]:
    """Return the asked queries of a session, id to text.

    Args:
        path: The folder of the session, or a file with a JSON object and its ``query`` a line.

    Raises:
        InputError: There is no such file, or a line is no query; the line is named.
    """
    file = path
    if path.is_dir():
        file = path / ASKED_FILE
    if not file.is_file():
        raise InputError(
            f"{file}: no such file; give the folder of a session of serve or try in which queries "
            "were kept (--keep-queries)"
        )
    queries = {}
    for line, record in json_records(file, raise_errors):
        text = record.get("query") if record else None
        if not isinstance(text, str):
            raise InputError(f"{file}:{line} is not a query; correct or delete the line")
        check_characters(f"{file}:{line}: the query", text)
        text = normalised(text)
        if text:
            queries[typed_id(text)] = text
    return queries


def without_texts_of(queries: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Return asked queries, id to text, without those whose text a collection's query has.

    Spaces do not count, as where judgements of typed queries are joined with the collection's.
    """
    texts = {normalised(text) for text in queries.values()}
    return {id: text for id, text in asked.items() if normalised(text) not in texts}


def asked_dataset(path: Path) -> str | None:
    """Return the dataset of a session with asked queries; None where it is unknown."""
    file = path / SESSION_FILE
    if not file.is_file():
        return None
    try:
        dataset = json.loads(file.read_text(encoding="utf-8"))["dataset"]
    except (ValueError, KeyError, TypeError):
        return None
    return str(dataset)
