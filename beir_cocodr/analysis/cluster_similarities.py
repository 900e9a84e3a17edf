"""Which clusters of source queries are nearest to the queries of a target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def cluster_similarities(
    source: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], target: npt.NDArray[np.float32], k: int
) -> npt.NDArray[np.float64]:
    """The mean dot product of a cluster's queries with a target's, over all pairs, for every cluster.

    Args:
        source: (Q, d) query embeddings.
        labels: (Q,) their clusters, in 0..k-1.
        target: (T, d) query embeddings, T at least 1.
        k: clusters.

    Returns:
        (k,) float64, −inf for a cluster without queries.

    Source: COCO-DR, section 5.5 ("based on average dot product").
    """
    # The mean over all pairs is the product of the two means.
    with_target = source.astype(np.float64) @ target.astype(np.float64).mean(axis=0)  # (Q,)
    sizes = np.bincount(labels, minlength=k)
    sums = np.bincount(labels, weights=with_target, minlength=k)
    means: npt.NDArray[np.float64] = np.divide(sums, sizes, out=np.full(k, -np.inf), where=sizes > 0)
    return means
