"""What pre-training is shown of generated queries."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.generation.record import read_generation
from beir_cocodr.errors import InputError
from beir_cocodr.training.processes import on_main


def seen_contexts(folders: Sequence[str], collections: Sequence[Collection]) -> list[dict[str, Any]]:
    """The records of folders with generated queries, by hashes and counts.

    Args:
        folders: made by ``generate-queries``; none is fine.
        collections: the corpora that are trained on; each must have queries, and no folder another corpus.

    Raises:
        InputError: a folder is not finished, has the queries of another corpus, or a corpus has none.
    """
    corpora = {collection.documents.content_hash: collection.name for collection in collections}
    found = []
    for folder in folders:
        record = read_generation(Path(folder))
        corpus = record["dataset"]["corpus_sha256"]
        if corpus not in corpora:
            raise InputError(
                f"{folder}: its queries were generated from another corpus than "
                f"{', '.join(corpora.values())}; generate queries from that, or name their own corpus with "
                "--dataset"
            )
        file = Path(folder) / "queries.jsonl"
        if not file.is_file():
            raise InputError(f"{file}: no such file; generate the queries again")
        found.append(
            {
                "dataset": str(folder),
                "corpus_sha256": corpus,
                "queries_sha256": on_main(partial(_sha256, file)),
                "generation": {name: record[name] for name in ("settings", "counts")},
            }
        )
    asked = {record["corpus_sha256"] for record in found}
    if folders and (missing := [name for sha256, name in corpora.items() if sha256 not in asked]):
        raise InputError(
            f"there are no queries for {', '.join(missing)}: name their folder with a further --queries, or "
            "leave the corpus out"
        )
    return found


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
