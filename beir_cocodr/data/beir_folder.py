"""Writing BEIR folders whose corpus is that of another folder, linked and not copied where that can be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from beir_cocodr.data.collection import Collection, resolve_source
from beir_cocodr.data.documents import Documents
from beir_cocodr.io import atomic_writer, cache_root

_CORPUS = "corpus.jsonl"

# What our reader puts right, and BEIR's loader does not.
_ONLY_WE_READ = ("title null or absent", "integer ids", "blank lines", "byte order mark")


def link_corpus(collection: Collection, output: Path) -> None:
    """Put the documents of a collection into ``output`` as a ``corpus.jsonl`` that BEIR's loader reads.

    A file that is such a file already gets a symbolic link, else a hard link, else it is copied; one in our cache,
    which may be deleted at any time, gets no symbolic link. Any other corpus is written out.
    """
    target = output / _CORPUS
    target.unlink(missing_ok=True)
    source = _beir_corpus(collection)
    if source is None:
        _write(collection, target)
    elif source.is_relative_to(cache_root().resolve()):
        _hard_link(source, target)
    else:
        try:
            target.symlink_to(source)
        except OSError:
            _hard_link(source, target)


def link_beside(existing: Path, name: str) -> None:
    """Give a file a second name, in a folder beside its own if the name says so."""
    target = existing.parent / name
    target.parent.mkdir(exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.symlink_to(os.path.relpath(existing, target.parent))
    except OSError:
        _hard_link(existing, target)


def _hard_link(source: Path, target: Path) -> None:
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)


def _beir_corpus(collection: Collection) -> Path | None:
    """The file behind a collection, if it is one that BEIR's loader reads as we do."""
    path = Path(resolve_source(collection.name, "train").documents_file)
    if path.suffix != ".jsonl" or not path.is_file() or any(kind in collection.counts for kind in _ONLY_WE_READ):
        return None
    with path.open(encoding="utf-8") as file:
        first = json.loads(file.readline())
    return path.resolve() if {"_id", "title", "text"} <= first.keys() else None


def _write(collection: Collection, target: Path) -> None:
    with atomic_writer(target) as file:
        for chunk in collection.documents.chunks(1000):
            file.writelines(json.dumps(document, ensure_ascii=False) + "\n" for document in chunk)


Qrels = Mapping[str, Mapping[str, int]]

_CHUNK = 4_096


def write_beir_folder(
    folder: Path, corpus: Path, queries: Mapping[str, str], splits: Mapping[str, Qrels], root: Path
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
    inside = corpus.is_relative_to(root)
    target = os.path.relpath(corpus, folder) if inside else str(corpus.resolve())
    link = folder / ("corpus.jsonl.gz" if corpus.name.endswith(".gz") else "corpus.jsonl")
    try:
        link.symlink_to(target)
    except OSError:
        # Where links by name need rights that the user lacks, or the file system knows none.
        link.hardlink_to(corpus)
    with (folder / "queries.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for query, text in queries.items():
            file.write(json.dumps({"_id": query, "text": text}, ensure_ascii=False) + "\n")
    for split, qrels in splits.items():
        with (folder / "qrels" / f"{split}.tsv").open("w", encoding="utf-8", newline="\n") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            for query, grades in qrels.items():
                file.writelines(f"{query}\t{document}\t{grade}\n" for document, grade in grades.items())


def write_corpus(path: Path, documents: Documents) -> None:
    """Write documents as a BEIR corpus, streamed."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for chunk in documents.chunks(_CHUNK):
            file.writelines(json.dumps(document, ensure_ascii=False) + "\n" for document in chunk)
