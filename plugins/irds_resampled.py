"""Outputs of ``resample`` as datasets of ir_datasets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ir_datasets.datasets.base import FilteredQueries

from beir_cocodr.errors import InputError
from beir_cocodr.io import real_path
from beir_cocodr.records import Json
from beir_cocodr.resampling import manifest as manifests

from .irds_handlers import FolderDocs, FolderQrels, FolderQueries
from .irds_registry import Entry, changing_kept, load_registered, register_entries

_BOTH_REGIMES = "interpolation and extrapolation"
_METHOD_NAMES = {"restrain": "ReSTrain", "resttest": "ReSTTest"}

# What the training queries of ReSTrain are, and the test queries of ReSTTest, by the regime.
_RESTRAIN_QUERIES = {
    "interpolation": "among the {k} nearest of a test query",
    "extrapolation": "outside the {exclude_top} nearest of every test query",
}
_RESTTEST_QUERIES = {
    "interpolation": ", and so are its test queries",
    "extrapolation": ", and its test queries are those in it",
}

_BIBTEX_ID = "Zhan2022Interpolation"
_BIBTEX = """@inproceedings{Zhan2022Interpolation,
  author = {Jingtao Zhan and Xiaohui Xie and Jiaxin Mao and Yiqun Liu and Jiafeng Guo and Min Zhang
    and Shaoping Ma},
  title = {Evaluating Interpolation and Extrapolation Performance of Neural Retrieval Models},
  booktitle = {CIKM},
  year = {2022},
  url = {https://arxiv.org/abs/2204.11447}
}
"""


def register_resampled(
    output: str | Path,
    base_id: str | None = None,
    keep: bool = False,
) -> list[str]:
    """Make an output of ``resample`` loadable as datasets of ir_datasets.

    Ids are ``cocodr/restrain/BASE/size-45k/REGIME`` (or ``k-10``) and
    ``cocodr/resttest/BASE/bucket-1-of-5/REGIME``, where REGIME is interpolation or extrapolation.
    Each has the test queries and their judgements. ``/test`` below it is the same, and ``/train``
    has the training queries and theirs. If BASE is an id of ir_datasets, documents and queries are
    its own, in its class and store; otherwise both are read from the folders. A second call changes
    nothing.

    Args:
        output: The folder with the ``manifest.json``.
        base_id: An id of ir_datasets with the documents of the training set, to be BASE. Default:
            the base in the manifest.
        keep: Let :func:`~beir_cocodr.plugins.irds.register` make it loadable in every process.

    Returns:
        The ids.

    Raises:
        InputError: There is no manifest, the base id is unknown or has other documents, or an id is
            taken.
    """
    output = real_path(Path(output))
    manifest = manifests.read_manifest(output)
    base_id = base_id or None
    entries = _entries(output, manifest, base_id)
    identifiers = register_entries(entries, str(output))
    if keep:
        with changing_kept() as kept:
            kept.resampled[str(output)] = base_id
    return identifiers


def _entries(
    output: Path,
    manifest: manifests.Manifest,
    base_id: str | None,
) -> dict[str, Entry]:
    """Return all datasets of an output by their ids."""
    base = base_id or manifest.base
    first = manifest.sets[0]
    train_docs = _docs(output, manifest.train, first.train, base_id)
    test_docs = train_docs
    if not manifest.same_corpus:
        test_docs = _docs(output, manifest.test, first.test, None)
    entries: dict[str, Entry] = {}
    for resampled in manifest.sets:
        identifier = manifests.set_id(manifest.method, base, resampled.label, resampled.regime)
        documentation = _documentation(manifest, base, resampled, resampled.regime)
        train = _entry(output, train_docs, manifest.train, resampled.train, documentation)
        test = _entry(output, test_docs, manifest.test, resampled.test, documentation)
        entries[identifier] = test
        entries[f"{identifier}/train"] = train
        entries[f"{identifier}/test"] = test
        if manifest.method == "resttest":
            # Both regimes of a bucket train on the same queries.
            bucket = identifier.rpartition("/")[0]
            of_both = _documentation(manifest, base, resampled, _BOTH_REGIMES)
            entries[f"{bucket}/train"] = replace(train, documentation=of_both)
    return entries


def _entry(
    output: Path,
    docs: Any,
    source: manifests.SourceRecord,
    part: manifests.SplitRecord,
    documentation: Json,
) -> Entry:
    """Return the dataset of one side of a set, training or test."""
    return Entry(
        handlers=[docs, *_labels(output, source, part)],
        documentation=documentation,
        counts={"docs": source.documents, "queries": part.queries},
    )


def _docs(
    output: Path,
    source: manifests.SourceRecord,
    part: manifests.SplitRecord,
    base_id: str | None,
) -> Any:
    """Return the documents of one side.

    Every set links to the same corpus, so ``part`` may be any of that side.
    """
    identifier = base_id or source.ir_datasets_id
    if identifier is None:
        return FolderDocs(output / part.folder, source.corpus_sha256)
    base = load_registered(identifier)
    if not base.has_docs():
        raise InputError(f"the base id {identifier!r} has no documents; name one that has")
    count = base.docs_count()
    if count not in (None, source.documents):
        raise InputError(
            f"the base id {identifier!r} has {count} documents, and {output} was made from "
            f"{source.documents}; name the id that it was made from"
        )
    return base.docs_handler()


def _labels(
    output: Path,
    source: manifests.SourceRecord,
    part: manifests.SplitRecord,
) -> list[object]:
    """Return the queries and judgements of one side of a set."""
    folder = output / part.folder
    file = folder / "qrels" / f"{part.split}.tsv"
    if source.ir_datasets_id is None:
        qrels = FolderQrels(file)
        return [FolderQueries(folder / "queries.jsonl", qrels.judged), qrels]
    base = load_registered(source.ir_datasets_id)
    qrels = FolderQrels(file, base.qrels_defs())
    return [FilteredQueries(base.queries_handler(), qrels.judged), qrels]


def _documentation(
    manifest: manifests.Manifest,
    base: str,
    resampled: manifests.SetRecord,
    regime: str,
) -> Json:
    """Return the host's documentation of a set, or of the training queries of both regimes."""
    name = _METHOD_NAMES[manifest.method]
    queries = _describe_queries(manifest, resampled, regime)
    return {
        "pretty_name": f"{base} ({name}, {resampled.label}, {regime})",
        "desc": (
            f"<p>{base}, resampled for {regime} by {name}. {queries} Queries are compared by the "
            f"cosine of their embeddings by {manifest.encoder.name}.</p>"
        ),
        "bibtex_ids": [*_bibtex_ids(manifest.train.ir_datasets_id), _BIBTEX_ID],
        "bibtex": _BIBTEX,
    }


def _describe_queries(
    manifest: manifests.Manifest,
    resampled: manifests.SetRecord,
    regime: str,
) -> str:
    """Return a sentence on the queries of a set."""
    parameters = manifest.parameters
    if isinstance(parameters, manifests.RestrainParameters):
        queries = _RESTRAIN_QUERIES[regime]
        numbers = {"k": resampled.k, "exclude_top": parameters.exclude_top}
        return f"Its training queries are {queries.format(**numbers)}."
    bucket = f"bucket {resampled.bucket} of {parameters.buckets}"
    return f"Its training queries are those outside {bucket}{_RESTTEST_QUERIES.get(regime, '')}."


def _bibtex_ids(identifier: str | None) -> list[str]:
    """Return the citations of a dataset of ir_datasets."""
    if identifier is None:
        return []
    documentation: Any = getattr(load_registered(identifier), "documentation", dict)
    ids: list[str] = documentation().get("bibtex_ids", [])
    return ids
