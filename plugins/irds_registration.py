"""Adding datasets to the registry of ir_datasets, again and again without harm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ir_datasets
from ir_datasets.util import MetadataComponent, MetadataProvider

from beir_cocodr.errors import InputError

_ID = re.compile(r"[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*")

#: Id to the place that it was registered from.
_PLACES: dict[str, str] = {}


@dataclass(frozen=True)
class Entry:
    """A dataset that is going to be registered.

    Attributes:
        handlers: of documents, queries and judgements; never a whole dataset, whose id would come along.
        documentation: pretty_name, desc, bibtex_ids, bibtex.
        counts: "docs", "queries" or "qrels" to how many there are, where the handlers do not tell.
    """

    handlers: Sequence[Any]
    documentation: Mapping[str, Any]
    counts: Mapping[str, int] = field(default_factory=dict)


def register_entries(entries: Mapping[str, Entry], place: str) -> list[str]:
    """Register every id that is not registered from the same place already.

    Args:
        entries: id to dataset.
        place: what the ids stand for; the same ids from another place are refused.

    Returns:
        All ids, new or not.

    Raises:
        InputError: an id that cannot be one, or that is taken; then none is registered.
    """
    for identifier in entries:
        if not _ID.fullmatch(identifier):
            raise InputError(
                f"{identifier!r} cannot be an id in ir_datasets: use letters, digits, . _ + - and, between "
                "parts, /"
            )
        if _PLACES.get(identifier, place) != place:
            raise InputError(
                f"the id {identifier!r} is registered already, from {_PLACES[identifier]}; take another"
            )
        if identifier not in _PLACES and _is_taken(identifier):
            raise InputError(f"ir_datasets has the id {identifier!r} already; take another")
    for identifier, entry in entries.items():
        if identifier not in _PLACES:
            ir_datasets.registry.register(identifier, _dataset(identifier, entry))
            _PLACES[identifier] = place
    return list(entries)


def _is_taken(identifier: str) -> bool:
    try:
        ir_datasets.load(identifier)
    except KeyError:
        return False
    return True


def _dataset(identifier: str, entry: Entry) -> Any:
    dataset = ir_datasets.Dataset(_Counts(entry.counts), *entry.handlers, _Documentation(entry.documentation))
    # Without one of our own the registry would look our ids up in the host's table, to the same effect
    # but for queries and judgements, which we can count.
    provider = MetadataProvider(lambda: {identifier: _metadata(dataset)})
    return ir_datasets.Dataset(MetadataComponent(identifier, dataset, provider), dataset)


def _metadata(dataset: Any) -> dict[str, Any]:
    """Counts as the host keeps them. Documents have none here: who trusts an id that has them takes its
    documents for checked by the host."""
    found: dict[str, Any] = {}
    if dataset.has_queries():
        found["queries"] = {"count": dataset.queries_count()}
    if dataset.has_qrels():
        calculated = dataset.qrels_calc_metadata(verbose=False)
        grades = calculated["fields"]["relevance"]["counts_by_value"]
        calculated["fields"]["relevance"]["counts_by_value"] = {str(k): v for k, v in sorted(grades.items())}
        found["qrels"] = calculated
    return found


class _Counts:
    """Counts that are known beforehand, ahead of handlers that would have to read everything."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        for part, count in counts.items():
            setattr(self, f"{part}_count", lambda count=count: count)


class _Documentation:
    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def documentation(self) -> dict[str, Any]:
        return dict(self._content)
