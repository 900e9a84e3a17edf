"""Exact top-k over a stream of document embeddings: scores and tie ranks are put into one integer
each (:func:`to_keys`), so that every ranking has exactly one right order; NaN or infinite scores
raise :class:`NonFiniteScores`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from beir_cocodr.errors import InputError, listed
from beir_cocodr.retrieval.products import (
    FIRST_SCREENED,
    Panel,
    Products,
    Screen,
    TileHits,
    found_again,
    places,
)

_LOW_WORD = 0xFFFFFFFF
_MAGNITUDE = 0x7FFFFFFF


def to_keys(scores: Tensor, ranks: Tensor) -> Tensor:
    """float32 scores and int64 tie ranks below 2³², of one shape, to int64 keys: larger is better.

    The score stands above in an order-preserving form, the complement of the tie rank below.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0, to which it is equal
    ordered = bits ^ ((bits >> 31) & _MAGNITUDE)
    return (ordered.to(torch.int64) << 32) | (_LOW_WORD - ranks)


def scores_of(keys: Tensor) -> Tensor:
    """int64 keys to the float32 scores in them."""
    ordered = (keys >> 32).to(torch.int32)
    return (ordered ^ ((ordered >> 31) & _MAGNITUDE)).view(torch.float32)


def ranks_of(keys: Tensor) -> Tensor:
    """int64 keys to the int64 tie ranks in them."""
    return _LOW_WORD - (keys & _LOW_WORD)


def merge_keys(parts: Sequence[Tensor], top_k: int) -> Tensor:
    """The ``top_k`` largest keys of each query, descending, from (Q, k_i) keys of parts of one
    corpus.

    Tie ranks count over the whole corpus, so no two keys of a query are equal: what comes out does
    not depend on how the corpus was parted, nor on the order of the parts.
    """
    keys = torch.cat(list(parts), dim=1)
    return keys.topk(min(top_k, keys.shape[1]), dim=1).values


class NonFiniteScores(InputError):
    """Embeddings that give NaN or infinite scores; no ranking of them means anything.

    Args:
        documents: the documents at fault, rows or ids; empty when it is the query vectors alone.
        queries: the queries at fault, rows or ids; empty when it is the document vectors alone.
            Where both are named, each vector is finite and their products overflow.
    """

    def __init__(self, documents: Sequence[int | str], queries: Sequence[int | str]) -> None:
        self.documents, self.queries = list(documents), list(queries)
        at_fault = filter(
            None, (_listed("document", self.documents), _listed("query", self.queries))
        )
        super().__init__(
            f"NaN or infinite scores from the embeddings of {' with '.join(at_fault)}: look at their texts, "
            "and encode in float32 if the model runs in half precision"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is otherwise made anew from its message when it comes back from another
        # process.
        return NonFiniteScores, (self.documents, self.queries)

    def named(
        self, documents: Callable[[list[int]], Sequence[str]], queries: Sequence[str]
    ) -> "NonFiniteScores":
        """The same error with ids in place of rows: a function from rows to document ids, and all
        query ids.
        """
        return NonFiniteScores(
            documents([int(row) for row in self.documents]), [queries[int(q)] for q in self.queries]
        )


def _listed(kind: str, names: Sequence[int | str]) -> str:
    shown = listed([repr(name) if isinstance(name, str) else f"row {name}" for name in names])
    return f"{kind} {shown}" if names else ""


Similarity = Literal["dot", "cosine"]
Array = Tensor | NDArray[Any]

# Queries and documents of a tile, whose scores take at most 128 MiB. Fewer queries a tile slow the
# product down, with fewer documents a tile more of them reach the bounds, which are lower at first.
_QUERY_TILE, _DOCUMENT_TILE = 1_024, 32_768

# Scores that a thread selects from at a time (their masks and keys are held): with fewer, threads
# wait for each other.
_SELECTION = 1 << 20
_NO_KEY = np.iinfo(np.int64).min

# Where |q| |d| stays below this no partial sum of the product can leave float32 (maximum 3.4e38).
_SAFE_PRODUCT = 1e38


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
    """The ``top_k`` best documents of every query, exactly.

    Chunks are read once, one after the other, and worked on in tiles of queries by documents, so
    memory depends on neither the corpus nor the size of its chunks (beside a chunk itself and the
    (N,) tie ranks). Order is by score descending, then by tie rank ascending, also where ties run
    across the last place. A score's last bits may depend on the shapes of the product, hence on the
    sizes of chunks and tiles: results agree to 1e-5, and in order outside ties and such near-ties.
    PyTorch's settings for less precise float32 products apply.

    Args:
        query_embeddings: (Q, d), any dtype, cast to float32 before the product; the search is on
            its device.
        chunks: (n, d) each, in corpus order, any dtype and device; N documents in all.
        top_k: documents wanted for each query; k = min(top_k, N).
        tie_ranks: (N,) integers, a permutation of 0..N-1; the smaller comes first among equal
            scores. For trec_eval's order it is the position in descending order of document ids.
            Default: the row.
        similarity: "dot", or "cosine", which normalises rows; a zero vector has cosine 0 with
            everything.
        excluded_rows: (Q,) integers, one corpus row for each query that it must not retrieve; -1
            for none.

    Returns:
        scores (Q, k) float32 sorted descending and rows (Q, k) int64, on the queries' device. Where
        exclusion leaves a query fewer than k documents, its last places are score -inf, row -1.

    Raises:
        NonFiniteScores: a score is NaN or infinite; names rows (`NonFiniteScores.named` puts ids).
        InputError: top_k < 1, no queries or no documents, sizes that do not fit, or tie ranks that
        are no permutation.
    """
    ranks = None if tie_ranks is None else _tensor(tie_ranks).to(torch.int64)
    row_of_rank = None if ranks is None else _inverse(ranks)
    ranked = _ranked(chunks, ranks)
    keys = search_keys(
        query_embeddings, ranked, top_k, similarity=similarity, excluded_rows=excluded_rows
    )
    scores, found = scores_of(keys), ranks_of(keys)
    rows = found if row_of_rank is None else row_of_rank.to(found.device)[found]
    return scores, rows.masked_fill_(scores == -torch.inf, -1)


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
    """`search_chunks`, with its errors, over a part of a corpus: (Q, k) int64 keys of score and tie
    rank, descending, which :func:`merge_keys` puts together with those of others.

    Chunks are (n, d) embeddings and (n,) tie ranks each. Ranks count over the whole corpus and are
    not looked at here beyond that, so that the caller need not hold all of them. ``first_row`` is
    the corpus row of the first document, for ``excluded_rows`` and errors.
    """
    if top_k < 1:
        raise InputError(f"top_k is {top_k}: ask for at least one document")
    queries = _prepared(as_matrix(query_embeddings, "query embeddings"), similarity)
    if not len(queries):
        raise InputError("there are no queries to search for")
    if culprits := _rows_with_non_finite(queries):
        raise NonFiniteScores([], culprits)
    search = _Search(queries, top_k, first_row)
    excluded = None if excluded_rows is None else _tensor(excluded_rows).to(queries.device)
    for chunk, chunk_ranks in chunks:
        matrix = as_matrix(chunk, "a chunk")
        # In equal parts: a small last one costs nearly as much as a large one.
        parts = max(1, -(-len(matrix) // _DOCUMENT_TILE))
        ranks = torch.tensor_split(_tensor(chunk_ranks).to(torch.int64), parts)
        for tile, here in zip(torch.tensor_split(matrix, parts), ranks, strict=True):
            if tile.shape[1] != queries.shape[1]:
                raise InputError(
                    f"documents have {tile.shape[1]} dimensions, queries {queries.shape[1]}"
                )
            if not len(tile):
                continue
            # An autocast region around the search must not turn the product into half precision.
            with torch.autocast(queries.device.type, enabled=False):
                search.add(
                    _prepared(tile.to(queries.device), similarity),
                    here.to(queries.device),
                    excluded,
                )
    return search.result()


def _ranked(chunks: Iterable[Array], ranks: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks with their tie ranks; by default the rows."""
    seen = 0
    for chunk in chunks:
        matrix = as_matrix(chunk, "a chunk")
        start, seen = seen, seen + len(matrix)
        if ranks is not None and seen > len(ranks):
            raise InputError(f"there are more documents than tie ranks ({len(ranks)})")
        yield matrix, torch.arange(start, seen) if ranks is None else ranks[start:seen]
    if ranks is not None and len(ranks) != seen:
        raise InputError(f"there are {len(ranks)} tie ranks for {seen} documents")


class _Search:
    """A search of one part of a corpus, tile by tile."""

    def __init__(self, queries: Tensor, top_k: int, first_row: int) -> None:
        self.seen, size = first_row, len(queries)
        on_host = queries.device.type == "cpu"
        self._best: HostBest | _DeviceBest = (
            HostBest(size, top_k) if on_host else _DeviceBest(size, top_k, queries.device)
        )
        self._norm = float(torch.linalg.vector_norm(queries, dim=1).max())
        self._all, self._queries, self._product = (
            queries,
            torch.split(queries, _QUERY_TILE),
            Products(queries.device),
        )
        self._screened = (
            self._best if Screen.pays(queries, top_k) and isinstance(self._best, HostBest) else None
        )
        self._screen: Screen | None = None
        self._screened_from = FIRST_SCREENED * top_k

    def add(self, documents: Tensor, ranks: Tensor, excluded: Tensor | None) -> None:
        """Take in (n, d) documents, n > 0, with (n,) tie ranks."""
        # Of all of them together, no less than the largest, which takes longer.
        finite = (
            self._norm * float(torch.linalg.vector_norm(documents)) < _SAFE_PRODUCT
        )  # False for NaN as well
        best = self._screened if finite else None
        panels = self._panels(documents) if best else []
        for first, queries in zip(
            range(0, len(self._all), _QUERY_TILE), self._queries, strict=True
        ):
            part, found = slice(first, first + len(queries)), None
            if best and panels:
                assert self._screen is not None
                found = self._screen.found(part, panels, best.bounds(part))
                if found is None:  # again when more was seen
                    panels, self._screened_from = [], 2 * best.seen
            if found is None:
                scores = self._product(queries, documents)
                if not finite:
                    self._check(scores, documents, first)
                if excluded is not None:
                    local = excluded[part] - self.seen
                    at = ((local >= 0) & (local < len(documents))).nonzero().squeeze(1)
                    scores[at, local[at]] = -torch.inf
                found = (
                    found_again(queries, documents, scores, best.bounds(part, scores))
                    if best
                    else None
                )
            if best is None or found is None:  # scores lie so close together that it never pays
                self._screened = best = None
                self._best.add(part, scores, ranks)
                continue
            if excluded is not None:
                column = np.repeat((excluded[part] - self.seen).numpy(), np.diff(found.starts))
                found.scores[found.columns == column] = -np.inf
            best.add_found(part, found, ranks)
        self._best.seen += len(documents)
        self.seen += len(documents)

    def _panels(self, documents: Tensor) -> list[Panel]:
        """Documents as integers, once enough was seen."""
        if self._best.seen < self._screened_from:
            return []
        self._screen = self._screen or Screen(self._all, documents)
        return list(self._screen.panels(documents))

    def result(self) -> Tensor:
        """(Q, k) keys, best first."""
        if not self._best.seen:
            raise InputError("there are no documents to search")
        return self._best.result()

    def _check(self, scores: Tensor, documents: Tensor, first_query: int) -> None:
        """Raise if a score is not finite; only reached when norms cannot rule it out."""
        if (wrong := ~scores.isfinite()).sum() == 0:
            return
        if culprits := _rows_with_non_finite(documents):
            raise NonFiniteScores([self.seen + row for row in culprits], [])
        raise NonFiniteScores(
            [self.seen + row for row in wrong.any(dim=0).nonzero().squeeze(1).tolist()],
            [first_query + row for row in wrong.any(dim=1).nonzero().squeeze(1).tolist()],
        )


class HostBest:
    """The best so far of every query, by all threads of a processor.

    The scores that reach a query's bound, which the k-th best of everything seen cannot be below,
    are written behind those held already, as keys. Where there is no room for more, the best k are
    kept and the bound is raised.
    """

    def __init__(self, queries: int, top_k: int) -> None:
        self.seen, self.top_k = 0, top_k
        self._keys = np.full((queries, 0), _NO_KEY)
        self._held = np.zeros(queries, np.int64)
        self._bound = np.full(queries, -np.inf, np.float32)
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads)

    def add(self, part: slice, scores: Tensor, ranks: Tensor) -> None:
        """Take in the (q, n) scores of a part of the queries with (n,) ranks; the caller raises
        ``seen``.
        """
        self._make_room(scores.shape[1])
        values, complements = scores.numpy(), _LOW_WORD - ranks.numpy()

        def take(rows: slice) -> None:
            self._take(rows, values[rows.start - part.start : rows.stop - part.start], complements)

        self._each_block(part, max(1, _SELECTION // scores.shape[1]), take)

    def add_found(self, part: slice, found: TileHits, ranks: Tensor) -> None:
        """The same of scores that reach the :meth:`bounds` alone."""
        self._make_room(len(ranks))
        keys = _host_keys(found.scores, _LOW_WORD - ranks.numpy()[found.columns])
        self._put(part, keys, found.starts)

    def bounds(self, part: slice, scores: Tensor | None = None) -> NDArray[np.float32]:
        """(q,) scores below which nothing is among the best of a part of the queries, by what was
        seen, or, at first, by (q, n) new scores; -inf where all may be.
        """
        if self._keys.shape[1] >= self.top_k:
            least = self._largest(self._keys[part]).min(axis=1)
            known = least != _NO_KEY
            bound = self._bound[part]
            bound[known] = np.maximum(
                bound[known], scores_of(torch.from_numpy(least[known])).numpy()
            )
        bounds = self._bound[part].copy()
        if scores is not None and bounds[0] == -np.inf and scores.shape[1] >= self.top_k:
            bounds = np.maximum(bounds, self._lower_bound(scores.numpy()))
        return bounds

    def _make_room(self, more: int) -> None:
        # At first there is room for everything: what is held is then all that was seen, or at least
        # k.
        seen, width = self.seen + more, self._keys.shape[1]
        self._keys = _widened(self._keys, min(2 * self.top_k + 64, max(seen, 2 * width)))

    def result(self) -> Tensor:
        """(Q, k) keys, best first."""
        found = np.empty((len(self._held), min(self.top_k, self.seen)), np.int64)

        def select(rows: slice) -> None:
            best = self._largest(self._keys[rows, : self._held[rows].max()])
            found[rows] = np.sort(best, axis=1)[:, ::-1]

        self._each_block(slice(0, len(found)), max(1, _SELECTION // self._keys.shape[1]), select)
        return torch.from_numpy(found)

    def _each_block(self, part: slice, size: int, work: Callable[[slice], None]) -> None:
        size = min(size, -(-(part.stop - part.start) // self._threads))
        blocks = [
            slice(first, min(first + size, part.stop))
            for first in range(part.start, part.stop, size)
        ]
        # By NumPy alone, which lets others run meanwhile; each of these threads would get a pool of
        # PyTorch's.
        list((map if 1 in (len(blocks), self._threads) else self._pool.map)(work, blocks))

    def _take(self, rows: slice, scores: NDArray[Any], complements: NDArray[Any]) -> None:
        count, n = scores.shape
        if self._bound[rows.start] == -np.inf and n >= self.top_k:
            self._bound[rows] = np.maximum(self._bound[rows], self._lower_bound(scores))
        mask = np.empty(scores.size + 7, bool)
        np.greater_equal(
            scores, self._bound[rows][:, None], out=mask[: scores.size].reshape(scores.shape)
        )
        at = places(mask, scores.size)
        starts = np.searchsorted(at, np.arange(count + 1) * n)
        reached = scores.ravel()[at]
        # Row by row: fewer steps than places of all rows at once would take.
        for i, (first, last) in enumerate(pairwise(starts.tolist())):
            at[first:last] -= i * n
        self._put(rows, _host_keys(reached, complements[at]), starts)

    def _put(self, rows: slice, keys: NDArray[Any], starts: NDArray[np.int64]) -> None:
        """Write the keys of each row, which begin at the (q + 1,) ``starts``, behind those that are
        held.
        """
        held, kept = self._held[rows], self._keys[rows]
        here, room = np.diff(starts), kept.shape[1]
        into = _widened(kept, most := int((held + here).max()))
        for row, (begin, end), first in zip(
            into, pairwise(starts.tolist()), held.tolist(), strict=True
        ):
            row[first : first + end - begin] = keys[begin:end]
        held += here
        if most > room:
            best = self._largest(into)
            kept[:, : self.top_k], kept[:, self.top_k :], held[:] = best, _NO_KEY, self.top_k
            self._bound[rows] = scores_of(torch.from_numpy(best.min(axis=1))).numpy()

    def _largest(self, keys: NDArray[Any]) -> NDArray[Any]:
        """The k largest of each row, in any order; all where there are fewer."""
        last = max(0, keys.shape[1] - self.top_k)
        return np.partition(keys, last, axis=1)[:, last:]

    def _lower_bound(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The k-th largest of the maxima of disjoint groups, cheaper than the k-th largest
        score.
        """
        size = max(1, scores.shape[1] // (2 * self.top_k))
        groups = scores.shape[1] // size
        maxima = scores[:, :groups].copy()
        for start in range(groups, size * groups, groups):
            np.maximum(maxima, scores[:, start : start + groups], out=maxima)
        return np.partition(maxima, groups - self.top_k, axis=1)[:, groups - self.top_k]


def _widened(keys: NDArray[Any], width: int) -> NDArray[Any]:
    more = width - keys.shape[1]
    return keys if more <= 0 else np.pad(keys, ((0, 0), (0, more)), constant_values=_NO_KEY)


def _host_keys(scores: NDArray[Any], complements: NDArray[np.int64]) -> NDArray[np.int64]:
    """:func:`to_keys` of scores and the complements of ranks."""
    bits = (scores + np.float32(0)).view(np.int32)
    ordered: NDArray[np.int64] = (bits ^ ((bits >> 31) & np.int32(_MAGNITUDE))).astype(np.int64)
    return (ordered << 32) | complements


class _DeviceBest:
    """The best so far of every query, on an accelerator."""

    def __init__(self, queries: int, top_k: int, device: torch.device) -> None:
        self.seen, self.top_k = 0, top_k
        self._none = torch.empty(queries, 0, dtype=torch.int64, device=device)
        self._best: dict[int, Tensor] = {}  # of the parts of the queries, by the first

    def add(self, part: slice, scores: Tensor, ranks: Tensor) -> None:
        """Take in the (q, n) scores of a part of the queries with (n,) ranks."""
        rows = max(1, 2 * _SELECTION // scores.shape[1])
        blocks = (
            torch.split(scores, rows),
            torch.split(self._best.get(part.start, self._none[part]), rows),
        )
        merged = [
            _merge(best, block, ranks, self.top_k) for block, best in zip(*blocks, strict=True)
        ]
        self._best[part.start] = torch.cat(merged)

    def result(self) -> Tensor:
        """(Q, k) keys, best first."""
        return torch.cat(list(self._best.values())).sort(dim=1, descending=True).values


def _merge(best: Tensor, scores: Tensor, ranks: Tensor, k: int) -> Tensor:
    """(q, b) best keys so far and (q, n) new scores with (n,) ranks to (q, min(k, b + n)) keys,
    unsorted.
    """
    row, column = (scores >= _lower_bound(best, scores, k)[:, None]).nonzero(as_tuple=True)
    keys = to_keys(scores[row, column], ranks[column])
    # Queries have different numbers of contenders: they are written behind the best so far, flush
    # left.
    count = torch.bincount(row, minlength=len(scores))
    place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    held, most = best.shape[1], int(count.max())
    contenders = best.new_full((len(scores), held + most), torch.iinfo(torch.int64).min)
    contenders[:, :held] = best
    contenders[row, held + place] = keys
    return contenders.topk(min(k, held + most), dim=1, sorted=False).values


def _lower_bound(best: Tensor, scores: Tensor, k: int) -> Tensor:
    """(q,) scores that the k-th best of everything seen, the (q, n) new scores included, cannot be
    below.

    At first that is the k-th largest of the maxima of disjoint groups, cheaper than the k-th
    largest score.
    """
    if best.shape[1] == k:
        return scores_of(best.amin(dim=1))
    n = scores.shape[1]
    if n < k:
        return scores.new_full((len(scores),), -torch.inf)
    size = max(1, n // (2 * k))
    groups = n // size
    maxima = scores[:, : size * groups].view(-1, size, groups).amax(dim=1)
    return maxima.topk(k, dim=1, sorted=False).values.amin(dim=1)


def _prepared(rows: Tensor, similarity: Similarity) -> Tensor:
    """(n, d) in float32, normalised for cosine; zero vectors stay zero."""
    rows = rows.to(torch.float32)
    if similarity == "dot":
        return rows
    if similarity != "cosine":
        raise InputError(f"similarity {similarity!r} is neither 'dot' nor 'cosine'")
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    unit = rows / norms
    # Squares of tiny or huge numbers leave float32 where the numbers themselves do not.
    odd = ~((norms > 1e-15) & (norms < 1e18)).squeeze(1)
    if odd.any():
        wide = rows[odd].double()
        wide_norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        unit[odd] = torch.where(wide_norms == 0, wide, wide / wide_norms).float()
    return unit


def _inverse(ranks: Tensor) -> Tensor:
    """(N,) row of every rank."""
    inverse = torch.full_like(ranks, -1)
    if len(ranks) and int(ranks.min()) >= 0 and int(ranks.max()) < len(ranks):
        inverse[ranks] = torch.arange(len(ranks), device=ranks.device)
    if (inverse < 0).any():
        raise InputError(f"tie_ranks is not a permutation of 0..{len(ranks) - 1}")
    return inverse


def as_matrix(array: Array, what: str) -> Tensor:
    """A tensor over the memory of an (n, d) array; an InputError where it has other dimensions."""
    matrix = _tensor(array)
    if matrix.ndim != 2:
        raise InputError(f"{what} must be two-dimensional, not of shape {tuple(matrix.shape)}")
    return matrix


def _tensor(array: Array) -> Tensor:
    if isinstance(array, Tensor):
        return array
    with warnings.catch_warnings():
        # Read-only arrays, such as memory-mapped ones, are welcome: nothing here writes to its
        # input.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _rows_with_non_finite(matrix: Tensor) -> list[int]:
    rows: list[int] = (~matrix.isfinite().all(dim=1)).nonzero().squeeze(1).tolist()
    return rows
