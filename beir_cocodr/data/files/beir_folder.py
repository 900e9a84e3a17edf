"""Writing BEIR folders whose corpus is that of another folder, linked instead of copied."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.file_folder import TextFiles
from beir_cocodr.io import cache_root, real_path, write_jsonl, write_qrels

# Defects that our reader corrects and BEIR's loader does not.
_ONLY_WE_READ = ("title null or absent", "integer ids", "blank lines", "byte order mark")
_CHUNK = 4_096


def link_corpus(collection: Collection, output: Path) -> None:
    """Put the documents of a collection into ``output`` as a ``corpus.jsonl`` for BEIR's loader.

    If the collection is such a file, this is a symbolic link, or else a hard link, or else a copy.
    A file in our cache, which may be deleted, gets no symbolic link. Other collections are written.
    """
    target = output / "corpus.jsonl"
    target.unlink(missing_ok=True)
    source = _beir_corpus(collection)
    if source is None:
        write_corpus(target, collection.documents)
        return
    is_cached = source.is_relative_to(real_path(cache_root()))
    _link(source, target, None if is_cached else source)


def link_beside(existing: Path, name: str) -> None:
    """Give a file a second name, which may lie in a folder beside it."""
    target = existing.parent / name
    target.parent.mkdir(exist_ok=True)
    target.unlink(missing_ok=True)
    path = os.path.relpath(existing, target.parent)
    _link(existing, target, path)


def _link(file: Path, target: Path, path: str | Path | None) -> None:
    """Make ``target`` a link to a file, or a copy where links are not allowed.

    Args:
        file: the file.
        target: the new name.
        path: the content of a symbolic link; None makes a hard link.
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
    """Return the file of a collection if BEIR's loader reads it as we do, else None."""
    source = collection.source
    if source is None or isinstance(source, TextFiles):
        return None
    path = Path(source.documents_file)
    if path.suffix != ".jsonl" or not path.is_file():
        return None
    if any(kind in collection.counts for kind in _ONLY_WE_READ):
        return None
    with path.open(encoding="utf-8") as file:
        first = json.loads(file.readline())
    for field in ("_id", "title", "text"):
        if field not in first:
            return None
    return real_path(path)


#: Query id to document id to grade.
Qrels = Mapping[str, Mapping[str, int]]


def write_beir_folder(
    folder: Path, corpus: Path, queries: Mapping[str, str], splits: dict[str, Qrels], root: Path
) -> None:
    """Write ``queries.jsonl`` and ``qrels/SPLIT.tsv`` beside a link to a corpus.

    Args:
        folder: the folder to make, with its parents.
        corpus: ``corpus.jsonl`` or ``corpus.jsonl.gz`` to link to.
        queries: query id to text, in the order to write.
        splits: split to query id to document id to grade.
        root: a folder that may be moved as a whole: links within it are relative, links out of it
            absolute.
    """
    judgements = folder / "qrels"
    judgements.mkdir(parents=True)
    is_within = corpus.is_relative_to(root)
    path = os.path.relpath(corpus, folder) if is_within else corpus.resolve()
    name = "corpus.jsonl.gz" if corpus.name.endswith(".gz") else "corpus.jsonl"
    _link(corpus, folder / name, path)
    records = ({"_id": query, "text": text} for query, text in queries.items())
    write_jsonl(folder / "queries.jsonl", records)
    for split, qrels in splits.items():
        write_qrels(judgements / f"{split}.tsv", _rows(qrels))


def _rows(qrels: Qrels) -> Iterator[tuple[str, str, int]]:
    for query, grades in qrels.items():
        for document, grade in grades.items():
            yield query, document, grade


def write_corpus(path: Path, documents: Documents) -> None:
    """Write documents as a BEIR corpus, streamed."""
    write_jsonl(path, chain.from_iterable(documents.chunks(_CHUNK)))
