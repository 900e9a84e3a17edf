"""Writing resampled collections and the manifest that says how they came about.

The manifest of resampled collections.

Where a collection comes from, as far as links and names need it.

Which resampled collections there are on this machine.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.beir_folder import write_beir_folder, write_corpus
from beir_cocodr.data.collection import Collection
from beir_cocodr.io import draft_folder, json_sha256, write_text
from beir_cocodr.records import versions
from beir_cocodr.resampling.inputs import Inputs
from beir_cocodr.resampling.manifest import (
    MANIFEST_FILE,
    Origin,
    remember,
    set_id,
    source_record,
)
from beir_cocodr.resampling.overlap import overlap_summary
from beir_cocodr.resampling.similarity import nearest

log = logging.getLogger(__name__)

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ResampledSet:
    """One training set and the test queries that judge what is trained on it.

    Attributes:
        folder: where it goes below the output.
        label: its part of an ir_datasets id, such as ``size-45k``.
        regime: "interpolation" or "extrapolation".
        facts: further facts for the manifest (size, k, bucket).
        train, test: (n,) and (t,) rows of queries, ascending.
    """

    folder: str
    label: str
    regime: str
    facts: dict[str, Any]
    train: Rows
    test: Rows


def write_resampled(
    output: Path,
    inputs: Inputs,
    method: str,
    parameters: dict[str, Any],
    sets: Sequence[ResampledSet],
    base: str | None = None,
) -> dict[str, Any]:
    """Write every set as a BEIR folder, and ``manifest.json``, all in one step.

    A folder holds the corpus as a link, the queries of both splits, ``qrels/train.tsv`` and
    ``qrels/test.tsv``. A corpus that is no file of the user's is written once, as ``corpus.jsonl`` of the
    output. Where test queries have a corpus of their own they have a folder of their own: ``test`` in the
    training set's.

    Args:
        output: the folder; must not be there, or be empty.
        inputs: what was resampled.
        method: "restrain" or "resttest".
        parameters: what the choice depended on.
        sets: what was chosen.
        base: name in ids of ir_datasets; default: that of the training set.

    Returns:
        The content of the manifest.

    Raises:
        InputError: the output is taken or cannot be written.
    """
    base = base or inputs.train_origin.base
    pair = inputs.pair
    with draft_folder(output) as draft:
        corpora = _Corpora.place(draft, inputs)
        records = [_write_set(draft, corpora, inputs, found) for found in sets]
        manifest = {
            "method": method,
            "base": base,
            "encoder": inputs.encoder,
            "parameters": parameters,
            "same_corpus": pair.same_corpus,
            "train": source_record(pair.train, inputs.train_origin),
            "test": source_record(pair.test, inputs.test_origin),
            "sets": [
                {"id": set_id(method, base, found.label, found.regime), **record}
                for found, record in zip(sets, records, strict=True)
            ],
            "overlap": _overlaps(inputs, sets),
            "versions": versions(),
        }
        write_text(draft / MANIFEST_FILE, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    remember(output)
    log.info("wrote %d collections below %s", len(sets), output)
    return manifest


@dataclass(frozen=True)
class _Corpora:
    """The corpus files that folders link to."""

    train: Path
    test: Path

    @classmethod
    def place(cls, draft: Path, inputs: Inputs) -> _Corpora:
        train = _placed(draft / "corpus.jsonl", inputs.pair.train, inputs.train_origin)
        if inputs.pair.same_corpus:
            return cls(train, train)
        return cls(train, _placed(draft / "test-corpus.jsonl", inputs.pair.test, inputs.test_origin))


def _placed(path: Path, collection: Collection, where: Origin) -> Path:
    if where.corpus is not None:
        return where.corpus
    write_corpus(path, collection.documents)
    return path


def _write_set(draft: Path, corpora: _Corpora, inputs: Inputs, found: ResampledSet) -> dict[str, Any]:
    pair, folder = inputs.pair, draft / found.folder
    train, test = _queries(pair.train, found.train), _queries(pair.test, found.test)
    train_qrels = {query: pair.train.qrels[query] for query in train}
    test_qrels = {query: pair.test.qrels[query] for query in test}
    if pair.same_corpus:
        splits = {"train": train_qrels, "test": test_qrels}
        write_beir_folder(folder, corpora.train, train | test, splits, draft)
        test_folder = found.folder
    else:
        test_folder = f"{found.folder}/test"
        write_beir_folder(folder, corpora.train, train, {"train": train_qrels}, draft)
        write_beir_folder(draft / test_folder, corpora.test, test, {"test": test_qrels}, draft)
    return {
        "folder": found.folder,
        "label": found.label,
        "regime": found.regime,
        **found.facts,
        "train": _part(found.folder, "train", train, train_qrels),
        "test": _part(test_folder, "test", test, test_qrels),
    }


def _part(
    folder: str, split: str, queries: dict[str, str], qrels: dict[str, dict[str, int]]
) -> dict[str, Any]:
    return {
        "folder": folder,
        "split": split,
        "queries": len(queries),
        "judgements": sum(map(len, qrels.values())),
        "queries_sha256": json_sha256(queries),
        "qrels_sha256": json_sha256(qrels),
    }


def _queries(collection: Collection, rows: Rows) -> dict[str, str]:
    ids = list(collection.queries)
    return {ids[row]: collection.queries[ids[row]] for row in rows.tolist()}


def _overlaps(inputs: Inputs, sets: Sequence[ResampledSet]) -> dict[str, Any]:
    pair = inputs.pair
    train_ids, test_ids = list(pair.train.queries), list(pair.test.queries)
    vectors = inputs.test.load().numpy()
    before = nearest(inputs.train, vectors, 1).scores[:, 0]
    # Both regimes of a bucket train on the same queries: their neighbours are looked for once.
    known: dict[bytes, npt.NDArray[np.float32]] = {}
    after = {}
    for found in sets:
        key = found.train.tobytes()
        if key not in known:
            known[key] = nearest(inputs.train.select(found.train), vectors, 1).scores[:, 0]
        after[found.folder] = overlap_summary(
            pair,
            {train_ids[row] for row in found.train.tolist()},
            {test_ids[row] for row in found.test.tolist()},
            known[key][found.test],
        )
    return {"before": overlap_summary(pair, set(train_ids), set(test_ids), before), "after": after}
