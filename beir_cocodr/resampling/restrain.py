"""ReSTrain: training queries near to, or far from, all test queries."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Array, Ints
from beir_cocodr.data.collection import Dataset, Datasets
from beir_cocodr.errors import InputError, naming
from beir_cocodr.io import output_path
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.manifest import Manifest, RestrainParameters, short_size
from beir_cocodr.resampling.resample import (
    Draw,
    Method,
    ResampledSet,
    embed_inputs,
    load_pair,
    write_resampled,
)
from beir_cocodr.resampling.similarity import check_method, nearest_ranks
from beir_cocodr.retrieval.resolve import Model
from beir_cocodr.retrieval.store.embeddings import Embeddings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingSets:
    """Two training sets of equal size, each as (n,) ascending rows of training queries.

    Attributes:
        size: the size that was asked for, None if k was.
        k: neighbours of each test query, whose union is the interpolation set.
    """

    size: int | None
    k: int
    interpolation: Ints
    extrapolation: Ints


@dataclass(frozen=True)
class ReSTrain:
    """Training sets for every size or k.

    Attributes:
        exclude_top: L; extrapolation sets are drawn outside the L nearest of every test query.
        pool: the number of training queries that are left to draw from.
        sets: in the order of the sizes or ks.
    """

    exclude_top: int
    pool: int
    sets: tuple[TrainingSets, ...]


def restrain(ranks: Ints, depth: int, options: RestrainOptions) -> ReSTrain:
    """Choose interpolation and extrapolation training sets from the best ranks of training queries.

    The interpolation set is the union of every test query's k nearest training queries. The
    extrapolation set is a uniform sample of the same size from the training queries outside the
    union of the L nearest. L is one for all sizes, and all samples are beginnings of one random
    order, so sets are nested across sizes, and every extrapolation set is disjoint from every
    interpolation set.

    Args:
        ranks: (N,) best ranks, from :func:`ranks_for_targets` with the same options.
        depth: the length of their lists, from the same function.
        options: sizes or ks, L, and the seed of the random order.

    Raises:
        InputError: There are neither sizes nor ks or both, a value is below 1 or occurs twice, L is
            below k, or fewer training queries are left outside the L nearest than the interpolation
            set has.

    Source: Zhan et al., 2022, section 4.1.2.
    """
    check_targets(options, len(ranks))
    # For every k up to the depth, the number of training queries among the k nearest of any test
    # query.
    counts = np.bincount(ranks[ranks < depth], minlength=depth)
    unions = np.append(0, counts.cumsum())
    targets: list[tuple[int | None, int]] = [(None, k) for k in options.ks]
    if options.sizes:
        targets = [(size, _k_for(size, unions)) for size in options.sizes]
    largest = max(k for _, k in targets)
    top = largest
    if options.exclude_top is not None:
        top = options.exclude_top
    if top < largest:
        raise InputError(
            f"--exclude-top {top} is less than the {largest} nearest training queries that make up "
            f"the interpolation set: take {largest} or more, or leave it out"
        )
    pool = np.flatnonzero(ranks >= top)
    _check_pool(len(pool), int(unions[largest]), top, len(ranks))
    rng = np.random.default_rng(options.seed)
    order = rng.permutation(pool)
    sets = []
    for size, k in targets:
        near = np.flatnonzero(ranks < k)
        far = np.sort(order[: len(near)])
        sets.append(TrainingSets(size, k, near, far))
    return ReSTrain(top, len(pool), tuple(sets))


def _check_pool(
    size: int,
    needed: int,
    top: int,
    queries: int,
) -> None:
    if size >= needed:
        return
    left = f"only {size}" if size else "no"
    raise InputError(
        f"{left} training queries are left for extrapolation: {queries - size} of {queries} are "
        f"among the {top} nearest of a test query, and the interpolation set has {needed}; lower "
        "--size, --k or --exclude-top, or use ReSTTest"
    )


def check_targets(options: RestrainOptions, queries: int) -> None:
    """Check early for what no neighbour list can satisfy.

    Args:
        options: as for :func:`restrain`.
        queries: the number of training queries.

    Raises:
        InputError: as for :func:`restrain`.
    """
    if bool(options.sizes) == bool(options.ks):
        raise InputError(
            "give the training sets a --size or a --k (each may be repeated), and not both"
        )
    for name, values in (("--size", options.sizes), ("--k", options.ks)):
        if any(value < 1 for value in values):
            raise InputError(f"{name} {min(values)}: give 1 or more")
        if len(set(values)) < len(values):
            raise InputError(f"{name} has the same value twice; give each once")
    if any(2 * size > queries for size in options.sizes):
        raise InputError(
            f"--size {max(options.sizes)} is more than half of the {queries} training queries, and "
            "interpolation and extrapolation need as many each: no training queries are left; take "
            f"at most {queries // 2}"
        )
    if any(k > queries for k in options.ks):
        raise InputError(
            f"--k {max(options.ks)} is more than the {queries} training queries; lower it"
        )
    if options.exclude_top is not None and options.exclude_top < 1:
        raise InputError(f"--exclude-top {options.exclude_top}: give 1 or more")


def _k_for(size: int, unions: Ints) -> int:
    """Return the k whose union is nearest in size, the smaller one of two."""
    k = int(np.searchsorted(unions, size))
    if k <= 1:
        return k
    missing = size - unions[k - 1]
    surplus = unions[k] - size
    return k - 1 if missing <= surplus else k


def ranks_for_targets(
    train: Embeddings,
    test: Array,
    options: RestrainOptions,
) -> tuple[Ints, int]:
    """Find the best ranks of training queries for test queries, deep enough for :func:`restrain`.

    The depth is only known to be enough once the ranks are there; until it is, it is doubled.

    Args:
        train: (N, d) embeddings.
        test: (T, d) embeddings.
        options: sizes or ks, L, and the method of search.

    Returns:
        (N,) best ranks, and the length of the lists that they come from.
    """
    count = len(train)
    wanted = max(options.sizes, default=0)
    # Lists that do not overlap have this length, and others are longer.
    lengths = [-(-2 * size // len(test)) for size in options.sizes]
    expected = max(lengths, default=1)
    deepest = max(expected, *options.ks, options.exclude_top or 1)
    depth = min(count, deepest)
    while True:
        log.info("searching the %d nearest of %d training queries", depth, count)
        ranks = nearest_ranks(train, test, depth, options.method)
        reached = np.count_nonzero(ranks < depth)
        if depth == count or reached >= wanted:
            return ranks, depth
        depth = min(count, 2 * depth)


def resample_restrain(
    train: Dataset,
    test: Datasets,
    *,
    model: Model,
    output: str | Path,
    options: RestrainOptions,
    search: SearchOptions = SearchOptions(),
    draw: Draw | None = None,
) -> Manifest:
    """Resample training queries by their similarity to the test queries.

    ``output/interpolation`` and ``output/extrapolation`` are BEIR folders with the same test
    queries. With several sizes they are in ``output/size-N``, with several k in ``output/k-K``.

    Args:
        train: the collection of the training queries.
        test: the collection of the test queries; several over one corpus count as one.
        model: the encoder whose query embeddings are compared by cosine.
        output: the folder; must not exist, or be empty.
        options: sizes or ks, splits and seed.
        search: how queries are encoded.
        draw: see :data:`~beir_cocodr.resampling.resample.Draw`.

    Returns:
        The manifest, which is in the folder too.

    Raises:
        InputError: Collections, encoder, output or options must be corrected; nothing is written
            then.

    Source: Zhan et al., 2022, section 4.1.2.
    """
    output = output_path(output)
    check_method(options.method)
    pair = load_pair(
        train,
        test,
        output,
        options,
        search,
    )
    check_targets(options, len(pair.train.queries))
    inputs = embed_inputs(pair, model, search)
    ranks, depth = ranks_for_targets(inputs.train, inputs.test.load().numpy(), options)
    with naming(pair.train.name):
        chosen = restrain(ranks, depth, options)
    parameters = RestrainParameters(
        sizes=list(options.sizes),
        k=[sets.k for sets in chosen.sets],
        exclude_top=chosen.exclude_top,
        pool=chosen.pool,
        seed=options.seed,
        search=options.method,
    )
    test_rows = np.arange(len(inputs.test))
    resampled: list[ResampledSet] = []
    for sets in chosen.sets:
        folder = ""
        if len(chosen.sets) > 1:
            folder = _folder(sets)
        _report_size(sets, len(test_rows))
        resampled += _resampled_sets(sets, folder, test_rows)
    method = Method("restrain", parameters, options.base)
    return write_resampled(output, inputs, method, resampled, draw)


def _report_size(sets: TrainingSets, tests: int) -> None:
    count = len(sets.interpolation)
    if sets.size is not None and sets.k == 1 and count > sets.size:
        log.warning(
            "--size %d is impossible: the nearest training queries of %d test queries are %d "
            "already (k = 1)",
            sets.size,
            tests,
            count,
        )
    else:
        log.info("k = %d: %d training queries", sets.k, count)


def _folder(sets: TrainingSets) -> str:
    if sets.size is None:
        return f"k-{sets.k}/"
    return f"size-{sets.size}/"


def _resampled_sets(
    sets: TrainingSets,
    folder: str,
    test_rows: Ints,
) -> list[ResampledSet]:
    label = f"k-{sets.k}" if sets.size is None else f"size-{short_size(sets.size)}"
    rows = {"interpolation": sets.interpolation, "extrapolation": sets.extrapolation}
    resampled = []
    for regime, train_rows in rows.items():
        resampled.append(
            ResampledSet(
                folder=f"{folder}{regime}",
                label=label,
                regime=regime,
                train=train_rows,
                test=test_rows,
                size=sets.size,
                k=sets.k,
            )
        )
    return resampled
