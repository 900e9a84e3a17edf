"""ReSTTest: buckets of queries, each held out once."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Bools, Floats, Ints
from beir_cocodr.data.clusters import cluster_queries
from beir_cocodr.data.collection import Dataset, Datasets
from beir_cocodr.errors import InputError
from beir_cocodr.io import output_path
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.resampling import ResttestOptions
from beir_cocodr.resampling.manifest import Manifest, ResttestParameters
from beir_cocodr.resampling.resample import (
    Draw,
    Method,
    ResampledSet,
    embed_inputs,
    load_pair,
    write_resampled,
)
from beir_cocodr.retrieval.resolve import Model

_WAY_OUT = "lower --buckets, or choose another --seed or --encoder"


def query_buckets(
    train: Floats,
    test: Floats,
    buckets: int = 5,
    seed: int = 42,
    ids: Sequence[str] | None = None,
) -> tuple[Ints, Ints]:
    """Cluster training and test queries together, by k-means on unit vectors.

    Args:
        train: (N, d) embeddings.
        test: (T, d) embeddings.
        buckets: the number of buckets.
        seed: of the clusters.
        ids: (N + T,) names of the queries in messages.

    Returns:
        The (N,) buckets of the training queries and the (T,) buckets of the test queries, from 0.

    Raises:
        InputError: There are more buckets than distinct queries.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    both = np.concatenate([train, test])
    try:
        clusters = cluster_queries(
            both,
            buckets,
            seed,
            normalize=True,
            ids=ids,
            min_size=1,
        )
    except InputError as error:
        # Here, clusters have another name.
        message = str(error).replace("--clusters", "--buckets")
        raise InputError(message.replace("clusters for", "buckets for")) from error
    return clusters.labels[: len(train)], clusters.labels[len(train) :]


def resttest(
    train_buckets: Ints,
    test_buckets: Ints,
    buckets: int,
) -> list[ResampledSet]:
    """Hold out every bucket once.

    A test query is extrapolation in exactly one of the results, and interpolation in the others.

    Args:
        train_buckets: (N,) the bucket of every training query, from 0.
        test_buckets: (T,) the bucket of every test query, from 0.
        buckets: the number of buckets.

    Raises:
        InputError: A bucket leaves nothing to train on, or nothing to test in a regime.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    sets = []
    for bucket in range(buckets):
        train = np.flatnonzero(train_buckets != bucket)
        is_inside = test_buckets == bucket
        _check_bucket(f"bucket {bucket + 1} of {buckets}", train, is_inside)
        tests = {
            "interpolation": np.flatnonzero(~is_inside),
            "extrapolation": np.flatnonzero(is_inside),
        }
        for regime, rows in tests.items():
            sets.append(
                ResampledSet(
                    folder=f"bucket-{bucket + 1}/{regime}",
                    label=f"bucket-{bucket + 1}-of-{buckets}",
                    regime=regime,
                    train=train,
                    test=rows,
                    bucket=bucket + 1,
                )
            )
    return sets


def _check_bucket(name: str, train: Ints, is_inside: Bools) -> None:
    if not len(train):
        raise InputError(
            f"no training queries are left outside {name}, which holds them all: {_WAY_OUT}"
        )
    if not is_inside.any():
        raise InputError(f"{name} has no test queries, so nothing is extrapolation: {_WAY_OUT}")
    if is_inside.all():
        raise InputError(f"{name} has all test queries, so nothing is interpolation: {_WAY_OUT}")


def resample_resttest(
    train: Dataset,
    test: Datasets,
    *,
    model: Model,
    output: str | Path,
    options: ResttestOptions = ResttestOptions(),
    search: SearchOptions = SearchOptions(),
    draw: Draw | None = None,
) -> Manifest:
    """Resample training and test queries by buckets, each held out once.

    ``output/bucket-B/interpolation`` and ``output/bucket-B/extrapolation`` are BEIR folders with
    the same training queries, those outside bucket B. The first has the test queries outside it,
    the second those inside.

    Args:
        train: the collection of the training queries.
        test: the collection of the test queries; several over one corpus count as one.
        model: the encoder whose query embeddings are clustered.
        output: the folder; must not exist, or be empty.
        options: number of buckets, splits and seed.
        search: how queries are encoded.
        draw: see :data:`~beir_cocodr.resampling.resample.Draw`.

    Returns:
        The manifest, which is in the folder too.

    Raises:
        InputError: Collections, encoder, output or options must be corrected; nothing is written
            then.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    output = output_path(output)
    buckets = options.buckets
    pair = load_pair(
        train,
        test,
        output,
        options,
        search,
    )
    tests = len(pair.test.queries)
    if tests < 2:
        raise InputError(
            f"{pair.test.name}: the {pair.test.split} split has {tests} judged query, and each of "
            "at least two buckets holds one out; choose another test set"
        )
    if buckets < 2 or buckets > tests:
        raise InputError(
            f"--buckets {buckets}: give 2 to {tests}, as each bucket holds out some of the {tests} "
            f"test queries of {pair.test.name}"
        )
    inputs = embed_inputs(pair, model, search)
    train_buckets, test_buckets = query_buckets(
        inputs.train.load().numpy(),
        inputs.test.load().numpy(),
        buckets,
        options.seed,
        ids=[*pair.train.queries, *pair.test.queries],
    )
    parameters = ResttestParameters(
        buckets=buckets,
        seed=options.seed,
        training_queries=np.bincount(train_buckets, minlength=buckets).tolist(),
        test_queries=np.bincount(test_buckets, minlength=buckets).tolist(),
    )
    sets = resttest(train_buckets, test_buckets, buckets)
    method = Method("resttest", parameters, options.base)
    return write_resampled(output, inputs, method, sets, draw)
