"""The manifest of resampled collections."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection
from beir_cocodr.errors import InputError
from beir_cocodr.resampling.origin import Origin

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
        "queries_sha256": content_sha256(collection.queries),
        "qrels_sha256": content_sha256(collection.qrels),
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


def content_sha256(content: Any) -> str:
    """A hash of queries or judgements, whatever their order."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
