"""A corpus in files that people have: a folder, one file, or a data set of Hugging Face.

Documents are split by sentences into passages that fit an encoder. A passage's id is the path of
its file and a hash of its content: it stays as long as the passage does, whatever else changes. A
record that has an id keeps it. The content of documents is kept in the cache, and a document is
read again only where its file has changed.
"""

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from beir_cocodr.data.analyzers import Language
from beir_cocodr.data.defects import Report, error, warning
from beir_cocodr.data.files import file_formats as formats
from beir_cocodr.data.files import file_tables as tables
from beir_cocodr.data.files.encodings import display_name
from beir_cocodr.data.files.folder_facts import FolderFacts, LeftOut
from beir_cocodr.data.files.own_folders import NotRead, is_within_output, visible_files
from beir_cocodr.data.files.readers import Document, RecordChecker
from beir_cocodr.data.files.survey import Settings, Survey, name_in, survey
from beir_cocodr.data.languages import DEFAULT
from beir_cocodr.data.sources import WITHOUT_LABELS, FileSource, Labels
from beir_cocodr.errors import (
    InputError,
    check_characters,
    check_count,
    explained,
    first_line,
    listed,
    quoted,
)
from beir_cocodr.io import file_state, real_path, text_sha256

#: Words of a passage, punctuation marks counted: about 220 tokens of English, which fit the 256 of
#: MiniLM together with a title.
PASSAGE_WORDS = 180

#: Between the title of a document and the headings of a section.
ABOVE = " > "
HUGGING_FACE = "hf:"

# Percent-encoded: a name of a dataset is checked like the path that it begins with.
_LONGEST_SETTING = 200

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """The settings by which files are read, written after a dataset's name.

    An example of such a name is ``my.csv?text=body&language=de``.

    Attributes:
        text: columns of the text, separated by commas; several are joined.
        title: column of the title.
        id: column of the id.
        language: language of the text, an ISO 639 code or an English name. Default: detected.
        words: the most words of a passage; punctuation marks count.
        config: configuration of a data set of Hugging Face.
        split: split of a data set of Hugging Face. Default: its only one, else corpus, else train.
        encoding: encoding of text files that are not UTF-8 and have no byte order mark, by its
            Python name. Default: guessed in a folder; a single file is refused.
        strict: refuse a folder with a file that cannot be read, or whose encoding was guessed.
    """

    text: str = ""
    title: str | None = None
    id: str | None = None
    language: str | None = None
    words: int = PASSAGE_WORDS
    config: str | None = None
    split: str | None = None
    encoding: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        """Check the number of words, the language and the encoding."""
        check_count("words", self.words)
        if self.language is not None:
            Language.parse(self.language)
        if self.encoding is not None:
            _check_encoding(self.encoding)

    @classmethod
    def parse(cls, name: str) -> "tuple[str, Reading | None]":
        """Split a dataset's name at its question mark.

        Returns:
            The name before it, and the settings after it; None where there is no question mark.

        Raises:
            InputError: a setting is unknown, or its value is not allowed.
        """
        bare, mark, query = name.partition("?")
        if not mark:
            return name, None
        settings = dict(parse_qsl(query, keep_blank_values=True))
        known = [field.name for field in fields(cls)]
        unknown = [key for key in settings if key not in known]
        if not settings:
            unknown = [query]
        if unknown:
            names = ", ".join(repr(key) for key in unknown)
            choices = ", ".join(known)
            raise InputError(f"{name}: unknown {names}; choose from {choices}")
        words = settings.pop("words", str(PASSAGE_WORDS))
        if not words.isdecimal():
            raise InputError(f"{name}: words is {words!r}, not a number; correct it")
        strict = settings.pop("strict", "false").lower()
        if strict not in ("true", "false"):
            raise InputError(f"{name}: strict is {strict!r}; write strict=true, or leave it out")
        reading = cls(
            **settings,
            words=int(words),
            strict=strict == "true",
        )
        return bare, reading

    @staticmethod
    def extend(name: str, **settings: str) -> str:
        """Return a dataset's name with further settings.

        Raises:
            InputError: a setting is too long, or contains an unpaired surrogate, as bytes that are
                no UTF-8 become.
        """
        for setting, value in settings.items():
            check_characters(f"the setting {setting!r} of {name}", value)
            if len(quote(value)) > _LONGEST_SETTING:
                raise InputError(
                    f"the setting {setting!r} of {name} is too long: {quoted(value)}; a name of a "
                    f"dataset holds {_LONGEST_SETTING} characters of it"
                )
        bare, _, query = name.partition("?")
        before = dict(parse_qsl(query, keep_blank_values=True))
        together = before | settings
        if not together:
            return name
        return f"{bare}?{urlencode(together)}"

    @property
    def columns(self) -> tables.Columns:
        """Return the columns of a table that are read."""
        texts = tuple(name for name in self.text.split(",") if name)
        return tables.Columns(texts, self.title, self.id)


def _check_encoding(name: str) -> None:
    """Check that Python knows an encoding of texts.

    Raises:
        InputError: it does not.
    """
    try:
        b"a".decode(name)  # it refuses codecs of bytes, such as base64
    except (LookupError, ValueError):
        raise InputError(
            f"unknown encoding {name!r}; give a name such as cp1252 or gb18030"
        ) from None


class _Item(NamedTuple):
    """A section or a record that is to be split into passages.

    Attributes:
        prefix: what the ids of its passages begin with.
        id: the id of a record that has one.
        title: its title, with the headings above a section.
        text: its text.
        file: the file that it was read from.
        line: its line or number in the file.
    """

    prefix: str
    id: Any
    title: Any
    text: Any
    file: str
    line: int


@dataclass(frozen=True)
class TextFiles(FileSource):
    """A folder or a file of the user's: a corpus without queries."""

    reading: Reading = Reading()

    @staticmethod
    def reads(path: Path) -> bool:
        """Return whether the suffix of a file is that of a document or a table."""
        is_document = bool(formats.document_suffix(path))
        return is_document or tables.is_table(path)

    @classmethod
    def in_folder(cls, folder: Path) -> bool:
        """Return whether a folder has files, whatever they are."""
        return any(True for _ in visible_files(folder))

    @classmethod
    def check_output(cls, output: Path, folder: Path) -> None:
        """Check that an output does not become a part of a folder of documents.

        Below the folder, an output may be a folder without documents, which is then not read.

        Raises:
            InputError: it would be read as documents, or documents would be taken for an output.
        """
        output = real_path(output)
        folder = real_path(folder)
        if not output.is_relative_to(folder):
            return
        parts = output.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        if is_hidden or is_within_output(output, folder):
            return
        if output.is_dir() and cls.in_folder(output):
            raise InputError(
                f"--output {output} contains documents of the dataset {folder}, which would be "
                "taken for results from then on; choose a new folder"
            )
        if not output.is_dir() and cls.reads(output):
            raise InputError(
                f"--output {output} would become a document of the dataset {folder}; choose a file "
                "outside it"
            )

    def key(self) -> tuple[str, ...] | None:
        """Return the key of the converted corpus in the cache: settings and state of the files."""
        installed = []
        for suffix, package in formats.PACKAGES.items():
            if find_spec(package):
                installed.append(suffix)
        states: list[str] = []
        for path in self.files():
            states += _state(path)
        return (
            "files",
            str(self.corpus.resolve()),
            repr(self.reading),
            text_sha256(*installed, "", *states),
        )

    def missing(self, report: Report, labels: Labels) -> None:
        """Report missing labels, where they are required."""
        if labels == "required":
            message = f"files have no queries or qrels; {WITHOUT_LABELS}"
            report(error("missing file", self.documents_file, message))

    def files(self, not_read: NotRead | None = None) -> list[Path]:
        """Return all files, sorted by name; hidden ones are left out.

        Args:
            not_read: takes the folders and links that are left out.
        """
        if self.corpus.is_file():
            return [self.corpus]
        return sorted(visible_files(self.corpus, not_read), key=lambda path: path.parts)

    @property
    def is_strict(self) -> bool:
        """Return whether a file that cannot be read stops the reading: a single one always does."""
        return self.reading.strict or self.corpus.is_file()

    def documents(self, report: Report) -> Iterator[Document]:
        """Stream the passages.

        What is wrong with files and records is reported, with the warnings "files left out",
        "encodings guessed" and "files without text".
        """
        documents, _ = self.documents_and_facts(report)
        return documents

    def documents_and_facts(self, report: Report) -> tuple[Iterator[Document], FolderFacts]:
        """Return the stream of the passages, and what is said about the folder.

        The files have been examined, and the passages are made when the stream is read.
        """
        surveyed = self._survey(report)
        language = surveyed.facts.language or DEFAULT
        items = self._items(surveyed, report)
        return self._passages(items, language, report), surveyed.facts

    def _passages(
        self,
        items: Iterator[_Item],
        language: str,
        report: Report,
    ) -> Iterator[Document]:
        checker = RecordChecker(self.documents_file, report)
        count = 0
        ids = Counter[int]()
        while True:
            batch = list(islice(items, _BATCH))
            if not batch:
                break
            passages = _split(batch, language, self.reading.words)
            for item, parts in zip(batch, passages, strict=True):
                if item.file != checker.file:
                    checker.finish()
                    checker = RecordChecker(item.file, report)
                is_whole = len(parts) == 1
                for part in parts:
                    keeps_id = is_whole and item.id is not None
                    id = item.id if keeps_id else _new_id(item, part, ids)
                    document = checker.document(
                        item.line,
                        id,
                        item.title,
                        part,
                    )
                    if document is not None:
                        count += 1
                        yield document
        checker.finish()
        if count == 0:
            RecordChecker(self.documents_file, report).empty_corpus()

    def _survey(self, report: Report) -> Survey:
        """Examine all files, and report what is left out and what was guessed."""
        not_read = NotRead()
        files = self.files(not_read)
        self._report_not_read(not_read, report)
        code = None
        if self.reading.language is not None:
            code = Language.parse(self.reading.language).code
        settings = Settings(self.reading.columns, self.reading.encoding, code)
        surveyed = survey(self.corpus, files, settings, self._closed(not_read))
        self._report_left_out(surveyed, report)
        self._report_encodings(surveyed, report)
        return surveyed

    def _report_left_out(self, surveyed: Survey, report: Report) -> None:
        severity = error if self.is_strict else warning
        kind = "unreadable file" if self.is_strict else "files left out"
        for entry in surveyed.facts.left_out:
            path = self.corpus
            if not self.corpus.is_file():
                path = self.corpus / entry.file
            # The records of a table are reported one by one where the first error counts.
            has_records = tables.is_table(path) and path.is_file()
            if not (self.is_strict and has_records):
                report(severity(kind, str(path), entry.reason))

    def _closed(self, not_read: NotRead) -> list[LeftOut]:
        closed = [(path, formats.NO_PERMISSION) for path in not_read.closed]
        special = [(path, "no file: a pipe, a socket or a device") for path in not_read.special]
        left_out = []
        for path, reason in sorted([*closed, *special]):
            name = name_in(self.corpus, path)
            left_out.append(LeftOut(name, reason))
        return left_out

    def _report_encodings(self, surveyed: Survey, report: Report) -> None:
        guessed = surveyed.facts.encodings
        if self.reading.encoding is not None or not guessed:
            return
        if not self.is_strict:
            defect = warning(
                "encodings guessed",
                str(self.corpus),
                surveyed.facts.describe_encodings(),
                times=sum(guessed.values()),
            )
            report(defect)
            return
        for path, examined in surveyed.files.items():
            if examined.encoding is not None and examined.reason is None:
                name = display_name(examined.encoding)
                message = (
                    f"not UTF-8; it may be {name}: convert it, or write ?encoding={name} after the "
                    "name of the dataset"
                )
                report(error("not UTF-8", str(path), message))

    def _items(self, surveyed: Survey, report: Report) -> Iterator[_Item]:
        """Stream the sections and records of all files, in order."""
        for path, examined in surveyed.files.items():
            prefix = self._id_prefix(path, report)
            is_read = examined.reason is None or self.is_strict
            if tables.is_table(path) and is_read:
                rows = tables.read_table(
                    path,
                    self.reading.columns,
                    report,
                    examined.encoding,
                )
                file_prefix = "" if self.corpus.is_file() else prefix
                yield from _records(rows, file_prefix, prefix, str(path))
            elif examined.content is not None:
                if not examined.content.sections:
                    message = "it contains no text; if it is a scan, read it with OCR first"
                    report(warning("files without text", str(path), message))
                yield from _sections(examined.content, prefix, path)

    def file_of(self, id: str) -> str | None:
        """Return the file that a passage was read from, as its path in the folder."""
        if self.corpus.is_file():
            return self.corpus.name
        return unquote(id.partition("#")[0])

    def begins(self, id: str) -> str:
        """Return what the ids of all passages of one document begin with.

        A document is a file, or a record of a table.
        """
        file = id.partition("#")[0]
        record = id.rpartition("#")[0]
        if not unquote(file).lower().endswith(tables.TABLES):
            return f"{file}#"
        return id if record == file else f"{record}#"

    def _id_prefix(self, path: Path, report: Report) -> str:
        name = path.name
        if path != self.corpus:
            name = path.relative_to(self.corpus).as_posix()
        try:
            name.encode()
        except UnicodeEncodeError:
            message = "the name of the file is not UTF-8; rename it"
            report(error("not UTF-8", repr(str(path)), message))
            name = name.encode("utf-8", "backslashreplace").decode()
        return _UNSAFE.sub(lambda match: quote(match[0]), name)

    def _report_not_read(self, not_read: NotRead, report: Report) -> None:
        reasons = {
            "outputs left out": ("written by beir-cocodr", not_read.outputs),
            "links left out": ("links that lead outside the folder", not_read.links),
        }
        for kind, (reason, paths) in reasons.items():
            if not paths:
                continue
            names = sorted(path.relative_to(self.corpus).as_posix() for path in paths)
            message = f"not read as documents, because {reason}: {listed(names, 3)}"
            log.info("%s: %s", self.corpus, message)
            defect = warning(kind, str(self.corpus), message, times=len(paths))
            report(defect)


@dataclass(frozen=True)
class HubDataset(TextFiles):
    """A data set of Hugging Face: ``hf:NAME``, or a folder that its ``save_to_disk`` wrote."""

    @staticmethod
    def saved_in(folder: Path) -> bool:
        """Return whether a folder was written by ``save_to_disk``."""
        return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))

    def key(self) -> tuple[str, ...] | None:
        """Return the key of the converted corpus in the cache; None where no file is its source."""
        states: list[str] = []
        for file in self._load().cache_files:
            path = Path(file["filename"])
            states += file_state(path)
        if not states:
            return None
        return ("data set", repr(self.reading), *states)

    def documents_and_facts(self, report: Report) -> tuple[Iterator[Document], FolderFacts]:
        """Return the stream of the records in order, and the language by which they are read."""
        dataset = self._load()
        columns = self.reading.columns.of(dataset.column_names, self.name)
        names = [name for name in (*columns.texts, columns.title, columns.id) if name]
        rows = tables.record_rows(dataset.select_columns(names), columns)
        bare = self.name.partition("?")[0]
        items = _records(
            rows,
            file_prefix="",
            prefix=_UNSAFE.sub("_", bare),
            file=bare,
        )
        language = Language.parse(self.reading.language or DEFAULT).code
        facts = FolderFacts(language=language)
        return self._passages(items, language, report), facts

    def file_of(self, id: str) -> str | None:
        """Return None: the passages come from no file of the user's."""
        return None

    def _load(self) -> Any:
        from datasets import load_dataset, load_from_disk  # takes seconds

        name = self.name.partition("?")[0].removeprefix(HUGGING_FACE)
        problem = f"{self.name}: no data set that can be read now"
        way_out = "use a local folder, or apidocs/numpy, which needs no network"
        with explained(problem, way_out, Exception):  # the host raises exceptions of any type
            if self.corpus.is_dir():
                loaded = load_from_disk(str(self.corpus))
            else:
                loaded = load_dataset(name, self.reading.config)
        if not isinstance(loaded, Mapping):
            return loaded
        return loaded[self._choose_split(list(loaded))]

    def _choose_split(self, splits: list[str]) -> str:
        split = self.reading.split
        if split is None:
            split = next(
                (name for name in ("corpus", "train") if name in splits),
                None,
            )
        if split is None and len(splits) == 1:
            [split] = splits
        if split not in splits:
            names = ", ".join(str(name) for name in splits)
            raise InputError(f"{self.name}: name one of its splits with ?split=: {names}")
        if len(splits) > 1 and self.reading.split is None:
            log.info(
                "%s: reading its split %s; ?split= names another",
                self.name,
                split,
            )
        return split


# Items that are split at a time.
_BATCH = 256

# What a run or qrels cannot hold in an id, and what separates the parts of an id.
_UNSAFE = re.compile(r"[\s%#\x00-\x1f\x7f-\x9f]")


def _sections(
    content: formats.Content,
    prefix: str,
    path: Path,
) -> Iterator[_Item]:
    title = content.title or path.stem
    for number, (headings, text) in enumerate(content.sections, 1):
        parts = [part.replace(ABOVE, " - ") for part in (title, *headings)]
        above = ABOVE.join(parts)
        yield _Item(
            prefix=prefix,
            id=None,
            title=above,
            text=text,
            file=str(path),
            line=number,
        )


def _records(
    rows: Iterator[tables.RawRecord],
    file_prefix: str,
    prefix: str,
    file: str,
) -> Iterator[_Item]:
    """Stream the records of a table as items.

    Args:
        rows: the records.
        file_prefix: what the ids that records have begin with; "" where there is only one file.
        prefix: what new ids begin with.
        file: the file, for reports.
    """
    for line, id, title, text in rows:
        if id is None or id == "":
            record_id = None
        elif file_prefix and isinstance(id, str | int):
            record_id = f"{file_prefix}#{id}"
        else:
            record_id = id
        yield _Item(
            prefix=prefix,
            id=record_id,
            title=title,
            text=text,
            file=file,
            line=line,
        )


def _split(
    items: Sequence[_Item],
    language: str,
    words: int,
) -> Iterator[list[object]]:
    """Split items into passages of at most so many words; what is short stays as it is."""
    from beir_cocodr.data.passages import split_passages
    from beir_cocodr.data.text import word_counter

    texts = [item.text if isinstance(item.text, str) else "" for item in items]
    passages = split_passages(
        texts,
        word_counter().count,
        words,
        language,
    )
    for item, text, ranges in zip(items, texts, passages, strict=True):
        if len(ranges) > 1:
            yield [text[start:end] for start, end in ranges]
        else:
            yield [item.text]


def _new_id(
    item: _Item,
    part: Any,
    ids: Counter[int],
) -> str:
    """Return an id for a passage: its prefix, and a hash of its title and text.

    The same passage again gets a number. ``ids`` counts the ids so far, by their hashes.
    """
    content = f"{item.title}\0{part}".encode("utf-8", "surrogatepass")
    content_hash = hashlib.sha256(content).hexdigest()
    prefix = item.prefix if item.id is None else item.id
    id = f"{prefix}#{content_hash[:12]}"
    encoded = id.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(encoded, digest_size=8).digest()
    key = int.from_bytes(digest)
    ids[key] += 1
    times = ids[key]
    if times == 1:
        return id
    return f"{id}-{times}"


def _state(path: Path) -> tuple[str, ...]:
    """Return the state of a file, which changes with its content and with who may read it."""
    try:
        return (*file_state(path), str(os.access(path, os.R_OK)))
    except OSError as cause:
        return str(path), first_line(cause)
