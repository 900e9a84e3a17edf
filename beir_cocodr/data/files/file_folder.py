"""A corpus in files that people have: a folder, one file, or a data set of Hugging Face.

Documents are split by sentences into passages that fit an encoder. A passage's id is the path of
its file and a hash of its content: it stays as long as the passage does, whatever else changes. A
record that has an id keeps it. The content of documents is kept in the cache, and a document is
read again only where its file has changed.
"""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from beir_cocodr.checksums import checked_path, is_kept
from beir_cocodr.data.analyzers import Language
from beir_cocodr.data.defects import Report, error, warning
from beir_cocodr.data.files import file_formats as formats
from beir_cocodr.data.files.own_folders import NotRead, is_within_output, visible_files
from beir_cocodr.data.files.readers import Document, RecordChecker
from beir_cocodr.data.sources import WITHOUT_LABELS, FileSource, Labels
from beir_cocodr.errors import InputError, check_count, explained, listed
from beir_cocodr.io import (
    cache_folder,
    file_state,
    filling_cache,
    text_sha256,
)

#: Words of a passage, punctuation marks counted: about 220 tokens of English, which fit the 256 of
#: MiniLM together with a title.
PASSAGE_WORDS = 180

#: Between the title of a document and the headings of a section.
ABOVE = " > "
HUGGING_FACE = "hf:"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """The settings by which files are read, written after a dataset's name.

    An example of such a name is ``my.csv?text=body&language=de``.

    Attributes:
        text: columns of the text, separated by commas; several are joined.
        title: column of the title.
        id: column of the id.
        language: language of the sentences, an ISO 639 code or an English name.
        words: the most words of a passage; punctuation marks count.
        config: configuration of a data set of Hugging Face.
        split: split of a data set of Hugging Face. Default: its only one, else corpus, else train.
    """

    text: str = ""
    title: str | None = None
    id: str | None = None
    language: str = "en"
    words: int = PASSAGE_WORDS
    config: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        """Check the number of words and the language."""
        check_count("words", self.words)
        Language.parse(self.language)

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
        unknown = [key for key in settings if key not in known] if settings else [query]
        if unknown:
            names = ", ".join(repr(key) for key in unknown)
            raise InputError(f"{name}: unknown {names}; choose from {', '.join(known)}")
        words = settings.pop("words", str(PASSAGE_WORDS))
        if not words.isdecimal():
            raise InputError(f"{name}: words is {words!r}, not a number; correct it")
        return bare, cls(**settings, words=int(words))

    @staticmethod
    def extend(name: str, **settings: str) -> str:
        """Return a dataset's name with further settings."""
        bare, _, query = name.partition("?")
        settings = dict(parse_qsl(query, keep_blank_values=True)) | settings
        return f"{bare}?{urlencode(settings)}" if settings else name

    @property
    def columns(self) -> formats.Columns:
        """Return the columns of a table that are read."""
        texts = tuple(name for name in self.text.split(",") if name)
        return formats.Columns(texts, self.title, self.id)


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
        """Return whether the suffix of a file is one that can be read."""
        is_document = path.suffix.lower() in formats.DOCUMENTS
        return is_document or path.name.lower().endswith(formats.TABLES)

    @classmethod
    def in_folder(cls, folder: Path) -> bool:
        """Return whether a folder has such files."""
        return any(cls.reads(path) for path in visible_files(folder))

    @classmethod
    def check_output(cls, output: Path, folder: Path) -> None:
        """Check that an output does not become a part of a folder of documents.

        Below the folder, an output may be a folder without documents, which is then not read.

        Raises:
            InputError: it would be read as documents, or documents would be taken for an output.
        """
        output, folder = output.resolve(), folder.resolve()
        if not output.is_relative_to(folder):
            return
        is_hidden = any(part.startswith(".") for part in output.relative_to(folder).parts)
        if is_hidden or is_within_output(output, folder):
            return
        if output.is_dir() and cls.in_folder(output):
            raise InputError(
                f"--output {output} holds documents of the dataset {folder}, which would be taken "
                "for results from then on; choose a new folder"
            )
        if not output.is_dir() and cls.reads(output):
            raise InputError(
                f"--output {output} would become a document of the dataset {folder}; choose a file "
                "outside it"
            )

    def key(self) -> tuple[str, ...] | None:
        """Return the key of the converted corpus in the cache: settings and state of the files."""
        installed = [suffix for suffix, package in formats.PACKAGES.items() if find_spec(package)]
        states = [part for path in self.files() for part in file_state(path)]
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

    def files(self) -> list[Path]:
        """Return all files that can be read, sorted by name; hidden ones are left out."""
        if self.corpus.is_file():
            return [self.corpus]
        paths = [path for path in visible_files(self.corpus) if self.reads(path)]
        return sorted(paths, key=lambda path: path.parts)

    def documents(self, report: Report) -> Iterator[Document]:
        """Stream the passages.

        What is wrong with files and records is reported, with the warnings "files left out" and
        "files without text".
        """
        checker = RecordChecker(self.documents_file, report)
        count = 0
        ids = Counter[int]()
        items = self.items(report)
        while True:
            batch = list(islice(items, _BATCH))
            if not batch:
                break
            for item, parts in zip(batch, _split(batch, self.reading), strict=True):
                if item.file != checker.file:
                    checker.finish()
                    checker = RecordChecker(item.file, report)
                for part in parts:
                    keeps_id = item.id is not None and len(parts) == 1
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

    def items(self, report: Report) -> Iterator[_Item]:
        """Stream the sections and records of all files, in order."""
        self._report_left_out(report)
        cache = _ContentCache(self.corpus)
        for path in self.files():
            prefix = self._id_prefix(path, report)
            if path.name.lower().endswith(formats.TABLES):
                rows = formats.read_table(path, self.reading.columns, report)
                file_prefix = "" if self.corpus.is_file() else prefix
                yield from _records(rows, file_prefix, prefix, str(path))
            elif formats.readable(path):
                content = cache.content(path, report)
                if content is None:
                    continue
                if not content.sections:
                    message = "it holds no text; if it is a scan, read it with OCR first"
                    report(warning("files without text", str(path), message))
                yield from _sections(content, prefix, path)
        cache.save()

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
        if not unquote(file).lower().endswith(formats.TABLES):
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

    def _report_left_out(self, report: Report) -> None:
        not_read = NotRead()
        paths = [self.corpus] if self.corpus.is_file() else visible_files(self.corpus, not_read)
        counts = Counter[str]()
        for path in paths:
            if not (self.reads(path) and formats.readable(path)):
                counts[path.suffix.lower() or "no suffix"] += 1
        self._report_not_read(not_read, report)
        if not counts:
            return
        kinds = [f"{count} of {suffix}" for suffix, count in counts.most_common(8)]
        message = f"{counts.total()} files of other kinds were left out: {', '.join(kinds)}"
        if counts.keys() & formats.PACKAGES.keys():
            message += "; to read PDF and Word: pip install 'beir-cocodr[files]'"
            log.warning("%s: %s", self.corpus, message)
        defect = error if self.corpus.is_file() else warning
        report(defect("files left out", str(self.corpus), message))

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
            report(warning(kind, str(self.corpus), message))


@dataclass(frozen=True)
class HubDataset(TextFiles):
    """A data set of Hugging Face: ``hf:NAME``, or a folder that its ``save_to_disk`` wrote."""

    @staticmethod
    def saved_in(folder: Path) -> bool:
        """Return whether a folder was written by ``save_to_disk``."""
        return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))

    def key(self) -> tuple[str, ...] | None:
        """Return the key of the converted corpus in the cache; None where no file is its source."""
        files = [Path(file["filename"]) for file in self._load().cache_files]
        states = [part for path in files for part in file_state(path)]
        return ("data set", repr(self.reading), *states) if states else None

    def items(self, report: Report) -> Iterator[_Item]:
        """Stream the records in order."""
        dataset = self._load()
        columns = self.reading.columns.of(dataset.column_names, self.name)
        names = [name for name in (*columns.texts, columns.title, columns.id) if name]
        rows = formats.record_rows(dataset.select_columns(names), columns)
        bare = self.name.partition("?")[0]
        return _records(rows, "", _UNSAFE.sub("_", bare), bare)

    def file_of(self, id: str) -> str | None:
        """Return None: the passages come from no file of the user's."""
        return None

    def _load(self) -> Any:
        from datasets import load_dataset, load_from_disk  # takes seconds

        name = self.name.partition("?")[0].removeprefix(HUGGING_FACE)
        problem = f"{self.name}: no data set that can be read now"
        way_out = "take a local folder, or apidocs/numpy, which needs no network"
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
        yield _Item(prefix, None, above, text, str(path), number)


def _records(
    rows: Iterator[formats.RawRecord],
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
        yield _Item(prefix, record_id, title, text, file, line)


def _split(
    items: Sequence[_Item],
    reading: Reading,
) -> Iterator[list[object]]:
    """Split items into passages; what is short, or no text, stays as it is."""
    from beir_cocodr.data.passages import split_passages
    from beir_cocodr.data.text import word_counter

    texts = [item.text if isinstance(item.text, str) else "" for item in items]
    language = Language.parse(reading.language).code
    passages = split_passages(
        texts,
        word_counter().count,
        reading.words,
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
    prefix = item.prefix if item.id is None else item.id
    id = f"{prefix}#{hashlib.sha256(content).hexdigest()[:12]}"
    digest = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    key = int.from_bytes(digest)
    ids[key] += 1
    return id if ids[key] == 1 else f"{id}-{ids[key]}"


class _ContentCache:
    """The content of the documents of a folder, by path, in a JSON file in the cache.

    Only files that have changed are read again, and those that are gone are left out.
    """

    def __init__(self, folder: Path) -> None:
        key = text_sha256(_FORMAT, str(folder.resolve()))[:32]
        self._file = cache_folder("files") / f"{key}.json"
        self._before: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            if is_kept(self._file):
                self._before = json.loads(self._file.read_text())
        self._now: dict[str, Any] = {}

    def content(
        self,
        path: Path,
        report: Report,
    ) -> formats.Content | None:
        """Return the content of a document; None where it cannot be read."""
        state = list(file_state(path))
        entry = self._before.get(state[0])
        if entry is None or entry[0] != state:
            content = formats.read_content(path, report)
            if content is None:
                return None
            entry = [state, content.title, content.sections]
        self._now[state[0]] = entry
        _, title, sections = entry
        return formats.Content(
            title,
            [formats.Section(tuple(headings), text) for headings, text in sections],
        )

    def save(self) -> None:
        """Write the contents to the cache where they have changed."""
        if self._now != self._before:
            with filling_cache(self._file.parent), checked_path(self._file) as draft:
                draft.write_text(json.dumps(self._now))


# The version of the cached content; raise it when a reader reads otherwise.
_FORMAT = "2"
