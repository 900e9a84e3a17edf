"""From the name of a model to something that ranks a corpus."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from beir_cocodr import load_object, load_plugin
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.io import json_sha256, text_sha256
from beir_cocodr.models.spec import BM25 as BM25_NAME
from beir_cocodr.models.spec import FUSIONS, HOSTED, RETRIEVERS, ModelSpec, SearchOptions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Lexical, Ranker

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR
    from beir_cocodr.retrieval.dense import Dense, StoreChoice
    from beir_cocodr.retrieval.store.store import EmbeddingStore


Made = TypeVar("Made")


class Resources:
    """All retrievers over one corpus; what two of them need (an index, embeddings) is made once.

    Args:
        documents: the corpus.
        folder: where Lucene's index, and embeddings too many for memory, are written; the caller
            removes it.
        options: how encoders are loaded, BM25's analyzer, stores; see :class:`SearchOptions`.
        kept: a folder where embeddings are kept from run to run, and only changed texts encoded
        again; None: none.
    """

    def __init__(
        self,
        documents: Documents,
        folder: Path,
        options: SearchOptions = SearchOptions(),
        kept: Path | None = None,
    ) -> None:
        self.documents, self.folder, self.options, self.kept = documents, folder, options, kept
        self._made: dict[str, Any] = {}

    def ranker(self, name: str) -> Ranker:
        """The retriever of a name, see :class:`~beir_cocodr.models.spec.ModelSpec`; an InputError
        if it has none.
        """
        spec = ModelSpec.parse(name)
        spec.check()
        if spec.kind == "dense":
            return self._dense(spec.encoder)
        if spec.kind in RETRIEVERS:
            own: Ranker = self._once(
                name, lambda: load_object(RETRIEVERS[spec.kind])(self.documents, self.options)
            )
            return own
        if spec.kind in HOSTED:
            return self._once(name, lambda: self._hosted(spec))
        lexical: Lexical = self._lucene if spec.lucene else self._bm25
        if spec.kind == BM25_NAME:
            return lexical
        dense, kind = self._dense(spec.encoder), FUSIONS[spec.kind]
        if hasattr(
            dense.model, "join"
        ):  # a HybridEncoder, whose class would load torch for BM25 alone
            return self._hybrid_feedback(spec, dense)
        settings: dict[str, float] = {}
        if kind.weighted:
            weight = spec.bm25_weight
            settings["bm25_weight"] = self.options.bm25_weight if weight is None else weight
        fused: Ranker = load_object(kind.build)(dense, lexical, **settings)
        return fused

    def encode_queries(self, name: str, texts: list[str]) -> None:
        """Encode queries at once that the model of a name will search for, alone and in its
        fusions.
        """
        spec = ModelSpec.parse(ModelSpec.parse(name).first or name)
        if spec.kind == "dense" or spec.kind in FUSIONS:
            self._dense(spec.encoder).encode_queries(texts)

    def _hosted(self, spec: ModelSpec) -> Ranker:
        first = self.ranker(spec.first) if spec.first else None
        build, folder = load_object(HOSTED[spec.kind].build), self.kept or self.folder
        made: Ranker = build(spec.host, self.documents, self.options, first, folder=folder)
        return made

    def _hybrid_feedback(self, spec: ModelSpec, dense: Dense) -> Ranker:
        """Of a hybrid encoder there is no fusion; its feedback needs no BM25, and takes one that is
        named.
        """
        from beir_cocodr.retrieval.fusion import HybridFeedback

        if spec.kind != "feedback":
            raise InputError(
                f"{spec.name!r}: {spec.encoder} is a hybrid encoder, in which BM25 is already, and would count twice; "
                f"name {spec.encoder} alone or feedback:{spec.encoder}"
            )
        return HybridFeedback(dense, self._lucene if spec.lucene else None)

    def check_stores_used(self) -> None:
        """Check, once all models are made, that each store is of one of them; else an
        InputError.
        """
        if self.options.stores:
            self._stores.check_used()

    def _once(self, key: str, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    @cached_property
    def _bm25(self) -> BM25:
        return BM25(self.documents, self.options.encoder.text_format, self.options.analyzer)

    @cached_property
    def _lucene(self) -> Lexical:
        text_format, analyzer = self.options.encoder.text_format, self.options.analyzer
        made: Lexical = load_plugin("lucene")(
            self.documents, self.folder / "lucene", text_format, analyzer
        )
        return made

    @cached_property
    def _stores(self) -> StoreChoice:
        from beir_cocodr.retrieval.dense import StoreChoice

        return StoreChoice(self.options.stores, self.documents, self.options.verify)

    def _kept(self, name: str, model: COCODR, folder: Path) -> EmbeddingStore:
        """What an encoder made of this corpus, or of it as it was before; one folder for each
        encoder.
        """
        from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
        from beir_cocodr.retrieval.store.encode import identity_of
        from beir_cocodr.retrieval.store.passes import update
        from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodeOptions

        options = EncodeOptions(verify=self.options.verify)
        identity = identity_of(CorpusEncoder(model, self.documents), options, SHARD_SIZE) | {
            "corpus": None
        }
        place = folder / json_sha256(identity)[:16]
        return update(model, self.documents, place, options, name, self.options.progress).store

    def _dense(self, name: str) -> Dense:
        # Imported here because a run of BM25 alone must not pay six seconds for torch.
        from beir_cocodr.models.loading import load_encoder
        from beir_cocodr.retrieval.dense import Dense

        def make() -> Dense:
            folder, options = self.folder / text_sha256(name)[:16], self.options
            model: COCODR = load_encoder(name, options.encoder)
            stored = self._stores.of(model) if options.stores else None
            if stored is None and self.kept is not None:
                stored = self._kept(name, model, self.kept)
            return Dense(
                model, self.documents, folder, options.batch_size, options.progress, stored
            )

        return self._once(f"dense {name}", make)
