"""A FAISS index over a store, kept in its folder."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from beir_cocodr.retrieval.embedding_store import EmbeddingStore
from beir_cocodr.retrieval.faiss_index import FaissIndex
from beir_cocodr.retrieval.index.options import QUANTISED, FaissOptions, Kind
from beir_cocodr.retrieval.ranking import Ranking

log = logging.getLogger(__name__)


def search_index(
    store: EmbeddingStore, kind: Kind, ids: list[str], vectors: torch.Tensor, top_k: int
) -> Ranking:
    """Search a store by a FAISS index, which is built the first time and loaded from then on.

    The index is in the folder ``index-KIND`` of the store and bears its key. When it is built, its recall
    against exact search is measured with these queries; it is said then and whenever the index is loaded.
    Kinds that quantise find candidates, and the store's own vectors score them: scores are exact for all.

    Args:
        store: complete.
        kind: "flat", "hnsw", "ivfpq" or "sq8".
        ids: of the Q queries.
        vectors: (Q, w), as the model gave them.
        top_k: documents wanted; an index may find fewer.

    Returns:
        the ranking; ties by descending document id.

    Raises:
        InputError: FAISS is not installed, the kind is unknown, or the queries do not fit.
        NonFiniteScores: a query is not finite; names its row.
    """
    made, offsets = store.queries(vectors)
    queries = made.numpy()
    index = _index(store, kind, queries)
    stored: Any = _StoredVectors(store) if kind in QUANTISED else None
    ties = store.table.tie_rank_array()
    scores, rows = index.search(queries, top_k, ties, stored)
    if offsets is not None:
        scores = (scores + offsets.numpy()[:, None]).astype(np.float32)
        # Rounding may bring about ties that were none before; places without a document stay last.
        order = np.lexsort((np.asarray(ties)[rows], -scores), axis=-1)
        scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
    return Ranking(ids, scores, rows)


def _index(store: EmbeddingStore, kind: Kind, queries: npt.NDArray[np.float32]) -> FaissIndex:
    folder, key = store.folder / f"index-{kind}", {"store": store.record.key}
    if folder.exists():
        index = FaissIndex.load(folder, key)
        log.info(
            "%s is loaded; when it was built, it found of exact search: %s", folder, index.record["recall"]
        )
        return index
    # Also of vectors that are folded already: it keeps MRL's prior out of the codes, and changes little else.
    transform = FaissOptions(kind, "folding" if store.record.flattened else "none")
    index = FaissIndex.build(
        lambda: (chunk.numpy() for chunk in store.chunks()), transform, queries=queries, key=key
    )
    index.save(folder)
    return index


class _StoredVectors:
    """The vectors of a store as what an index takes for an (N, w) array: only rows asked for are read."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store
        self.shape = (len(store), store.dimensions)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self._store.vectors(rows.clip(min=0)).numpy()
        return found
