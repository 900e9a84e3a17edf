"""ReSTrain from datasets to folders."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.resampling.draft_folder import refuse_taken
from beir_cocodr.resampling.inputs import embed_inputs
from beir_cocodr.resampling.manifest import checked_base, short_size
from beir_cocodr.resampling.outputs import ResampledSet, write_resampled
from beir_cocodr.resampling.rank_search import ranks_for_targets
from beir_cocodr.resampling.restrain import TrainingSets, refuse_targets, restrain
from beir_cocodr.resampling.similarity import refuse_method
from beir_cocodr.resampling.train_test import TrainTest

log = logging.getLogger(__name__)


def resample_restrain(
    train: str,
    test: str,
    encoder: str,
    output: Path,
    *,
    sizes: Sequence[int] = (),
    ks: Sequence[int] = (),
    exclude_top: int | None = None,
    seed: int = 42,
    train_split: str = "train",
    test_split: str = "test",
    method: str = "exact",
    base: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Resample training queries by their similarity to the test queries, and write the collections.

    ``output/interpolation`` and ``output/extrapolation`` are BEIR folders with the same test queries; with
    several sizes they stand in ``output/size-N``, with several k in ``output/k-K``.

    Args:
        train, test: datasets as the command line names them.
        encoder: whose query embeddings are compared by cosine.
        output: the folder; must not be there, or be empty.
        sizes, ks, exclude_top, seed: as for `restrain`.
        train_split, test_split: splits of their judgements.
        method: of the search, see `nearest`.
        base: name in ids of ir_datasets; default: that of the training set.
        **options: passed on to :class:`QueryEncoder`.

    Returns:
        The content of ``output/manifest.json``.

    Raises:
        InputError: what has to be corrected; nothing is written then.

    Source: Zhan et al., 2022, section 4.1.2.
    """
    refuse_taken(output)
    refuse_method(method)
    if base is not None:
        checked_base(base)
    pair = TrainTest.load(train, test, train_split, test_split)
    pair.refuse_unusable()
    refuse_targets(sizes, ks, exclude_top, len(pair.train.queries))
    inputs = embed_inputs(pair, (train_split, test_split), encoder, **options)
    ranks, depth = ranks_for_targets(inputs.train, inputs.test.load(), sizes, ks, exclude_top, method)
    found = restrain(ranks, depth, sizes=sizes, ks=ks, exclude_top=exclude_top, seed=seed)
    for chosen in found.sets:
        _say(chosen, len(inputs.test))
    parameters = {
        "sizes": list(sizes),
        "k": [chosen.k for chosen in found.sets],
        "exclude_top": found.exclude_top,
        "pool": found.pool,
        "seed": seed,
        "search": method,
    }
    several = len(found.sets) > 1
    sets = [one for chosen in found.sets for one in _sets(chosen, several, len(inputs.test))]
    return write_resampled(output, inputs, "restrain", parameters, sets, base)


def _say(chosen: TrainingSets, tests: int) -> None:
    count = len(chosen.interpolation)
    if chosen.size is not None and chosen.k == 1 and count > chosen.size:
        log.warning(
            "--size %d cannot be had: the nearest training queries of %d test queries are %d already (k = 1)",
            chosen.size,
            tests,
            count,
        )
    else:
        log.info("k = %d: %d training queries", chosen.k, count)


def _sets(chosen: TrainingSets, several: bool, tests: int) -> list[ResampledSet]:
    if chosen.size is None:
        folder = label = f"k-{chosen.k}"
    else:
        folder, label = f"size-{chosen.size}", f"size-{short_size(chosen.size)}"
    facts = {"size": chosen.size, "k": chosen.k}
    regimes = {"interpolation": chosen.interpolation, "extrapolation": chosen.extrapolation}
    return [
        ResampledSet(
            f"{folder}/{regime}" if several else regime, label, regime, facts, rows, np.arange(tests)
        )
        for regime, rows in regimes.items()
    ]
