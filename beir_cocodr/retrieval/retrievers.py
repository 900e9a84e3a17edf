"""From the name of a model to something that ranks a corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Retriever

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR
    from beir_cocodr.retrieval.dense import Dense

_FUSIONS = ("hybrid", "rrf", "feedback")


class Retrievers:
    """All retrievers over one corpus; what two of them need (an index, embeddings) is made once.

    Args:
        documents: the corpus.
        folder: where embeddings are written; the caller removes it.
        analyzer: of BM25, see :class:`BM25`.
        batch_size: texts encoded at a time.
        progress: show progress bars on stderr.
        **encoder: overrides for every dense encoder (lengths, prompts, device), None meaning none.
    """

    def __init__(
        self,
        documents: Documents,
        folder: Path,
        analyzer: str = "english",
        batch_size: int = 64,
        progress: bool = False,
        **encoder: Any,
    ) -> None:
        self.documents, self.folder = documents, folder
        self.analyzer, self.batch_size, self.progress, self.encoder = analyzer, batch_size, progress, encoder
        self._made: dict[str, Any] = {}

    def get(self, name: str) -> Retriever:
        """``bm25``, ``hybrid:M``, ``rrf:M``, ``feedback:M``, or M: anything an encoder is loaded from.

        Raises:
            InputError: the model cannot be found.
        """
        kind, _, encoder = name.partition(":")
        if name == "bm25":
            return self._bm25()
        if kind not in _FUSIONS:
            return self._dense(name)
        if not encoder or encoder == "bm25":
            raise InputError(f"{name!r} needs a dense encoder, as in {kind}:minilm")
        return self._fusion(kind, encoder)

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _bm25(self) -> BM25:
        separator = self.encoder.get("title_separator")
        text_format = TextFormat() if separator is None else TextFormat(title_separator=separator)
        made: BM25 = self._once("bm25", lambda: BM25(self.documents, text_format, self.analyzer))
        return made

    def _dense(self, name: str) -> Dense:
        # Imported here because a run of BM25 alone must not pay six seconds for torch.
        from beir_cocodr.models.loading import load_encoder
        from beir_cocodr.retrieval.dense import Dense

        file = self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.npy"

        def make() -> Dense:
            model: COCODR = load_encoder(name, **self.encoder)
            return Dense(model, self.documents, file, self.batch_size, self.progress)

        made: Dense = self._once(f"dense {name}", make)
        return made

    def _fusion(self, kind: str, encoder: str) -> Retriever:
        from beir_cocodr.retrieval.fusion import Feedback, Hybrid, ReciprocalRank

        dense, bm25 = self._dense(encoder), self._bm25()
        if kind == "rrf":
            return ReciprocalRank(dense, bm25)
        hybrid = Hybrid(dense, bm25)
        return hybrid if kind == "hybrid" else Feedback(hybrid)
