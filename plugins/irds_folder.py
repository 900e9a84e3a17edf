"""A BEIR folder as a dataset of ir_datasets."""

from __future__ import annotations

from pathlib import Path

from beir_cocodr.data.files.file_source import FileSource
from beir_cocodr.errors import InputError

from .irds_handlers import FolderDocs, FolderQrels, FolderQueries
from .irds_registration import Entry, register_entries


def register_folder(path: str | Path, identifier: str) -> list[str]:
    """Make a BEIR folder loadable as ``ir_datasets.load(identifier)``, and its splits below that.

    The id itself has the documents, and all queries if there are any; ``IDENTIFIER/SPLIT`` has the judgements
    of a split and the queries that it judges. Nothing is read before it is used. Calling it again does no
    harm.

    Args:
        path: the folder: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``, each plain or ``.gz``.
        identifier: the id.

    Returns:
        The ids.

    Raises:
        InputError: no such folder, a part that is missing, or an id that is taken or cannot be one.
    """
    folder = Path(path).resolve()
    source = FileSource.of_folder(str(path), folder, "test")
    if not source.corpus.is_file():
        raise InputError(
            f"{source.corpus}: no such file; a BEIR folder holds corpus.jsonl or corpus.jsonl.gz"
        )
    queries, splits = source.queries_file, source.splits()
    if splits and queries is None:
        raise InputError(f"{folder / 'queries.jsonl'}: no such file, but there are judgements; put it there")
    docs = FolderDocs(folder)
    documentation = {"pretty_name": identifier, "desc": f"<p>The BEIR folder {folder.name}.</p>"}
    all_queries = [FolderQueries(Path(queries))] if queries else []
    entries = {identifier: Entry([docs, *all_queries], documentation)}
    for split in splits:
        qrels = FolderQrels(Path(str(FileSource.of_folder(str(path), folder, split).judgements_file)))
        judged = FolderQueries(Path(str(queries)), qrels.judged)
        entries[f"{identifier}/{split}"] = Entry([docs, judged, qrels], documentation)
    return register_entries(entries, str(folder))
