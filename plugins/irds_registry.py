"""Entries of this package in the registry of ir_datasets, and the ids that are kept.

Kept ids are in a file in ir_datasets' home. ir_datasets looks for no plugins when it is imported,
so :func:`~beir_cocodr.plugins.irds.register` reads them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ir_datasets
from ir_datasets.util import MetadataComponent, MetadataProvider

from beir_cocodr.data.irds_source import is_registered, suggestion
from beir_cocodr.errors import InputError
from beir_cocodr.io import locked
from beir_cocodr.records import Json, Record
from beir_cocodr.resampling import ID, ID_PARTS

# The folder that each id was registered from, in this process.
_SOURCES: dict[str, str] = {}


@dataclass(frozen=True)
class Entry:
    """A dataset to register.

    Attributes:
        handlers: Handlers of documents, queries and judgements, and never an entire dataset, whose
            id would be taken over.
        documentation: A mapping with pretty_name, desc, bibtex_ids and bibtex.
        counts: "docs", "queries" or "qrels" to their number, where the handlers do not count.
    """

    handlers: Sequence[object]
    documentation: Mapping[str, object]
    counts: Mapping[str, int] = field(default_factory=dict)


def register_entries(entries: Mapping[str, Entry], source: str) -> list[str]:
    """Register every id that is not registered from the same source already.

    Args:
        entries: Id to entry.
        source: The folder that the entries come from.

    Returns:
        All ids, new or not.

    Raises:
        InputError: An id has a wrong form, or is taken. Then none is registered.
    """
    for identifier in entries:
        _check_free(identifier, source)
    for identifier, entry in entries.items():
        if identifier not in _SOURCES:
            ir_datasets.registry.register(identifier, _dataset(identifier, entry))
            _SOURCES[identifier] = source
    return list(entries)


def _check_free(identifier: str, source: str) -> None:
    """Check that an id has the right form, and is free or registered from the same source."""
    if not ID.fullmatch(identifier):
        raise InputError(f"{identifier!r} cannot be an id in ir_datasets: {ID_PARTS}")
    registered = _SOURCES.get(identifier)
    if registered is not None and registered != source:
        raise InputError(
            f"the id {identifier!r} is registered already, from {registered}; choose another"
        )
    if registered is None and is_registered(identifier):
        raise InputError(f"ir_datasets has the id {identifier!r} already; choose another")


def load_registered(identifier: str) -> Any:
    """Return a dataset of ir_datasets.

    Raises:
        InputError: The id is unknown to ir_datasets.
    """
    if not is_registered(identifier):
        raise InputError(
            f"ir_datasets does not know the base id {identifier!r}{suggestion(identifier)}"
        )
    return ir_datasets.load(identifier)


def _dataset(identifier: str, entry: Entry) -> Any:
    """Return the host's dataset of an entry."""
    # Known counts come before handlers that would have to read everything.
    counts = SimpleNamespace()
    for part, count in entry.counts.items():
        setattr(counts, f"{part}_count", partial(int, count))
    documentation = SimpleNamespace(documentation=partial(dict, entry.documentation))
    dataset = ir_datasets.Dataset(counts, *entry.handlers, documentation)
    # Without a provider the registry would look our ids up in the host's table, which has no counts
    # of queries and judgements, and we can count them.
    provider = MetadataProvider(lambda: {identifier: _metadata(dataset)})
    return ir_datasets.Dataset(MetadataComponent(identifier, dataset, provider), dataset)


def _metadata(dataset: Any) -> Json:
    """Return the counts of a dataset, in the form of the host's.

    Those of documents are left out: programs would take them as checked by the host.
    """
    metadata: Json = {}
    if dataset.has_queries():
        metadata["queries"] = {"count": dataset.queries_count()}
    if dataset.has_qrels():
        judgements = dataset.qrels_calc_metadata(verbose=False)
        relevance = judgements["fields"]["relevance"]
        grades = sorted(relevance["counts_by_value"].items())
        relevance["counts_by_value"] = {str(grade): count for grade, count in grades}
        metadata["qrels"] = judgements
    return metadata


@dataclass(frozen=True)
class KeptIds(Record):
    """The ids that every process can load after ``register``.

    Attributes:
        folders: Id to BEIR folder.
        resampled: Folder of an output of ``resample`` to the id of its documents, or None for that
            in its manifest.
    """

    folders: dict[str, str] = field(default_factory=dict)
    resampled: dict[str, str | None] = field(default_factory=dict)


def kept_file() -> Path:
    """Return the file of :class:`KeptIds`, in the home of ir_datasets."""
    return Path(ir_datasets.util.home_path()) / "beir_cocodr.json"


def read_kept() -> KeptIds:
    """Return the kept ids."""
    if kept_file().exists():
        return KeptIds.read(kept_file())
    return KeptIds()


@contextmanager
def changing_kept() -> Iterator[KeptIds]:
    """Yield the kept ids to change, and write them, while no other process does."""
    with locked(kept_file().parent):
        kept = read_kept()
        yield kept
        kept.write(kept_file())


def forget(name: str) -> None:
    """Keep an id no longer.

    Args:
        name: The id, or the folder of an output of ``resample``.

    Raises:
        InputError: It is not kept.
    """
    with changing_kept() as kept:
        folder = str(Path(name).resolve())
        if name not in kept.folders and folder not in kept.resampled:
            names = ", ".join([*kept.folders, *kept.resampled]) or "none"
            raise InputError(f"{name!r} is not kept; kept are {names}")
        kept.folders.pop(name, None)
        kept.resampled.pop(folder, None)
