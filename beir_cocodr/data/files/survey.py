"""A survey of a folder of files, before its passages are made.

It decides which files are read, in which encoding, and in which language. A file that cannot be
read is left out with its reason. What was learnt about a file is kept in the cache until the file
changes.
"""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from beir_cocodr.checksums import checked_path, is_kept
from beir_cocodr.data.defects import Defect
from beir_cocodr.data.files import file_formats as formats
from beir_cocodr.data.files import file_tables as tables
from beir_cocodr.data.files.bounded import lines, open_bytes
from beir_cocodr.data.files.encodings import (
    EncodingVotes,
    is_utf8,
    likely_encodings,
    marked_encoding,
)
from beir_cocodr.data.files.file_formats import (
    NO_PERMISSION,
    Content,
    Section,
    Unreadable,
    describe_failure,
)
from beir_cocodr.data.files.folder_facts import FolderFacts, LeftOut
from beir_cocodr.data.files.readers import RecordChecker
from beir_cocodr.data.languages import (
    SAMPLE,
    count_characters,
    detect_language,
    language_shares,
    main_language,
)
from beir_cocodr.errors import first_line
from beir_cocodr.io import cache_folder, file_state, filling_cache, text_sha256

# The version of what the cache keeps; raise it when a file is read otherwise.
_FORMAT = "3"

# Files whose language is detected, evenly among all.
_LANGUAGE_FILES = 500

# Bytes of a table that its encoding is guessed from.
_TABLE_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Settings:
    """How the files of a folder are read.

    Attributes:
        columns: the columns of tables.
        encoding: the encoding of the files that say none; None: it is guessed.
        language: the language of the text; None: it is detected.
    """

    columns: tables.Columns
    encoding: str | None = None
    language: str | None = None


@dataclass(frozen=True)
class Examined:
    """What is known about a file.

    Attributes:
        content: the content of a document; None for a table, and for a file that is left out.
        encoding: the encoding that was guessed, None where the file says it.
        reason: why the file is left out; None where it is read.
        characters: the characters of its text; of a table, of the records that were looked at.
        sample: the beginning of its text.
        language: the language of the text, None where it is not known yet or does not show.
        is_short: true where the encodings of other files decided about this one.
    """

    content: Content | None = None
    encoding: str | None = None
    reason: str | None = None
    characters: int = 0
    sample: str = ""
    language: str | None = None
    is_short: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON, without those that say nothing."""
        content = {key: value for key, value in vars(self).items() if value}
        if self.content is not None:
            content["content"] = [self.content.title, self.content.sections]
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Examined":
        """Return what :meth:`to_json` wrote."""
        if "content" in content:
            title, sections = content["content"]
            parts = [Section(tuple(headings), text) for headings, text in sections]
            content = {**content, "content": Content(title, parts)}
        return cls(**content)


@dataclass(frozen=True)
class Survey:
    """What is known about the files of a folder.

    Attributes:
        files: the files in order, each with what is known about it; also those left out.
        facts: what is said about the folder.
    """

    files: dict[Path, Examined]
    facts: FolderFacts


def survey(
    folder: Path,
    files: Sequence[Path],
    settings: Settings,
    closed: Sequence[LeftOut] = (),
) -> Survey:
    """Examine the files of a folder.

    Args:
        folder: the folder, or a single file.
        files: its files, in order.
        settings: how they are read.
        closed: what else is left out, such as folders without permission.
    """
    cache = _Cache(folder, f"{settings.columns!r} {settings.encoding}")
    known: dict[Path, Examined] = {}
    undecided: dict[Path, tuple[str, ...]] = {}
    votes = EncodingVotes()
    for path in files:
        examined = cache.read(path)
        if examined is None:
            examined, likely = _first_look(path, settings)
            if likely:
                undecided[path] = likely
        if examined.encoding is not None and not examined.is_short:
            votes.add(examined.encoding)
        known[path] = examined
    for path, likely in undecided.items():
        examined = _examine(path, settings.columns, votes.choose(likely))
        known[path] = replace(examined, is_short=True)
    if settings.language is None:
        _detect_languages(known)
    cache.write(known)
    return Survey(known, _facts(folder, known, settings.language, closed))


def _first_look(path: Path, settings: Settings) -> tuple[Examined, tuple[str, ...]]:
    """Examine a file, unless its encoding depends on the other files.

    Returns:
        What is known about it, and the encodings that it may have, where there are several.
    """
    try:
        if tables.is_table(path):
            data = b""
            likely = _table_encodings(path)
        else:
            data = formats.read_document(path)
            likely = formats.guesses(path, data)
    except Unreadable as cause:
        return Examined(reason=str(cause)), ()
    if len(likely) > 1 and settings.encoding is None:
        return Examined(), likely
    encoding = (settings.encoding or likely[0]) if likely else None
    if tables.is_table(path):
        return _examine_table(path, settings.columns, encoding), ()
    return _examine_document(path, data, encoding), ()


def _table_encodings(path: Path) -> tuple[str, ...]:
    """Return the encodings that a table may have; none where it says its encoding itself.

    Raises:
        Unreadable: it cannot be read, or is not text.
    """
    try:
        sample = _undecodable_sample(path) if tables.is_separated(path) else b""
    except PermissionError:
        raise Unreadable(NO_PERMISSION) from None
    except Exception as cause:  # gzip raises several kinds on broken files
        raise Unreadable(describe_failure(cause)) from None
    if not sample:
        return ()
    likely = likely_encodings(sample)
    if not likely:
        raise Unreadable(formats.NO_TEXT)
    return likely


def _undecodable_sample(path: Path) -> bytes:
    """Return the lines of a table that are not UTF-8, up to a limit; b"" where all are."""
    sample = b""
    with open_bytes(path) as file:
        start = file.read(_TABLE_SAMPLE)
        if marked_encoding(start) is not None:
            return b""
        if b"\0" in start:
            return start
        file.seek(0)
        for line in lines(file):
            if not line.isascii() and not is_utf8(line):
                sample += line
            if len(sample) >= _TABLE_SAMPLE:
                break
    return sample


def _examine(path: Path, columns: tables.Columns, encoding: str) -> Examined:
    """Read a file once, in an encoding."""
    if tables.is_table(path):
        return _examine_table(path, columns, encoding)
    try:
        data = formats.read_document(path)
    except Unreadable as cause:
        return Examined(reason=str(cause))
    return _examine_document(path, data, encoding)


def _examine_document(path: Path, data: bytes, encoding: str | None) -> Examined:
    try:
        content = formats.read_content(path, data, encoding)
    except Unreadable as cause:
        return Examined(reason=str(cause))
    text = "\n\n".join(section.text for section in islice(content.sections, 20))
    characters = sum(len(section.text) for section in content.sections)
    return Examined(content, encoding, characters=characters, sample=text[:SAMPLE])


class _FirstError(Exception):
    """The first error of a file, which ends its reading."""


def _raise_first(defect: Defect) -> None:
    if defect.severity == "error":
        line = "" if defect.line is None else f"line {defect.line}: "
        raise _FirstError(line + defect.message)


def _examine_table(
    path: Path,
    columns: tables.Columns,
    encoding: str | None,
) -> Examined:
    """Check all records of a table; the first error leaves it out."""
    checker = RecordChecker(str(path), _raise_first)
    ids: set[int] = set()
    sample = ""
    characters = 0
    try:
        for line, id, title, text in tables.read_table(path, columns, _raise_first, encoding):
            # A record without an id gets one, and that of another is in the way of the file's name.
            checker.document(line, "0" if id is None or id == "" else id, title, text)
            if isinstance(id, str | int) and id != "":
                _check_new(hash(str(id)), ids, f"line {line}: the id {id!r}")
            if isinstance(text, str):
                characters += len(text)
                if len(sample) < SAMPLE:
                    sample += text[:SAMPLE] + "\n"
    except _FirstError as cause:
        return Examined(reason=str(cause))
    return Examined(
        content=None,
        encoding=encoding,
        reason=None,
        characters=characters,
        sample=sample[:SAMPLE],
    )


def _check_new(id: int, ids: set[int], name: str) -> None:
    """Add the hash of an id to those that a table has.

    Raises:
        _FirstError: the table has it.
    """
    if id in ids:
        raise _FirstError(f"{name} occurs twice; give every record a unique id")
    ids.add(id)


def _detect_languages(known: dict[Path, Examined]) -> None:
    """Detect the languages of files, or of some evenly among many."""
    with_text = [path for path, examined in known.items() if examined.sample]
    step = -(-len(with_text) // _LANGUAGE_FILES) or 1
    for path in with_text[::step]:
        examined = known[path]
        if examined.language is None:
            known[path] = replace(examined, language=detect_language(examined.sample))


def _facts(
    folder: Path,
    known: dict[Path, Examined],
    language: str | None,
    closed: Sequence[LeftOut],
) -> FolderFacts:
    left_out = list(closed)
    encodings = Counter[str]()
    for path, examined in known.items():
        if examined.reason is not None:
            left_out.append(LeftOut(name_in(folder, path), examined.reason))
        elif examined.encoding is not None:
            encodings[examined.encoding] += 1
    read = [examined for examined in known.values() if examined.reason is None]
    if language is not None:
        return FolderFacts(
            files=len(read),
            left_out=tuple(left_out),
            encodings=dict(encodings),
            languages={},
            language=language,
        )
    characters = count_characters((one.language, one.characters) for one in read)
    return FolderFacts(
        files=len(read),
        left_out=tuple(left_out),
        encodings=dict(encodings),
        languages=language_shares(characters) if characters else {},
        language=main_language(characters),
    )


def name_in(folder: Path, path: Path) -> str:
    """Return the path of a file in its folder, as text that can be written."""
    name = path.name if path == folder else path.relative_to(folder).as_posix()
    return name.encode("utf-8", "backslashreplace").decode()


class _Cache:
    """What is known about the files of a folder, by path, in a JSON file in the cache."""

    def __init__(self, folder: Path, settings: str) -> None:
        key = text_sha256(_FORMAT, str(folder.resolve()), settings)[:32]
        self._file = cache_folder("files") / f"{key}.json"
        self._before: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            if is_kept(self._file):
                self._before = json.loads(self._file.read_text())
        self._states: dict[Path, tuple[str, str, str]] = {}
        self._kept: set[str] = set()

    def read(self, path: Path) -> Examined | None:
        """Return what is known about a file that has not changed; None where nothing is."""
        try:
            state = file_state(path)
        except OSError as cause:
            return Examined(reason=f"cannot be read ({first_line(cause)}); check it")
        self._states[path] = state
        entry = self._before.get(state[0])
        if entry is None or entry[0] != list(state):
            return None
        examined = Examined.from_json(entry[1])
        if examined.is_short:
            return None
        self._kept.add(state[0])
        return examined

    def write(self, known: dict[Path, Examined]) -> None:
        """Keep what is known now; a file that was left out is examined again the next time."""
        entries = {}
        for path, examined in known.items():
            if path in self._states and examined.reason is None:
                state = self._states[path]
                entries[state[0]] = [list(state), examined.to_json()]
        if not self._kept == entries.keys() == self._before.keys():
            with filling_cache(self._file.parent), checked_path(self._file) as draft:
                draft.write_text(json.dumps(entries))
