"""ReSTrain: training queries near to, or far from, all test queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TrainingSets:
    """Two training sets of equal size.

    Attributes:
        size: what was asked for; None where k was.
        k: neighbours of each test query whose union is the interpolation set.
        interpolation: (n,) rows of training queries, ascending.
        extrapolation: (n,) rows of training queries, ascending.
    """

    size: int | None
    k: int
    interpolation: Rows
    extrapolation: Rows


@dataclass(frozen=True)
class ReSTrain:
    """Training sets for every size asked for.

    Attributes:
        exclude_top: L; extrapolation sets are drawn outside the L nearest of every test query.
        pool: how many training queries that leaves to draw from.
        sets: in the order of the sizes asked for.
    """

    exclude_top: int
    pool: int
    sets: tuple[TrainingSets, ...]


def best_ranks(lists: Rows, queries: int) -> Rows:
    """The best rank of each training query in any list, (N,) int64 from 0; k where it is in none.

    Args:
        lists: (T, k) rows of training queries, best first, one list a test query.
        queries: N, how many training queries there are.
    """
    ranks = np.full(queries, lists.shape[1], np.int64)
    # From the last place to the first: what is written last is the best.
    for place in reversed(range(lists.shape[1])):
        ranks[lists[:, place]] = place
    return ranks


def restrain(
    ranks: Rows,
    depth: int,
    *,
    sizes: Sequence[int] = (),
    ks: Sequence[int] = (),
    exclude_top: int | None = None,
    seed: int = 42,
) -> ReSTrain:
    """Choose interpolation and extrapolation training sets from the best ranks of training queries.

    The interpolation set is the union of every test query's k nearest training queries. The extrapolation
    set is a uniform sample of the same size from the training queries outside the union of the L nearest;
    L is one for all sizes, and samples are beginnings of one random order. So sets are nested across sizes,
    and every extrapolation set is disjoint from every interpolation set.

    Args:
        ranks: (N,) best ranks, from `best_ranks`.
        depth: length of the lists that they come from; larger ranks are not told apart.
        sizes: target sizes; for each the k is taken whose union is nearest in size, the smaller of two.
        ks: instead of sizes, the k themselves.
        exclude_top: L, at least the largest k; by default the k of the largest set.
        seed: of the random order.

    Raises:
        InputError: neither sizes nor ks or both, a value below 1 or twice, L below k, or fewer training
            queries left outside the L nearest than the interpolation set has.
        ValueError: the lists are too short to tell.

    Source: Zhan et al., 2022, section 4.1.2.
    """
    refuse_targets(sizes, ks, exclude_top, len(ranks))
    unions = _union_sizes(ranks, depth)
    targets: list[int | None] = [*sizes] or [None] * len(ks)
    chosen = list(zip(targets, ks or [_k_for(size, unions) for size in sizes], strict=True))
    largest = max(k for _, k in chosen)
    top = largest if exclude_top is None else exclude_top
    if top < largest:
        raise InputError(
            f"--exclude-top {top} is less than the {largest} nearest training queries that make up the "
            f"interpolation set: take {largest} or more, or leave it out"
        )
    if max(top, largest) > depth and unions[-1] < len(ranks):
        raise ValueError(f"lists of {depth} neighbours do not tell what is outside the {top} nearest")
    pool = np.flatnonzero(ranks >= top)
    _refuse_small_pool(len(pool), int(unions[min(largest, depth)]), top, len(ranks))
    order = np.random.default_rng(seed).permutation(pool)
    sets = []
    for size, k in chosen:
        interpolation = np.flatnonzero(ranks < k)
        extrapolation = np.sort(order[: len(interpolation)])
        sets.append(TrainingSets(size, k, interpolation, extrapolation))
    return ReSTrain(top, len(pool), tuple(sets))


def refuse_targets(sizes: Sequence[int], ks: Sequence[int], exclude_top: int | None, queries: int) -> None:
    """Refuse what no neighbour list can satisfy, before there are any.

    Raises:
        InputError: as for `restrain`.
    """
    if bool(sizes) == bool(ks):
        raise InputError("give the training sets a --size or a --k (each may be repeated), and not both")
    for name, values in (("--size", sizes), ("--k", ks)):
        if any(value < 1 for value in values):
            raise InputError(f"{name} {min(values)}: give 1 or more")
        if len(set(values)) < len(values):
            raise InputError(f"{name} has the same value twice; give each once")
    if any(2 * size > queries for size in sizes):
        raise InputError(
            f"--size {max(sizes)} is more than half of the {queries} training queries, and interpolation and "
            f"extrapolation need as many each: no training queries are left; take at most {queries // 2}"
        )
    if any(k > queries for k in ks):
        raise InputError(f"--k {max(ks)} is more than the {queries} training queries that there are")
    if exclude_top is not None and exclude_top < 1:
        raise InputError(f"--exclude-top {exclude_top}: give 1 or more")


def _union_sizes(ranks: Rows, depth: int) -> Rows:
    """(depth + 1,): how many training queries are among the k nearest of any test query, for every k."""
    found = np.bincount(ranks[ranks < depth], minlength=depth)
    return np.concatenate([[0], np.cumsum(found)]).astype(np.int64)


def _k_for(size: int, unions: Rows) -> int:
    k = int(np.searchsorted(unions, size))
    if k == len(unions):
        raise ValueError(
            f"lists of {len(unions) - 1} neighbours hold {unions[-1]} queries, fewer than {size}"
        )
    if k > 1 and size - unions[k - 1] <= unions[k] - size:
        k -= 1
    return k


def _refuse_small_pool(pool: int, needed: int, top: int, queries: int) -> None:
    if pool >= needed:
        return
    left = "no training queries are left" if pool == 0 else f"only {pool} training queries are left"
    raise InputError(
        f"{left} for extrapolation: {queries - pool} of {queries} are among the {top} nearest of a test "
        f"query, and the interpolation set has {needed}; lower --size, --k or --exclude-top, or use ReSTTest"
    )
