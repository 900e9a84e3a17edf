"""The two sides of a gate: a model, store, index, run or engine, asked for its best documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

import numpy as np

from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import ranked, run_results
from beir_cocodr.models.spec import (
    BM25,
    DENSE,
    FUSIONS,
    HTTP,
    RETRIEVER,
    RUN,
    EncoderOptions,
    ModelSpec,
    SearchOptions,
)
from beir_cocodr.retrieval.resolve import Model, resolve_model
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.record import STORE_FILE

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR
    from beir_cocodr.retrieval.adapters import RetrieverRanker
    from beir_cocodr.retrieval.faiss.transform import Kind
    from beir_cocodr.retrieval.http_search import HttpSearch
    from beir_cocodr.retrieval.ranking import Ranker, Ranking, Results
    from beir_cocodr.retrieval.store.store import EmbeddingStore

#: Documents of a ranking that count, as in nDCG@10.
DEPTH = 10

#: The place of a document that the collection does not have.
UNKNOWN = -2

# What the name of an index's folder in a store begins with.
_INDEX = "index-"

# Ids of a store that are looked up at a time.
_IDS = 100_000


class Side(Protocol):
    """One side of a gate.

    Attributes:
        label: Its name in messages and records.
        encoder: The name of its encoder, whose training record may name this corpus.
        answers_any: True if it can be asked any query; a run knows only its own.
        missing: Documents of the collection that it does not hold; None if that is unknown.
        matches_words: True if BM25 takes part; None if that is unknown.
        sharpened: Folder of the generated queries by which its vectors were sharpened; "" for none.
    """

    label: str
    encoder: str
    sharpened: str
    matches_words: bool | None
    answers_any: bool
    missing: int | None

    def search(self, queries: Mapping[str, str]) -> Ints:
        """Return the (Q, 11) rows of the best documents, -1 for none and -2 for unknown ones.

        There is one more than :data:`DEPTH`, as the document with the query's id may be dropped.
        """
        ...


def best_ten(rows: Ints, queries: Sequence[str], documents: Documents, drop: bool) -> Ints:
    """Return (Q, 10) of (Q, 11) rows, without the document that has the query's id if dropped."""
    if drop:
        identical = rows == documents.rows(queries)[:, None]
        order = np.argsort(identical, axis=1, kind="stable")  # the others move up
        others = np.where(identical, -1, rows)
        rows = np.take_along_axis(others, order, axis=1)
    return rows[:, :DEPTH]


@dataclass
class RankerSide:
    """A model that searches the corpus of the collection."""

    label: str
    encoder: str
    ranker: Ranker
    matches_words: bool | None = None
    answers_any: bool = True
    missing: int | None = None
    sharpened: str = ""

    def search(self, queries: Mapping[str, str]) -> Ints:
        """Return the rows of the best documents, see :meth:`Side.search`."""
        self.ranker.prepare()
        ranking = self.ranker.search(dict(queries), DEPTH + 1)
        return _padded(ranking.rows)


@dataclass
class RunSide:
    """A run, which answers the queries that it holds."""

    label: str
    spec: ModelSpec
    documents: Documents
    encoder: str = ""
    matches_words: bool | None = None
    answers_any: bool = False
    missing: int | None = None
    sharpened: str = ""

    def __post_init__(self) -> None:
        """Read the run."""
        self.results = run_results(self.spec)

    def search(self, queries: Mapping[str, str]) -> Ints:
        """Return the rows of the best documents, see :meth:`Side.search`."""
        return _rows_of(self.results, queries, self.documents)


@dataclass
class EngineSide:
    """A search engine over HTTP, or an object that searches; either has an index of its own.

    What its index has and the collection lacks takes a rank, as it does where people search.
    """

    label: str
    engine: HttpSearch | RetrieverRanker
    documents: Documents
    encoder: str = ""
    matches_words: bool | None = None
    answers_any: bool = True
    missing: int | None = None
    sharpened: str = ""

    def search(self, queries: Mapping[str, str]) -> Ints:
        """Return the rows of the best documents, see :meth:`Side.search`."""
        answers = self.engine.answers(dict(queries), DEPTH + 1)
        return _rows_of(ranked(answers), queries, self.documents)


def _rows_of(results: Results, queries: Iterable[str], documents: Documents) -> Ints:
    """Return the (Q, 11) rows of the best documents in the results of queries."""
    ids = list(queries)
    rows = np.full((len(ids), DEPTH + 1), -1, np.int64)
    for number, query in enumerate(ids):
        best = [document for document, _ in results.get(query, [])[: DEPTH + 1]]
        rows[number, : len(best)] = known_rows(best, documents)
    return rows


class _QueryEncoder:
    """The encoder of stores, which encodes once what both sides are asked one after another."""

    def __init__(self, model: COCODR, batch_size: int) -> None:
        self.model = model
        self.batch_size = batch_size
        self._texts: list[str] = []
        self._vectors: Any = None

    def vectors(self, texts: list[str]) -> Any:
        """Return the vectors of queries."""
        if self._vectors is None or texts != self._texts:
            self._texts = texts
            self._vectors = self.model.encode_queries(
                texts,
                batch_size=self.batch_size,
                convert_to_tensor=True,
                show_progress_bar=False,
            )
        return self._vectors


class StoreSide:
    """A store on disk, searched as it is: exactly, or by one of its indexes.

    Its corpus need not be that of the collection: documents are matched by their ids.
    """

    answers_any = True
    matches_words: bool | None = None

    def __init__(
        self,
        label: str,
        store: EmbeddingStore,
        documents: Documents,
        options: SearchOptions,
        index: str | None = None,
        other: Side | None = None,
    ) -> None:
        """Load the encoder of a store, and count the documents that it lacks.

        Args:
            label: Its name in messages.
            store: A complete store.
            documents: The corpus of the collection.
            options: The device and the batch size of the encoder.
            index: The kind of an index in its folder; None searches exactly.
            other: The other side, whose encoder is taken if it is this store's too.
        """
        from beir_cocodr.evaluation.store_run import query_encoder

        self.label = label
        self.store = store
        self.documents = documents
        self.index = index
        self.encoding: _QueryEncoder
        if isinstance(other, StoreSide) and other.store.record.has_encoder_of(store.record):
            self.encoding = other.encoding
        else:
            model = query_encoder(store, None, options.encoder.device)
            self.encoding = _QueryEncoder(model, options.batch_size)
        self.matches_words = _has_bm25(self.encoding.model)
        self.encoder = store.record.model.path or str(store.record.model.name)
        self.sharpened = store.record.generated
        self.missing: int | None = len(documents) - sum(_held(store, documents))

    def search(self, queries: Mapping[str, str]) -> Ints:
        """Return the rows of the best documents, see :meth:`Side.search`."""
        vectors = self.encoding.vectors(list(queries.values()))
        ranking = self._ranking(list(queries), vectors)
        stored, positions = np.unique(ranking.rows, return_inverse=True)
        rows = np.full(len(stored), -1, np.int64)
        is_result = stored >= 0
        rows[is_result] = known_rows(self.store.ids(stored[is_result]), self.documents)
        return _padded(rows[positions].reshape(ranking.rows.shape))

    def _ranking(self, ids: list[str], vectors: Any) -> Ranking:
        from beir_cocodr.retrieval.store.store_search import search_index, search_store

        if self.index is None:
            return search_store(self.store, ids, vectors, DEPTH + 1)
        kind = cast("Kind", self.index)
        return search_index(self.store, kind, ids, vectors, DEPTH + 1)


def _held(store: EmbeddingStore, documents: Documents) -> Iterator[int]:
    """Yield how many documents of a collection a store holds, some ids at a time."""
    for start in range(0, len(store), _IDS):
        rows = np.arange(start, min(start + _IDS, len(store)))
        yield int((documents.rows(store.ids(rows)) >= 0).sum())


def known_rows(ids: Sequence[str], documents: Documents) -> Ints:
    """Return the (n,) rows of documents by their ids, -2 for those that the collection lacks."""
    rows = documents.rows(ids)
    return np.where(rows < 0, UNKNOWN, rows)


def _padded(rows: Ints) -> Ints:
    """Return (Q, 11) of at most 11 columns, -1 where there are fewer."""
    lacking = DEPTH + 1 - rows.shape[1]
    columns = max(lacking, 0)
    return np.pad(rows, ((0, 0), (0, columns)), constant_values=-1)


def open_side(
    model: Model,
    role: str,
    resources: Resources,
    settings: EncoderOptions = EncoderOptions(),
    other: Side | None = None,
) -> Side:
    """Open one side of a gate.

    Args:
        model: A folder that ``encode`` wrote, the folder of an index in it, an open store, or a
            model as for :func:`~beir_cocodr.retrieval.resolve.resolve_model`.
        role: "OLD" or "NEW", for messages.
        resources: The corpus, and what models over it share. Their encoder's settings include
            those of this side.
        settings: How the encoder of this side alone is loaded.
        other: The side that is open already; two stores of one encoder share it.

    Raises:
        InputError: If it cannot be opened, or has settings that it cannot follow.
    """
    options = resources.options.encoder
    from_store = _store_and_index(model, resources.options.verify)
    if from_store is not None:
        store, index = from_store
        differing = _differing(store, options)
        reason = "the store records how its documents were encoded"
        _check_no_settings(role, reason, differing, of_side=settings)
        folder = store.folder
        if index is not None:
            folder = store.folder / f"{_INDEX}{index}"
        return StoreSide(str(folder), store, resources.documents, resources.options, index, other)
    spec = resolve_model(model, argument=role)
    if spec.kind == RUN:
        _check_no_settings(role, "a run is not searched again", options, of_side=settings)
        return RunSide(spec.name, spec, resources.documents)
    if spec.loaded is not None:
        _check_no_settings(role, "a loaded model keeps its own settings", settings)
    if spec.kind == BM25:
        of_encoder = replace(settings, title_separator=None)  # the separator is BM25's, too
        _check_no_settings(role, "BM25 has no encoder", of_encoder)
    ranker = resources.ranker(spec)
    resources.check_stores_used()
    if spec.kind == HTTP:
        http = cast("HttpSearch", ranker)
        if not http.settings.encoder:
            reason = "the engine reads texts itself"
            _check_no_settings(role, reason, options, of_side=settings)
        return EngineSide(
            spec.name,
            http,
            resources.documents,
            http.settings.encoder,
            sharpened=http.settings.sharpened,
        )
    if spec.kind == RETRIEVER:
        return EngineSide(spec.name, cast("RetrieverRanker", ranker), resources.documents)
    sharpened = resources.sharpened({spec.name: spec}).get(spec.name, "")
    return RankerSide(
        spec.name, spec.encoder, ranker, _matches_words(spec, ranker), sharpened=sharpened
    )


def _matches_words(spec: ModelSpec, ranker: Ranker) -> bool | None:
    """Return true if BM25 takes part in a model, false for a dense encoder, else None."""
    if spec.kind == BM25 or spec.kind in FUSIONS:
        return True
    if spec.kind != DENSE:
        return None
    return _has_bm25(getattr(ranker, "model", None))


def _has_bm25(model: object) -> bool:
    """Return true for a hybrid encoder, which has BM25 in its vectors."""
    return hasattr(model, "join")


def with_settings(options: SearchOptions, settings: EncoderOptions) -> SearchOptions:
    """Return search options whose encoder is loaded with the settings of one side."""
    return replace(options, encoder=settings.over(options.encoder))


def _differing(store: EmbeddingStore, options: EncoderOptions) -> EncoderOptions:
    """Return the settings that are not those with which a store was encoded."""
    same = {
        name: None
        for name, value in options.describe().items()
        if store.record.has_setting(name, value)
    }
    return replace(options, **same)


def _check_no_settings(
    role: str,
    reason: str,
    settings: EncoderOptions,
    of_side: EncoderOptions | None = None,
) -> None:
    """Check that no settings are asked for; the device is none, as it changes no result.

    Args:
        role: "OLD" or "NEW".
        reason: Why it can follow none.
        settings: The settings that were asked for.
        of_side: Those that were asked for this side alone; by default all of them.

    Raises:
        InputError: If there are any.
    """
    names = list(settings.describe())
    if not names:
        return
    way_out = "leave them out"
    alone = names if of_side is None else of_side.describe()
    if any(name not in alone for name in names):
        other = "NEW" if role == "OLD" else "OLD"
        way_out += f", or set them for {other} alone with --set-{other.lower()}"
    raise InputError(f"{role} cannot be loaded with {', '.join(names)}: {reason}; {way_out}")


def _store_and_index(model: Model, verify: bool) -> tuple[EmbeddingStore, str | None] | None:
    """Return a store and the kind of the index to search it by, or None for other models."""
    if isinstance(model, str | Path):
        folder = Path(model)
        if (folder / STORE_FILE).is_file():
            return _open(folder, verify), None
        if folder.name.startswith(_INDEX) and (folder.parent / STORE_FILE).is_file():
            return _open(folder.parent, verify), _index_kind(folder)
        return None
    if hasattr(model, "ranked_chunks") and hasattr(model, "record"):
        return cast("EmbeddingStore", model), None
    return None


def _index_kind(folder: Path) -> str:
    from beir_cocodr.retrieval.faiss.transform import Kind

    kind = folder.name.removeprefix(_INDEX)
    if kind not in get_args(Kind) or not folder.is_dir():
        raise InputError(
            f"{folder} is not an index of its store; make it with search --store {folder.parent} "
            f"--index {kind}"
        )
    return kind


def _open(folder: Path, verify: bool) -> EmbeddingStore:
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    return EmbeddingStore.open(folder, verify)
