"""Exact search: the best documents of each query, over a stream of document embeddings.

NaN or infinite scores raise :class:`NonFiniteScores`.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from beir_cocodr.errors import InputError, listed
from beir_cocodr.retrieval.vectors.products import (
    FIRST_SCREENED,
    Panel,
    Products,
    Screen,
    TileCandidates,
    candidates_by_scores,
)
from beir_cocodr.retrieval.vectors.selection import DeviceBest, HostBest, ranks_of, scores_of

Similarity = Literal["dot", "cosine"]
Array = Tensor | NDArray[Any]

#: Queries of a tile. With fewer, the product is slower.
_QUERY_TILE = 1_024

#: Documents of a tile, whose scores take at most 128 MiB. With fewer, more documents reach the
#: bounds, which are lower at first.
_DOCUMENT_TILE = 32_768

#: Documents of a tile on an accelerator, whose scores take at most 512 MiB. With fewer, it waits
#: for the processor between tiles.
_DEVICE_DOCUMENT_TILE = 131_072

#: Where |q| |d| stays below this, no partial sum of the product can leave float32 (3.4e38).
_SAFE_PRODUCT = 1e38


class NonFiniteScores(InputError):
    """Embeddings that give NaN or infinite scores, whose rankings would mean nothing.

    Args:
        documents: rows or ids of the documents at fault; empty if only query vectors are.
        queries: rows or ids of the queries at fault; empty if only document vectors are. If both
            are named, each vector is finite and their products overflow.
    """

    def __init__(self, documents: Sequence[int | str], queries: Sequence[int | str]) -> None:
        """Make the message from the documents and queries at fault."""
        self.documents = list(documents)
        self.queries = list(queries)
        at_fault = []
        if self.documents:
            at_fault.append(_listed("document", self.documents))
        if self.queries:
            at_fault.append(_listed("query", self.queries))
        super().__init__(
            f"NaN or infinite scores from the embeddings of {' with '.join(at_fault)}: look at "
            "their texts, and encode in float32 if the model runs in half precision"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to make the exception anew in another process."""
        # By default it would be made from its message alone.
        return NonFiniteScores, (self.documents, self.queries)

    def named(
        self, documents: Callable[[list[int]], Sequence[str]], queries: Sequence[str]
    ) -> "NonFiniteScores":
        """Return the same error with ids instead of rows.

        Args:
            documents: a function from rows to document ids.
            queries: the ids of all queries.
        """
        document_ids = documents([int(row) for row in self.documents])
        query_ids = [queries[int(row)] for row in self.queries]
        return NonFiniteScores(document_ids, query_ids)


def _listed(kind: str, names: Sequence[int | str]) -> str:
    parts = []
    for name in names:
        if isinstance(name, str):
            parts.append(repr(name))
        else:
            parts.append(f"row {name}")
    return f"{kind} {listed(parts)}"


@torch.no_grad()
def search_chunks(
    query_embeddings: Array,
    chunks: Iterable[Array],
    top_k: int,
    tie_ranks: Array | None = None,
    *,
    similarity: Similarity = "dot",
    excluded_rows: Array | None = None,
) -> tuple[Tensor, Tensor]:
    """Find the ``top_k`` best documents of every query, exactly.

    Chunks are read once, one after the other, and searched in tiles of queries by documents. Memory
    holds one chunk, one tile and the (N,) tie ranks, whatever the size of the corpus: scores of a
    tile take at most 128 MiB on the processor, and 512 MiB on an accelerator. Documents are
    ordered by descending score, then by ascending tie rank, also where ties cross the last place.

    The last bits of a score may depend on the shapes of the product, and so on the sizes of chunks
    and tiles: results agree to 1e-5, and in order except for ties and near-ties within that.
    PyTorch's settings for less precise float32 products apply.

    Args:
        query_embeddings: (Q, d) of any dtype, cast to float32 before the product. The search runs
            on their device.
        chunks: (n, d) each, in corpus order, of any dtype and device; N documents in all.
        top_k: the number of documents to find for each query; k = min(top_k, N).
        tie_ranks: (N,) integers, a permutation of 0..N-1. Among equal scores the smaller comes
            first. For the order of trec_eval, it is the position in descending order of document
            ids. Default: the row.
        similarity: "dot", or "cosine", which normalises rows. A zero vector has cosine 0 with
            everything.
        excluded_rows: (Q,) integers, for each query one corpus row that it must not retrieve, or -1
            for none.

    Returns:
        Scores (Q, k) float32 in descending order, and rows (Q, k) int64, on the queries' device. If
        exclusion leaves a query fewer than k documents, its last places have score -inf and row -1.

    Raises:
        NonFiniteScores: A score is NaN or infinite. The error names rows; its method ``named`` puts
            ids in their place.
        InputError: top_k is below 1, there are no queries or no documents, sizes do not fit, or the
            tie ranks are no permutation.
    """
    ranks = None
    row_of_rank = None
    if tie_ranks is not None:
        ranks = _tensor(tie_ranks).to(torch.int64)
        row_of_rank = _inverse(ranks)
    keys = search_keys(
        query_embeddings,
        _with_ranks(chunks, ranks),
        top_k,
        similarity=similarity,
        excluded_rows=excluded_rows,
    )
    scores = scores_of(keys)
    rows = ranks_of(keys)
    if row_of_rank is not None:
        rows = row_of_rank.to(rows.device)[rows]
    is_excluded = scores == -torch.inf
    return scores, rows.masked_fill_(is_excluded, -1)


@torch.no_grad()
def search_keys(
    query_embeddings: Array,
    chunks: Iterable[tuple[Array, Array]],
    top_k: int,
    *,
    first_row: int = 0,
    similarity: Similarity = "dot",
    excluded_rows: Array | None = None,
) -> Tensor:
    """Search a part of a corpus as :func:`search_chunks` does, and return keys.

    :func:`~beir_cocodr.retrieval.vectors.selection.merge_keys` puts the keys of several parts
    together. Tie ranks count over the whole corpus and are not checked here, so that the caller
    need not hold all of them.

    Args:
        query_embeddings: as for :func:`search_chunks`.
        chunks: (n, d) embeddings and (n,) tie ranks each.
        top_k: as for :func:`search_chunks`.
        first_row: the corpus row of the first document, for ``excluded_rows`` and errors.
        similarity: as for :func:`search_chunks`.
        excluded_rows: as for :func:`search_chunks`.

    Returns:
        (Q, k) int64 keys of score and tie rank, in descending order.

    Raises:
        NonFiniteScores: as for :func:`search_chunks`.
        InputError: as for :func:`search_chunks`.
    """
    if top_k < 1:
        raise InputError(f"top_k is {top_k}: ask for at least one document")
    matrix = as_matrix(query_embeddings, "query embeddings")
    queries = _prepared(matrix, similarity)
    if not len(queries):
        raise InputError("there are no queries to search for")
    culprits = _non_finite_rows(queries)
    if culprits:
        raise NonFiniteScores([], culprits)
    search = _Search(queries, top_k, first_row)
    excluded = None
    if excluded_rows is not None:
        excluded = _tensor(excluded_rows).to(queries.device)
    on_host = queries.device.type == "cpu"
    for documents, ranks in _tiles(chunks, _DOCUMENT_TILE if on_host else _DEVICE_DOCUMENT_TILE):
        if documents.shape[1] != queries.shape[1]:
            raise InputError(
                f"documents have {documents.shape[1]} dimensions, queries {queries.shape[1]}"
            )
        if not len(documents):
            continue
        # An autocast region around the search must not turn the product into half precision.
        with torch.autocast(queries.device.type, enabled=False):
            prepared = _prepared(_moved(documents, queries.device), similarity)
            moved_ranks = _moved(ranks, queries.device)
            search.add(prepared, moved_ranks, excluded)
    return search.result()


def _with_ranks(chunks: Iterable[Array], ranks: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks with their tie ranks, which are the rows if none are given."""
    stop = 0
    for chunk in chunks:
        matrix = as_matrix(chunk, "a chunk")
        start = stop
        stop += len(matrix)
        if ranks is None:
            yield matrix, torch.arange(start, stop)
        elif stop > len(ranks):
            raise InputError(f"there are more documents than tie ranks ({len(ranks)})")
        else:
            yield matrix, ranks[start:stop]
    if ranks is not None and len(ranks) != stop:
        raise InputError(f"there are {len(ranks)} tie ranks for {stop} documents")


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; to a GPU from pinned memory, while it works on what it has."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _tiles(
    chunks: Iterable[tuple[Array, Array]],
    size: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut chunks of embeddings and tie ranks into tiles of at most ``size`` documents."""
    for chunk, chunk_ranks in chunks:
        matrix = as_matrix(chunk, "a chunk")
        ranks = _tensor(chunk_ranks).to(torch.int64)
        # Equal parts, because a small last one would cost nearly as much as a large one.
        count = max(1, math.ceil(len(matrix) / size))
        tiles = torch.tensor_split(matrix, count)
        rank_tiles = torch.tensor_split(ranks, count)
        yield from zip(tiles, rank_tiles, strict=True)


class _Search:
    """A search of one part of a corpus, tile by tile."""

    def __init__(
        self,
        queries: Tensor,
        top_k: int,
        first_row: int,
    ) -> None:
        self._queries = queries
        self._row = first_row
        self._norm = float(torch.linalg.vector_norm(queries, dim=1).max())
        self._product = Products(queries.device)
        self._best: HostBest | DeviceBest
        # The selection while documents are screened, and None once that does not pay.
        self._screened: HostBest | None = None
        if queries.device.type == "cpu":
            self._best = HostBest(len(queries), top_k)
            if Screen.pays(queries, top_k):
                self._screened = self._best
        else:
            self._best = DeviceBest(len(queries), top_k, queries.device)
        self._screen: Screen | None = None
        self._screened_from = FIRST_SCREENED * top_k

    def add(
        self,
        documents: Tensor,
        ranks: Tensor,
        excluded: Tensor | None,
    ) -> None:
        """Search (n, d) documents, n > 0, with (n,) tie ranks."""
        # The norm of the matrix is no less than that of its largest row, and faster to compute.
        # Comparing NaN gives False.
        norm = float(torch.linalg.vector_norm(documents))
        finite = self._norm * norm < _SAFE_PRODUCT
        if not finite:
            self._screened = None
        panels = self._panels(documents)
        for first in range(0, len(self._queries), _QUERY_TILE):
            queries = self._queries[first : first + _QUERY_TILE]
            part = slice(first, first + len(queries))
            candidates = self._screened_candidates(part, panels)
            if candidates is None:
                panels = []
                scores = self._product(queries, documents)
                if not finite:
                    self._check(scores, documents, first)
                self._exclude(scores, excluded, part)
                candidates = self._candidates(part, documents, scores)
            if candidates is None or self._screened is None:
                self._best.add(part, scores, ranks)
            else:
                self._exclude_candidates(candidates, excluded, part)
                self._screened.add_candidates(part, candidates, ranks)
        self._best.seen += len(documents)
        self._row += len(documents)

    def result(self) -> Tensor:
        """Return (Q, k) keys, best first."""
        if not self._best.seen:
            raise InputError("there are no documents to search")
        return self._best.result()

    def _panels(self, documents: Tensor) -> list[Panel]:
        """Return the documents as integers if they are screened, once enough were seen."""
        if self._screened is None:
            return []
        if self._screened.seen < self._screened_from:
            return []
        if self._screen is None:
            self._screen = Screen(self._queries, documents)
        return list(self._screen.panels(documents))

    def _screened_candidates(self, part: slice, panels: list[Panel]) -> TileCandidates | None:
        if self._screened is None or self._screen is None or not panels:
            return None
        bounds = self._screened.bounds(part)
        candidates = self._screen.candidates(part, panels, bounds)
        if candidates is None:
            # The bounds are too low; they will be higher when more was seen.
            self._screened_from = 2 * self._screened.seen
        return candidates

    def _candidates(
        self,
        part: slice,
        documents: Tensor,
        scores: Tensor,
    ) -> TileCandidates | None:
        """Return the candidates of a tile that is multiplied in float32, if others are screened."""
        if self._screened is None:
            return None
        bounds = self._screened.bounds(part, scores)
        candidates = candidates_by_scores(self._queries[part], documents, scores, bounds)
        if candidates is None:
            # Scores lie so close together that screening never pays.
            self._screened = None
        return candidates

    def _exclude(
        self,
        scores: Tensor,
        excluded: Tensor | None,
        part: slice,
    ) -> None:
        if excluded is None:
            return
        column = excluded[part] - self._row
        inside = (column >= 0) & (column < scores.shape[1])
        row = inside.nonzero().squeeze(1)
        scores[row, column[row]] = -torch.inf

    def _exclude_candidates(
        self,
        candidates: TileCandidates,
        excluded: Tensor | None,
        part: slice,
    ) -> None:
        if excluded is None:
            return
        column = (excluded[part] - self._row).numpy()
        counts = np.diff(candidates.starts)
        excluded_column = np.repeat(column, counts)
        is_excluded = candidates.columns == excluded_column
        candidates.scores[is_excluded] = -np.inf

    def _check(
        self,
        scores: Tensor,
        documents: Tensor,
        first_query: int,
    ) -> None:
        """Raise an error if a score is not finite; called only if norms cannot rule that out."""
        wrong = ~scores.isfinite()
        if not wrong.any():
            return
        culprits = _non_finite_rows(documents)
        if culprits:
            raise NonFiniteScores([self._row + row for row in culprits], [])
        document_rows = wrong.any(dim=0).nonzero().squeeze(1)
        query_rows = wrong.any(dim=1).nonzero().squeeze(1)
        raise NonFiniteScores(
            documents=(document_rows + self._row).tolist(),
            queries=(query_rows + first_query).tolist(),
        )


def _prepared(rows: Tensor, similarity: Similarity) -> Tensor:
    """Return (n, d) rows in float32, normalised for the cosine; zero vectors stay zero."""
    rows = rows.to(torch.float32)
    if similarity == "dot":
        return rows
    if similarity != "cosine":
        raise InputError(f"similarity {similarity!r} is neither 'dot' nor 'cosine'")
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    unit = rows / norms
    # Squares of tiny or huge numbers leave float32 where the numbers themselves do not.
    is_ordinary = (norms > 1e-15) & (norms < 1e18)
    odd = ~is_ordinary.squeeze(1)
    if odd.any():
        wide = rows[odd].double()
        wide_norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        wide_unit = torch.where(wide_norms == 0, wide, wide / wide_norms)
        unit[odd] = wide_unit.float()
    return unit


def _inverse(ranks: Tensor) -> Tensor:
    """Return the (N,) row of every rank."""
    count = len(ranks)
    inverse = torch.full_like(ranks, -1)
    if count:
        is_inside = int(ranks.min()) >= 0 and int(ranks.max()) < count
        if is_inside:
            inverse[ranks] = torch.arange(count, device=ranks.device)
    if (inverse < 0).any():
        raise InputError(f"tie_ranks is not a permutation of 0..{count - 1}")
    return inverse


def as_matrix(array: Array, what: str) -> Tensor:
    """Return a tensor over the memory of an (n, d) array.

    Args:
        array: a tensor or an array.
        what: what a message calls it.

    Raises:
        InputError: The array does not have two dimensions.
    """
    matrix = _tensor(array)
    if matrix.ndim != 2:
        raise InputError(f"{what} must be two-dimensional, not of shape {tuple(matrix.shape)}")
    return matrix


def _tensor(array: Array) -> Tensor:
    if isinstance(array, Tensor):
        return array
    with warnings.catch_warnings():
        # Read-only arrays such as memory-mapped ones are welcome, as nothing here writes to its
        # input.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _non_finite_rows(matrix: Tensor) -> list[int]:
    finite = matrix.isfinite().all(dim=1)
    non_finite_rows = (~finite).nonzero().squeeze(1)
    rows: list[int] = non_finite_rows.tolist()
    return rows
