"""ReSTTest from datasets to folders."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.errors import InputError
from beir_cocodr.resampling.draft_folder import refuse_taken
from beir_cocodr.resampling.inputs import embed_inputs
from beir_cocodr.resampling.manifest import checked_base
from beir_cocodr.resampling.outputs import ResampledSet, write_resampled
from beir_cocodr.resampling.resttest import HeldOut, query_buckets, resttest
from beir_cocodr.resampling.train_test import TrainTest

log = logging.getLogger(__name__)


def resample_resttest(
    train: str,
    test: str,
    encoder: str,
    output: Path,
    *,
    buckets: int = 5,
    seed: int = 42,
    train_split: str = "train",
    test_split: str = "test",
    base: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Resample training and test queries by buckets, each held out once, and write the collections.

    ``output/bucket-B/interpolation`` and ``output/bucket-B/extrapolation`` are BEIR folders with the same
    training queries, those outside bucket B; the first judges by the test queries outside it, the second by
    those inside. Over all buckets a test query is extrapolation once, and interpolation in all the others.

    Args:
        train, test, encoder, output, train_split, test_split, base, **options: as for `resample_restrain`.
        buckets: how many; the paper has 5.
        seed: of k-means.

    Returns:
        The content of ``output/manifest.json``.

    Raises:
        InputError: what has to be corrected; nothing is written then.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    refuse_taken(output)
    if base is not None:
        checked_base(base)
    pair = TrainTest.load(train, test, train_split, test_split)
    pair.refuse_unusable()
    if buckets < 2 or buckets > len(pair.test.queries):
        raise InputError(
            f"--buckets {buckets}: give 2 to {len(pair.test.queries)}, as every bucket holds out test queries"
        )
    inputs = embed_inputs(pair, (train_split, test_split), encoder, **options)
    ids = [*pair.train.queries, *pair.test.queries]
    train_buckets, test_buckets = query_buckets(inputs.train.load(), inputs.test.load(), buckets, seed, ids)
    found = resttest(train_buckets, test_buckets, buckets)
    parameters = {
        "buckets": buckets,
        "seed": seed,
        "training_queries": np.bincount(train_buckets, minlength=buckets).tolist(),
        "test_queries": np.bincount(test_buckets, minlength=buckets).tolist(),
    }
    sets = [one for held_out in found for one in _sets(held_out, buckets)]
    return write_resampled(output, inputs, "resttest", parameters, sets, base)


def _sets(held_out: HeldOut, buckets: int) -> list[ResampledSet]:
    regimes = {"interpolation": held_out.interpolation, "extrapolation": held_out.extrapolation}
    return [
        ResampledSet(
            f"bucket-{held_out.bucket}/{regime}",
            f"bucket-{held_out.bucket}-of-{buckets}",
            regime,
            {"bucket": held_out.bucket},
            held_out.train,
            rows,
        )
        for regime, rows in regimes.items()
    ]
