"""ReSTTest: buckets of queries, each held out once, from datasets to folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.clusters import cluster_queries
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.resampling import ResttestOptions
from beir_cocodr.resampling.manifest import Manifest, ResttestParameters
from beir_cocodr.resampling.outputs import ResampledSet, embed_inputs, load_pair, write_resampled


@dataclass(frozen=True)
class HeldOut:
    """A bucket held out, from 1; ascending rows: training queries outside, test queries outside, and inside it."""

    bucket: int
    train: Ints
    interpolation: Ints
    extrapolation: Ints


def query_buckets(
    train: Floats, test: Floats, buckets: int = 5, seed: int = 42, ids: Sequence[str] | None = None
) -> tuple[Ints, Ints]:
    """Cluster training and test queries together by k-means on unit vectors.

    Args:
        train, test: (N, d) and (T, d) embeddings.
        buckets: at least 2 (the paper's 5), at most as many as there are distinct queries, else an InputError.
        seed: of k-means.
        ids: (N + T,) query ids, to name queries in messages.

    Returns:
        The bucket of every training query, (N,), and of every test query, (T,), from 0.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    if buckets < 2:
        raise InputError(f"--buckets {buckets}: one is held out and the others train, so give 2 or more")
    both = np.concatenate([train, test])
    try:
        clusters = cluster_queries(both, buckets, seed, normalize=True, ids=ids, min_size=1)
    except InputError as error:
        # The clusters are called otherwise here.
        message = str(error).replace("--clusters", "--buckets").replace("clusters for", "buckets for")
        raise InputError(message) from error
    return clusters.labels[: len(train)], clusters.labels[len(train) :]


def resttest(train_buckets: Ints, test_buckets: Ints, buckets: int) -> list[HeldOut]:
    """Hold out every bucket once: a test query is extrapolation in exactly one of the results, interpolation in others.

    Args:
        train_buckets, test_buckets: (N,) and (T,), the bucket of every query, from 0.
        buckets: how many there are; an InputError names one that leaves nothing to train on, or to test in a regime.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    held_out = []
    for bucket in range(buckets):
        train = np.flatnonzero(train_buckets != bucket)
        inside = test_buckets == bucket
        name = f"bucket {bucket + 1} of {buckets}"
        way = "lower --buckets, or take another --seed or --encoder"
        if not len(train):
            raise InputError(f"no training queries are left outside {name}, which holds them all: {way}")
        if not inside.any():
            raise InputError(f"{name} has no test queries, so that nothing is extrapolation there: {way}")
        if inside.all():
            raise InputError(f"{name} has all test queries, so that nothing is interpolation there: {way}")
        held_out.append(HeldOut(bucket + 1, train, np.flatnonzero(~inside), np.flatnonzero(inside)))
    return held_out


def resample_resttest(
    train: str,
    test: str | Sequence[str],
    encoder: str,
    output: Path,
    options: ResttestOptions,
    search: SearchOptions = SearchOptions(),
) -> Manifest:
    """Resample training and test queries by buckets, each held out once; write the collections and their manifest. An
    InputError names what has to be corrected; nothing is written then.

    ``output/bucket-B/interpolation`` and ``output/bucket-B/extrapolation`` are BEIR folders with the same training
    queries, those outside bucket B; the first has the test queries outside it, the second those inside.

    Args:
        train, test, encoder, output, search: as for `resample_restrain`.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    buckets, pair = options.buckets, load_pair(train, test, output, options, search)
    if buckets < 2 or buckets > len(pair.test.queries):
        raise InputError(f"--buckets {buckets}: give 2 to {len(pair.test.queries)}, as each holds out test queries")
    inputs = embed_inputs(pair, encoder, options, search)
    ids = [*pair.train.queries, *pair.test.queries]
    found = query_buckets(inputs.train.load().numpy(), inputs.test.load().numpy(), buckets, options.seed, ids)
    counts = (np.bincount(part, minlength=buckets).tolist() for part in found)
    parameters = ResttestParameters(buckets, options.seed, *counts)
    sets = [one for held_out in resttest(*found, buckets) for one in _sets(held_out, buckets)]
    return write_resampled(output, inputs, "resttest", parameters, sets, options.base)


def _sets(held_out: HeldOut, buckets: int) -> list[ResampledSet]:
    name, regimes = f"bucket-{held_out.bucket}", ("interpolation", "extrapolation")
    return [
        ResampledSet(f"{name}/{regime}", f"{name}-of-{buckets}", regime, held_out.train, rows, bucket=held_out.bucket)
        for regime, rows in zip(regimes, (held_out.interpolation, held_out.extrapolation), strict=True)
    ]
