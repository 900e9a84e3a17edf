"""Resampled collections as datasets of ir_datasets."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import ir_datasets
from ir_datasets.datasets.base import FilteredQueries

from beir_cocodr.errors import InputError
from beir_cocodr.resampling.manifest import read_manifest, set_id
from beir_cocodr.resampling.remembered import remembered_outputs

from .irds import is_registered, suggestion
from .irds_handlers import FolderDocs, FolderQrels, FolderQueries
from .irds_registration import Entry, register_entries

log = logging.getLogger(__name__)

_BOTH = "interpolation and extrapolation"
_NAMES = {"restrain": "ReSTrain", "resttest": "ReSTTest"}
_CITATION = {
    "bibtex_ids": ["Zhan2022Interpolation"],
    "bibtex": """@inproceedings{Zhan2022Interpolation,
  author = {Jingtao Zhan and Xiaohui Xie and Jiaxin Mao and Yiqun Liu and Jiafeng Guo and Min Zhang and
    Shaoping Ma},
  title = {Evaluating Interpolation and Extrapolation Performance of Neural Retrieval Models},
  booktitle = {CIKM},
  year = {2022},
  url = {https://arxiv.org/abs/2204.11447}
}
""",
}


def register_resampled(output: str | Path, base_id: str | None = None) -> list[str]:
    """Make an output of ``resample`` loadable as datasets of ir_datasets.

    Ids are ``cocodr/restrain/BASE/size-45k/REGIME`` (or ``k-10``) and
    ``cocodr/resttest/BASE/bucket-1-of-5/REGIME``, REGIME being interpolation or extrapolation. Each has the
    test queries and their judgements; ``/test`` below it is the same, ``/train`` the training queries chosen
    and theirs. Documents are those of BASE, in its own class and store, where it is an id of ir_datasets,
    and so are queries; else both are read from the folders. Calling it again does no harm.

    Args:
        output: the folder with the ``manifest.json``.
        base_id: an id of ir_datasets with the documents of the training set, which then is BASE; by default
            BASE is what the manifest says.

    Returns:
        The ids.

    Raises:
        InputError: no manifest, an unknown base id or one with other documents, or ids that are taken.
    """
    output = Path(output).resolve()
    manifest = read_manifest(output)
    base, method = base_id or manifest["base"], manifest["method"]
    docs = {"train": _docs(output, manifest, "train", base_id)}
    docs["test"] = docs["train"] if manifest["same_corpus"] else _docs(output, manifest, "test", None)
    entries: dict[str, Entry] = {}
    for found in manifest["sets"]:
        identifier = set_id(method, base, found["label"], found["regime"])
        sides = {
            side: Entry(
                [docs[side], *_labels(output, manifest[side], found[side])],
                _documentation(manifest, base, found, found["regime"]),
                {"docs": manifest[side]["documents"], "queries": found[side]["queries"]},
            )
            for side in ("train", "test")
        }
        entries |= {identifier: sides["test"], **{f"{identifier}/{side}": sides[side] for side in sides}}
        if method == "resttest":
            # Both regimes of a bucket train on the same queries.
            both = replace(sides["train"], documentation=_documentation(manifest, base, found, _BOTH))
            entries[f"{identifier.rpartition('/')[0]}/train"] = both
    return register_entries(entries, str(output))


def register_remembered() -> list[str]:
    """Register what was resampled on this machine and is still there; of equal ids the newest."""
    identifiers = []
    for output in remembered_outputs():
        try:
            identifiers += register_resampled(output)
        except InputError as error:
            log.info("%s is not registered: %s", output, error)
    return identifiers


def _docs(output: Path, manifest: dict[str, Any], side: str, base_id: str | None) -> Any:
    record = manifest[side]
    identifier = base_id or record["ir_datasets_id"]
    if identifier is None:
        # Every set links to the same corpus.
        return FolderDocs(output / manifest["sets"][0][side]["folder"], record["corpus_sha256"])
    base = _load(identifier)
    if not base.has_docs():
        raise InputError(f"the base id {identifier!r} has no documents; give one that has")
    count = base.docs_count()
    if count not in (None, record["documents"]):
        raise InputError(
            f"the base id {identifier!r} has {count} documents, and {output} was made from "
            f"{record['documents']}: give the id that it was made from"
        )
    return base.docs_handler()


def _labels(output: Path, record: dict[str, Any], part: dict[str, Any]) -> list[Any]:
    """Queries and judgements of one side of a set."""
    folder, identifier = output / part["folder"], record["ir_datasets_id"]
    file = folder / "qrels" / f"{part['split']}.tsv"
    if identifier is None:
        qrels = FolderQrels(file)
        return [FolderQueries(folder / "queries.jsonl", qrels.judged), qrels]
    base = _load(identifier)
    qrels = FolderQrels(file, base.qrels_defs())
    return [FilteredQueries(base.queries_handler(), qrels.judged), qrels]


def _load(identifier: str) -> Any:
    if not is_registered(identifier):
        raise InputError(f"ir_datasets does not know the base id {identifier!r}{suggestion(identifier)}")
    return ir_datasets.load(identifier)


def _documentation(manifest: dict[str, Any], base: str, found: dict[str, Any], regime: str) -> dict[str, Any]:
    name, parameters = _NAMES[manifest["method"]], manifest["parameters"]
    if manifest["method"] == "restrain":
        near = f"among the {found['k']} nearest of a test query"
        far = f"outside the {parameters['exclude_top']} nearest of every test query"
        how = f"Its training queries are {near if regime == 'interpolation' else far}."
    else:
        tests = {"interpolation": ", its test queries too", "extrapolation": ", its test queries those in it"}
        bucket = f"bucket {found['bucket']} of {parameters['buckets']}"
        how = f"Its training queries are those outside {bucket}{tests.get(regime, '')}."
    return {
        "pretty_name": f"{base} ({name}, {found['label']}, {regime})",
        "desc": (
            f"<p>{base}, resampled for {regime} by {name}. {how} Queries are compared by the cosine "
            f"of their embeddings by {manifest['encoder']['name']}.</p>"
        ),
        **_CITATION,
        "bibtex_ids": [*_cited(manifest["train"]["ir_datasets_id"]), *_CITATION["bibtex_ids"]],
    }


def _cited(identifier: str | None) -> list[str]:
    """What the host cites for a dataset of its own."""
    if identifier is None:
        return []
    base = _load(identifier)
    return list(base.documentation().get("bibtex_ids", [])) if hasattr(base, "documentation") else []
