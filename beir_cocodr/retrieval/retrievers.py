"""From the name of a model to something that ranks a corpus.

Which store is whose: embeddings that are there are found by the encoder that made them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beir_cocodr import load_plugin
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Lexical, Retriever

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR
    from beir_cocodr.retrieval.dense import Dense, StoreChoice

_FUSIONS = ("hybrid", "rrf", "feedback")

# In front of bm25 and of fusions with it: by Lucene.
_LUCENE = "lucene-"


class Retrievers:
    """All retrievers over one corpus; what two of them need (an index, embeddings) is made once.

    Args:
        documents: the corpus.
        folder: where embeddings and Lucene's index are written; the caller removes it.
        analyzer: of BM25, see :class:`BM25`.
        batch_size: texts encoded at a time.
        progress: show progress bars on stderr.
        stores: folders that ``encode`` wrote; an encoder that wrote one of them reads it and encodes nothing.
        **encoder: overrides for every dense encoder (lengths, prompts, device), None meaning none.
    """

    def __init__(
        self,
        documents: Documents,
        folder: Path,
        analyzer: str = "english",
        batch_size: int = 64,
        progress: bool = False,
        stores: Sequence[str | Path] = (),
        **encoder: Any,
    ) -> None:
        self.documents, self.folder, self.stores = documents, folder, stores
        self.analyzer, self.batch_size, self.progress, self.encoder = analyzer, batch_size, progress, encoder
        self._made: dict[str, Any] = {}

    def get(self, name: str) -> Retriever:
        """``bm25``, ``hybrid:M``, ``rrf:M``, ``feedback:M``, or M: anything an encoder is loaded from.

        The first four take BM25 from Lucene where ``lucene-`` stands in front of them, as in
        ``lucene-bm25`` and ``lucene-hybrid:M``.

        Raises:
            InputError: the model cannot be found.
        """
        bare = name.removeprefix(_LUCENE)
        kind, _, encoder = bare.partition(":")
        if bare != "bm25" and kind not in _FUSIONS:
            return self._dense(name)
        if bare != "bm25" and encoder.removeprefix(_LUCENE) in ("", "bm25"):
            raise InputError(f"{name!r} needs a dense encoder, as in {kind}:minilm")
        lexical = self._bm25() if bare == name else self._lucene()
        return lexical if bare == "bm25" else self._fusion(kind, encoder, lexical)

    def check_stores_used(self) -> None:
        """To be called when all models are made.

        Raises:
            InputError: a store is of none of them.
        """
        if self.stores:
            self._store_choice().check_used()

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _bm25(self) -> BM25:
        made: BM25 = self._once("bm25", lambda: BM25(self.documents, self._text_format(), self.analyzer))
        return made

    def _lucene(self) -> Lexical:
        folder = self.folder / "lucene"
        made: Lexical = self._once(
            "lucene",
            lambda: load_plugin("lucene")(self.documents, folder, self._text_format(), self.analyzer),
        )
        return made

    def _text_format(self) -> TextFormat:
        separator = self.encoder.get("title_separator")
        return TextFormat() if separator is None else TextFormat(title_separator=separator)

    def _dense(self, name: str) -> Dense:
        # Imported here because a run of BM25 alone must not pay six seconds for torch.
        from beir_cocodr.models.loading import load_encoder
        from beir_cocodr.retrieval.dense import Dense, StoredDense

        file = self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.npy"

        def make() -> Dense:
            model: COCODR = load_encoder(name, **self.encoder)
            stored = self._store_choice().of(model) if self.stores else None
            if stored is None:
                return Dense(model, self.documents, file, self.batch_size, self.progress)
            return StoredDense(stored, model, self.documents, file, self.batch_size, self.progress)

        made: Dense = self._once(f"dense {name}", make)
        return made

    def _store_choice(self) -> StoreChoice:
        from beir_cocodr.retrieval.dense import StoreChoice

        made: StoreChoice = self._once("stores", lambda: StoreChoice(self.stores, self.documents))
        return made

    def _fusion(self, kind: str, encoder: str, bm25: Lexical) -> Retriever:
        from beir_cocodr.retrieval.fusion import Feedback, Hybrid, ReciprocalRank

        dense = self._dense(encoder)
        if kind == "rrf":
            return ReciprocalRank(dense, bm25)
        hybrid = Hybrid(dense, bm25)
        return hybrid if kind == "hybrid" else Feedback(hybrid)
