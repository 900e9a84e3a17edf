"""TREC run files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from beir_cocodr.files import atomic_writer
from beir_cocodr.retrieval.ranking import Results


def write_run(path: Path, results: Results | Iterator[tuple[str, list[tuple[str, float]]]], tag: str) -> None:
    """Write ``query Q0 document rank score tag`` lines, ranks from 1; results may come as a stream.

    Scores are written so that reading them back gives the same float32, and with it the same ties.
    """
    with atomic_writer(path) as file:
        for query, found in results.items() if isinstance(results, dict) else results:
            for rank, (document, score) in enumerate(found, 1):
                file.write(f"{query} Q0 {document} {rank} {score!r} {tag}\n")


def file_names(labels: Iterable[str]) -> dict[str, str]:
    """A file name for each label: a path's last part, without marks that file systems refuse, unique."""
    names: dict[str, str] = {}
    for label in labels:
        last = label.rstrip("/").rsplit("/", 1)
        kind = re.match(r"(lucene-)?(hybrid|rrf|feedback):", label)
        stem = (kind.group(0) if kind and len(last) == 2 else "") + last[-1]
        stem = re.sub(r"[^\w.+-]+", "-", stem).strip("-.") or "model"
        name, number = stem, 2
        while name in names.values():
            name, number = f"{stem}-{number}", number + 1
        names[label] = name
    return names
