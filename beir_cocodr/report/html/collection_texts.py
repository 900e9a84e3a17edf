"""The collection that was judged, for the texts and judgements of the drill-down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError


@dataclass(frozen=True)
class Texts:
    """The collection, or why it is not at hand."""

    collection: Collection | None
    remark: str


def collection_texts(
    recorded: str, split: str | None, corpus_sha256: str | None, named: str | None, named_split: str | None
) -> Texts:
    """Load the collection that a report is about, if it is here as it was then.

    A collection on record is loaded if it is a local folder or file, or made from installed packages; what
    would have to come from elsewhere only if it is named.

    Args:
        recorded, split: on record.
        corpus_sha256: content hash on record, None where there is none.
        named, named_split: what the caller says instead.

    Raises:
        InputError: a named collection cannot be loaded, or is another one than was judged.
    """
    dataset = named or recorded
    local = dataset.startswith("apidocs/") or Path(dataset).exists()
    if named is None and not local:
        return Texts(None, f"Titles and texts are left out: name the collection with --dataset {recorded}.")
    try:
        collection = load_collection(dataset, named_split or split or "test", labels="optional")
    except InputError as error:
        if named is not None:
            raise
        return Texts(None, f"Titles and texts are left out: {error}.")
    changed = corpus_sha256 is not None and collection.documents.content_hash != corpus_sha256
    if changed and named is not None:
        raise InputError(
            f"{named} is not the collection that was judged: its documents have the hash "
            f"{collection.documents.content_hash[:12]}, on record is {corpus_sha256[:12]}"  # type: ignore[index]
        )
    if changed:
        return Texts(None, f"Titles and texts are left out: {recorded} has changed since it was judged.")
    return Texts(collection, "")
