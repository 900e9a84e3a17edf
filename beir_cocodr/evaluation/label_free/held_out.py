"""Retrievers over a corpus of which a few documents were changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.documents import Documents
from beir_cocodr.retrieval.retrievers import Retrievers

if TYPE_CHECKING:
    from beir_cocodr.retrieval.dense import Dense


class HeldOutRetrievers(Retrievers):
    """The retrievers of another corpus over a changed copy of it; only changed documents are encoded.

    Args:
        whole: over the corpus as it was; its encoders and embeddings are used again.
        documents: the changed corpus, row by row the same documents.
        rows: (S,) rows that were changed.
        folder: where embeddings are written, another than that of ``whole``.
    """

    def __init__(
        self, whole: Retrievers, documents: Documents, rows: npt.NDArray[np.int64], folder: Path
    ) -> None:
        super().__init__(documents, folder, whole.analyzer, whole.batch_size, whole.progress, **whole.encoder)
        self.whole, self.rows = whole, rows

    def _dense(self, name: str) -> Dense:
        from beir_cocodr.retrieval.dense import Dense

        original = self.whole._dense(name)
        rows = self.rows

        class Changed(Dense):
            """Embeddings of the original corpus, those of changed documents made anew."""

            def _encode_corpus(self) -> np.ndarray:
                target: np.memmap[Any, np.dtype[np.float32]] = np.lib.format.open_memmap(
                    self.file, mode="w+", dtype=np.float32, shape=original.embeddings.shape
                )
                start = 0
                for chunk in original.chunks():
                    target[start : start + len(chunk)] = chunk.numpy()
                    start += len(chunk)
                if len(rows):
                    encoded = self.model.encode_corpus(
                        self.documents.take(rows),
                        batch_size=self.batch_size,
                        convert_to_tensor=True,
                        show_progress_bar=False,
                    )
                    target[rows] = self._finish(encoded).numpy()
                target.flush()
                return target

        file = self.folder / original.file.name

        def make() -> Dense:
            return Changed(original.model, self.documents, file, self.batch_size, self.progress)

        made: Dense = self._once(f"dense {name}", make)
        return made
