"""ReSTrain: training queries near to, or far from, all test queries, from datasets to folders."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Array, Ints
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.manifest import Manifest, RestrainParameters, short_size
from beir_cocodr.resampling.resample import ResampledSet, embed_inputs, load_pair, write_resampled
from beir_cocodr.resampling.similarity import check_method, nearest_ranks
from beir_cocodr.retrieval.store.store import Embeddings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingSets:
    """Two training sets of equal size, each as (n,) ascending rows of training queries.

    Attributes:
        size: what was asked for; None where k was.
        k: neighbours of each test query whose union is the interpolation set.
    """

    size: int | None
    k: int
    interpolation: Ints
    extrapolation: Ints


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


def restrain(ranks: Ints, depth: int, options: RestrainOptions) -> ReSTrain:
    """Choose interpolation and extrapolation training sets from the best ranks of training queries.

    The interpolation set is the union of every test query's k nearest training queries. The
    extrapolation set is a uniform sample of the same size from the training queries outside the
    union of the L nearest; L is one for all sizes, and samples are beginnings of one random order.
    So sets are nested across sizes, and every extrapolation set is disjoint from every
    interpolation set. An InputError: neither sizes nor ks or both, a value below 1 or twice, L
    below k, or fewer training queries left outside the L nearest than the interpolation set has.

    Args:
        ranks, depth: (N,) best ranks and the length of their lists, from `ranks_for_targets` with
            the same options.
        options: targets, and the seed of the random order.

    Source: Zhan et al., 2022, section 4.1.2.
    """
    check_targets(options, len(ranks))
    sizes, ks = options.sizes, options.ks
    # For every k up to the depth, how many training queries are among the k nearest of any test
    # query.
    unions = np.append(0, np.bincount(ranks[ranks < depth], minlength=depth).cumsum())
    targets: list[int | None] = [*sizes] or [None] * len(ks)
    chosen = list(zip(targets, ks or [_k_for(size, unions) for size in sizes], strict=True))
    largest = max(k for _, k in chosen)
    top = largest if options.exclude_top is None else options.exclude_top
    if top < largest:
        raise InputError(
            f"--exclude-top {top} is less than the {largest} nearest training queries that make up the "
            f"interpolation set: take {largest} or more, or leave it out"
        )
    pool = np.flatnonzero(ranks >= top)
    if len(pool) < (needed := int(unions[largest])):
        raise InputError(
            f"{f'only {len(pool)}' if len(pool) else 'no'} training queries are left for extrapolation: "
            f"{len(ranks) - len(pool)} of {len(ranks)} are among the {top} nearest of a test query, and the "
            f"interpolation set has {needed}; lower --size, --k or --exclude-top, or use ReSTTest"
        )
    order = np.random.default_rng(options.seed).permutation(pool)
    near = [np.flatnonzero(ranks < k) for _, k in chosen]
    sets = (
        TrainingSets(*pair, rows, np.sort(order[: len(rows)]))
        for pair, rows in zip(chosen, near, strict=True)
    )
    return ReSTrain(top, len(pool), tuple(sets))


def check_targets(options: RestrainOptions, queries: int) -> None:
    """Check early for what no neighbour list can satisfy; errors as for `restrain`."""
    sizes, ks, exclude_top = options.sizes, options.ks, options.exclude_top
    if bool(sizes) == bool(ks):
        raise InputError(
            "give the training sets a --size or a --k (each may be repeated), and not both"
        )
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
        raise InputError(
            f"--k {max(ks)} is more than the {queries} training queries that there are"
        )
    if exclude_top is not None and exclude_top < 1:
        raise InputError(f"--exclude-top {exclude_top}: give 1 or more")


def _k_for(size: int, unions: Ints) -> int:
    k = int(np.searchsorted(unions, size))
    if k > 1 and size - unions[k - 1] <= unions[k] - size:
        k -= 1
    return k


def ranks_for_targets(train: Embeddings, test: Array, options: RestrainOptions) -> tuple[Ints, int]:
    """Best ranks, (N,), of (N, d) training queries for (T, d) test queries, and the length of the
    lists that they come from, long enough for `restrain`. That is only known when they are there:
    what is too short is made twice as long.
    """
    sizes = options.sizes
    count = len(train)
    guess = max((-(-2 * size // len(test)) for size in sizes), default=1)
    depth = min(count, max(guess, *options.ks, options.exclude_top or 1))
    while True:
        log.info("searching the %d nearest of %d training queries", depth, count)
        ranks = nearest_ranks(train, test, depth, options.method)
        if depth == count or np.count_nonzero(ranks < depth) >= max(sizes, default=0):
            return ranks, depth
        depth = min(count, 2 * depth)


def resample_restrain(
    train: str,
    test: str | Sequence[str],
    encoder: str,
    output: Path,
    options: RestrainOptions,
    search: SearchOptions = SearchOptions(),
) -> Manifest:
    """Resample training queries by their similarity to the test queries; write the collections and
    their manifest. An InputError names what has to be corrected; nothing is written then.

    ``output/interpolation`` and ``output/extrapolation`` are BEIR folders with the same test
    queries; with several sizes they stand in ``output/size-N``, with several k in ``output/k-K``.

    Args:
        train, test: datasets as the command line names them; several test sets over one corpus
            count as one.
        encoder: whose query embeddings are compared by cosine; ``search``: how queries are encoded.
        output: the folder; must not be there, or be empty.

    Source: Zhan et al., 2022, section 4.1.2.
    """
    check_method(options.method)
    pair = load_pair(train, test, output, options, search)
    check_targets(options, len(pair.train.queries))
    inputs = embed_inputs(pair, encoder, options, search)
    ranks, depth = ranks_for_targets(inputs.train, inputs.test.load().numpy(), options)
    try:
        found = restrain(ranks, depth, options)
    except InputError as error:
        raise InputError(f"{train}: {error}") from error
    ks = [chosen.k for chosen in found.sets]
    chosen = list(options.sizes), ks, found.exclude_top, found.pool, options.seed, options.method
    sets = [
        one for each in found.sets for one in _sets(each, len(found.sets) > 1, len(inputs.test))
    ]
    return write_resampled(
        output, inputs, "restrain", RestrainParameters(*chosen), sets, options.base
    )


def _sets(chosen: TrainingSets, several: bool, tests: int) -> list[ResampledSet]:
    count = len(chosen.interpolation)
    if chosen.size is not None and chosen.k == 1 and count > chosen.size:
        log.warning(
            "--size %d cannot be had: the nearest training queries of %d test queries are %d already (k = 1)",
            *(chosen.size, tests, count),
        )
    else:
        log.info("k = %d: %d training queries", chosen.k, count)
    if chosen.size is None:
        folder = label = f"k-{chosen.k}"
    else:
        folder, label = f"size-{chosen.size}", f"size-{short_size(chosen.size)}"
    place, test, target = f"{folder}/" if several else "", np.arange(tests), (chosen.size, chosen.k)
    return [
        ResampledSet(
            f"{place}interpolation", label, "interpolation", chosen.interpolation, test, *target
        ),
        ResampledSet(
            f"{place}extrapolation", label, "extrapolation", chosen.extrapolation, test, *target
        ),
    ]
