"""The one object that owns what a run shares: encoders, embeddings, BM25 and query vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from beir_cocodr import load_object, load_plugin
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.languages import corpus_analyzer, warn_of_unspaced_text
from beir_cocodr.errors import InputError
from beir_cocodr.io import text_sha256
from beir_cocodr.models.spec import BM25 as BM25_NAME
from beir_cocodr.models.spec import (
    FUSIONS,
    HOSTED,
    HTTP,
    RETRIEVER,
    RETRIEVERS,
    RUN,
    EncoderOptions,
    ModelSpec,
    SearchOptions,
)
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Lexical, Ranker
from beir_cocodr.temporary import TemporaryFolder

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR
    from beir_cocodr.retrieval.store.store_choice import StoreChoice
    from beir_cocodr.retrieval.vectors.corpus_encoder import Watcher
    from beir_cocodr.retrieval.vectors.dense import Dense, EmbeddingPool

T = TypeVar("T")

# The hybrid whose weight is estimated. It is named here because evaluation builds on this module.
_ESTIMATED = "beir_cocodr.evaluation.fusion_weight:EstimatedHybrid"


class Resources:
    """Resources that the models of a run share over one corpus; each is made once, on first use.

    Args:
        documents: the corpus.
        folder: for Lucene's index and for embeddings that are too large for memory; the caller
            removes it.
        options: how encoders are loaded, BM25's analyzer and weight, stores; see
            :class:`SearchOptions`.
        kept: a folder where the indexes of hosts are kept from run to run; None keeps nothing.
        pool: embeddings that other stages of the run have made of this corpus or of others.

    Attributes:
        analyzer: BM25's analyzer, by the language of the corpus where none was asked for.
        watcher: called with the number of documents after each encoded batch.
        encoders: the loaded encoders; resources over another corpus may share them.
        specs: label or name to its model.
    """

    def __init__(
        self,
        documents: Documents,
        folder: Path,
        options: SearchOptions = SearchOptions(),
        kept: Path | None = None,
        pool: EmbeddingPool | None = None,
    ) -> None:
        """Take the corpus; nothing is loaded yet."""
        self.documents = documents
        self.folder = folder
        self.options = options
        self.analyzer = corpus_analyzer(options.analyzer, documents.facts.language)
        self.kept = kept
        self.pool = pool
        self.watcher: Watcher | None = None
        self.encoders: dict[str, COCODR] = {}
        self._shared: dict[str, Any] = {}
        self.specs: dict[str, ModelSpec] = {}

    @classmethod
    @contextmanager
    def temporary(
        cls,
        documents: Documents,
        options: SearchOptions,
        parent: Path | None = None,
        pool: EmbeddingPool | None = None,
    ) -> Iterator[Resources]:
        """Yield resources with a folder below ``parent`` that is removed at the end."""
        with TemporaryFolder(parent) as folder:
            yield cls(documents, folder, options, pool=pool)

    def spec(self, model: str | ModelSpec) -> ModelSpec:
        """Return the spec of a name, which is parsed once."""
        if isinstance(model, ModelSpec):
            return model
        if model not in self.specs:
            self.specs[model] = ModelSpec.parse(model)
        return self.specs[model]

    def name_specs(self, specs: Mapping[str, ModelSpec]) -> None:
        """Let all methods that take a name also take these labels."""
        self.specs.update(specs)

    def ranker(self, model: str | ModelSpec) -> Ranker:
        """Return the ranker of a model.

        Raises:
            InputError: If the name is incomplete, or the model cannot be loaded or fused.
        """
        spec = self.spec(model)
        spec.check()
        if spec.kind == BM25_NAME:
            return self._lexical(spec)
        if spec.kind in FUSIONS:
            return self._fusion(spec)
        # Two objects may have one name, that of their class.
        key = f"ranker {spec.name}" if spec.loaded is None else f"ranker object {id(spec.loaded)}"
        return self._once(key, lambda: self._single(spec))

    def _single(self, spec: ModelSpec) -> Ranker:
        """Return the ranker of a model that is neither BM25 nor a fusion."""
        ranker: Ranker
        if spec.kind == RUN:
            raise InputError(
                f"{spec.name} is a run, and a run cannot search; name the model that made it"
            )
        if spec.kind == RETRIEVER:
            from beir_cocodr.retrieval.adapters import RetrieverRanker

            return RetrieverRanker(spec.loaded, self.documents)
        if spec.kind == HTTP:
            from beir_cocodr.retrieval.http_search import HttpSearch

            return HttpSearch(spec.encoder, self.documents, self.options)
        if spec.kind in RETRIEVERS:
            ranker = load_object(RETRIEVERS[spec.kind].build)(self.documents, self.options)
            return ranker
        if spec.kind in HOSTED:
            first = self.ranker(spec.first) if spec.first else None
            build = load_object(HOSTED[spec.kind].build)
            folder = self.kept or self.folder
            ranker = build(spec.host, self.documents, self.options, first, folder=folder)
            return ranker
        if spec.loaded is not None and not _encodes_as_host(spec.loaded):
            from beir_cocodr.retrieval.adapters import EncoderRanker

            return EncoderRanker(spec.loaded, self.documents, self.options)
        return self.dense(spec)

    def _fusion(self, spec: ModelSpec) -> Ranker:
        dense = self.dense(spec)
        # A HybridEncoder is known by its method: its class would load torch for BM25 alone.
        if hasattr(dense.model, "join"):
            return self._hybrid_feedback(spec, dense)
        if spec.weight_by_estimate:
            lexical = self._lexical(spec)
            key = f"estimated {spec.prefix}{_encoder_key(spec)}"
            build = load_object(_ESTIMATED)
            estimated: Ranker = self._once(key, lambda: build(dense, lexical, self, spec))
            return estimated
        fusion = FUSIONS[spec.kind]
        settings: dict[str, float] = {}
        if fusion.weighted:
            weight = spec.bm25_weight
            settings["bm25_weight"] = self.options.bm25_weight if weight is None else weight
        ranker: Ranker = load_object(fusion.build)(dense, self._lexical(spec), **settings)
        return ranker

    def _hybrid_feedback(self, spec: ModelSpec, dense: Dense) -> Ranker:
        """Return the feedback of a hybrid encoder; it has BM25 in it and cannot be fused again."""
        from beir_cocodr.retrieval.hybrid.hybrid_feedback import HybridFeedback

        if spec.kind != "feedback":
            raise InputError(
                f"{spec.name!r}: {spec.encoder} is a hybrid encoder, which already includes BM25, "
                f"so BM25 would count twice; name {spec.encoder} alone or feedback:{spec.encoder}"
            )
        return HybridFeedback(dense, self._lucene if spec.lucene else None)

    def encode_queries(self, model: str | ModelSpec, texts: list[str]) -> None:
        """Encode queries at once that a model will search for, alone and in its fusions."""
        spec = self.spec(model)
        if spec.first:
            spec = self.spec(spec.first)
        if self.encoder_of(spec) is not None:
            self.dense(spec).encode_queries(texts)

    def encoder_of(self, model: str | ModelSpec) -> str | None:
        """Return what tells a model's encoder apart, alone or in a fusion.

        A model whose encoder is not loaded as sentence-transformers loads it has none.
        """
        spec = self.spec(model)
        has_own_methods = spec.loaded is not None and not _encodes_as_host(spec.loaded)
        if (spec.kind == "dense" or spec.kind in FUSIONS) and not has_own_methods:
            return _encoder_key(spec)
        return None

    def sharpened(self, models: Mapping[str, str | ModelSpec]) -> dict[str, str]:
        """Return labels of models that read a sharpened store, with the folder of its queries."""
        folders = {label: self._sharpened(self.spec(model)) for label, model in models.items()}
        return {label: folder for label, folder in folders.items() if folder}

    def _sharpened(self, spec: ModelSpec) -> str:
        """Return the folder of the queries by which a model's vectors were sharpened, or ""."""
        if spec.first:
            spec = self.spec(spec.first)
        if spec.kind == HTTP:
            from beir_cocodr.retrieval.http_settings import HttpSettings

            return HttpSettings.load(spec.encoder).sharpened
        if not self.options.stores or self.encoder_of(spec) is None:
            return ""
        return self.dense(spec).sharpened

    def check_stores_used(self) -> None:
        """Check, after all rankers are made, that each store belongs to one of their encoders.

        Raises:
            InputError: If a store belongs to none.
        """
        if self.options.stores:
            self._stores.check_used()

    def dense(self, model: str | ModelSpec) -> Dense:
        """Return the dense search of a model's encoder, which its fusions share."""
        spec = self.spec(model)
        return self._once(_encoder_key(spec), lambda: self._load_dense(spec))

    def _load_dense(self, spec: ModelSpec) -> Dense:
        # Imported here because a run of BM25 alone must not pay six seconds for torch.
        from beir_cocodr.models.checkpoints.loading import load_encoder
        from beir_cocodr.retrieval.vectors.dense import Dense
        from beir_cocodr.retrieval.vectors.vector_cache import VectorCache

        encoder = spec.encoder if spec.loaded is None else spec.loaded
        options = self.options
        # A loaded encoder keeps its own settings.
        encoder_options = options.encoder if spec.loaded is None else EncoderOptions()
        key = _encoder_key(spec)
        model = self.encoders.get(key)
        if model is None:
            model = load_encoder(encoder, encoder_options)
            self.encoders[key] = model
        store = self._stores.of(model) if options.stores else None
        folder = self.folder / text_sha256(key)[:16]
        dense = Dense(
            model=model,
            documents=self.documents,
            folder=folder,
            batch_size=options.batch_size,
            progress=options.shows_progress,
            given=store,
        )
        dense.bf16 = options.bf16
        dense.pool = self.pool
        dense.watcher = self.watcher
        if store is None:
            dense.cache = VectorCache.of(
                model, self.documents, spec.encoder, dense.backend, options.verify
            )
            self._check_server(dense)
        return dense

    def _check_server(self, dense: Dense) -> None:
        """Check that a model on a server is still the one whose vectors are kept."""
        if dense.cache is None or not getattr(dense.model, "is_remote", False):
            return
        import torch

        from beir_cocodr.retrieval.store.embeddings import MemoryEmbeddings
        from beir_cocodr.retrieval.store.store_choice import check_still_same
        from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder

        known = dense.cache.look_up(self.documents, np.zeros(1, np.int64)).vectors()
        if known is not None:
            check_still_same(
                CorpusEncoder(dense.model, self.documents),
                MemoryEmbeddings(torch.from_numpy(known)),
                dense.cache.segment.folder,
                "remove what is kept with beir-cocodr cache --clear vectors",
            )

    def _lexical(self, spec: ModelSpec) -> Lexical:
        return self._lucene if spec.lucene else self._bm25

    @cached_property
    def _bm25(self) -> BM25:
        texts = (document["text"] for document in self.documents.values())
        warn_of_unspaced_text(texts, self.analyzer)
        return BM25(self.documents, self.options.encoder.text_format, self.analyzer)

    @cached_property
    def _lucene(self) -> Lexical:
        lucene: Lexical = load_plugin("lucene")(
            self.documents,
            self.folder / "lucene",
            self.options.encoder.text_format,
            self.options.analyzer,
        )
        return lucene

    @cached_property
    def _stores(self) -> StoreChoice:
        from beir_cocodr.retrieval.store.store_choice import StoreChoice

        return StoreChoice(self.options.stores, self.documents, self.options.verify)

    def _once(self, key: str, make: Callable[[], T]) -> T:
        if key not in self._shared:
            self._shared[key] = make()
        shared: T = self._shared[key]
        return shared


def _encoder_key(spec: ModelSpec) -> str:
    """Return what tells encoders of a run apart: a name, or an object."""
    return f"dense {spec.encoder}" if spec.loaded is None else f"dense object {id(spec.loaded)}"


def _encodes_as_host(model: object) -> bool:
    from beir_cocodr.models.checkpoints.loading import encodes_as_host

    return encodes_as_host(model)
