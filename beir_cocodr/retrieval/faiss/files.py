"""A FAISS index and all that belongs to it, written to a folder and read back."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.errors import InputError
from beir_cocodr.io import draft_folder
from beir_cocodr.retrieval.faiss.build import IndexParts, import_faiss
from beir_cocodr.retrieval.faiss.transform import (
    FaissOptions,
    Layout,
    load_transform,
)

logger = logging.getLogger(__name__)


SETTINGS, INDEX, TRANSFORM, REMAINDERS = "settings.json", "index.faiss", "transform.safetensors", "prior.npy"

_FORMAT = 1

_CLASSES = {
    "flat": "IndexFlat",
    "hnsw": "IndexHNSWFlat",
    "ivfpq": "IndexIVFPQ",
    "sq8": "IndexScalarQuantizer",
}


def write_parts(folder: Path, parts: IndexParts) -> None:
    """To a new folder, or in place of an index, which stays whole until the new one is.

    Raises:
        InputError: the folder holds something else, or cannot be written.
    """
    if folder.exists() and not _may_replace(folder):
        raise InputError(f"{folder} is there and is no index: choose another folder, nothing was written")
    settings = {
        "format": _FORMAT,
        "count": int(parts.index.ntotal),
        "width": parts.layout.dimensions,
        "options": asdict(parts.options),
        "layout": asdict(parts.layout),
        "prior_apart": parts.remainders is not None,
        **parts.record,
    }
    try:
        with draft_folder(folder, replace=True) as draft:
            import_faiss().write_index(parts.index, str(draft / INDEX))
            parts.transform.save(draft / TRANSFORM)
            if parts.remainders is not None:
                np.save(draft / REMAINDERS, parts.remainders)
            (draft / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
    except (OSError, RuntimeError) as error:  # faiss reports a full disk as a RuntimeError
        raise InputError(
            f"{folder} cannot be written: {_first_line(error)}; choose another folder"
        ) from error


def read_parts(folder: Path, key: Mapping[str, Any] | None = None) -> IndexParts:
    """What :func:`write_parts` wrote.

    Raises:
        InputError: there is no index, its files do not belong together, or its key has other values than
            those of ``key``.
    """
    settings = _settings(folder)
    saved = settings["key"]
    for name, value in (key or {}).items():
        if name not in saved or saved[name] != value:
            raise InputError(
                f"the index in {folder} is of {name} {saved.get(name)!r}, not {value!r}: build it again"
            )
    faiss = import_faiss()
    try:
        options, layout = FaissOptions(**settings["options"]), Layout(**settings["layout"])
        index = faiss.read_index(str(folder / INDEX))
        remainders = np.load(folder / REMAINDERS) if settings["prior_apart"] else None
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"the index in {folder} cannot be read ({_first_line(error)}): build it again"
        ) from error
    transform = load_transform(options.transform, folder / TRANSFORM)
    count, width = settings["count"], settings["width"]
    found = {
        "kind": (type(index).__name__.removesuffix("IP"), _CLASSES[options.kind]),
        "documents": (index.ntotal, count),
        "dimensions of the index": (index.d, layout.width),
        "dimensions": (layout.dimensions, width),
        "dimensions of the transform": (len(transform.document_mean), width),
        "priors": (count if remainders is None else len(remainders), count),
    }
    for what, (is_, should) in found.items():
        if is_ != should:
            raise InputError(
                f"the files in {folder} do not belong together, {what}: {is_} where {should} is due; "
                "build the index again"
            )
    record = {name: settings[name] for name in ("key", "recall", "faiss")}
    return IndexParts(index, transform, layout, options, remainders, record)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        settings = json.loads(path.read_text())
        known = {"format", "count", "width", "options", "layout", "prior_apart", "key", "recall", "faiss"}
        if settings["format"] != _FORMAT or not known <= set(settings):
            raise KeyError("format")
    except OSError as error:
        raise InputError(f"there is no index in {folder} ({path.name}: {error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not that of an index of this version: build the index again") from error
    return dict(settings)


def _may_replace(folder: Path) -> bool:
    return folder.is_dir() and ((folder / SETTINGS).is_file() or not any(folder.iterdir()))


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
