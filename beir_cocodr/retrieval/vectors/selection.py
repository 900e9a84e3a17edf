"""Exact selection of the best documents of each query, from scores that come tile by tile.

The score and the tie rank of a document become one integer, its key (:func:`to_keys`), so that
every ranking has exactly one right order.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.retrieval.vectors.products import TileCandidates, true_positions

_LOW_WORD = 0xFFFFFFFF
_MAGNITUDE = 0x7FFFFFFF
_NO_KEY = np.iinfo(np.int64).min

#: Scores that a thread selects from at a time, whose masks and keys are in memory. With fewer,
#: threads wait for each other.
_SELECTION = 1 << 20

#: Scores that an accelerator selects from at a time. With fewer, it waits for the processor, which
#: starts a dozen operations and reads two numbers for each selection.
_DEVICE_SELECTION = 1 << 27

#: The room for keys of a query before the best are selected, beyond twice their number.
_SPARE = 64


def to_keys(scores: Tensor, ranks: Tensor) -> Tensor:
    """Convert scores and tie ranks to int64 keys: the larger the key, the better the document.

    The upper half of a key is the score in a form that preserves order, the lower half is the
    complement of the tie rank.

    Args:
        scores: float32 of any shape.
        ranks: int64 of the same shape, below 2³².
    """
    positive_zeros = scores + 0.0  # -0.0 becomes 0.0, to which it is equal
    bits = positive_zeros.view(torch.int32)
    ordered = bits ^ _inverted_bits(bits)
    upper_half = ordered.to(torch.int64) << 32
    lower_half = _LOW_WORD - ranks
    return upper_half | lower_half


def scores_of(keys: Tensor) -> Tensor:
    """Return the float32 scores in int64 keys."""
    ordered = (keys >> 32).to(torch.int32)
    bits = ordered ^ _inverted_bits(ordered)
    return bits.view(torch.float32)


def _inverted_bits(bits: Tensor) -> Tensor:
    """Return the bits that a negative number inverts, all but its sign, so that keys ascend."""
    return (bits >> 31) & _MAGNITUDE


def ranks_of(keys: Tensor) -> Tensor:
    """Return the int64 tie ranks in int64 keys."""
    complements = keys & _LOW_WORD
    return _LOW_WORD - complements


def merge_keys(parts: Sequence[Tensor], top_k: int) -> Tensor:
    """Return the ``top_k`` largest keys of each query, in descending order.

    Tie ranks count over the whole corpus, so no two keys of a query are equal, and the result
    depends neither on the division of the corpus nor on the order of the parts.

    Args:
        parts: (Q, k_i) keys of the parts of one corpus.
        top_k: the number of keys to keep.
    """
    keys = torch.cat(list(parts), dim=1)
    count = min(top_k, keys.shape[1])
    return keys.topk(count, dim=1).values


class HostBest:
    """The best documents of every query so far, selected by all threads of a processor.

    The k-th best of everything seen cannot be below the bound of a query. Scores that reach the
    bound are written as keys behind the held ones. When there is no room for more, the best k are
    kept and the bound rises.

    Args:
        queries: the number of queries.
        top_k: the number of documents to keep for each query.

    Attributes:
        seen: the number of documents that all queries were compared with; the caller raises it.
    """

    def __init__(self, queries: int, top_k: int) -> None:
        """Begin with no documents."""
        self.seen = 0
        self.top_k = top_k
        self._keys = np.full((queries, 0), _NO_KEY)
        self._held = np.zeros(queries, np.int64)
        self._bound = np.full(queries, -np.inf, np.float32)
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads)

    def add(
        self,
        part: slice,
        scores: Tensor,
        ranks: Tensor,
    ) -> None:
        """Select from (q, n) scores of a part of the queries and n documents of (n,) tie ranks."""
        count = scores.shape[1]
        self._make_room(count)
        values = scores.numpy()
        complements = _LOW_WORD - ranks.numpy()

        def select(rows: slice) -> None:
            first = rows.start - part.start
            last = rows.stop - part.start
            self._add_block(rows, values[first:last], complements)

        block_size = max(1, _SELECTION // count)
        self._for_each_block(part, block_size, select)

    def add_candidates(
        self,
        part: slice,
        candidates: TileCandidates,
        ranks: Tensor,
    ) -> None:
        """Select from candidates, which reach the :meth:`bounds`, among n documents of a tile."""
        self._make_room(len(ranks))
        candidate_ranks = ranks.numpy()[candidates.columns]
        complements = _LOW_WORD - candidate_ranks
        keys = _host_keys(candidates.scores, complements)
        self._append(part, keys, candidates.starts)

    def bounds(self, part: slice, scores: Tensor | None = None) -> Floats:
        """Return the (q,) scores below which no document is among the best.

        They follow from the documents seen so far. As long as there are too few of these, they
        follow from (q, n) new ``scores``, and without them they are -inf.
        """
        if self._keys.shape[1] >= self.top_k:
            self._raise_bounds(part)
        bounds: Floats = self._bound[part].copy()
        is_unknown = bool(bounds[0] == -np.inf)
        if scores is None or not is_unknown:
            return bounds
        if scores.shape[1] >= self.top_k:
            lower = self._lower_bounds(scores.numpy())
            bounds = np.maximum(bounds, lower)
        return bounds

    def result(self) -> Tensor:
        """Return (Q, k) keys, best first."""
        query_count = len(self._held)
        depth = min(self.top_k, self.seen)
        best = np.empty((query_count, depth), np.int64)

        def select(rows: slice) -> None:
            held = self._held[rows].max()
            largest = self._largest(self._keys[rows, :held])
            ascending = np.sort(largest, axis=1)
            best[rows] = ascending[:, ::-1]

        width = self._keys.shape[1]
        block_size = max(1, _SELECTION // width)
        all_queries = slice(0, query_count)
        self._for_each_block(all_queries, block_size, select)
        return torch.from_numpy(best)

    def _make_room(self, more: int) -> None:
        # At first there is room for everything, so that either all keys seen are held, or at least
        # k of them.
        seen = self.seen + more
        width = self._keys.shape[1]
        enough = 2 * self.top_k + _SPARE
        for_all_seen = max(seen, 2 * width)
        self._keys = _widened(self._keys, min(enough, for_all_seen))

    def _raise_bounds(self, part: slice) -> None:
        least = self._largest(self._keys[part]).min(axis=1)
        known = least != _NO_KEY
        kth_scores = _host_scores(least[known])
        bound = self._bound[part]
        bound[known] = np.maximum(bound[known], kth_scores)

    def _for_each_block(
        self,
        part: slice,
        size: int,
        work: Callable[[slice], None],
    ) -> None:
        """Call a function with blocks of at most ``size`` rows, in all threads."""
        rows_of_thread = math.ceil((part.stop - part.start) / self._threads)
        size = min(size, rows_of_thread)
        blocks = []
        for start in range(part.start, part.stop, size):
            stop = min(start + size, part.stop)
            blocks.append(slice(start, stop))
        if len(blocks) == 1 or self._threads == 1:
            for block in blocks:
                work(block)
        else:
            # Only NumPy works in these threads: it lets the others run meanwhile, whereas PyTorch
            # would give each of them a pool of its own.
            list(self._pool.map(work, blocks))

    def _add_block(
        self,
        rows: slice,
        scores: Floats,
        complements: Ints,
    ) -> None:
        row_count, column_count = scores.shape
        is_unknown = self._bound[rows.start] == -np.inf
        if is_unknown and column_count >= self.top_k:
            lower = self._lower_bounds(scores)
            self._bound[rows] = np.maximum(self._bound[rows], lower)
        mask = np.empty(scores.size + 7, bool)
        reached = mask[: scores.size].reshape(scores.shape)
        bounds = self._bound[rows][:, None]
        np.greater_equal(scores, bounds, out=reached)
        positions = true_positions(mask, scores.size)
        row_starts = np.arange(row_count + 1) * column_count
        starts = np.searchsorted(positions, row_starts)
        reached_scores = scores.ravel()[positions]
        # In place and row by row, positions become columns faster than by one division of all.
        for row, (first, last) in enumerate(pairwise(starts.tolist())):
            positions[first:last] -= row * column_count
        keys = _host_keys(reached_scores, complements[positions])
        self._append(rows, keys, starts)

    def _append(
        self,
        rows: slice,
        keys: Ints,
        starts: Ints,
    ) -> None:
        """Write the keys of each row, which begin at the (q + 1,) ``starts``, behind the held."""
        held = self._held[rows]
        kept = self._keys[rows]
        room = kept.shape[1]
        counts = np.diff(starts)
        needed = int((held + counts).max())
        wide = _widened(kept, needed)
        ranges = pairwise(starts.tolist())
        firsts = held.tolist()
        for row, (begin, end), first in zip(wide, ranges, firsts, strict=True):
            last = first + end - begin
            row[first:last] = keys[begin:end]
        held += counts
        if needed > room:
            best = self._largest(wide)
            kept[:, : self.top_k] = best
            kept[:, self.top_k :] = _NO_KEY
            held[:] = self.top_k
            self._bound[rows] = _host_scores(best.min(axis=1))

    def _largest(self, keys: Ints) -> Ints:
        """Return the k largest keys of each row in any order, or all if there are fewer."""
        first = max(0, keys.shape[1] - self.top_k)
        partitioned = np.partition(keys, first, axis=1)
        return partitioned[:, first:]

    def _lower_bounds(self, scores: Floats) -> Floats:
        """Return the k-th largest of the maxima of disjoint groups of each row's scores.

        That is cheaper than the k-th largest score, and cannot be above it.
        """
        count = scores.shape[1]
        size = max(1, count // (2 * self.top_k))
        groups = count // size
        maxima = scores[:, :groups].copy()
        for start in range(groups, size * groups, groups):
            group = scores[:, start : start + groups]
            np.maximum(maxima, group, out=maxima)
        kth = groups - self.top_k
        partitioned = np.partition(maxima, kth, axis=1)
        return partitioned[:, kth]


def _widened(keys: Ints, width: int) -> Ints:
    """Return keys with room for ``width`` in each row; the same array if there is room already."""
    more = width - keys.shape[1]
    if more <= 0:
        return keys
    room = ((0, 0), (0, more))
    return np.pad(keys, room, constant_values=_NO_KEY)


def _host_keys(scores: Floats, complements: Ints) -> Ints:
    """Convert scores and complements of tie ranks to keys, as :func:`to_keys` does."""
    positive_zeros = scores + np.float32(0)
    bits = positive_zeros.view(np.int32)
    inverted_bits = (bits >> 31) & np.int32(_MAGNITUDE)
    ordered = bits ^ inverted_bits
    upper_half = ordered.astype(np.int64) << 32
    keys: Ints = upper_half | complements
    return keys


def _host_scores(keys: Ints) -> Floats:
    scores: Floats = scores_of(torch.from_numpy(keys)).numpy()
    return scores


class DeviceBest:
    """The best documents of every query so far, selected on an accelerator.

    Args:
        queries: the number of queries.
        top_k: the number of documents to keep for each query.
        device: the device of the scores.

    Attributes:
        seen: the number of documents that all queries were compared with; the caller raises it.
    """

    def __init__(
        self,
        queries: int,
        top_k: int,
        device: torch.device,
    ) -> None:
        """Begin with no documents."""
        self.seen = 0
        self.top_k = top_k
        self._none = torch.empty(queries, 0, dtype=torch.int64, device=device)
        # The keys of each part of the queries, by its first query.
        self._best: dict[int, Tensor] = {}

    def add(
        self,
        part: slice,
        scores: Tensor,
        ranks: Tensor,
    ) -> None:
        """Select from (q, n) scores of a part of the queries and n documents of (n,) tie ranks."""
        count = scores.shape[1]
        rows = max(1, _DEVICE_SELECTION // count)
        best = self._best.get(part.start, self._none[part])
        merged = []
        blocks = torch.split(scores, rows)
        best_blocks = torch.split(best, rows)
        for block, best_block in zip(blocks, best_blocks, strict=True):
            merged.append(_merge(best_block, block, ranks, self.top_k))
        self._best[part.start] = torch.cat(merged)

    def result(self) -> Tensor:
        """Return (Q, k) keys, best first."""
        parts = list(self._best.values())
        best = torch.cat(parts)
        return best.sort(dim=1, descending=True).values


def _merge(
    best: Tensor,
    scores: Tensor,
    ranks: Tensor,
    top_k: int,
) -> Tensor:
    """Return the min(k, b + n) largest keys of each query, in any order.

    Args:
        best: (q, b) the best keys so far.
        scores: (q, n) new scores.
        ranks: (n,) tie ranks of the new documents.
        top_k: k.
    """
    bounds = _lower_bounds(best, scores, top_k)
    reached = scores >= bounds[:, None]
    row, column = reached.nonzero(as_tuple=True)
    del reached  # as large as a quarter of the scores
    keys = to_keys(scores[row, column], ranks[column])
    # Queries have different numbers of new keys, which are written behind the best so far.
    counts = torch.bincount(row, minlength=len(scores))
    firsts = counts.cumsum(0) - counts
    offsets = torch.arange(len(row), device=row.device)
    offsets -= firsts[row]
    held = best.shape[1]
    width = held + int(counts.max())
    together = best.new_full((len(scores), width), _NO_KEY)
    together[:, :held] = best
    together[row, held + offsets] = keys
    count = min(top_k, width)
    return together.topk(count, dim=1, sorted=False).values


def _lower_bounds(best: Tensor, scores: Tensor, top_k: int) -> Tensor:
    """Return (q,) scores that the k-th best of all documents seen cannot be below.

    At first, that is the k-th largest of the maxima of disjoint groups of the (q, n) new scores,
    which is cheaper than the k-th largest score.
    """
    if best.shape[1] == top_k:
        least = best.amin(dim=1)
        return scores_of(least)
    count = scores.shape[1]
    if count < top_k:
        return scores.new_full((len(scores),), -torch.inf)
    size = max(1, count // (2 * top_k))
    groups = count // size
    in_groups = scores[:, : size * groups]
    grouped = in_groups.view(-1, size, groups)
    maxima = grouped.amax(dim=1)
    largest = maxima.topk(top_k, dim=1, sorted=False).values
    return largest.amin(dim=1)
