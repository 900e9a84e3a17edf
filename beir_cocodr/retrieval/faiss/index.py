"""Approximate search by FAISS over the vectors of a corpus, MRL's too, and how much of exact search
it finds.
"""

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from beir_cocodr.arrays import Array, Doubles, Floats, Ints
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.faiss import build as building
from beir_cocodr.retrieval.faiss.build import Vectors
from beir_cocodr.retrieval.faiss.transform import QUANTISED, FaissOptions
from beir_cocodr.retrieval.ranking import overlap
from beir_cocodr.retrieval.store.store import Embeddings, MemoryEmbeddings
from beir_cocodr.retrieval.topk import as_matrix, search_chunks

_DEPTHS = (10, 100)


def recall_against_exact(
    index: Any,
    queries: Array,
    vectors: Vectors,
    depths: Sequence[int] = _DEPTHS,
    sample: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """The share of the exact top k that an index has in its own top k, over a sample of queries:
    ``recall@k`` for every depth k, or all documents where there are fewer, means over queries; and
    ``queries``, how many those were.

    The index's ``search(queries, top_k)`` gives (Q, top_k) scores and rows for (Q, w) queries, an
    InputError where there are none, or no depths; ``vectors`` are what it was built from, read
    once.
    """
    if not len(queries) or not sample or not depths:
        raise InputError("recall needs at least one query and one depth")
    drawn = np.asarray(queries)[building.sample_rows(len(queries), sample, seed)]
    exact = search_chunks(drawn, building.blocks(building.as_embeddings(vectors)), max(depths))[
        1
    ].numpy()
    found = index.search(drawn, exact.shape[1])[1]
    return {f"recall@{k}": float(overlap(found, exact, k).mean()) for k in depths} | {
        "queries": len(drawn)
    }


# Documents beyond top_k that are looked at to see whether a tie runs across the last place.
_TIES = 16
_NOWHERE = np.iinfo(np.int64).max
logger = logging.getLogger(__name__)


class FaissIndex:
    """A FAISS index over N vectors, searched by inner product.

    "flat" is exact. "hnsw" keeps all vectors too, and what it finds has its exact score. "sq8" and
    "ivfpq" keep codes: their scores are approximate, except for MRL's prior γ', which stays
    float32; given the ``vectors``, a search scores candidates exactly. Cosine models: normalise,
    then it is inner product.

    Made by :meth:`build` or :meth:`load`. On a GPU, "flat" and "ivfpq" are searched where FAISS
    finds one.

    Attributes:
        options: with all numbers that were chosen.
        count, width: N and w.
        record: ``key``, ``recall`` against exact search (None where not measured), FAISS's version.
    """

    def __init__(self, parts: building.IndexParts) -> None:
        self._parts = parts
        self.options, self.record = parts.options, parts.record
        self.count, self.width = int(parts.index.ntotal), parts.layout.dimensions
        self._searched = building.on_gpu(parts.index, parts.options.kind)

    @classmethod
    def build(
        cls,
        vectors: Vectors,
        options: FaissOptions | None = None,
        queries: Array | None = None,
        key: Mapping[str, Any] | None = None,
    ) -> Self:
        """Index a corpus, block by block, and measure what the index finds of exact search.

        Args:
            vectors: N of width w, read three to five times.
            options: by default those of "flat".
            queries: (Q, w) a sample of queries. Recall is measured with some of them, and a folding
                takes their mean. Without, documents stand in: those of MRL as queries of the same
                distributions. Any mean is right; recall, though, is then that of queries that
                resemble documents.
            key: what the vectors are (model, corpus, ...), in JSON's types; saved, and checked by
                `load`.

        Raises:
            InputError: no vectors, queries that do not fit them, or what `FaissOptions.fitted`
                refuses.
            NonFiniteScores: NaN or infinite vectors; names rows.
        """
        embeddings = building.as_embeddings(vectors)
        parts, sample = building.build_parts(embeddings, options or FaissOptions(), queries, key)
        built = cls(parts)
        if parts.options.recall_queries:
            built._measure(embeddings, sample, "documents" if queries is None else "given")
        return built

    def search(
        self,
        queries: Array,
        top_k: int,
        tie_ranks: Array | None = None,
        vectors: Vectors | None = None,
    ) -> tuple[Floats, Ints]:
        """The best documents of every query.

        Args:
            queries: (Q, w), as the model made them.
            top_k: documents wanted for each; k = min(top_k, N).
            tie_ranks: (N,) integers, the smaller comes first of equal scores, see `search_chunks`;
                default: the row.
            vectors: what was indexed: candidates are scored with it exactly.

        Returns:
            scores (Q, k) float32 descending and rows (Q, k) int64. Scores are those of the vectors
            given, not of transformed ones. Where fewer are found, the last places are -inf and -1.

        Raises:
            InputError: top_k < 1, no queries, or shapes that do not fit.
            NonFiniteScores: NaN or infinite queries; names rows.
        """
        if top_k < 1:
            raise InputError(f"top_k is {top_k}: ask for at least one document")
        raw = building.check_queries(queries, self.width)
        ties = None if tie_ranks is None else np.asarray(tie_ranks)
        if ties is not None and ties.shape != (self.count,):
            raise InputError(f"there are {len(ties)} tie ranks for {self.count} documents")
        stored = None if vectors is None else building.as_embeddings(vectors)
        if stored is not None and (shape := (len(stored), stored.dimensions)) != (
            self.count,
            self.width,
        ):
            raise InputError(f"vectors are {shape}, this index is of {(self.count, self.width)}")
        k = min(top_k, self.count)
        transform = self._parts.transform
        changed = transform.transform_queries(raw, np.float64)
        scores, rows = self._candidates(self._parts.layout.queries(changed), k, ties)
        if stored is not None:
            scores = _inner_products(raw, stored, rows)
        else:
            scores = scores + (changed @ transform.document_mean)[:, None]
        return best_candidates(scores, rows, k, ties)

    def tuned(
        self, ef_search: int | None = None, nprobe: int | None = None, over_fetch: int | None = None
    ) -> Self:
        """The same index, searched more or less thoroughly; its recall is not measured again."""
        changes = {"ef_search": ef_search, "nprobe": nprobe, "over_fetch": over_fetch}
        given: dict[str, Any] = {
            name: value for name, value in changes.items() if value is not None
        }
        other = copy(self)  # the index itself, on a GPU perhaps, is one for both
        other.options, other.record = replace(self.options, **given), self.record | {"recall": None}
        other._parts = replace(self._parts, options=other.options, record=other.record)
        return other

    def save(self, folder: str | Path) -> None:
        """Write the index, its transform and its settings to a folder, in one step; a folder of
        anything else stays.
        """
        building.write_parts(Path(folder), self._parts)

    @classmethod
    def load(
        cls, folder: str | Path, key: Mapping[str, Any] | None = None, verify: bool = True
    ) -> Self:
        """Read what :meth:`save` wrote; an InputError where it is not there, broken, or of another
        key.

        Args:
            folder: where.
            key: values that the saved key must have.
            verify: compare the files with their checksums.
        """
        return cls(building.read_parts(Path(folder), key, verify))

    def _candidates(self, placed: Floats, k: int, ties: Array | None) -> tuple[Doubles, Ints]:
        """Scores of transformed vectors, and rows, at least k of each."""
        kind, parts = self.options.kind, self._parts
        depth = min(self.count, self.options.over_fetch * k if kind in QUANTISED else k + _TIES)
        searched = parts.index if depth > building.GPU_DEPTH else self._searched
        scores, rows = searched.search(placed, depth, params=self._parameters())
        if kind == "hnsw":
            return _inner_products(placed, _stored(parts.index.storage), rows), rows
        wide = scores.astype(np.float64)
        if parts.remainders is not None:
            wide += parts.remainders[rows]
        if kind == "flat" and depth > k:
            tied = np.flatnonzero(scores[:, k - 1] == scores[:, -1])
            if len(tied):
                exact = search_chunks(placed[tied], _stored(parts.index).chunks(), k, ties)
                wide[tied], rows[tied] = -np.inf, -1
                wide[tied, :k], rows[tied, :k] = exact[0].numpy(), exact[1].numpy()
        return wide, rows

    def _parameters(self) -> Any:
        faiss = building.import_faiss()
        if self.options.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=self.options.ef_search)
        return (
            faiss.SearchParametersIVF(nprobe=self.options.nprobe)
            if self.options.kind == "ivfpq"
            else None
        )

    def _measure(self, vectors: Embeddings, queries: Array, which: str) -> None:
        options = self.options
        recall = recall_against_exact(
            self, queries, vectors, sample=options.recall_queries, seed=options.seed
        )
        self.record["recall"] = recall | {"of": which}
        shares = ", ".join(
            f"{name} {value:.3f}" for name, value in recall.items() if name != "queries"
        )
        logger.info(
            "%s over %d documents finds of exact search: %s (%d queries, %s)",
            options.kind, self.count, shares, recall["queries"],
            "documents stood in for them" if which == "documents" else "drawn from those given",
        )  # fmt: skip


def _stored(index: Any) -> Embeddings:
    """The vectors in a flat index themselves, not a copy."""
    faiss = building.import_faiss()
    flat = faiss.downcast_index(index)
    held = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
    return MemoryEmbeddings(as_matrix(held, "vectors"))


def _inner_products(queries: Array, vectors: Embeddings, rows: Ints) -> Doubles:
    """(Q, c) scores of the (Q, c) rows, summed in float64; without meaning where a row is -1."""
    scores = np.empty(rows.shape)
    for query, row, score in zip(queries.astype(np.float64), rows.clip(min=0), scores, strict=True):
        # Not by BLAS: its sums depend on where in the matrix a vector stands, and equal ones should
        # tie.
        np.einsum("cw,w->c", vectors.rows(row).numpy().astype(np.float64), query, out=score)
    return scores


def best_candidates(scores: Doubles, rows: Ints, k: int, ties: Array | None) -> tuple[Floats, Ints]:
    """(Q, c) candidates to the (Q, k) best by float32 score descending, then tie rank; rows of -1
    come last.
    """
    narrow = np.where(rows < 0, -np.inf, scores).astype(np.float32) + np.float32(0)  # no -0.0
    ranks = np.where(rows < 0, _NOWHERE, rows if ties is None else ties[rows])
    best = np.lexsort((ranks, -narrow), axis=-1)[:, :k]
    return np.take_along_axis(narrow, best, axis=1), np.take_along_axis(rows, best, axis=1)
