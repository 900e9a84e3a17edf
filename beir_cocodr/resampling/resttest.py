"""ReSTTest: buckets of queries, each held out once, from datasets to folders."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.clusters import cluster_queries
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.resampling import ResttestOptions
from beir_cocodr.resampling.manifest import Manifest, ResttestParameters
from beir_cocodr.resampling.resample import ResampledSet, embed_inputs, load_pair, write_resampled


def query_buckets(
    train: Floats, test: Floats, buckets: int = 5, seed: int = 42, ids: Sequence[str] | None = None
) -> tuple[Ints, Ints]:
    """Cluster training and test queries, (N, d) and (T, d), together by k-means on unit vectors:
    the bucket of every training query, (N,), and of every test query, (T,), from 0. An InputError
    for more ``buckets`` than there are distinct queries; ``ids``, (N + T,), name queries in
    messages.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    both = np.concatenate([train, test])
    try:
        clusters = cluster_queries(both, buckets, seed, normalize=True, ids=ids, min_size=1)
    except InputError as error:
        # The clusters are called otherwise here.
        message = (
            str(error).replace("--clusters", "--buckets").replace("clusters for", "buckets for")
        )
        raise InputError(message) from error
    return clusters.labels[: len(train)], clusters.labels[len(train) :]


def resttest(train_buckets: Ints, test_buckets: Ints, buckets: int) -> list[ResampledSet]:
    """Hold out every bucket once: a test query is extrapolation in exactly one of the results,
    interpolation in others. An InputError names a bucket that leaves nothing to train on, or to
    test in a regime.

    Args:
        train_buckets, test_buckets: (N,) and (T,), the bucket of every query, from 0.
        buckets: how many there are.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    sets = []
    for bucket in range(buckets):
        train = np.flatnonzero(train_buckets != bucket)
        inside = test_buckets == bucket
        name = f"bucket {bucket + 1} of {buckets}"
        way = "lower --buckets, or take another --seed or --encoder"
        if not len(train):
            raise InputError(
                f"no training queries are left outside {name}, which holds them all: {way}"
            )
        if not inside.any():
            raise InputError(
                f"{name} has no test queries, so that nothing is extrapolation there: {way}"
            )
        if inside.all():
            raise InputError(
                f"{name} has all test queries, so that nothing is interpolation there: {way}"
            )
        folder = f"bucket-{bucket + 1}"
        for regime, tested in (("interpolation", ~inside), ("extrapolation", inside)):
            place, label, rows = (
                f"{folder}/{regime}",
                f"{folder}-of-{buckets}",
                np.flatnonzero(tested),
            )
            sets.append(ResampledSet(place, label, regime, train, rows, bucket=bucket + 1))
    return sets


def resample_resttest(
    train: str,
    test: str | Sequence[str],
    encoder: str,
    output: Path,
    options: ResttestOptions,
    search: SearchOptions = SearchOptions(),
) -> Manifest:
    """Resample training and test queries by buckets, each held out once; write the collections and
    their manifest. Arguments and errors are those of `resample_restrain`.

    ``output/bucket-B/interpolation`` and ``output/bucket-B/extrapolation`` are BEIR folders with
    the same training queries, those outside bucket B; the first has the test queries outside it,
    the second those inside.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    buckets, pair = options.buckets, load_pair(train, test, output, options, search)
    if buckets < 2 or buckets > len(pair.test.queries):
        raise InputError(
            f"--buckets {buckets}: give 2 to {len(pair.test.queries)}, as each holds out test queries"
        )
    inputs = embed_inputs(pair, encoder, options, search)
    ids = [*pair.train.queries, *pair.test.queries]
    found = query_buckets(
        inputs.train.load().numpy(), inputs.test.load().numpy(), buckets, options.seed, ids
    )
    counts = (np.bincount(part, minlength=buckets).tolist() for part in found)
    parameters = ResttestParameters(buckets, options.seed, *counts)
    return write_resampled(
        output, inputs, "resttest", parameters, resttest(*found, buckets), options.base
    )
