"""Approximate search with FAISS over the vectors of a corpus, with its recall of exact search."""

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
from beir_cocodr.retrieval.store.embeddings import Embeddings, MemoryEmbeddings
from beir_cocodr.retrieval.vectors.topk import as_matrix, search_chunks

logger = logging.getLogger(__name__)

_DEPTHS = (10, 100)

# Documents beyond top_k that show whether a tie crosses the last place.
_TIES = 16
_NOWHERE = np.iinfo(np.int64).max


def recall_against_exact(
    index: Any,
    queries: Array,
    vectors: Vectors,
    depths: Sequence[int] = _DEPTHS,
    sample: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """Measure how much of the exact top k an index has in its own top k.

    Args:
        index: anything whose ``search(queries, top_k)`` returns (Q, top_k) scores and rows for
            (Q, w) queries.
        queries: (Q, w) query vectors.
        vectors: the vectors that the index was built from. They are read once.
        depths: the values of k.
        sample: the most queries that are searched.
        seed: seed of the sample.

    Returns:
        ``recall@k`` for every k, averaged over queries, and ``queries``, their number. In a corpus
        of fewer than k documents all of them count.

    Raises:
        InputError: If there are no queries or no depths.
    """
    if not len(queries) or not sample or not depths:
        raise InputError("recall needs at least one query and one depth")
    rows = building.sample_rows(len(queries), sample, seed)
    drawn = np.asarray(queries)[rows]
    corpus = building.blocks(building.as_embeddings(vectors))
    _, exact = search_chunks(drawn, corpus, max(depths))
    exact_rows = exact.numpy()
    _, index_rows = index.search(drawn, exact_rows.shape[1])
    recall: dict[str, float] = {}
    for k in depths:
        shares = overlap(index_rows, exact_rows, k)
        recall[f"recall@{k}"] = float(shares.mean())
    recall["queries"] = len(drawn)
    return recall


class FaissIndex:
    """A FAISS index over N vectors, searched by inner product.

    "flat" is exact. "hnsw" keeps all vectors too and returns exact scores. "sq8" and "ivfpq" keep
    codes, so their scores are approximate, except for MRL's prior γ', which stays float32; a search
    that is given the ``vectors`` scores its candidates exactly. Normalise the vectors of cosine
    models: their cosine is then the inner product.

    Make an index with :meth:`build` or :meth:`load`. Where FAISS finds GPUs, it searches "flat" and
    "ivfpq" on all of them, each with a part of the vectors; ``device`` names "cpu" or one of them,
    such as "cuda:1". A line of the log says when the CPU searches although there is a GPU.

    Attributes:
        options: the settings, with all numbers chosen.
        count: N, the number of vectors.
        width: w, their dimensions.
        record: ``key``, ``recall`` of exact search (None if not measured) and the version of FAISS.
    """

    def __init__(self, parts: building.IndexParts, device: str | None = None) -> None:
        """Wrap the parts of a built index, and copy it to the device."""
        self._parts = parts
        self.options = parts.options
        self.record = parts.record
        self.count = int(parts.index.ntotal)
        self.width = parts.layout.dimensions
        self._searched = building.on_device(parts.index, parts.options.kind, device)

    @classmethod
    def build(
        cls,
        vectors: Vectors,
        options: FaissOptions | None = None,
        queries: Array | None = None,
        key: Mapping[str, object] | None = None,
        device: str | None = None,
    ) -> Self:
        """Index a corpus block by block, and measure its recall of exact search.

        Args:
            vectors: N vectors of width w. They are read three to five times.
            options: the settings. Default: those of "flat".
            queries: (Q, w) sample of queries. Some of them measure recall, and a folding uses their
                mean. Without queries, documents take their part: documents of an MRL as queries
                of the same distributions. The rankings are right with any mean, but recall is then
                that of queries that resemble documents.
            key: what identifies the vectors (model, corpus and so on), as JSON. It is saved, and
                :meth:`load` checks it.
            device: where FAISS searches. Default: all GPUs that it finds, else the CPU.

        Raises:
            InputError: If there are no vectors, queries do not fit them,
                :meth:`FaissOptions.fitted` refuses the settings, or there is no such device.
            NonFiniteScores: If vectors are NaN or infinite. It names their rows.
        """
        embeddings = building.as_embeddings(vectors)
        parts, sample = building.build_parts(
            embeddings,
            options or FaissOptions(),
            queries,
            key,
        )
        index = cls(parts, device)
        if parts.options.recall_queries:
            source = "documents" if queries is None else "given"
            index._measure(embeddings, sample, source)
        return index

    def search(
        self,
        queries: Array,
        top_k: int,
        tie_ranks: Array | None = None,
        vectors: Vectors | None = None,
    ) -> tuple[Floats, Ints]:
        """Return the k = min(top_k, N) best documents of every query.

        Args:
            queries: (Q, w) vectors as the model made them.
            top_k: the number of documents of a query.
            tie_ranks: (N,) integers; of equal scores the smaller comes first, see
                :func:`~beir_cocodr.retrieval.vectors.topk.search_chunks`. Default: the row.
            vectors: the vectors that were indexed, to score candidates exactly.

        Returns:
            (Q, k) float32 scores in descending order and (Q, k) int64 rows. The scores are those of
            the given vectors, not of transformed ones. If fewer documents are found, the last
            places are -inf and -1.

        Raises:
            InputError: If ``top_k`` is below 1, there are no queries, or shapes do not fit.
            NonFiniteScores: If queries are NaN or infinite. It names their rows.
        """
        if top_k < 1:
            raise InputError(f"top_k is {top_k}; ask for at least one document")
        raw = building.check_queries(queries, self.width)
        ties = self._checked_ties(tie_ranks)
        stored = self._checked_vectors(vectors)
        k = min(top_k, self.count)
        transform = self._parts.transform
        changed = transform.transform_queries(raw, np.float64)
        placed = self._parts.layout.queries(changed)
        scores, rows = self._candidates(placed, k, ties)
        if stored is not None:
            scores = _inner_products(raw, stored, rows)
        else:
            mean_scores = changed @ transform.document_mean
            scores = scores + mean_scores[:, None]
        return best_candidates(scores, rows, k, ties)

    def tuned(
        self, ef_search: int | None = None, nprobe: int | None = None, over_fetch: int | None = None
    ) -> Self:
        """Return the same index, searched more or less thoroughly.

        Its recall is not measured again.
        """
        changes = {"ef_search": ef_search, "nprobe": nprobe, "over_fetch": over_fetch}
        set_changes: dict[str, Any] = {}
        for name, value in changes.items():
            if value is not None:
                set_changes[name] = value
        other = copy(self)  # both share the index itself, which may be on a GPU
        other.options = replace(self.options, **set_changes)
        other.record = self.record | {"recall": None}
        other._parts = replace(
            self._parts,
            options=other.options,
            record=other.record,
        )
        return other

    def save(self, folder: str | Path) -> None:
        """Write the index, its transform and its settings to a folder, in one step.

        Raises:
            InputError: If the folder holds anything but an index, or cannot be written.
        """
        building.write_parts(Path(folder), self._parts)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        key: Mapping[str, object] | None = None,
        verify: bool = True,
        device: str | None = None,
    ) -> Self:
        """Read an index that :meth:`save` wrote.

        Args:
            folder: the folder of the index.
            key: values that the saved key must have.
            verify: compare the files with their checksums.
            device: where FAISS searches. Default: all GPUs that it finds, else the CPU.

        Raises:
            InputError: If there is no index, it is damaged, its key differs, or there is no such
                device.
        """
        return cls(building.read_parts(Path(folder), key, verify), device)

    def _checked_ties(self, tie_ranks: Array | None) -> Array | None:
        if tie_ranks is None:
            return None
        ties = np.asarray(tie_ranks)
        if ties.shape != (self.count,):
            raise InputError(
                f"there are {len(ties)} tie ranks for {self.count} documents; give one for each"
            )
        return ties

    def _checked_vectors(self, vectors: Vectors | None) -> Embeddings | None:
        if vectors is None:
            return None
        stored = building.as_embeddings(vectors)
        shape = (len(stored), stored.dimensions)
        indexed = (self.count, self.width)
        if shape != indexed:
            raise InputError(
                f"vectors have the shape {shape}, but this index contains {indexed}; give the "
                "vectors that it was built from"
            )
        return stored

    def _candidates(
        self,
        placed: Floats,
        k: int,
        ties: Array | None,
    ) -> tuple[Doubles, Ints]:
        """Return scores of transformed vectors, and rows, at least k of each."""
        kind = self.options.kind
        parts = self._parts
        wanted = k + _TIES
        if kind in QUANTISED:
            wanted = self.options.over_fetch * k
        depth = min(self.count, wanted)
        index = self._searched
        if depth > building.GPU_DEPTH and index is not parts.index:
            building.warn_of_depth(depth)
            index = parts.index
        scores, rows = index.search(placed, depth, params=self._parameters())
        if kind == "hnsw":
            stored = _stored(parts.index.storage)
            return _inner_products(placed, stored, rows), rows
        wide = scores.astype(np.float64)
        if parts.remainders is not None:
            wide += parts.remainders[rows]
        if kind == "flat" and depth > k:
            kth_scores = scores[:, k - 1]
            is_tied = kth_scores == scores[:, -1]
            tied = np.flatnonzero(is_tied)
            if len(tied):
                self._settle_ties(placed, k, ties, tied, (wide, rows))
        return wide, rows

    def _settle_ties(
        self, placed: Floats, k: int, ties: Array | None, tied: Ints, best: tuple[Doubles, Ints]
    ) -> None:
        """Replace the candidates of queries whose tie crosses all places by the exact best."""
        scores, rows = best
        corpus = _stored(self._parts.index).chunks()
        exact_scores, exact_rows = search_chunks(placed[tied], corpus, k, ties)
        scores[tied] = -np.inf
        rows[tied] = -1
        scores[tied, :k] = exact_scores.numpy()
        rows[tied, :k] = exact_rows.numpy()

    def _parameters(self) -> Any:
        faiss = building.import_faiss()
        if self.options.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=self.options.ef_search)
        if self.options.kind == "ivfpq":
            return faiss.SearchParametersIVF(nprobe=self.options.nprobe)
        return None

    def _measure(self, vectors: Embeddings, queries: Array, source: str) -> None:
        recall = recall_against_exact(
            self,
            queries,
            vectors,
            sample=self.options.recall_queries,
            seed=self.options.seed,
        )
        self.record["recall"] = recall | {"of": source}
        shares = []
        for name, value in recall.items():
            if name != "queries":
                shares.append(f"{name} {value:.3f}")
        origin = (
            "documents used as queries" if source == "documents" else "drawn from the given ones"
        )
        logger.info(
            "%s over %d documents, compared with exact search: %s (%d queries, %s)",
            self.options.kind,
            self.count,
            ", ".join(shares),
            recall["queries"],
            origin,
        )


def _stored(index: Any) -> Embeddings:
    """Return the vectors inside a flat index, without a copy."""
    faiss = building.import_faiss()
    flat = faiss.downcast_index(index)
    numbers = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d)
    vectors = numbers.reshape(flat.ntotal, flat.d)
    return MemoryEmbeddings(as_matrix(vectors, "vectors"))


def _inner_products(queries: Array, vectors: Embeddings, rows: Ints) -> Doubles:
    """Return (Q, c) scores of (Q, c) rows, summed in float64; a row of -1 has no meaningful one."""
    scores = np.empty(rows.shape)
    wide_queries = queries.astype(np.float64)
    existing_rows = rows.clip(min=0)
    for query, row, score in zip(wide_queries, existing_rows, scores, strict=True):
        candidates = vectors.rows(row).numpy().astype(np.float64)
        # Not with BLAS: its sums depend on the place of a vector in the matrix, and equal vectors
        # must tie.
        np.einsum("cw,w->c", candidates, query, out=score)
    return scores


def best_candidates(
    scores: Doubles,
    rows: Ints,
    k: int,
    ties: Array | None,
) -> tuple[Floats, Ints]:
    """Return the (Q, k) best of (Q, c) candidates.

    The order is float32 score descending, then tie rank. Rows of -1 come last.
    """
    missing = rows < 0
    narrow = np.where(missing, -np.inf, scores).astype(np.float32)
    narrow += np.float32(0)  # -0.0 becomes 0.0, to which it is equal
    tie_ranks = rows
    if ties is not None:
        tie_ranks = ties[rows]
    # Some versions of the hosts give numbers of 32 bits.
    ranks = np.where(missing, _NOWHERE, np.asarray(tie_ranks, np.int64))
    order = np.lexsort((ranks, -narrow), axis=-1)
    best = order[:, :k]
    best_scores = np.take_along_axis(narrow, best, axis=1)
    best_rows = np.take_along_axis(rows, best, axis=1)
    return best_scores, best_rows
