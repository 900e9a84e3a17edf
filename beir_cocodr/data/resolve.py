"""From what a user calls a collection to where it is read from."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from beir_cocodr.data.files.corpus_reader import CORPUS_SUFFIXES
from beir_cocodr.data.files.file_source import FileSource
from beir_cocodr.data.source import Source
from beir_cocodr.errors import InputError


def resolve_source(dataset: str | Path, split: str) -> Source:
    """Find the source of a collection. The first of these that fits is taken, so a folder hides a short name:

    1. an existing folder: a BEIR folder (``corpus.jsonl``, ``queries.jsonl``, ``qrels/SPLIT.tsv``, each plain
       or ``.gz``);
    2. an existing file: a lone corpus (see `read_documents`);
    3. ``irds:ID``: any ir_datasets id;
    4. ``apidocs/DOMAIN``: the embedded collection;
    5. a BEIR short name such as ``scifact`` or ``cqadupstack/android``, through ir_datasets.

    Raises:
        InputError: if it is none of them.
    """
    name = str(dataset)
    if not name.strip():
        raise InputError("the dataset has no name; give a folder, a file, irds:ID or a BEIR name")
    path = Path(dataset)
    if path.is_dir():
        return FileSource.of_folder(name, path, split)
    if path.is_file():
        if not path.name.endswith(CORPUS_SUFFIXES):
            raise InputError(f"{name}: a corpus file ends in one of {', '.join(CORPUS_SUFFIXES)}; rename it")
        return FileSource(name, path, None, split)
    if isinstance(dataset, Path):
        raise InputError(f"dataset {name!r}: no such file or folder")
    if name.startswith("irds:"):
        return _irds_source(name, name.removeprefix("irds:"), split)
    if name.startswith("apidocs/"):
        from beir_cocodr.data.apidocs import apidocs_folder

        return FileSource.of_folder(name, apidocs_folder(name.removeprefix("apidocs/")), split)
    return _beir_short_name(name, split)


def _irds_source(name: str, identifier: str, split: str) -> Source:
    source: Source = _irds().IrdsSource(name, identifier, split)
    return source


def _irds() -> ModuleType:
    # By name: the plugins stand outside this folder in the source tree, where type checkers look for them.
    return import_module("beir_cocodr.plugins.irds")


def _beir_short_name(name: str, split: str) -> Source:
    identifier = f"beir/{name}"
    if _irds().is_registered(f"{identifier}/{split}") or _irds().is_registered(identifier):
        return _irds_source(name, identifier, split)
    hint = _irds().suggestion(identifier, below="beir/")
    raise InputError(
        f"dataset {name!r} is not a BEIR folder, a corpus file ({', '.join(CORPUS_SUFFIXES)}), irds:ID, "
        f"apidocs/DOMAIN or a BEIR name such as scifact{hint}"
    )
