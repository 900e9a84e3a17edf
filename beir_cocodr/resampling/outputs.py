"""From the queries of both sets with their embeddings to resampled collections and their manifest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.beir_folder import write_beir_folder, write_corpus
from beir_cocodr.data.collection import Collection
from beir_cocodr.io import draft_folder, json_sha256
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import versions
from beir_cocodr.resampling.embeddings import QueryEncoder, query_embeddings
from beir_cocodr.resampling.manifest import (
    MANIFEST_FILE,
    EncoderRecord,
    Manifest,
    Origin,
    Overlaps,
    RestrainParameters,
    ResttestParameters,
    SetRecord,
    SourceRecord,
    SplitRecord,
    origin,
    remember,
    set_id,
)
from beir_cocodr.resampling.overlap import TrainTest, overlap_summary
from beir_cocodr.resampling.similarity import nearest
from beir_cocodr.retrieval.store.store import EmbeddingStore, Rows

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inputs:
    """A training and a test set with the embeddings of their queries.

    Attributes:
        pair: the sets; the order of their queries is that of the rows.
        train_origin, test_origin: where they come from.
        encoder: what the similarity depends on.
        train, test: (N, d) and (T, d) embeddings.
    """

    pair: TrainTest
    train_origin: Origin
    test_origin: Origin
    encoder: EncoderRecord
    train: EmbeddingStore
    test: EmbeddingStore


def embed_inputs(
    pair: TrainTest, splits: tuple[str, str], encoder: str, options: SearchOptions = SearchOptions()
) -> Inputs:
    """Embed the queries of both sets.

    Args:
        pair: the sets.
        splits: of training and test set, as they were asked for.
        encoder, options: as for :class:`QueryEncoder`.

    Raises:
        InputError: there is no such encoder, or its embeddings cannot be used.
    """
    model = QueryEncoder(encoder, options)
    train, test = (query_embeddings(model, part.queries) for part in (pair.train, pair.test))
    origins = [origin(part.name, split) for part, split in zip((pair.train, pair.test), splits, strict=True)]
    return Inputs(pair, origins[0], origins[1], model.describe(), train, test)


@dataclass(frozen=True)
class ResampledSet:
    """One training set and the test queries that evaluate what is trained on it.

    Attributes:
        folder: where it goes below the output.
        label: its part of an ir_datasets id, such as ``size-45k``.
        regime: "interpolation" or "extrapolation".
        train, test: (n,) and (t,) rows of queries, ascending.
        size, k, bucket: for the manifest, see :class:`SetRecord`.
    """

    folder: str
    label: str
    regime: str
    train: Rows
    test: Rows
    size: int | None = None
    k: int | None = None
    bucket: int | None = None


def write_resampled(
    output: Path,
    inputs: Inputs,
    method: str,
    parameters: RestrainParameters | ResttestParameters,
    sets: Sequence[ResampledSet],
    base: str | None = None,
) -> Manifest:
    """Write every set as a BEIR folder, and ``manifest.json``, all in one step.

    A folder holds the corpus as a link, the queries of both splits, ``qrels/train.tsv`` and ``qrels/test.tsv``. A
    corpus that is no file of the user's is written once, as ``corpus.jsonl`` of the output. Where test queries have a
    corpus of their own they have a folder of their own: ``test`` in the training set's.

    Args:
        output: the folder; must not be there, or be empty.
        inputs: what was resampled.
        method: "restrain" or "resttest".
        parameters: what the choice depended on.
        sets: what was chosen.
        base: name in ids of ir_datasets; default: that of the training set.

    Returns:
        The manifest.

    Raises:
        InputError: the output is taken or cannot be written.
    """
    base = base or inputs.train_origin.base
    pair = inputs.pair
    with draft_folder(output) as draft:
        corpora = _Corpora.place(draft, inputs)
        manifest = Manifest(
            method=method,
            base=base,
            encoder=inputs.encoder,
            parameters=parameters,
            same_corpus=pair.same_corpus,
            train=SourceRecord.of(pair.train, inputs.train_origin.ir_datasets_id),
            test=SourceRecord.of(pair.test, inputs.test_origin.ir_datasets_id),
            sets=[
                _write_set(draft, corpora, inputs, found, set_id(method, base, found.label, found.regime))
                for found in sets
            ],
            overlap=_overlaps(inputs, sets),
            versions=versions(),
        )
        manifest.write(draft / MANIFEST_FILE)
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


def _write_set(draft: Path, corpora: _Corpora, inputs: Inputs, found: ResampledSet, id: str) -> SetRecord:
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
    return SetRecord(
        id=id,
        folder=found.folder,
        label=found.label,
        regime=found.regime,
        train=_split(found.folder, "train", train, train_qrels),
        test=_split(test_folder, "test", test, test_qrels),
        size=found.size,
        k=found.k,
        bucket=found.bucket,
    )


def _split(folder: str, split: str, queries: dict[str, str], qrels: dict[str, dict[str, int]]) -> SplitRecord:
    judgements = sum(map(len, qrels.values()))
    return SplitRecord(folder, split, len(queries), judgements, json_sha256(queries), json_sha256(qrels))


def _queries(collection: Collection, rows: Rows) -> dict[str, str]:
    ids = list(collection.queries)
    return {ids[row]: collection.queries[ids[row]] for row in rows.tolist()}


def _overlaps(inputs: Inputs, sets: Sequence[ResampledSet]) -> Overlaps:
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
    return Overlaps(overlap_summary(pair, set(train_ids), set(test_ids), before), after)
