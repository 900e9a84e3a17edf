"""training.json: what was done to a model, and what it has seen."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection
from beir_cocodr.files import write_text

RECORD_FILE = "training.json"


def seen(collection: Collection, queries: bool) -> dict[str, Any]:
    """What a training stage was shown of one collection, by counts and content hashes."""
    record: dict[str, Any] = {
        "dataset": collection.name,
        "documents": len(collection.documents),
        "corpus_sha256": collection.documents.content_hash,
        "counts": collection.counts,
    }
    if queries:
        record |= {
            "split": collection.split,
            "queries": len(collection.queries),
            "queries_sha256": _sha256(collection.queries),
            "qrels_sha256": _sha256(collection.qrels),
        }
    return record


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_record(model: str | Path) -> dict[str, Any] | None:
    """The record beside a saved model, or None where there is none."""
    path = Path(model) / RECORD_FILE
    return json.loads(path.read_text()) if path.is_file() else None


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Write the record last: its presence says that the model beside it is complete."""
    write_text(folder / RECORD_FILE, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
