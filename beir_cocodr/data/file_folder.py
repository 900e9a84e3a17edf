"""Files of people as a corpus: a folder of documents and tables, one such file, or a data set of
Hugging Face.

Documents are cut by sentences into passages that fit an encoder. A passage's id is the place of its
file and a hash of what it says, so that it stays as long as the passage does, whatever else
changes; a record that has an id keeps it. What was read of a document is kept in the cache, and
read again only where the file has changed.
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

from beir_cocodr.data import file_formats as formats
from beir_cocodr.data.analyzers import Language
from beir_cocodr.data.defects import Report, error, warning
from beir_cocodr.data.readers import Document, RecordChecker
from beir_cocodr.data.sources import WITHOUT_LABELS, FileSource, Labels
from beir_cocodr.errors import InputError, check_count, explained
from beir_cocodr.io import (
    cache_folder,
    file_state,
    filling_cache,
    is_incidental,
    text_sha256,
    write_text,
)

#: Words of a passage, marks counted: about 220 tokens of English, which fit the 256 of MiniLM
#: together with a title.
PASSAGE_WORDS = 180

#: Between the title of a document and the headings of a section.
ABOVE = " > "
HUGGING_FACE = "hf:"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """How files are read: what stands behind a dataset's name, as in
    ``my.csv?text=body&language=de``.

    Args:
        text: columns that are the text, parted by commas; several are joined.
        title, id: columns.
        language: of the sentences, an ISO 639 code or an English name.
        words: of a passage, at most; marks count.
        config, split: of a data set of Hugging Face; by default its only split, else corpus, else
        train.
    """

    text: str = ""
    title: str | None = None
    id: str | None = None
    language: str = "en"
    words: int = PASSAGE_WORDS
    config: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        check_count("words", self.words)
        Language.parse(self.language)

    @classmethod
    def parse(cls, name: str) -> "tuple[str, Reading | None]":
        """A dataset's name without what stands behind a question mark, and that; None where there
        is none.
        """
        bare, mark, behind = name.partition("?")
        if not mark:
            return name, None
        given, known = (
            dict(parse_qsl(behind, keep_blank_values=True)),
            [field.name for field in fields(cls)],
        )
        if unknown := [key for key in given if key not in known] or ([behind] if not given else []):
            raise InputError(
                f"{name}: unknown {', '.join(map(repr, unknown))}; there are {', '.join(known)}"
            )
        words = given.pop("words", str(PASSAGE_WORDS))
        if not words.isdecimal():
            raise InputError(f"{name}: words is {words!r}; it has to be a number")
        return bare, cls(**given, words=int(words))

    @staticmethod
    def extend(name: str, **given: str) -> str:
        """A dataset's name that is read with these settings, too."""
        bare, _, behind = name.partition("?")
        settings = dict(parse_qsl(behind, keep_blank_values=True)) | given
        return f"{bare}?{urlencode(settings)}" if settings else name

    @property
    def columns(self) -> formats.Columns:
        return formats.Columns(
            tuple(name for name in self.text.split(",") if name), self.title, self.id
        )


class _Item(NamedTuple):
    """What is to be cut into passages: the place that ids begin with, and of a record its own id,
    in a file.
    """

    place: str
    id: Any
    title: Any
    text: Any
    file: str
    line: int


@dataclass(frozen=True)
class TextFiles(FileSource):
    """Files that are no collection yet, a folder or a file: a lone corpus without queries."""

    reading: Reading = Reading()

    @staticmethod
    def reads(path: Path) -> bool:
        """Whether a file is one that can be read, whatever has to be installed for it."""
        return path.suffix.lower() in formats.DOCUMENTS or path.name.lower().endswith(
            formats.TABLES
        )

    @classmethod
    def in_folder(cls, folder: Path) -> bool:
        """Whether a folder has such files."""
        return any(cls.reads(path) for path in _visible(folder))

    def key(self) -> tuple[str, ...] | None:
        installed = [suffix for suffix, package in formats.PACKAGES.items() if find_spec(package)]
        states = [part for path in self.files() for part in file_state(path)]
        return (
            "files",
            str(self.corpus.resolve()),
            repr(self.reading),
            text_sha256(*installed, "", *states),
        )

    def missing(self, report: Report, labels: Labels) -> None:
        if labels == "required":
            report(
                error(
                    "missing file",
                    self.documents_file,
                    f"files have no queries or qrels; {WITHOUT_LABELS}",
                )
            )

    def files(self) -> list[Path]:
        """All that can be read, in the order of their names; what begins with a dot is left out."""
        if self.corpus.is_file():
            return [self.corpus]
        return sorted(
            (path for path in _visible(self.corpus) if self.reads(path)),
            key=lambda path: path.parts,
        )

    def documents(self, report: Report) -> Iterator[Document]:
        """Stream (line, id, title, text) of passages; beside what is wrong with single files and
        records, the warnings "files left out" and "files without text" are reported.
        """
        checker, count, made = RecordChecker(self.documents_file, report), 0, Counter[int]()
        items = self.items(report)
        while batch := list(islice(items, _BATCH)):
            for item, parts in zip(batch, _cut(batch, self.reading), strict=True):
                if item.file != checker.file:
                    checker.finish()
                    checker = RecordChecker(item.file, report)
                for part in parts:
                    id = (
                        item.id
                        if item.id is not None and len(parts) == 1
                        else _made_id(item, part, made)
                    )
                    document = checker.document(item.line, id, item.title, part)
                    if document is not None:
                        count += 1
                        yield document
        checker.finish()
        if not count:
            RecordChecker(self.documents_file, report).empty_corpus()

    def items(self, report: Report) -> Iterator[_Item]:
        """Sections and records of all files, in order."""
        self._report_left_out(report)
        before = _ReadBefore(self.corpus)
        for path in self.files():
            place = self._place(path, report)
            if path.name.lower().endswith(formats.TABLES):
                own = "" if self.corpus.is_file() else place
                yield from _records(
                    formats.read_table(path, self.reading.columns, report), own, place, str(path)
                )
            elif formats.readable(path):
                content = before.content(path, report)
                if content is not None and not content.sections:
                    report(
                        warning(
                            "files without text",
                            str(path),
                            "no text was found in it; is it a scan?",
                        )
                    )
                yield from _sections(content, place, path) if content is not None else ()
        before.save()

    def file_of(self, id: str) -> str | None:
        """The file that a passage is of, as its path in the folder."""
        if self.corpus.is_file():
            return self.corpus.name
        return unquote(id.partition("#")[0])

    def begins(self, id: str) -> str:
        """What the ids of all passages of the same document begin with: of a file, or of a record
        of a table.
        """
        file, last = id.partition("#")[0], id.rpartition("#")[0]
        if not unquote(file).lower().endswith(formats.TABLES):
            return f"{file}#"
        return id if last == file else f"{last}#"

    def _place(self, path: Path, report: Report) -> str:
        name = path.relative_to(self.corpus).as_posix() if path != self.corpus else path.name
        try:
            name.encode()
        except UnicodeEncodeError:
            report(
                error("not UTF-8", repr(str(path)), "the name of the file is not UTF-8; rename it")
            )
            name = name.encode("utf-8", "backslashreplace").decode()
        return _UNSAFE.sub(lambda found: quote(found[0]), name)

    def _report_left_out(self, report: Report) -> None:
        paths = [self.corpus] if self.corpus.is_file() else _visible(self.corpus)
        others = Counter(
            path.suffix.lower() or "no suffix"
            for path in paths
            if not (self.reads(path) and formats.readable(path))
        )
        if not others:
            return
        shown = ", ".join(f"{count} of {suffix}" for suffix, count in others.most_common(8))
        message = f"{others.total()} files were left out, as they are of other kinds: {shown}"
        if others.keys() & formats.PACKAGES.keys():
            message += "; what reads PDF and Word: pip install 'beir-cocodr[files]'"
            log.warning("%s: %s", self.corpus, message)
        kind = error if self.corpus.is_file() else warning
        report(kind("files left out", str(self.corpus), message))


@dataclass(frozen=True)
class HubDataset(TextFiles):
    """A data set of Hugging Face: ``hf:NAME``, or a folder that its ``save_to_disk`` wrote."""

    @staticmethod
    def saved_in(folder: Path) -> bool:
        return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))

    def key(self) -> tuple[str, ...] | None:
        files = [Path(file["filename"]) for file in self._load().cache_files]
        states = [part for path in files for part in file_state(path)]
        return ("data set", repr(self.reading), *states) if states else None

    def items(self, report: Report) -> Iterator[_Item]:
        loaded = self._load()
        columns = self.reading.columns.of(loaded.column_names, self.name)
        rows = loaded.select_columns(
            [name for name in (*columns.texts, columns.title, columns.id) if name]
        )
        name = self.name.partition("?")[0]
        return _records(formats.record_rows(rows, columns), "", _UNSAFE.sub("_", name), name)

    def file_of(self, id: str) -> str | None:
        return None

    def _load(self) -> Any:
        from datasets import load_dataset, load_from_disk  # takes seconds

        name = self.name.partition("?")[0].removeprefix(HUGGING_FACE)
        way_out = "take what is here: a local folder, or apidocs/numpy, which needs no network"
        with explained(
            f"{self.name}: no data set that can be read now", way_out, Exception
        ):  # the host raises all
            saved = self.corpus.is_dir()
            loaded = (
                load_from_disk(str(self.corpus))
                if saved
                else load_dataset(name, self.reading.config)
            )
        if not isinstance(loaded, Mapping):
            return loaded
        split = self.reading.split or next(
            (name for name in ("corpus", "train") if name in loaded), None
        )
        split = next(iter(loaded)) if split is None and len(loaded) == 1 else split
        if split not in loaded:
            raise InputError(
                f"{self.name}: name one of its splits with ?split=: {', '.join(map(str, loaded))}"
            )
        if len(loaded) > 1 and self.reading.split is None:
            log.info("%s: of its splits %s is read; ?split= names another", self.name, split)
        return loaded[split]


# Items that are cut at a time.
_BATCH = 256

# What a run or qrels cannot hold in an id, and what parts of an id are parted by.
_UNSAFE = re.compile(r"[\s%#\x00-\x1f\x7f-\x9f]")


def _visible(folder: Path) -> Iterator[Path]:
    """The files below a folder, but hidden ones; links to folders are not followed."""
    with explained(f"{folder} cannot be read", "make it readable, or move it away", OSError):
        found = list(folder.iterdir())
    for path in found:
        if path.name.startswith(".") or is_incidental(path):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _visible(path)
        elif path.is_file():
            yield path


def _sections(content: formats.Content, place: str, path: Path) -> Iterator[_Item]:
    title = (content.title or path.stem).replace(ABOVE, " - ")
    for number, (headings, text) in enumerate(content.sections, 1):
        above = ABOVE.join([title, *(part.replace(ABOVE, " - ") for part in headings)])
        yield _Item(place, None, above, text, str(path), number)


def _records(rows: Iterator[formats.Row], own: str, place: str, file: str) -> Iterator[_Item]:
    """Ids of records begin with their file only where there are several files."""
    for line, id, title, text in rows:
        named = f"{own}#{id}" if own and isinstance(id, str | int) else id
        yield _Item(place, None if id in (None, "") else named, title, text, file, line)


def _cut(items: Sequence[_Item], reading: Reading) -> Iterator[list[Any]]:
    """The passages of items; what is short, or no text, as it is."""
    from beir_cocodr.data.passages import split_passages
    from beir_cocodr.data.text import word_counter

    texts = [item.text if isinstance(item.text, str) else "" for item in items]
    cut = split_passages(
        texts, word_counter().count, reading.words, Language.parse(reading.language).code
    )
    for item, text, ranges in zip(items, texts, cut, strict=True):
        yield [text[start:end] for start, end in ranges] if len(ranges) > 1 else [item.text]


def _made_id(item: _Item, part: Any, made: Counter[int]) -> str:
    """An id of a place and of what stands there; of the same again, with a number. ``made`` has
    hashes of them all.
    """
    said = f"{item.title}\0{part}".encode("utf-8", "surrogatepass")
    id = f"{item.place if item.id is None else item.id}#{hashlib.sha256(said).hexdigest()[:12]}"
    known = int.from_bytes(
        hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    )
    made[known] += 1
    return id if made[known] == 1 else f"{id}-{made[known]}"


class _ReadBefore:
    """What the documents of a folder said when they were read last, by path, in a file of JSON in
    the cache; only files that have changed are read again, and those that are gone are left out.
    """

    def __init__(self, folder: Path) -> None:
        self._place = (
            cache_folder("files") / f"{text_sha256(_FORMAT, str(folder.resolve()))[:32]}.json"
        )
        self._before: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            self._before = json.loads(self._place.read_text())
        self._now: dict[str, Any] = {}

    def content(self, path: Path, report: Report) -> formats.Content | None:
        state = list(file_state(path))
        known = self._before.get(state[0])
        if known is None or known[0] != state:
            content = formats.read_content(path, report)
            if content is None:
                return None
            known = [state, content.title, content.sections]
        self._now[state[0]] = known
        return formats.Content(
            known[1], [formats.Section(tuple(above), text) for above, text in known[2]]
        )

    def save(self) -> None:
        if self._now != self._before:
            with filling_cache(self._place.parent):
                write_text(self._place, json.dumps(self._now))


# Raise it when a reader reads otherwise.
_FORMAT = "1"
