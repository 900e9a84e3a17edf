"""The manifest of resampled collections: from what, how and where on this machine they were made."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection, resolve_source
from beir_cocodr.data.sources import FileSource
from beir_cocodr.errors import InputError
from beir_cocodr.io import cache_root, json_sha256, text_sha256, write_text

log = logging.getLogger(__name__)

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


MANIFEST_FILE = "manifest.json"

_BASE = re.compile(r"[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*")


def read_manifest(output: Path) -> dict[str, Any]:
    """The manifest of an output of `resample`.

    Raises:
        InputError: there is none that can be read.
    """
    path = output / MANIFEST_FILE
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = manifest["method"], manifest["base"], manifest["sets"], manifest["train"], manifest["test"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error!r}); give an output folder of resample") from error
    return manifest


def source_record(collection: Collection, where: Origin) -> dict[str, Any]:
    """What was resampled: counts, and hashes of documents, queries and judgements."""
    return {
        "dataset": collection.name,
        "split": collection.split,
        "ir_datasets_id": where.ir_datasets_id,
        "documents": len(collection.documents),
        "corpus_sha256": collection.documents.content_hash,
        "queries": len(collection.queries),
        "judgements": sum(map(len, collection.qrels.values())),
        "queries_sha256": json_sha256(collection.queries),
        "qrels_sha256": json_sha256(collection.qrels),
        "counts": collection.counts,
    }


def set_id(method: str, base: str, label: str, regime: str) -> str:
    """The ir_datasets id of a set, without a split: ``cocodr/restrain/BASE/size-45k/interpolation``."""
    return f"cocodr/{method}/{base}/{label}/{regime}"


def checked_base(base: str) -> str:
    """A name that can stand in an ir_datasets id.

    Raises:
        InputError: it cannot.
    """
    if not _BASE.fullmatch(base):
        raise InputError(f"--base-id {base!r}: use letters, digits, . _ + - and, between parts, /")
    return base


def short_size(size: int) -> str:
    """A number of queries in an id: 45000 is ``45k``, 45100 is ``45100``."""
    return f"{size // 1000}k" if size % 1000 == 0 else str(size)


def remember(output: Path) -> None:
    """Note an output of `resample` below the cache root, so that its ids can be registered later."""
    folder = str(output.resolve())
    name = text_sha256(folder)[:16]
    try:
        write_text(cache_root() / "resampled" / f"{name}.json", json.dumps({"folder": folder}) + "\n")
    except OSError as error:
        log.warning(
            "%s is not noted in the cache (%s); register_resampled finds it by its path", output, error
        )


def remembered_outputs() -> list[Path]:
    """The outputs that were noted and are still there, the newest first."""
    found = []
    for note in (cache_root() / "resampled").glob("*.json"):
        try:
            folder = Path(json.loads(note.read_text(encoding="utf-8"))["folder"])
            found.append((note.stat().st_mtime_ns, folder))
        except (OSError, ValueError, KeyError, TypeError):
            log.warning("%s cannot be read and is passed over", note)
    return [folder for _, folder in sorted(found, reverse=True) if (folder / "manifest.json").is_file()]
