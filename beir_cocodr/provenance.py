"""training.json: what was done to a model, and what it has seen.

The training records of a model and of what it was made from.

What models have seen in training of the collection that they are judged on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.io import file_sha256, json_sha256, write_text
from beir_cocodr.models.spec import ModelSpec

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
            "queries_sha256": json_sha256(collection.queries),
            "qrels_sha256": json_sha256(collection.qrels),
        }
    return record


def read_record(model: str | Path) -> dict[str, Any] | None:
    """The record beside a saved model, or None where there is none."""
    path = Path(model) / RECORD_FILE
    return json.loads(path.read_text()) if path.is_file() else None


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Write the record last: its presence says that the model beside it is complete."""
    write_text(folder / RECORD_FILE, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def training_lineage(encoder: str) -> list[dict[str, Any]]:
    """The content of training.json of an encoder and of its ancestors, oldest first; [] without a record.

    Raises:
        InputError: a training.json cannot be read.
    """
    try:
        record = read_record(encoder)
    except ValueError as error:
        raise InputError(f"{Path(encoder) / RECORD_FILE} cannot be read ({error})") from error
    found = []
    while record is not None:
        found.append(record)
        record = record.get("parent")
    return found[::-1]


_CHUNK = 4_096

#: Ids of documents that a report lists; all are counted.
LISTED = 100

_HASHES = ("corpus_sha256", "split", "queries_sha256", "qrels_sha256")


def contamination_statement(models: Sequence[str], collection: Collection) -> dict[str, dict[str, Any]]:
    """For each model, what its training was given, and which of the evaluated texts were among that.

    The training.json of a model and of all its ancestors are merged. A training collection with the hash of
    the evaluated one had all of it. One with another hash is looked at if it is still to be had locally with
    the hash on record: documents are compared by title and text, queries by text, as ids may be anything.
    Else what it shares is unknown, and said to be. Being given is not being drawn: a training of few steps
    may have read only a part.

    Args:
        models: names as for ``evaluate``; of ``hybrid:M``, ``rrf:M`` and ``feedback:M`` the encoder counts.
        collection: what they are judged on.

    Returns:
        model -> ``stages`` (oldest first), ``root`` (the model that everything began with, of which nothing
        is known), ``collections`` (training collections by hash, with ``stages``, ``documents_shared`` and
        ``queries_shared``, None where unknown, and ``same_labels``), ``documents_seen`` and ``queries_seen``
        (evaluated ones that were given to training, each counted once), ``document_ids`` (the first 100),
        ``query_ids``, ``labels_seen``, ``complete`` (nothing is unknown but the root), ``sentences``.

    Raises:
        InputError: a training.json cannot be read.
    """
    evaluated = _Evaluated(collection)
    encoders = {model: ModelSpec.parse(model).encoder for model in models}
    told = {encoder: _statement(encoder, evaluated) for encoder in dict.fromkeys(encoders.values())}
    return {model: told[encoder] for model, encoder in encoders.items()}


class _Evaluated:
    """The evaluated collection, its contents hashed once they are asked for."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.record = seen(collection, queries=True)

    @cached_property
    def contents(self) -> npt.NDArray[np.int64]:
        """(N,) hashes of title and text, 0 for an empty document."""
        return _contents(self.collection.documents)


def _statement(encoder: str, evaluated: _Evaluated) -> dict[str, Any]:
    if encoder == "bm25":
        return _merged("bm25", [], evaluated) | {"sentences": ["BM25 is not trained."]}
    return _merged(encoder, training_lineage(encoder), evaluated)


def _merged(model: str, records: list[dict[str, Any]], evaluated: _Evaluated) -> dict[str, Any]:
    merged: dict[str, dict[str, Any]] = {}
    for record in records:
        for shown in record.get("seen", []):
            key = json.dumps([shown.get(name) for name in _HASHES])
            merged.setdefault(key, shown | {"stages": []})["stages"].append(record["stage"])
    documents = np.zeros(len(evaluated.collection.documents), bool)
    queries: set[str] = set()
    told, complete = [], True
    for shown in merged.values():
        rows, asked = _shared_documents(shown, evaluated), _shared_queries(shown, evaluated)
        if rows is not None:
            documents |= rows
        queries |= asked or set()
        complete = complete and rows is not None and asked is not None
        same_labels = shown.get("qrels_sha256") == evaluated.record["qrels_sha256"]
        told.append(
            {name: shown.get(name) for name in ("dataset", "documents", "queries", *_HASHES, "stages")}
            | {
                "documents_shared": None if rows is None else int(rows.sum()),
                "queries_shared": None if asked is None else len(asked),
                "same_labels": bool(evaluated.collection.qrels) and same_labels,
            }
        )
    report: dict[str, Any] = {
        "stages": [record["stage"] for record in records],
        "root": records[0]["base"] if records else model,
        "collections": told,
        "documents_seen": int(documents.sum()),
        "queries_seen": len(queries),
        "document_ids": evaluated.collection.documents.ids(np.flatnonzero(documents)[:LISTED]),
        "query_ids": [query for query in evaluated.collection.queries if query in queries],
        "labels_seen": any(found["same_labels"] for found in told),
        "complete": complete,
    }
    return report | {"sentences": _sentences(report, evaluated)}


def _shared_documents(shown: dict[str, Any], evaluated: _Evaluated) -> npt.NDArray[np.bool_] | None:
    """(N,) which evaluated documents a training collection has; None where that is unknown."""
    if shown.get("corpus_sha256") == evaluated.record["corpus_sha256"]:
        return np.ones(len(evaluated.collection.documents), bool)
    found = _training_collection(shown)
    if found is None:
        return None
    own = evaluated.contents
    shared: npt.NDArray[np.bool_] = np.isin(own, _contents(found.documents)) & (own != 0)
    return shared


def _shared_queries(shown: dict[str, Any], evaluated: _Evaluated) -> set[str] | None:
    """Ids of evaluated queries that stand in a training collection; None where that is unknown."""
    queries = evaluated.collection.queries
    if "queries_sha256" not in shown or not queries:
        return set()
    if shown["queries_sha256"] == evaluated.record["queries_sha256"]:
        return set(queries)
    found = _training_collection(shown)
    if found is None:
        return None
    texts = {text.strip() for text in found.queries.values()}
    return {query for query, text in queries.items() if text.strip() in texts}


def _training_collection(shown: dict[str, Any]) -> Collection | None:
    """A collection that a record names, if it is here, local, and as it was then."""
    name = str(shown.get("dataset"))
    if not (name.startswith("apidocs/") or Path(name).exists()):
        return None
    # Generated queries are on record without a split; their folder has just one.
    split = shown.get("split") or ("train" if "generation" in shown else None)
    try:
        found = load_collection(name, split or "test", labels="required" if split else "none")
    except InputError:
        return None
    now = seen(found, queries=split is not None)
    if "generation" in shown:
        file = Path(name) / "queries.jsonl"
        now["queries_sha256"] = file_sha256(file) if file.is_file() else None
    names = ("corpus_sha256", "queries_sha256") if split else ("corpus_sha256",)
    return found if all(now.get(name) == shown.get(name) for name in names) else None


def _contents(documents: Documents) -> npt.NDArray[np.int64]:
    hashes = np.zeros(len(documents), np.int64)
    row = 0
    for chunk in documents.chunks(_CHUNK):
        for document in chunk:
            content = (document["title"].strip(), document["text"].strip())
            hashes[row] = hash(content) if any(content) else 0
            row += 1
    return hashes


def _sentences(report: dict[str, Any], evaluated: _Evaluated) -> list[str]:
    """The statement for a person."""
    if not report["stages"]:
        return [f"There is no training.json beside {report['root']}: nothing is known of what it has seen."]
    size, asked = len(evaluated.collection.documents), len(evaluated.collection.queries)
    least = "" if report["complete"] else "at least "
    told = [
        f"Trained by {', '.join(report['stages'])} from {report['root']}, of which nothing is known.",
        f"Training was given {least}{report['documents_seen']:,} of the {size:,} evaluated documents and "
        f"{least}{report['queries_seen']:,} of the {asked:,} evaluated queries.",
    ]
    if report["labels_seen"]:
        told.append("Training was given the very labels that judge it here.")
    told += [
        f"What {found['dataset']} shares with this collection is unknown: it is not here as it was then."
        for found in report["collections"]
        if found["documents_shared"] is None or found["queries_shared"] is None
    ]
    return told
