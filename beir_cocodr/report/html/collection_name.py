"""What a collection is called on the page."""

from __future__ import annotations

from pathlib import Path


def collection_name(dataset: str) -> str:
    """The last part of a path; the name of a collection that has one (``irds:ID``, ``apidocs/DOMAIN``)."""
    if dataset.startswith(("irds:", "apidocs/")):
        return dataset
    path = Path(dataset)
    is_path = path.is_absolute() or dataset.startswith((".", "~")) or len(path.parts) > 2
    return path.name or dataset if is_path else dataset
