"""The cache as a person sees it: what it holds, how much that is, and how it is cleared.

Only folders and names that this package makes are listed, and only what is listed is ever removed.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.errors import InputError
from beir_cocodr.io import (
    CHECKSUMS,
    cache_folder,
    cache_root,
    locked,
    named_folder,
    real_path,
    text_sha256,
)
from beir_cocodr.records import Record

_SECONDS_A_DAY = 86_400

#: The folder of the cache in which entries have the names of their corpora.
_NAMES = "names"

#: The folder of the vectors of texts.
VECTORS = "vectors"

# The variable that names another folder for them, or turns them off.
_VARIABLE = "BEIR_COCODR_VECTORS"
_OFF = "off"

#: Folder of the cache to what it holds, for people.
KINDS = {
    VECTORS: "vectors of texts",
    "corpora": "converted corpora",
    "apidocs": "documentation of packages",
    "files": "texts of folders of files",
    "embeddings": "indexes of hosted models",
    "bm25": "indexes of BM25",
    "token-counts": "lengths of documents",
    "token-places": "places of tokens in documents",
    "query-context": "views of generated queries",
    "query_embeddings": "vectors of queries",
    "questions": "written questions",
    "likelihoods": "likelihoods of queries",
    "judge": "grades of judges",
    "answers": "answers of search engines",
    "pyserini": "stores as Pyserini's indexes",
}

# Everything in these folders is named by a hash in hexadecimal, and documentation by its packages
# before that.
_HASHED = re.compile(r"([a-z+]+-)?[0-9a-f]{12,64}")

# A writer holds the folder of an entry for moments only.
_PATIENCE = 10.0


@dataclass(frozen=True)
class CorpusName(Record):
    """The name of the corpus of an entry; its file is as old as the last use."""

    corpus: str


@dataclass(frozen=True)
class Entry:
    """An entry of the cache.

    Attributes:
        kind: a key of :data:`KINDS`.
        corpus: the corpus that it was made from; "" where nobody recorded it.
        paths: its files and folders.
        bytes: their size.
        used: seconds since the epoch of its last use, as far as that is known.
    """

    kind: str
    corpus: str
    paths: tuple[Path, ...]
    bytes: int
    used: float


def note_corpus(entry: Path, corpus: str) -> None:
    """Record the name of the corpus of an entry, and that it is used now."""
    file = _name_file(entry)
    if file.is_file():
        file.touch()
    else:
        CorpusName(corpus).write(file)


def _name_file(entry: Path) -> Path:
    return cache_folder(_NAMES) / f"{text_sha256(entry.parent.name, entry.name)[:32]}.json"


def vectors_folder() -> Path | None:
    """Return the folder of all vectors of texts, None where none are kept.

    It is ``BEIR_COCODR_VECTORS`` where that is set, and nothing is kept where it is ``off``.
    """
    override = os.environ.get(_VARIABLE)
    if not override:
        return cache_folder(VECTORS)
    return None if override == _OFF else named_folder(_VARIABLE, override)


def entries() -> list[Entry]:
    """Return what the cache holds."""
    held: list[Entry] = []
    root = cache_root()
    for kind in KINDS:
        folder = root / kind
        if kind == VECTORS:
            held += _segments(vectors_folder() or folder)
        elif folder.is_dir() and not folder.is_symlink():
            held += _hashed_entries(kind, folder)
    return held


def is_known(kind: str, corpus: str) -> bool:
    """Return true if the cache holds something of a kind that was made from a corpus."""
    return any(entry.corpus == corpus for entry in entries() if entry.kind == kind)


def _segments(folder: Path) -> Iterator[Entry]:
    """Yield the segments of vectors, one for each encoder and corpus."""
    for file in sorted(folder.glob("*/*/segment.json")):
        segment = file.parent
        if not (_HASHED.fullmatch(segment.name) and _HASHED.fullmatch(segment.parent.name)):
            continue
        try:
            corpus = CorpusName.read(file).corpus
        except InputError:  # damaged
            corpus = ""
        yield _entry(VECTORS, corpus, [segment])


def _hashed_entries(kind: str, folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.iterdir()):
        if not _HASHED.fullmatch(path.name.partition(".")[0]) or path.is_symlink():
            continue
        paths = [path, folder / CHECKSUMS / path.name]
        name = _name_file(path)
        corpus = ""
        if name.is_file():
            paths.append(name)
            corpus = CorpusName.read(name).corpus
        yield _entry(kind, corpus, [path for path in paths if path.exists()])


def _entry(kind: str, corpus: str, paths: list[Path]) -> Entry:
    files = [file for path in paths for file in _files(path)]
    states = [file.stat() for file in files]
    used = max((state.st_mtime for state in states), default=0.0)
    size = sum(state.st_size for state in states)
    return Entry(kind, corpus, tuple(paths), size, used)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]


def chosen(held: Iterable[Entry], wanted: str | None, older_than: float | None) -> list[Entry]:
    """Return the entries that are to be removed.

    Args:
        held: what the cache holds.
        wanted: "all", one of :data:`KINDS`, or a corpus by its name or path; None is "all".
        older_than: days since the last use; None takes all.

    Raises:
        InputError: the cache holds nothing of that name.
    """
    entries = list(held)
    if wanted is not None and wanted != "all":
        names = {wanted}
        with suppress(RuntimeError):  # there may be no such user
            names.add(str(real_path(Path(wanted).expanduser())))
        entries = [
            entry
            for entry in entries
            if entry.kind == wanted or names & {entry.corpus, *_folder_of(entry)}
        ]
        if not entries and wanted not in KINDS:
            raise InputError(
                f"the cache contains nothing of {wanted!r}; give all, a kind or a corpus as "
                "beir-cocodr cache shows them"
            )
    if older_than is not None:
        latest = time.time() - older_than * _SECONDS_A_DAY
        entries = [entry for entry in entries if entry.used < latest]
    return entries


def _folder_of(entry: Entry) -> set[str]:
    """Return the folder of a corpus file, by which its collection is called."""
    path = Path(entry.corpus)
    return {str(path.parent)} if path.name.startswith("corpus.jsonl") else set()


def remove(entries: Iterable[Entry]) -> int:
    """Remove entries, and return the bytes that they had."""
    freed = 0
    for entry in entries:
        for path in entry.paths:
            if path.is_dir():
                with locked(path, seconds=_PATIENCE):
                    shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        freed += entry.bytes
    return freed
