"""Where a collection comes from, as far as links and names need it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.data.cache_root import cache_root
from beir_cocodr.data.files.file_source import FileSource
from beir_cocodr.data.resolve import resolve_source

_SPLITS = re.compile(r"/(train|dev|test|validation|valid|val)$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+/-]+")


@dataclass(frozen=True)
class Origin:
    """Where a collection comes from.

    Attributes:
        base: its name in ids of ir_datasets: the id without a split, ``apidocs/DOMAIN``, or a folder's name.
        ir_datasets_id: the id it was read from, None for files.
        corpus: the corpus file that can be linked to, None where there is none that lasts.
    """

    base: str
    ir_datasets_id: str | None
    corpus: Path | None


def origin(dataset: str, split: str) -> Origin:
    """Find where a dataset comes from; arguments and errors are those of `load_collection`."""
    source = resolve_source(dataset, split)
    if not isinstance(source, FileSource):
        identifier: str = source.dataset_id  # type: ignore[attr-defined]
        return Origin(_SPLITS.sub("", identifier), identifier, None)
    corpus = source.corpus.resolve()
    if corpus.is_relative_to(cache_root().resolve()):
        # The cache may be deleted at any time, and links into it would break.
        return Origin(_safe(dataset), None, None)
    return Origin(_safe(Path(dataset).resolve().name), None, corpus)


def _safe(name: str) -> str:
    return _UNSAFE.sub("-", name).strip("-/") or "folder"
