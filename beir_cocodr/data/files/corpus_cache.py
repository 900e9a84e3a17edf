"""Converted corpora, kept below the cache root and used again while their source stays as it was."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from beir_cocodr.data.cache_root import cache_root
from beir_cocodr.data.files.arrow_corpus import ArrowCorpus, CorpusWriter, open_corpus
from beir_cocodr.data.files.defects import ignore
from beir_cocodr.data.files.duplicates import refuse_duplicates
from beir_cocodr.data.files.strict_report import StrictReport
from beir_cocodr.data.source import Source
from beir_cocodr.errors import InputError

# Part of every key: raise it when reading changes what comes out.
_FORMAT = "1"
_LEFT_OVER_SECONDS = 86_400


def converted_corpus(source: Source) -> ArrowCorpus:
    """The documents of a source, converted to Arrow the first time and mapped from then on.

    The file is put in place in one step, so that processes may race and a dead one leaves nothing behind that
    would be trusted.

    Raises:
        InputError: for any error in the corpus, and if the cache folder cannot be written.
    """
    folder = cache_root() / "corpora"
    key = source.key()
    if key is not None:
        converted = _opened(_place(folder, key))
        if converted is not None:
            return converted
    temporary = _temporary_file(folder)
    try:
        content_hash = _convert(source, temporary)
        if source.key() != key:
            raise InputError(f"{source.documents_file}: changed while it was being read; run again")
        place = _place(folder, key or ("content", content_hash))
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)
    return open_corpus(place)


def _convert(source: Source, temporary: Path) -> str:
    report = StrictReport(source.name)
    try:
        written = CorpusWriter(temporary).write(source.documents(report), report.counts)
    except OSError as error:
        raise InputError(
            f"{temporary.parent}: {error.strerror}; point BEIR_COCODR_CACHE elsewhere"
        ) from error
    duplicates = written.ids.find(lambda: ((line, id) for line, id, _, _ in source.documents(ignore)))
    refuse_duplicates(duplicates, source.documents_file, report)
    return written.content_hash


def _temporary_file(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(".*.tmp"):
            # A conversion that was killed cannot clean up; one that runs today may still be alive.
            with suppress(FileNotFoundError):
                if time.time() - left_over.stat().st_mtime > _LEFT_OVER_SECONDS:
                    left_over.unlink()
    except OSError as error:
        raise InputError(
            f"{folder}: {error.strerror}; point BEIR_COCODR_CACHE to a writable folder"
        ) from error
    return folder / f".{uuid4().hex}.tmp"


def _place(folder: Path, key: tuple[str, ...]) -> Path:
    digest = hashlib.sha256("\0".join((_FORMAT, *key)).encode("utf-8", "surrogateescape")).hexdigest()
    return folder / f"{digest[:32]}.arrow"


def _opened(path: Path) -> ArrowCorpus | None:
    try:
        return open_corpus(path)
    except (OSError, ValueError):
        return None
