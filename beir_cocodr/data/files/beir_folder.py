"""Writing BEIR folders whose corpus is a link."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from beir_cocodr.data.documents import Documents

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
