"""From the queries of both sets with their embeddings to resampled collections and their
manifest.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Floats, Ints, spaced_rows
from beir_cocodr.data.beir_folder import write_beir_folder, write_corpus
from beir_cocodr.data.collection import Collection
from beir_cocodr.io import check_output_free, draft_folder, json_sha256
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.records import versions
from beir_cocodr.resampling import ResampleOptions
from beir_cocodr.resampling import manifest as manifests
from beir_cocodr.resampling.overlap import TrainTest, overlap_summary
from beir_cocodr.resampling.similarity import QueryEncoder, nearest, query_embeddings
from beir_cocodr.retrieval.store.store import EmbeddingStore

log = logging.getLogger(__name__)

# Queries of a kind in the picture.
_DRAWN = 300


@dataclass(frozen=True)
class Inputs:
    """Both sets, where they come from, and the (N, d) and (T, d) embeddings of their queries, in
    order.
    """

    pair: TrainTest
    train_origin: manifests.Origin
    test_origin: manifests.Origin
    encoder: manifests.EncoderRecord
    train: EmbeddingStore
    test: EmbeddingStore


def load_pair(
    train: str,
    test: str | Sequence[str],
    output: Path,
    options: ResampleOptions,
    search: SearchOptions,
) -> TrainTest:
    """Both sets, once everything that can be checked before they are read is; an InputError says
    what is wrong.
    """
    check_output_free(output)
    check_device(search.encoder.device)
    pair = TrainTest.load(train, test, options.train_split, options.test_split)
    pair.check_usable()
    return pair


def embed_inputs(
    pair: TrainTest, encoder: str, options: ResampleOptions, search: SearchOptions
) -> Inputs:
    """Embed both sets' queries. An InputError where an encoder is not there or of no use."""
    model = QueryEncoder(encoder, search)
    train, test = (query_embeddings(model, part.queries) for part in (pair.train, pair.test))
    origin = manifests.origin(pair.train.name, options.train_split)
    test_origin = manifests.origin(pair.tests[0], options.test_split)
    if len(pair.tests) > 1:  # which together have no id
        test_origin = replace(test_origin, ir_datasets_id=None)
    return Inputs(pair, origin, test_origin, model.describe(), train, test)


@dataclass(frozen=True)
class ResampledSet:
    """One training set and the test queries that evaluate what is trained on it: a
    :class:`SetRecord` to be.

    Attributes:
        folder: where it goes below the output.
        label: its part of an ir_datasets id, such as ``size-45k``.
        train, test: (n,) and (t,) rows of queries, ascending.
    """

    folder: str
    label: str
    regime: str
    train: Ints
    test: Ints
    size: int | None = None
    k: int | None = None
    bucket: int | None = None


def write_resampled(
    output: Path,
    inputs: Inputs,
    method: str,
    parameters: manifests.RestrainParameters | manifests.ResttestParameters,
    sets: Sequence[ResampledSet],
    base: str | None = None,
) -> manifests.Manifest:
    """Write every set as a BEIR folder, and ``manifest.json``, all in one step. An InputError where
    they cannot be.

    A folder holds the corpus as a link, the queries of both splits, ``qrels/train.tsv`` and
    ``qrels/test.tsv``. A corpus that is no file of the user's is written once, as ``corpus.jsonl``
    of the output. Where test queries have a corpus of their own they have a folder of their own:
    ``test`` in the training set's.

    Args:
        output: the folder; must not be there, or be empty.
        inputs, sets: what was resampled, and what was chosen.
        method, parameters, base: see :class:`Manifest`; by default the name of the training set is
        the base.
    """
    base = base or inputs.train_origin.base
    pair = inputs.pair
    with draft_folder(output) as draft:
        corpus = test_corpus = _placed(draft / "corpus.jsonl", pair.train, inputs.train_origin)
        if not pair.same_corpus:
            test_corpus = _placed(draft / "test-corpus.jsonl", pair.test, inputs.test_origin)
        manifest = manifests.Manifest(
            method=method,
            base=base,
            encoder=inputs.encoder,
            parameters=parameters,
            same_corpus=pair.same_corpus,
            train=manifests.SourceRecord.of(pair.train, inputs.train_origin.ir_datasets_id),
            test=manifests.SourceRecord.of(pair.test, inputs.test_origin.ir_datasets_id),
            sets=[
                _write_set(
                    draft,
                    corpus,
                    test_corpus,
                    pair,
                    found,
                    manifests.set_id(method, base, found.label, found.regime),
                )
                for found in sets
            ],
            overlap=_overlaps(inputs, sets),
            versions=versions(),
            points=_points(inputs, sets),
        )
        manifest.write(draft / manifests.MANIFEST_FILE)
    manifests.remember(output)
    log.info("wrote %d collections below %s", len(sets), output)
    return manifest


def _placed(path: Path, collection: Collection, where: manifests.Origin) -> Path:
    """The corpus file that folders link to."""
    if where.corpus is not None:
        return where.corpus
    write_corpus(path, collection.documents)
    return path


def _write_set(
    draft: Path, corpus: Path, test_corpus: Path, pair: TrainTest, made: ResampledSet, id: str
) -> manifests.SetRecord:
    folder = draft / made.folder
    train, train_qrels = _chosen(pair.train, made.train)
    test, test_qrels = _chosen(pair.test, made.test)
    if pair.same_corpus:
        test_folder = made.folder
        write_beir_folder(
            folder, corpus, train | test, {"train": train_qrels, "test": test_qrels}, draft
        )
    else:
        test_folder = f"{made.folder}/test"
        write_beir_folder(folder, corpus, train, {"train": train_qrels}, draft)
        write_beir_folder(draft / test_folder, test_corpus, test, {"test": test_qrels}, draft)
    splits = {
        "train": _split(made.folder, "train", train, train_qrels),
        "test": _split(test_folder, "test", test, test_qrels),
    }
    return manifests.SetRecord(id=id, **vars(made) | splits)


def _split(
    folder: str, split: str, queries: dict[str, str], qrels: dict[str, dict[str, int]]
) -> manifests.SplitRecord:
    judgements = sum(map(len, qrels.values()))
    return manifests.SplitRecord(
        folder, split, len(queries), judgements, json_sha256(queries), json_sha256(qrels)
    )


def _chosen(collection: Collection, rows: Ints) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """The queries of these rows and their judgements."""
    ids = np.array(list(collection.queries), object)[rows]
    return {query: collection.queries[query] for query in ids}, {
        query: collection.qrels[query] for query in ids
    }


def _points(inputs: Inputs, sets: Sequence[ResampledSet]) -> dict[str, list[tuple[float, float]]]:
    """By PCA, at most :data:`_DRAWN` queries of a kind, evenly spaced.

    Source: Zhan et al., 2022, Figure 1.
    """
    from sklearn.decomposition import PCA  # only what is written needs it

    every, largest = np.arange(len(inputs.train)), max(len(one.train) for one in sets)
    if sets[0].bucket is None:
        rows = {one.regime: one.train for one in sets if len(one.train) == largest}
    else:
        rows = {f"bucket {one.bucket}": np.setdiff1d(every, one.train) for one in sets}
    drawn = {
        name: found[spaced_rows(len(found), _DRAWN)] for name, found in rows.items() if len(found)
    }
    vectors = {name: inputs.train.rows(found).numpy() for name, found in drawn.items()}
    vectors["test"] = inputs.test.rows(spaced_rows(len(inputs.test), _DRAWN)).numpy()
    together = np.concatenate(list(vectors.values())).astype(np.float64)
    if min(together.shape) < 2:
        return {}
    axes = PCA(2, svd_solver="full").fit(together)
    return {
        name: [(float(x), float(y)) for x, y in axes.transform(found).round(4)]
        for name, found in vectors.items()
    }


def _overlaps(inputs: Inputs, sets: Sequence[ResampledSet]) -> manifests.Overlaps:
    train_ids, test_ids = list(inputs.pair.train.queries), list(inputs.pair.test.queries)
    vectors = inputs.test.load().numpy()
    before = nearest(inputs.train, vectors, 1).scores[:, 0]
    # Both regimes of a bucket train on the same queries: their neighbours are looked for once.
    known: dict[bytes, Floats] = {}
    after = {}
    for found in sets:
        key = found.train.tobytes()
        if key not in known:
            known[key] = nearest(inputs.train.select(found.train), vectors, 1).scores[:, 0]
        trained, tested = (
            {train_ids[row] for row in found.train},
            {test_ids[row] for row in found.test},
        )
        after[found.folder] = overlap_summary(inputs.pair, trained, tested, known[key][found.test])
    return manifests.Overlaps(
        overlap_summary(inputs.pair, set(train_ids), set(test_ids), before), after
    )
