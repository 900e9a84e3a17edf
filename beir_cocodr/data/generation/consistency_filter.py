"""Which generated queries find the document that they were generated from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.retrieval.retrievers import Retrievers

_BLOCK = 10_000


class ConsistencyFilter:
    """Keeps a query if its document is among the first r of a retriever (round-trip consistency).

    Args:
        documents: the corpus that is searched.
        retriever: a name as for ``evaluate``: ``bm25``, ``minilm``, ``hybrid:M``, ...
        top: r.
        analyzer: of BM25.
        device: of an encoder.
        progress: show bars on stderr.

    Raises:
        InputError: there is no such retriever.

    Source: Dai et al., 2022 (Promptagator), section 3.2, with r = 1.
    """

    def __init__(
        self,
        documents: Documents,
        retriever: str,
        top: int = 1,
        analyzer: str = "english",
        device: str | None = None,
        progress: bool = False,
    ) -> None:
        self.documents, self.retriever, self.top = documents, retriever, min(top, len(documents))
        self.analyzer, self.device, self.progress = analyzer, device, progress

    def check(self) -> None:
        """Find out now whether the retriever can be had, before hours of generating."""
        with tempfile.TemporaryDirectory() as folder:
            self._retrievers(Path(folder)).get(self.retriever)

    def keeps(self, queries: Iterable[tuple[int, str]], folder: Path) -> Iterator[np.ndarray]:
        """For blocks of (row, query) pairs, in order, bool (n,): which queries find their row.

        Args:
            queries: a stream.
            folder: where embeddings are written meanwhile.
        """
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            retriever = self._retrievers(Path(temporary)).get(self.retriever)
            stream = iter(queries)
            while block := list(islice(stream, _BLOCK)):
                texts = {str(i): text for i, (_, text) in enumerate(block)}
                rows = np.array([row for row, _ in block])
                yield (retriever.search(texts, self.top).rows == rows[:, None]).any(1)

    def _retrievers(self, folder: Path) -> Retrievers:
        return Retrievers(self.documents, folder, self.analyzer, progress=self.progress, device=self.device)
