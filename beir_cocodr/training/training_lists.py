"""The documents that a query's teacher and student compare."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from beir_cocodr.training.distill_options import DistillOptions

#: Stands where a query has fewer documents than the list has places.
EMPTY = -1


def draw_list(
    positives: npt.NDArray[np.int64],
    bm25: npt.NDArray[np.int64],
    hard: npt.NDArray[np.int64],
    options: DistillOptions,
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """One query's D_q: relevant documents, some of BM25's best and some of the student's own.

    Args:
        positives: (p,) corpus rows, at least one.
        bm25, hard: candidates without known positives; what BM25 gave is not drawn again from ``hard``.

    Returns:
        (n,) rows, no one twice, :data:`EMPTY` in places that nothing is left for. Where the lists overlap or
        run short, the places of one are filled from the other.

    Source: MRL, section 4.2.
    """
    kept = (
        positives if len(positives) <= options.positives else rng.choice(positives, options.positives, False)
    )
    first = rng.permutation(bm25)
    second = rng.permutation(np.setdiff1d(hard, first[: options.m_bm25]))
    chosen = np.concatenate([first[: options.m_bm25], second[: options.m_hard]])
    wanted = options.m_bm25 + options.m_hard
    rest = np.concatenate([second[options.m_hard :], first[options.m_bm25 :]])
    rest = rest[~np.isin(rest, chosen)]
    chosen = np.concatenate([chosen, list(dict.fromkeys(rest.tolist()))[: wanted - len(chosen)]]).astype(
        np.int64
    )
    drawn = np.full(options.list_size, EMPTY, np.int64)
    drawn[: len(kept)] = kept
    drawn[options.positives : options.positives + len(chosen)] = chosen
    return drawn
