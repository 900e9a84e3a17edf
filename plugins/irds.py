"""Collections of this package as datasets of ir_datasets: BEIR folders, and resampled ones.

They are added to the registry of ir_datasets, where a second call changes nothing. ir_datasets
looks for no plugins when it is imported: a script calls :func:`register` first, and ``beir-cocodr
irds`` runs ir_datasets' commands after it. Reading ids of ir_datasets is
:mod:`beir_cocodr.data.irds_source`.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ir_datasets

from beir_cocodr.data.irds_source import is_registered, suggestion
from beir_cocodr.data.sources import FileSource
from beir_cocodr.errors import InputError
from beir_cocodr.io import real_path
from beir_cocodr.resampling import manifest as manifests

from .irds_handlers import FolderDocs, FolderQrels, FolderQueries
from .irds_registry import Entry, changing_kept, forget, read_kept, register_entries
from .irds_resampled import register_resampled

__all__ = ["forget", "register", "register_folder", "register_resampled", "run"]

# Commands of the host that name a dataset first, and end in a KeyError if it is unknown.
_OF_A_DATASET = ("export", "lookup")

log = logging.getLogger(__name__)


def register_folder(
    path: str | Path,
    identifier: str,
    keep: bool = False,
) -> list[str]:
    """Make a BEIR folder loadable as ``ir_datasets.load(identifier)``, and its splits below that.

    The id itself has the documents, and all queries if there are any. ``IDENTIFIER/SPLIT`` has the
    judgements of a split and the queries that it judges. Nothing is read before it is used. A
    second call changes nothing.

    Args:
        path: A folder with ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``, each plain
            or ``.gz``.
        identifier: The id.
        keep: Let :func:`register` make it loadable in every process, until :func:`forget`.

    Returns:
        The ids.

    Raises:
        InputError: A part of the folder is missing, or the id has a wrong form or is taken.
    """
    folder = real_path(Path(path))
    source = FileSource.of_folder(str(path), folder, "test")
    if not source.corpus.is_file():
        raise InputError(
            f"{source.corpus}: no such file; a BEIR folder contains corpus.jsonl or corpus.jsonl.gz"
        )
    parts = {split: replace(source, wanted_split=split) for split in source.splits()}
    if any(part.queries_file is None for part in parts.values()):
        raise InputError(
            f"{folder / 'queries.jsonl'}: no such file, although there are judgements; put it there"
        )
    docs = FolderDocs(folder)
    documentation = {"pretty_name": identifier, "desc": f"<p>The BEIR folder {folder.name}.</p>"}
    handlers: list[FolderDocs | FolderQueries] = [docs]
    if source.queries_file:
        handlers.append(FolderQueries(Path(source.queries_file)))
    entries = {identifier: Entry(handlers, documentation)}
    for split, part in parts.items():
        qrels = FolderQrels(Path(str(part.judgements_file)))
        judged = FolderQueries(Path(str(part.queries_file)), qrels.judged)
        entries[f"{identifier}/{split}"] = Entry([docs, judged, qrels], documentation)
    identifiers = register_entries(entries, str(folder))
    if keep:
        with changing_kept() as kept:
            kept.folders[identifier] = str(folder)
    return identifiers


def register() -> list[str]:
    """Make kept ids, and collections that were resampled on this machine, loadable.

    Folders that have disappeared are left out. Of equal ids the kept one comes first, then the
    newest. Another call adds what is new since.

    Returns:
        The ids.
    """
    kept = read_kept()
    identifiers: list[str] = []
    for name, folder in kept.folders.items():
        try:
            identifiers += register_folder(folder, name)
        except InputError as error:
            log.warning(
                "the kept id %s is not registered (%s); beir-cocodr irds forget %s",
                name,
                error,
                name,
            )
    remembered = [str(output) for output in manifests.remembered_outputs()]
    for output in [*kept.resampled, *remembered]:
        try:
            identifiers += register_resampled(output, kept.resampled.get(output))
        except InputError as error:
            log.info("%s is not registered: %s", output, error)
    return list(dict.fromkeys(identifiers))


def run(arguments: Sequence[str]) -> None:
    """Run a command of ir_datasets with the ids of this machine, or one of ours.

    Ours are ``register FOLDER ID`` and, for an output of ``resample``, ``register OUTPUT [ID]``,
    which keep the ids, and ``forget ID``.

    Args:
        arguments: The command and its arguments, such as ``["export", ID, "docs"]``.

    Raises:
        InputError: There is no such command, or it cannot be run.
    """
    name = arguments[0] if arguments else ""
    rest = list(arguments[1:])
    if name == "register" and _can_register(rest):
        print(*_register_and_keep(*rest), sep="\n")
    elif name == "forget" and len(rest) == 1:
        forget(rest[0])
    elif name in ir_datasets.commands.COMMANDS:
        register()
        if name in _OF_A_DATASET:
            _check_known(rest)
        ir_datasets.main([name, *rest])
    else:
        known = ", ".join(ir_datasets.commands.COMMANDS)
        raise InputError(
            "irds takes register FOLDER ID, register OUTPUT [ID], forget ID, and the commands of "
            f"ir_datasets: {known}"
        )


def _is_resampled(folder: str) -> bool:
    return (Path(folder) / manifests.MANIFEST_FILE).is_file()


def _can_register(words: list[str]) -> bool:
    """Return true if the words are a folder and an id, which an output of resample may lack."""
    if len(words) == 1:
        return _is_resampled(words[0])
    return len(words) == 2


def _register_and_keep(folder: str, identifier: str = "") -> list[str]:
    if _is_resampled(folder):
        return register_resampled(folder, identifier, keep=True)
    return register_folder(folder, identifier, keep=True)


def _check_known(words: list[str]) -> None:
    """Check that the dataset that a command of the host names first is known."""
    if words and not words[0].startswith("-") and not is_registered(words[0]):
        raise InputError(f"ir_datasets does not know the id {words[0]!r}{suggestion(words[0])}")
