"""Writing BEIR folders whose corpus is that of another folder, linked and not copied where that can
be.
"""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.file_folder import TextFiles
from beir_cocodr.io import cache_root, write_jsonl, write_qrels

# What our reader puts right, and BEIR's loader does not.
_ONLY_WE_READ = ("title null or absent", "integer ids", "blank lines", "byte order mark")
_CHUNK = 4_096


def link_corpus(collection: Collection, output: Path) -> None:
    """Put the documents of a collection into ``output`` as a ``corpus.jsonl`` that BEIR's loader
    reads: a link to such a file, symbolic but for one in our cache, which may be deleted, else
    hard, else a copy; any other is written.
    """
    target = output / "corpus.jsonl"
    target.unlink(missing_ok=True)
    source = _beir_corpus(collection)
    if source is None:
        write_corpus(target, collection.documents)
    else:
        _link(source, target, None if source.is_relative_to(cache_root().resolve()) else source)


def link_beside(existing: Path, name: str) -> None:
    """Give a file a second name, in a folder beside its own if the name says so."""
    target = existing.parent / name
    target.parent.mkdir(exist_ok=True)
    target.unlink(missing_ok=True)
    _link(existing, target, os.path.relpath(existing, target.parent))


def _link(file: Path, target: Path, path: str | Path | None) -> None:
    """Make ``target`` a symbolic link holding ``path``, if given, else a hard one or a copy: links
    may need rights.
    """
    if path is not None:
        with suppress(OSError):
            target.symlink_to(path)
            return
    with suppress(OSError):
        target.hardlink_to(file)
        return
    shutil.copyfile(file, target)


def _beir_corpus(collection: Collection) -> Path | None:
    """The file behind a collection, if it is one that BEIR's loader reads as we do."""
    source = collection.source
    path = Path("" if source is None else source.documents_file)
    if (
        isinstance(source, TextFiles)
        or path.suffix != ".jsonl"
        or not path.is_file()
        or any(kind in collection.counts for kind in _ONLY_WE_READ)
    ):
        return None
    with path.open(encoding="utf-8") as file:
        first = json.loads(file.readline())
    return path.resolve() if {"_id", "title", "text"} <= first.keys() else None


Qrels = Mapping[str, Mapping[str, int]]


def write_beir_folder(
    folder: Path, corpus: Path, queries: Mapping[str, str], splits: dict[str, Qrels], root: Path
) -> None:
    """Write ``queries.jsonl`` and ``qrels/SPLIT.tsv`` beside a link to a corpus.

    Args:
        folder: made with its parents.
        corpus: ``corpus.jsonl`` or ``corpus.jsonl.gz`` to link to.
        queries: query id to text, in the order in which they are to stand.
        splits: split to query id to {document id: grade}.
        root: what may be moved as a whole: links within it are relative, links out of it absolute.
    """
    (folder / "qrels").mkdir(parents=True)
    path = os.path.relpath(corpus, folder) if corpus.is_relative_to(root) else corpus.resolve()
    _link(
        corpus,
        folder / ("corpus.jsonl.gz" if corpus.name.endswith(".gz") else "corpus.jsonl"),
        path,
    )
    write_jsonl(
        folder / "queries.jsonl", ({"_id": query, "text": text} for query, text in queries.items())
    )
    for split, qrels in splits.items():
        rows = ((query, *judged) for query, grades in qrels.items() for judged in grades.items())
        write_qrels(folder / "qrels" / f"{split}.tsv", rows)


def write_corpus(path: Path, documents: Documents) -> None:
    """Write documents as a BEIR corpus, streamed."""
    write_jsonl(path, chain.from_iterable(documents.chunks(_CHUNK)))
