"""From the queries of both sets with their embeddings to resampled collections and a manifest."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from beir_cocodr.arrays import Floats, Ints, spaced_rows
from beir_cocodr.data.collection import Collection, Dataset, Datasets
from beir_cocodr.data.files.beir_folder import write_beir_folder, write_corpus
from beir_cocodr.io import check_output_free, draft_folder, json_sha256
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.records import versions
from beir_cocodr.resampling import ResampleOptions
from beir_cocodr.resampling import manifest as manifests
from beir_cocodr.resampling.overlap import TrainTest, overlap_summary
from beir_cocodr.resampling.similarity import QueryEncoder, nearest, query_embeddings
from beir_cocodr.retrieval.resolve import Model
from beir_cocodr.retrieval.store.store import EmbeddingStore

log = logging.getLogger(__name__)

#: Queries of a kind in the picture.
_DRAWN = 300

Qrels = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Inputs:
    """Both sets and the embeddings of their queries.

    Attributes:
        pair: the sets.
        encoder: of the embeddings.
        train: (N, d) embeddings of the training queries, in their order.
        test: (T, d) embeddings of the test queries, in their order.
    """

    pair: TrainTest
    encoder: manifests.EncoderRecord
    train: EmbeddingStore
    test: EmbeddingStore

    @property
    def train_origin(self) -> manifests.Origin:
        """Return where the training set comes from."""
        return manifests.origin(self.pair.train)

    @property
    def test_origin(self) -> manifests.Origin:
        """Return where the test set comes from; several sets together have no id."""
        first = manifests.origin(self.pair.test)
        if self.pair.test_sets == 1:
            return first
        return manifests.Origin(first.base, None, first.corpus)


def load_pair(
    train: Dataset,
    test: Datasets,
    output: Path,
    options: ResampleOptions,
    search: SearchOptions,
) -> TrainTest:
    """Load both sets, after a check of all that can be checked before.

    Raises:
        InputError: The output folder is taken, the device does not exist, or a set cannot be loaded
            or used.
    """
    check_output_free(output)
    check_device(search.encoder.device)
    pair = TrainTest.load(train, test, options.train_split, options.test_split)
    pair.check_usable()
    return pair


def embed_inputs(pair: TrainTest, model: Model, search: SearchOptions) -> Inputs:
    """Embed the queries of both sets.

    Raises:
        InputError: The encoder cannot be loaded, or its embeddings are not finite.
    """
    encoder = QueryEncoder(model, search)
    train = query_embeddings(encoder, pair.train.queries)
    test = query_embeddings(encoder, pair.test.queries)
    return Inputs(pair, encoder.describe(), train, test)


#: Called with the folder before it takes its name, and the manifest; what it writes to the folder
#: appears together with the sets.
Draw: TypeAlias = Callable[[Path, manifests.Manifest], object]


@dataclass(frozen=True)
class ResampledSet:
    """One training set and the test queries that evaluate what is trained on it.

    It becomes a :class:`~beir_cocodr.resampling.manifest.SetRecord`, which explains the other
    attributes.

    Attributes:
        folder: below the output.
        label: its part of an ir_datasets id, such as ``size-45k``.
        train: (n,) rows of training queries, ascending.
        test: (t,) rows of test queries, ascending.
    """

    folder: str
    label: str
    regime: str
    train: Ints
    test: Ints
    size: int | None = None
    k: int | None = None
    bucket: int | None = None


@dataclass(frozen=True)
class Method:
    """The drawing of sets, for the manifest.

    Attributes:
        name: "restrain" or "resttest".
        parameters: what the choice depended on.
        base: name in ids of ir_datasets; by default that of the training set.
    """

    name: str
    parameters: manifests.RestrainParameters | manifests.ResttestParameters
    base: str | None = None


def write_resampled(
    output: Path,
    inputs: Inputs,
    method: Method,
    sets: Sequence[ResampledSet],
    draw: Draw | None = None,
) -> manifests.Manifest:
    """Write every set as a BEIR folder, and ``manifest.json``, all in one step.

    A folder holds the corpus as a link, the queries of both splits, ``qrels/train.tsv`` and
    ``qrels/test.tsv``. A corpus that is no file of the user's is written once, as ``corpus.jsonl``
    of the output. Test queries that have another corpus have another folder: ``test`` in that of
    the training set.

    Args:
        output: the folder; must not exist, or be empty.
        inputs: what was resampled.
        method: how the sets were drawn.
        sets: the sets.
        draw: see :data:`Draw`.

    Raises:
        InputError: The collections cannot be written.
    """
    pair = inputs.pair
    train_origin = inputs.train_origin
    test_origin = inputs.test_origin
    base = method.base or train_origin.base
    with draft_folder(output) as draft:
        writer = _Writer(draft, pair, train_origin, test_origin)
        records = []
        for resampled in sets:
            identifier = manifests.set_id(method.name, base, resampled.label, resampled.regime)
            records.append(writer.write(resampled, identifier))
        manifest = manifests.Manifest(
            method=method.name,
            base=base,
            encoder=inputs.encoder,
            parameters=method.parameters,
            same_corpus=pair.same_corpus,
            train=manifests.SourceRecord.of(pair.train, train_origin.ir_datasets_id),
            test=manifests.SourceRecord.of(pair.test, test_origin.ir_datasets_id),
            sets=records,
            overlap=_overlaps(inputs, sets),
            versions=versions(),
            content_sha256="",
            points=_points(inputs, sets),
        )
        manifest = replace(manifest, content_sha256=manifest.hash_content())
        manifest.write(draft / manifests.MANIFEST_FILE)
        if draw is not None:
            draw(draft, manifest)
    manifests.remember(output)
    log.info("wrote %d collections below %s", len(sets), output)
    return manifest


class _Writer:
    """Writes sets to folders below a draft of the output; the corpora are written at once."""

    def __init__(
        self,
        draft: Path,
        pair: TrainTest,
        train_origin: manifests.Origin,
        test_origin: manifests.Origin,
    ) -> None:
        self._draft = draft
        self._pair = pair
        self._corpus = _corpus_file(draft / "corpus.jsonl", pair.train, train_origin)
        self._test_corpus = self._corpus
        if not pair.same_corpus:
            self._test_corpus = _corpus_file(draft / "test-corpus.jsonl", pair.test, test_origin)

    def write(self, resampled: ResampledSet, identifier: str) -> manifests.SetRecord:
        """Write a set, which has this id of ir_datasets."""
        folder = resampled.folder
        test_folder = folder
        if not self._pair.same_corpus:
            test_folder = f"{folder}/test"
        train, train_qrels = _chosen(self._pair.train, resampled.train)
        test, test_qrels = _chosen(self._pair.test, resampled.test)
        if self._pair.same_corpus:
            qrels = {"train": train_qrels, "test": test_qrels}
            self._write_folder(folder, self._corpus, train | test, qrels)
        else:
            self._write_folder(folder, self._corpus, train, {"train": train_qrels})
            self._write_folder(test_folder, self._test_corpus, test, {"test": test_qrels})
        return manifests.SetRecord(
            id=identifier,
            folder=folder,
            label=resampled.label,
            regime=resampled.regime,
            train=_split_record(folder, "train", train, train_qrels),
            test=_split_record(test_folder, "test", test, test_qrels),
            size=resampled.size,
            k=resampled.k,
            bucket=resampled.bucket,
        )

    def _write_folder(
        self,
        folder: str,
        corpus: Path,
        queries: dict[str, str],
        splits: Mapping[str, Qrels],
    ) -> None:
        write_beir_folder(
            folder=self._draft / folder,
            corpus=corpus,
            queries=queries,
            splits=dict(splits),
            root=self._draft,
        )


def _corpus_file(path: Path, collection: Collection, origin: manifests.Origin) -> Path:
    """Return the corpus file that folders link to, which is written if there is none."""
    if origin.corpus is not None:
        return origin.corpus
    write_corpus(path, collection.documents)
    return path


def _split_record(
    folder: str,
    split: str,
    queries: dict[str, str],
    qrels: Qrels,
) -> manifests.SplitRecord:
    return manifests.SplitRecord(
        folder=folder,
        split=split,
        queries=len(queries),
        judgements=sum(map(len, qrels.values())),
        queries_sha256=json_sha256(queries),
        qrels_sha256=json_sha256(qrels),
    )


def _chosen(collection: Collection, rows: Ints) -> tuple[dict[str, str], Qrels]:
    """Return the queries of some rows, and their judgements."""
    ids = list(collection.queries)
    chosen = [ids[row] for row in rows]
    queries = {query: collection.queries[query] for query in chosen}
    qrels = {query: collection.qrels[query] for query in chosen}
    return queries, qrels


def _points(inputs: Inputs, sets: Sequence[ResampledSet]) -> dict[str, list[tuple[float, float]]]:
    """Project queries on two main components: at most :data:`_DRAWN` of a kind, evenly spaced.

    Source: Zhan et al., 2022, Figure 1.
    """
    # Only this function needs it, and it takes a while.
    from sklearn.decomposition import PCA

    vectors: dict[str, Floats] = {}
    for name, rows in _kinds(sets, len(inputs.train)).items():
        if len(rows):
            drawn = rows[spaced_rows(len(rows), _DRAWN)]
            vectors[name] = inputs.train.rows(drawn).numpy()
    test_rows = spaced_rows(len(inputs.test), _DRAWN)
    vectors["test"] = inputs.test.rows(test_rows).numpy()
    together = np.concatenate(list(vectors.values())).astype(np.float64)
    if min(together.shape) < 2:
        return {}
    axes = PCA(2, svd_solver="full").fit(together)
    points = {}
    for name, kind_vectors in vectors.items():
        projected = axes.transform(kind_vectors).round(4)
        points[name] = [(float(x), float(y)) for x, y in projected]
    return points


def _kinds(sets: Sequence[ResampledSet], training_queries: int) -> dict[str, Ints]:
    """Return the rows of training queries by what the picture shows: regimes or buckets."""
    largest = max(len(resampled.train) for resampled in sets)
    rows = {}
    for resampled in sets:
        if resampled.bucket is not None:
            held_out = np.setdiff1d(np.arange(training_queries), resampled.train)
            rows[f"bucket {resampled.bucket}"] = held_out
        elif len(resampled.train) == largest:
            rows[resampled.regime] = resampled.train
    return rows


def _overlaps(inputs: Inputs, sets: Sequence[ResampledSet]) -> manifests.Overlaps:
    train_ids = list(inputs.pair.train.queries)
    test_ids = list(inputs.pair.test.queries)
    test_vectors = inputs.test.load().numpy()
    similarities = nearest(inputs.train, test_vectors, 1).scores[:, 0]
    before = overlap_summary(inputs.pair, set(train_ids), set(test_ids), similarities)
    # Both regimes of a bucket train on the same queries, whose neighbours are searched once.
    known: dict[bytes, Floats] = {}
    after = {}
    for resampled in sets:
        key = resampled.train.tobytes()
        if key not in known:
            train_vectors = inputs.train.select(resampled.train)
            known[key] = nearest(train_vectors, test_vectors, 1).scores[:, 0]
        trained = {train_ids[row] for row in resampled.train}
        tested = {test_ids[row] for row in resampled.test}
        similarities = known[key][resampled.test]
        after[resampled.folder] = overlap_summary(inputs.pair, trained, tested, similarities)
    return manifests.Overlaps(before, after)
